"""Train reinforcement-learning agents. Importing this package does not import torch: names load when used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_training.api.algorithms import AWAC, BC, CQL, DQN, IQL, PPO, SAC, TD3BC
    from rl_training.experiment.config import TrainConfig

__version__ = "0.1.0"

__all__ = ["AWAC", "BC", "CQL", "DQN", "IQL", "PPO", "SAC", "TD3BC", "TrainConfig", "__version__"]

_HOMES = {
    "TrainConfig": "rl_training.experiment.config",
    "PPO": "rl_training.api.algorithms",
    "DQN": "rl_training.api.algorithms",
    "SAC": "rl_training.api.algorithms",
    "CQL": "rl_training.api.algorithms",
    "AWAC": "rl_training.api.algorithms",
    "IQL": "rl_training.api.algorithms",
    "TD3BC": "rl_training.api.algorithms",
    "BC": "rl_training.api.algorithms",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
