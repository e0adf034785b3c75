"""Train TQC."""

from rl_training.runtime.training import TrainFunction

train_tqc = TrainFunction("tqc")
