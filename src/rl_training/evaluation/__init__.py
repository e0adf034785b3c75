"""The score of a policy: episodes in environments of their own, or an estimate from a dataset."""
