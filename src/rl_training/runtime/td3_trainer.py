"""Train TD3."""

from rl_training.runtime.run import train_function

train_td3 = train_function("td3")
