"""Imports models of Stable-Baselines3 without unpickling them."""
