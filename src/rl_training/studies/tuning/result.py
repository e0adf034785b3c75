"""What a tuning found: the winner and the default on seeds that nobody used, and a verdict in one sentence."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.errors import RLTrainingError
from rl_training.studies.statistics import MeanComparison, MeanInterval, mean_interval
from rl_training.studies.tuning.stages import DEFAULT, Scores, complete_scores, complete_trials, is_repeat, trial_name
from rl_training.studies.variation import Setting

ALPHA = 0.05
SEED = 0
"""Seed of the permutation test; it matters only where there are too many labelings to enumerate."""


class StageError(RLTrainingError):
    """Runs of the race or of the final failed."""

    def __init__(self, stage: str, reasons: dict[str, str]) -> None:
        listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        super().__init__(f"runs of the {stage} failed ({listed}): the same command tries them again")


@dataclass(frozen=True)
class Verdict:
    """Whether the winner beats the default, on the final seeds."""

    kind: str
    """`better`, `worse`, `undecided`, or `default` if the default won the race."""
    sentence: str
    comparison: MeanComparison | None

    @property
    def is_better(self) -> bool:
        """Whether to train with the winner's settings; else the default is kept."""
        return self.kind == "better"


def verdict_of(winner: str, final: Scores) -> Verdict:
    """Compare the winner with the default on the final seeds."""
    scores = complete_scores(final)
    if winner == DEFAULT:
        return Verdict("default", "the default won the race: no settings that were tried are better, keep it", None)
    from numpy.random import default_rng

    from rl_training.studies.statistics import compare_means

    found = compare_means({"": scores[winner]}, {"": scores[DEFAULT]}, default_rng(SEED))
    count = len(scores[winner])
    many = f"on {count} untouched seed{'' if count == 1 else 's'}: {difference_text(found)}"
    if found.smallest_p > ALPHA:
        many += ", and so few can decide nothing"
    if found.p_value > ALPHA:
        sentence = f"not distinguishable from the default {many}; keep the default, or tune with more trials or seeds"
        return Verdict("undecided", sentence, found)
    if found.difference > 0:
        return Verdict("better", f"the tuned settings are better than the default {many}", found)
    return Verdict("worse", f"the tuned settings are worse than the default {many}; keep the default", found)


def warn_of_few_seeds(count: int) -> str | None:
    """Why a final of `count` seeds cannot decide anything; None if it can."""
    smallest = _smallest_p(count)
    if smallest <= ALPHA:
        return None
    enough = next(number for number in itertools.count(count) if _smallest_p(number) <= ALPHA)
    many = f"{count} final seed{'' if count == 1 else 's'}"
    return (
        f"{many} can decide nothing: the smallest possible p-value of {count} against {count} runs is {smallest:.2g};"
        f" give --final-seeds {enough} or more"
    )


def _smallest_p(count: int) -> float:
    """The smallest p-value of the permutation test with `count` runs on each side."""
    from rl_training.studies.statistics.samples import pair, smallest_p

    return smallest_p(pair({"": [0.0] * count}, {"": [1.0] * count}))


def difference_text(found: MeanComparison) -> str:
    """The difference with its interval."""
    low, high = found.interval
    if math.isinf(low) and math.isinf(high):
        return f"{found.difference:+.1f} (no interval)"
    return f"{found.difference:+.1f} [{low:+.1f}, {high:+.1f}]"


@dataclass(frozen=True)
class TuneResult:
    """A tuning that is over."""

    path: Path
    trials: Sequence[Any]
    """Optuna's frozen trials."""
    settings: dict[str, Setting]
    """The settings of each trial by name."""
    race: Scores
    final: Scores
    winner: str
    verdict: Verdict
    best: Path
    """The configuration to train with: the winner's if it is better, else the default's."""
    edited: Path | None = None
    """The `best.yaml` that was edited and is kept, so that `best` is another file."""

    @property
    def search_scores(self) -> dict[str, float]:
        """Scores of the complete trials in the search, best first; optimistic, since the best are chosen by them."""
        return {trial_name(trial.number): trial.value for trial in complete_trials(self.trials)}

    @property
    def search_score(self) -> float | None:
        """The winner's score in the search."""
        return self.search_scores.get(self.winner)

    @property
    def default_search_score(self) -> float | None:
        """The default's score in the search; None if it failed or was pruned."""
        return self.search_scores.get(DEFAULT)

    @property
    def best_trial(self) -> str | None:
        """The best of the search; None if no trial is complete."""
        return next(iter(self.search_scores), None)

    def intervals(self, stage: Scores) -> dict[str, MeanInterval]:
        """Means and intervals of a stage, of settings without failed runs."""
        return {name: mean_interval(scores) for name, scores in complete_scores(stage).items()}

    @property
    def num_settings(self) -> int:
        """Different settings that were tried."""
        return sum(not is_repeat(trial) for trial in self.trials)

    def count(self, state: str) -> int:
        """Settings in a state: `COMPLETE`, `PRUNED` or `FAIL`; a trial that repeats an earlier one is not counted."""
        return sum(trial.state.name == state and not is_repeat(trial) for trial in self.trials)
