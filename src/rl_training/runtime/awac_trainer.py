"""Train AWAC."""

from rl_training.runtime.training import TrainFunction

train_awac = TrainFunction("awac")
