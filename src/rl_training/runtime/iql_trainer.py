"""Train IQL."""

from rl_training.runtime.training import TrainFunction

train_iql = TrainFunction("iql")
