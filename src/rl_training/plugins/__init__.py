"""Code and packages from outside: a user's own files, and packages that are not installed."""
