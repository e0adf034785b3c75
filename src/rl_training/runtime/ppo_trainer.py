"""Train PPO."""

from rl_training.runtime.training import train_function

train_ppo = train_function("ppo")
