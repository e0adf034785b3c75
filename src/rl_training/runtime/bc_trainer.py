"""Train BC."""

from rl_training.runtime.training import TrainFunction

train_bc = TrainFunction("bc")
