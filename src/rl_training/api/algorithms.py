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
    """Base class: trains one algorithm, then evaluates it and predicts actions."""

    algo: ClassVar[str]

    def __init_subclass__(cls, *, algo: str | None = None) -> None:
        cls.algo = algo or cls.algo

    def __init__(self, config: TrainConfig) -> None:
        if config.algo != self.algo:
            fault = f"{type(self).__name__} trains '{self.algo}', but the configuration has algo: {config.algo}"
            raise ConfigError(f"{fault}: set algo: {self.algo}, or use the class of {config.algo}")
        self.config = config
        self._algorithm: Algorithm[Any] | None = None
        self._global_step = 0
        self._metadata: dict[str, Any] = {}
        self._is_loaded = False

    def learn(self, *, callbacks: Sequence[AnyCallback] | None = None) -> TrainResult:
        """Train from scratch in a new run folder; a loaded agent is refused, since its weights would not be used."""
        if self._is_loaded:
            name = type(self).__name__
            raise ConfigError(
                f"this {name} was loaded, and learn() would not use its weights: resume its run with"
                f" `rl-training resume RUN` (in Python: resume_training), or train a new one with {name}(agent.config)"
            )
        keeper = _AlgorithmKeeper()
        result = run_training(self.config, callbacks=[*CallbackList(callbacks).callbacks, keeper])
        self._algorithm = keeper.algorithm
        self._global_step = int(result.metrics["global_step"])
        return result

    def evaluate(self, num_episodes: int | None = None) -> dict[str, float]:
        """Mean and standard deviation of the deterministic policy's return, on the run's evaluation seeds."""
        return evaluate_algorithm(self.config, self._trained(), num_episodes, self._metadata)

    def predict(self, obs: npt.ArrayLike, *, deterministic: bool = True) -> npt.NDArray[Any]:
        """Action for one observation, or actions for a batch of observations; reads no files."""
        return predict(self._trained(), obs, deterministic=deterministic)

    def save(self, path: str | Path) -> Path:
        """Write the trained policy as a checkpoint without replay buffer; to resume, use the run's own checkpoints."""
        return save_training_checkpoint(
            path,
            config=self.config,
            algorithm_state=self._trained().state_dict(),
            trainer_state={},
            metadata={"global_step": self._global_step},
        )

    @classmethod
    def load(cls: type[SelfT], path: str | Path, *, device: str = "auto") -> SelfT:
        """Load a checkpoint: one written by `save`, one of a run, or the last one of a run folder."""
        config, algorithm, state = load_algorithm(path, device=device)
        if config.algo != cls.algo:
            raise CheckpointError(f"'{path}' is a checkpoint of '{config.algo}', not of '{cls.algo}': use its class")
        loaded = cls(config)
        loaded._algorithm = algorithm
        loaded._global_step = stored_step(state)
        loaded._metadata = state.metadata
        loaded._is_loaded = True
        return loaded

    def _trained(self) -> Algorithm[Any]:
        if self._algorithm is None:
            raise ConfigError(f"this {type(self).__name__} is not trained yet: call learn() or load() first")
        return self._algorithm


class _AlgorithmKeeper(Callback):
    """Keeps a reference to the trained algorithm."""

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
