"""Train reinforcement-learning agents. Importing this package does not import torch: names load when used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_training.api.algorithms import (
        A2C,
        AWAC,
        BC,
        CQL,
        DDPG,
        DQN,
        HER,
        IQL,
        PPO,
        QRDQN,
        SAC,
        TD3,
        TD3BC,
        TQC,
        CrossQ,
    )
    from rl_training.experiment.config import TrainConfig

__version__ = "0.1.0"

__all__ = [
    "A2C",
    "AWAC",
    "BC",
    "CQL",
    "DDPG",
    "DQN",
    "HER",
    "IQL",
    "PPO",
    "QRDQN",
    "SAC",
    "TD3",
    "TD3BC",
    "TQC",
    "CrossQ",
    "TrainConfig",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    home = "experiment.config" if name == "TrainConfig" else "api.algorithms"
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
