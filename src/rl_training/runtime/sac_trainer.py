"""Train SAC."""

from rl_training.runtime.training import train_function

train_sac = train_function("sac")
