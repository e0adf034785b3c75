"""Train CQL."""

from rl_training.runtime.run import train_function

train_cql = train_function("cql")
