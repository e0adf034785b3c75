"""Policies that leave the package, and policies of other packages that come in."""
