"""Statistics of whole runs: means, differences and tests that hold their level at five seeds. NumPy only."""

from typing import TYPE_CHECKING

from rl_training.exports import lazy_exports

if TYPE_CHECKING:
    from rl_training.studies.statistics.intervals import MeanInterval as MeanInterval
    from rl_training.studies.statistics.intervals import mean_interval as mean_interval
    from rl_training.studies.statistics.intervals import t_quantile as t_quantile
else:
    # Lazy: the driver of a study needs means and no NumPy.
    __getattr__, __dir__, __all__ = lazy_exports(__name__, {"intervals": "MeanInterval mean_interval t_quantile"})
