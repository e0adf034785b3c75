"""The score of a policy: from evaluation episodes, or estimated from a dataset."""
