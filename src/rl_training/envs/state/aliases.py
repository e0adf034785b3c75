"""Types that the modules of environments share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv

Array = npt.NDArray[Any]
Obs = npt.NDArray[np.float32]
Env = gym.Env[Any, Any]
Vector = VectorEnv[Any, Any, Any]
State = dict[str, Any]
"""What a checkpoint holds of an environment."""
Info = dict[str, Any]
Result = tuple[Any, Any, Any, Any, Info]
"""What `step` returns: observation, reward, terminated, truncated, info; of a vector environment, in arrays."""
MakeEnv = Callable[[], Env]
RewardTransform = Callable[[Array], Array]
