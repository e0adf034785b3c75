"""Wrappers named in `env_kwargs.wrappers.list`."""
