"""Train QR-DQN."""

from rl_training.runtime.training import TrainFunction

train_qrdqn = TrainFunction("qrdqn")
