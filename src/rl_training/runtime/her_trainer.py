"""Train SAC with hindsight replay."""

from rl_training.runtime.run import train_function

train_her = train_function("her")
