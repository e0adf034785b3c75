"""Train IQL."""

from rl_training.runtime.training import train_function

train_iql = train_function("iql")
