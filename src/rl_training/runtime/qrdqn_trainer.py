"""Train QR-DQN."""

from rl_training.runtime.run import train_function

train_qrdqn = train_function("qrdqn")
