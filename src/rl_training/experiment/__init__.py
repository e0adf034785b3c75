"""Configuration, registry, checkpoints, logging and the experiment manager."""
