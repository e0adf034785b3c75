"""Train CrossQ."""

from rl_training.runtime.training import train_function

train_crossq = train_function("crossq")
