"""Checks of a run's settings before its first environment step."""
