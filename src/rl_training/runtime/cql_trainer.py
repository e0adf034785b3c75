"""Train CQL."""

from rl_training.runtime.training import train_function

train_cql = train_function("cql")
