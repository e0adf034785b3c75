"""The state of a simulator: the part that checkpoints save, and checks of the part they cannot save."""
