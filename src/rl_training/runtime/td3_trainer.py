"""Train TD3."""

from rl_training.runtime.training import TrainFunction

train_td3 = TrainFunction("td3")
