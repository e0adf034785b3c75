"""Transitions, the buffers that hold them, and the spaces they live in."""
