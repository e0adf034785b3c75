"""One class per built-in algorithm, made from the registry: learn, evaluate, predict, save, load."""

from __future__ import annotations

import types
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy.typing as npt

from rl_training.algorithms.base import Algorithm
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import BUILT_IN_CLASSES, get_algorithm_spec
from rl_training.runtime.callbacks import AnyCallback, Callback, CallbackList
from rl_training.runtime.run import run_training
from rl_training.runtime.run_utils import save_training_checkpoint
from rl_training.runtime.trainer import TrainerState, TrainResult
from rl_training.runtime.workflows import evaluate_algorithm, load_algorithm, predict, stored_step

SelfT = TypeVar("SelfT", bound="AlgorithmAPI")


class AlgorithmAPI:
    """Trains one algorithm and then acts with it."""

    algo: ClassVar[str]

    def __init_subclass__(cls, *, algo: str | None = None) -> None:
        cls.algo = algo or cls.algo

    def __init__(self, config: TrainConfig) -> None:
        if config.algo != self.algo:
            raise ConfigError(f"{type(self).__name__} trains '{self.algo}', but the configuration says '{config.algo}'")
        self.config = config
        self._algorithm: Algorithm[Any] | None = None
        self._global_step = 0
        self._metadata: dict[str, Any] = {}

    def learn(self, *, callbacks: Sequence[AnyCallback] | None = None) -> TrainResult:
        """Train a new run from the start, in a new run folder."""
        keeper = _AlgorithmKeeper()
        result = run_training(self.config, callbacks=[*CallbackList(callbacks).callbacks, keeper])
        self._algorithm = keeper.algorithm
        self._global_step = int(result.metrics["global_step"])
        return result

    def evaluate(self, num_episodes: int | None = None) -> dict[str, float]:
        """Mean and spread of the return of the deterministic policy, on the run's evaluation seeds."""
        return evaluate_algorithm(self.config, self._trained(), num_episodes, self._metadata)

    def predict(self, obs: npt.ArrayLike, *, deterministic: bool = True) -> npt.NDArray[Any]:
        """Action for one observation, or actions for a batch. Nothing is read from disk."""
        return predict(self._trained(), obs, deterministic=deterministic)

    def save(self, path: str | Path) -> Path:
        """Write the trained policy as a checkpoint folder (without replay: to go on training, use the run's own)."""
        return save_training_checkpoint(
            path,
            config=self.config,
            algorithm_state=self._trained().state_dict(),
            trainer_state={},
            metadata={"global_step": self._global_step},
        )

    @classmethod
    def load(cls: type[SelfT], path: str | Path, *, device: str = "auto") -> SelfT:
        """Read what `save` wrote, or a run's checkpoint, or a run folder's last one."""
        config, algorithm, state = load_algorithm(path, device=device)
        if config.algo != cls.algo:
            raise CheckpointError(f"'{path}' holds '{config.algo}', not '{cls.algo}'")
        loaded = cls(config)
        loaded._algorithm = algorithm
        loaded._global_step = stored_step(state)
        loaded._metadata = state.metadata
        return loaded

    def _trained(self) -> Algorithm[Any]:
        if self._algorithm is None:
            raise ConfigError(f"this {type(self).__name__} is not trained yet: call learn() or load() first")
        return self._algorithm


class _AlgorithmKeeper(Callback):
    """Keeps hold of what was trained."""

    algorithm: Algorithm[Any] | None = None

    def on_train_end(self, trainer: TrainerState, result: TrainResult) -> None:
        self.algorithm = trainer.algorithm


def _make_class(name: str, algo: str) -> type[AlgorithmAPI]:
    summary = get_algorithm_spec(algo).summary
    attributes = {"__module__": __name__, "__doc__": f"{summary[:1].upper()}{summary[1:]}."}
    made: type[AlgorithmAPI] = types.new_class(
        name, (AlgorithmAPI,), {"algo": algo}, lambda body: body.update(attributes)
    )
    return made


if TYPE_CHECKING:

    def __getattr__(name: str) -> type[AlgorithmAPI]: ...
else:
    globals().update({name: _make_class(name, algo) for name, algo in BUILT_IN_CLASSES.items()})
    __all__ = ["AlgorithmAPI", *BUILT_IN_CLASSES]
