"""Train BC."""

from rl_training.runtime.run import train_function

train_bc = train_function("bc")
