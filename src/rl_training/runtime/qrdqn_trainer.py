"""Train QR-DQN."""

from rl_training.runtime.training import train_function

train_qrdqn = train_function("qrdqn")
