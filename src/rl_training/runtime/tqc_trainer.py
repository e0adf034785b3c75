"""Train TQC."""

from rl_training.runtime.run import train_function

train_tqc = train_function("tqc")
