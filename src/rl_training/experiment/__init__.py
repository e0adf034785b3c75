"""Configuration, registry, run folder, checkpoints, metrics and the experiment manager."""

from typing import TYPE_CHECKING

from rl_training.exports import lazy_exports

if TYPE_CHECKING:
    from rl_training.experiment.checkpointing import CheckpointState as CheckpointState
    from rl_training.experiment.checkpointing import load_checkpoint as load_checkpoint
    from rl_training.experiment.checkpointing import save_checkpoint as save_checkpoint
    from rl_training.experiment.config import TrainConfig as TrainConfig
    from rl_training.experiment.default_manager import (
        DefaultExperimentManager as DefaultExperimentManager,
    )
    from rl_training.experiment.registry import AlgorithmSpec as AlgorithmSpec
    from rl_training.experiment.registry import Loop as Loop
    from rl_training.experiment.registry import get_algorithm_spec as get_algorithm_spec
    from rl_training.experiment.registry import list_algorithm_specs as list_algorithm_specs
    from rl_training.experiment.registry import register_algorithm as register_algorithm
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "checkpointing": "CheckpointState load_checkpoint save_checkpoint",
            "config": "TrainConfig",
            "default_manager": "DefaultExperimentManager",
            "registry": "AlgorithmSpec Loop get_algorithm_spec list_algorithm_specs register_algorithm",
        },
    )
