"""Observation and action spaces: Gymnasium's, the stored form, the form networks read."""
