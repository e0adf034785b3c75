"""The data doctor: look at a data set before training on it, and say what is wrong and what fits it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rl_training.data import integrity_checks, row_checks
from rl_training.data.behaviour_fit import fit_behaviour
from rl_training.data.dataset_advice import advise
from rl_training.data.dataset_findings import Bin, DatasetReport, EpisodeSummary, Finding, Level, Spread
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.spaces import Spaces
from rl_training.data.transitions import Array

__all__ = ["DatasetReport", "Finding", "Level", "check_dataset"]

NUM_BINS = 12


def check_dataset(dataset: TransitionDataset, spaces: Spaces | None = None, *, thorough: bool = True) -> DatasetReport:
    """Look at a data set as it was read, with actions on the environment's scale.

    With `spaces` it is held against an environment. Without `thorough` each number is read about once, which takes
    a fraction of a second for a million transitions.
    """
    findings = tuple(sorted(_findings(dataset, spaces, thorough), key=lambda finding: list(Level).index(finding.level)))
    episodes = _summarize_episodes(dataset)
    behaviour = fit_behaviour(dataset) if thorough else None
    return DatasetReport(
        num_transitions=len(dataset),
        num_bytes=dataset.nbytes,
        shapes={name: f"{array.dtype} {list(array.shape[1:])}" for name, array in dataset.arrays().items()},
        episodes=episodes,
        rewards=Spread.of(dataset.rewards),
        behaviour=behaviour,
        findings=findings,
        advice=tuple(advise(dataset, behaviour, findings)),
        notes=dataset.notes,
        is_thorough=thorough,
    )


def _findings(dataset: TransitionDataset, spaces: Spaces | None, thorough: bool) -> Iterator[Finding]:
    yield from integrity_checks.check_finite(dataset)
    yield from integrity_checks.check_endings(dataset)
    yield from integrity_checks.check_time_limits(dataset)
    yield from integrity_checks.check_constants(dataset)
    yield from integrity_checks.check_rewards(dataset)
    if spaces is not None:
        yield from integrity_checks.check_spaces(dataset, spaces)
    if thorough:
        yield from row_checks.check_alignment(dataset)
        yield from row_checks.check_jumps(dataset)
        yield from row_checks.check_repeats(dataset)


def _summarize_episodes(dataset: TransitionDataset) -> EpisodeSummary:
    episodes = dataset.episodes()
    last = episodes[:, 1] - 1
    terminated, truncated = dataset.terminated[last], dataset.truncated[last]
    returns = dataset.episode_returns()
    return EpisodeSummary(
        count=len(episodes),
        num_terminated=int(terminated.sum()),
        num_truncated=int((truncated & ~terminated).sum()),
        num_unmarked=int((~terminated & ~truncated).sum()),
        lengths=Spread.of((episodes[:, 1] - episodes[:, 0]).astype(np.float64)),
        returns=Spread.of(returns),
        histogram=_histogram(returns[np.isfinite(returns)]),
    )


def _histogram(values: Array) -> tuple[Bin, ...]:
    if len(values) == 0:
        return ()
    low, high = float(values.min()), float(values.max())
    if low == high:
        return (Bin(low, high, len(values)),)
    counts, edges = np.histogram(values, NUM_BINS, (low, high))
    bins = zip(edges[:-1], edges[1:], counts, strict=True)
    return tuple(Bin(float(left), float(right), int(count)) for left, right, count in bins)
