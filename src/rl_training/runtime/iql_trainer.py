"""Train IQL."""

from rl_training.runtime.run import train_function

train_iql = train_function("iql")
