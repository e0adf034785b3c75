"""What users call: one class per algorithm."""
