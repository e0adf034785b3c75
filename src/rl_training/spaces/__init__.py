"""What observations and actions look like: Gymnasium's spaces, the stored form, and the form networks read."""
