"""Train DQN."""

from rl_training.runtime.training import TrainFunction

train_dqn = TrainFunction("dqn")
