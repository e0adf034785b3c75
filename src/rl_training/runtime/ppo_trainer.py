"""Train PPO."""

from rl_training.runtime.training import TrainFunction

train_ppo = TrainFunction("ppo")
