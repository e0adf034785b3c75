"""Train reinforcement-learning agents. Importing this package does not import torch: names load when used."""

from typing import TYPE_CHECKING

from rl_training.experiment.registry import BUILT_IN_CLASSES
from rl_training.exports import lazy_exports
from rl_training.providers import provide

__version__ = "0.1.0"

provide("record_random_actions", "rl_training.runtime.recording:record_random_actions")
provide("train_function", "rl_training.runtime.trainer_modules:train_function")

if TYPE_CHECKING:
    from rl_training import api as api
    from rl_training import bundle as bundle
    from rl_training import data as data
    from rl_training import envs as envs
    from rl_training import experiment as experiment
    from rl_training import runtime as runtime
    from rl_training import studies as studies
    from rl_training.api.algorithms import *  # noqa: F403
    from rl_training.experiment.config import TrainConfig as TrainConfig
    from rl_training.experiment.default_manager import (
        DefaultExperimentManager as DefaultExperimentManager,
    )
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "api.algorithms": " ".join(BUILT_IN_CLASSES),
            "experiment.config": "TrainConfig",
            "experiment.default_manager": "DefaultExperimentManager",
        },
        submodules=("api", "bundle", "data", "envs", "experiment", "runtime", "studies"),
        also=("__version__",),
    )
