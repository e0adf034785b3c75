"""The state of a simulator: what a checkpoint holds of it, and what it cannot."""
