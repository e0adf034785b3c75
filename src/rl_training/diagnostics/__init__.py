"""The doctors: checks of environments and of exact resume."""
