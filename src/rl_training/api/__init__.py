"""One class per built-in algorithm: `PPO`, `SAC`, ..., made from the registry."""

from typing import TYPE_CHECKING

from rl_training.experiment.registry import BUILT_IN_CLASSES
from rl_training.exports import lazy_exports

if TYPE_CHECKING:
    from rl_training.api.algorithms import *  # noqa: F403
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__, {"algorithms": " ".join(BUILT_IN_CLASSES)}
    )
