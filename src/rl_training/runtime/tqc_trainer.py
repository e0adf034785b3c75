"""Train TQC."""

from rl_training.runtime.training import train_function

train_tqc = train_function("tqc")
