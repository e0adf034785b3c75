"""Train CrossQ."""

from rl_training.runtime.training import TrainFunction

train_crossq = TrainFunction("crossq")
