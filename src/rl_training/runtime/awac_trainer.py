"""Train AWAC."""

from rl_training.runtime.training import train_function

train_awac = train_function("awac")
