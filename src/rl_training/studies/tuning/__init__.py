"""Tuning: a search over settings, a race of the best on fresh seeds, and a comparison on seeds that nobody used."""
