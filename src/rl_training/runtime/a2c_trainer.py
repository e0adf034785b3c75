"""Train A2C."""

from rl_training.runtime.run import train_function

train_a2c = train_function("a2c")
