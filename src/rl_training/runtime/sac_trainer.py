"""Train SAC."""

from rl_training.runtime.run import train_function

train_sac = train_function("sac")
