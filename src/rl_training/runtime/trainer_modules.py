"""Makes the modules `rl_training.runtime.<algo>_trainer`, each with `train_<algo>`, for every built-in algorithm.

Users import these modules by name, yet each holds one function that follows from the algorithm's name. They are
therefore made from the registry by an import hook, which answers for exactly these module names and leaves all others,
misspelt ones included, to Python. `rl_training.runtime` installs the hook, and Python imports a package before its
modules, so it is in place in every process that imports one of them.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from rl_training.experiment.registry import BUILT_IN_CLASSES, get_algorithm_spec

ALGO_OF_MODULE = {f"rl_training.runtime.{algo}_trainer": algo for algo in BUILT_IN_CLASSES.values()}


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
        setattr(module, f"train_{algo}", get_algorithm_spec(algo).train_fn)


def install() -> None:
    """Add the import hook to `sys.meta_path`, once."""
    if not any(type(finder).__qualname__ == "TrainerModules" for finder in sys.meta_path):
        sys.meta_path.append(TrainerModules())
