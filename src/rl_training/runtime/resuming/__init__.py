"""From a checkpoint back to a run: planned, checked, restored."""
