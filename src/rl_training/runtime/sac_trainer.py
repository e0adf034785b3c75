"""Train SAC."""

from rl_training.runtime.training import TrainFunction

train_sac = TrainFunction("sac")
