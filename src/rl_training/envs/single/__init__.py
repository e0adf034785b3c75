"""One environment: making it, reading it, replaying it to a saved state."""
