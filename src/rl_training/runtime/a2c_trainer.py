"""Train A2C."""

from rl_training.runtime.training import TrainFunction

train_a2c = TrainFunction("a2c")
