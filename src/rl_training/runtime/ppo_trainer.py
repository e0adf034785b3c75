"""Train PPO."""

from rl_training.runtime.run import train_function

train_ppo = train_function("ppo")
