"""Train reinforcement-learning agents. Importing this package does not import torch: names load when used."""

from typing import TYPE_CHECKING

from rl_training.exports import lazy_exports
from rl_training.providers import provide

__version__ = "0.1.0"

provide("record_random_actions", "rl_training.runtime.recording:record_random_actions")
provide("train_function", "rl_training.runtime.run:train_function")

if TYPE_CHECKING:
    from rl_training import api as api
    from rl_training import data as data
    from rl_training import envs as envs
    from rl_training import experiment as experiment
    from rl_training import runtime as runtime
    from rl_training.api.algorithms import A2C as A2C
    from rl_training.api.algorithms import AWAC as AWAC
    from rl_training.api.algorithms import BC as BC
    from rl_training.api.algorithms import CQL as CQL
    from rl_training.api.algorithms import DDPG as DDPG
    from rl_training.api.algorithms import DQN as DQN
    from rl_training.api.algorithms import HER as HER
    from rl_training.api.algorithms import IQL as IQL
    from rl_training.api.algorithms import PPO as PPO
    from rl_training.api.algorithms import QRDQN as QRDQN
    from rl_training.api.algorithms import SAC as SAC
    from rl_training.api.algorithms import TD3 as TD3
    from rl_training.api.algorithms import TD3BC as TD3BC
    from rl_training.api.algorithms import TQC as TQC
    from rl_training.api.algorithms import CrossQ as CrossQ
    from rl_training.experiment.config import TrainConfig as TrainConfig
    from rl_training.experiment.default_manager import DefaultExperimentManager as DefaultExperimentManager
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "api.algorithms": "A2C AWAC BC CQL DDPG DQN HER IQL PPO QRDQN SAC TD3 TD3BC TQC CrossQ",
            "experiment.config": "TrainConfig",
            "experiment.default_manager": "DefaultExperimentManager",
        },
        submodules=("api", "data", "envs", "experiment", "runtime"),
        also=("__version__",),
    )
