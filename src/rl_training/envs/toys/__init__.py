"""Small environments that need memory, action masks, or both: `rl_training.envs.toys:CartPoleNoVel`, ..."""

from rl_training.envs.toys.hidden_velocity import CartPoleNoVel, PendulumNoVel
from rl_training.envs.toys.masked import HiddenTarget, MostlyInvalid

__all__ = ["CartPoleNoVel", "HiddenTarget", "MostlyInvalid", "PendulumNoVel"]
