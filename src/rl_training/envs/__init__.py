"""Environments: making them, shaping their rewards, recording their episodes."""
