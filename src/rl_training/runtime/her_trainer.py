"""Train SAC with hindsight replay."""

from rl_training.runtime.training import TrainFunction

train_her = TrainFunction("her")
