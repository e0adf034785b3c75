"""Checks of a run's settings before its first step."""
