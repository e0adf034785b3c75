"""Train TD3BC."""

from rl_training.runtime.run import train_function

train_td3_bc = train_function("td3_bc")
