"""Train DDPG."""

from rl_training.runtime.training import TrainFunction

train_ddpg = TrainFunction("ddpg")
