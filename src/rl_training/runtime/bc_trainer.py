"""Train BC."""

from rl_training.runtime.training import train_function

train_bc = train_function("bc")
