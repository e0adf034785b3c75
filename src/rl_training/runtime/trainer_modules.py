"""The functions `train_<algo>`, and the modules `rl_training.runtime.<algo>_trainer` that hold them.

Users import these modules by name, yet each holds one function that follows from the algorithm's name. They are
therefore made from the registry by an import hook, which answers for exactly these module names and leaves all others,
misspelt ones included, to Python. `rl_training.runtime` installs the hook, and Python imports a package before its
modules, so it is in place in every process that imports one of them.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

from rl_training.errors import ConfigError
from rl_training.experiment.registry import BUILT_IN_CLASSES

if TYPE_CHECKING:
    from rl_training.experiment.checkpointing import CheckpointState
    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime.callbacks import AnyCallback
    from rl_training.runtime.trainer import TrainResult

ALGO_OF_MODULE = {f"rl_training.runtime.{algo}_trainer": algo for algo in BUILT_IN_CLASSES.values()}


@dataclass(frozen=True)
class TrainFunction:
    """The type of `train_ppo` and the like: `run_training` for a configuration that must name this algorithm."""

    algo: str

    @property
    def __name__(self) -> str:
        return f"train_{self.algo}"

    def __reduce__(self) -> tuple[Callable[[str], TrainFunction], tuple[str]]:
        return train_function, (self.algo,)

    def __call__(
        self,
        config: TrainConfig,
        *,
        run_suffix: str | None = None,
        checkpoint_state: CheckpointState | None = None,
        callbacks: Sequence[AnyCallback] | None = None,
    ) -> TrainResult:
        """Train with `config`, from the start or from `checkpoint_state`."""
        if config.algo != self.algo:
            raise ConfigError(
                f"this trains '{self.algo}', but the configuration says algo: {config.algo}"
            )
        from rl_training.runtime.run import run_training

        return run_training(
            config, run_suffix=run_suffix, checkpoint_state=checkpoint_state, callbacks=callbacks
        )


@functools.cache
def train_function(algo: str) -> TrainFunction:
    """The function that trains an algorithm of that name: one object per name."""
    return TrainFunction(algo)


class TrainerModules(MetaPathFinder, Loader):
    """Finds and loads the trainer modules."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a trainer module; None for any other module."""
        if fullname not in ALGO_OF_MODULE:
            return None
        return importlib.util.spec_from_loader(fullname, self, origin=__name__)

    def exec_module(self, module: ModuleType) -> None:
        """Define the docstring and the train function of a new module."""
        algo = ALGO_OF_MODULE[module.__name__]
        module.__doc__ = f"Train {algo}."
        setattr(module, f"train_{algo}", train_function(algo))


def install() -> None:
    """Add the import hook to `sys.meta_path`, once."""
    if not any(type(finder).__qualname__ == "TrainerModules" for finder in sys.meta_path):
        sys.meta_path.append(TrainerModules())
