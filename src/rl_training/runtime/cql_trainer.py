"""Train CQL."""

from rl_training.runtime.training import TrainFunction

train_cql = TrainFunction("cql")
