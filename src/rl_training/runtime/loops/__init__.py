"""The three training loops: on-policy, off-policy and offline."""
