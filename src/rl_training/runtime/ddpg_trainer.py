"""Train DDPG."""

from rl_training.runtime.run import train_function

train_ddpg = train_function("ddpg")
