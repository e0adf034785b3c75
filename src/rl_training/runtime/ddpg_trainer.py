"""Train DDPG."""

from rl_training.runtime.training import train_function

train_ddpg = train_function("ddpg")
