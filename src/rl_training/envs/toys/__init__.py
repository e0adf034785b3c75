"""Small environments that need memory, action masks, or both: `rl_training.envs.toys:CartPoleWithoutVelocity`, ..."""

from rl_training.envs.toys.hidden_velocity import CartPoleWithoutVelocity, PendulumWithoutVelocity
from rl_training.envs.toys.masked import HiddenTarget, InvalidActions

__all__ = ["CartPoleWithoutVelocity", "HiddenTarget", "InvalidActions", "PendulumWithoutVelocity"]
