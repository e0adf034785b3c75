"""The loops and everything around them."""
