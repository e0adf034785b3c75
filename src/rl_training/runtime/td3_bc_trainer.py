"""Train TD3BC."""

from rl_training.runtime.training import TrainFunction

train_td3_bc = TrainFunction("td3_bc")
