"""Train DQN."""

from rl_training.runtime.training import train_function

train_dqn = train_function("dqn")
