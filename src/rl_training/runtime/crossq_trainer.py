"""Train CrossQ."""

from rl_training.runtime.run import train_function

train_crossq = train_function("crossq")
