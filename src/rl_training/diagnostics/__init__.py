"""Checks of environments: API, seeding and exact resume."""
