"""Environments given as Python objects: classes, functions, instances and vector environments."""
