"""Statistics of whole runs: means, differences and tests that hold their level at five seeds. NumPy only."""

from typing import TYPE_CHECKING

from rl_training.exports import lazy_exports

if TYPE_CHECKING:
    from rl_training.studies.statistics.estimates import Estimate as Estimate
    from rl_training.studies.statistics.estimates import Profile as Profile
    from rl_training.studies.statistics.estimates import interquartile_mean as interquartile_mean
    from rl_training.studies.statistics.estimates import performance_profile as performance_profile
    from rl_training.studies.statistics.estimates import (
        probability_of_improvement as probability_of_improvement,
    )
    from rl_training.studies.statistics.intervals import MeanInterval as MeanInterval
    from rl_training.studies.statistics.intervals import mean_interval as mean_interval
    from rl_training.studies.statistics.intervals import t_quantile as t_quantile
    from rl_training.studies.statistics.permutation import MeanComparison as MeanComparison
    from rl_training.studies.statistics.permutation import compare_means as compare_means
    from rl_training.studies.statistics.permutation import runs_needed as runs_needed
    from rl_training.studies.statistics.permutation import step_down as step_down
    from rl_training.studies.statistics.samples import Scores as Scores
    from rl_training.studies.statistics.sequential import SequentialResult as SequentialResult
    from rl_training.studies.statistics.sequential import sequential_test as sequential_test
else:
    # Lazy: the driver of a study needs means and no NumPy.
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "estimates": "Estimate Profile interquartile_mean performance_profile probability_of_improvement",
            "intervals": "MeanInterval mean_interval t_quantile",
            "permutation": "MeanComparison compare_means runs_needed step_down",
            "samples": "Scores",
            "sequential": "SequentialResult sequential_test",
        },
    )
