"""The data doctor: look at a data set before training on it, and say what is wrong and what fits it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from rl_training.data import integrity_checks, row_checks
from rl_training.data.behaviour_fit import BehaviourFit, fit_behaviour
from rl_training.data.dataset_fields import flat_rows, spread_rows
from rl_training.data.findings import Finding, Level
from rl_training.data.linear_dynamics import score_steps
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.replay.transitions import Array
from rl_training.spaces.spec import Spaces

__all__ = ["DatasetReport", "Finding", "Level", "check_dataset"]

NUM_BINS = 12
NEAR_DETERMINISTIC = 0.8
"""From this determinism on, the data looks like the work of one policy that knows what it wants."""
RANDOM_HAND = 0.1
"""Below this the actions hardly depend on the observation."""
SMALL = 10_000


@dataclass(frozen=True)
class Spread:
    """A distribution in a few numbers; `lower` and `upper` cut off a quarter each."""

    minimum: float
    lower: float
    median: float
    upper: float
    maximum: float
    mean: float

    @classmethod
    def of(cls, values: Array) -> Spread:
        """Of the finite values; all NaN if there are none."""
        finite = values[np.isfinite(values)]
        if len(finite) == 0:
            finite = np.array([np.nan])
        return cls(*map(float, [*np.quantile(finite, [0, 0.25, 0.5, 0.75, 1]), finite.mean()]))


@dataclass(frozen=True)
class Bin:
    """One bar of a histogram."""

    low: float
    high: float
    count: int


@dataclass(frozen=True)
class EpisodeSummary:
    """The episodes of a data set."""

    count: int
    num_terminated: int
    num_truncated: int
    num_unmarked: int
    """Those that end only because the next row does not follow, or the file ends."""
    lengths: Spread
    returns: Spread
    histogram: tuple[Bin, ...]
    """Of the returns."""


@dataclass(frozen=True)
class DatasetReport:
    """Everything the checks found."""

    num_transitions: int
    num_bytes: int
    shapes: dict[str, str]
    """Type and row shape of each field."""
    episodes: EpisodeSummary
    rewards: Spread
    behaviour: BehaviourFit | None
    """Only after a thorough look, and with enough data."""
    findings: tuple[Finding, ...]
    """The worst first."""
    advice: tuple[str, ...]
    notes: tuple[str, ...]
    """What reading the file brought up."""
    is_thorough: bool

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that should stop a training run."""
        return tuple(finding for finding in self.findings if finding.level is Level.ERROR)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; a number that is not finite becomes None."""
        plain: dict[str, Any] = json.loads(TypeAdapter(DatasetReport).dump_json(self))
        return plain


def check_dataset(dataset: TransitionDataset, spaces: Spaces | None = None, *, thorough: bool = True) -> DatasetReport:
    """Look at a data set as it was read, with actions on the environment's scale.

    With `spaces` it is held against an environment. Without `thorough` each number is read about once, which takes
    a fraction of a second for a million transitions.
    """
    findings = tuple(sorted(_findings(dataset, spaces, thorough), key=lambda finding: list(Level).index(finding.level)))
    behaviour = fit_behaviour(dataset) if thorough else None
    return DatasetReport(
        num_transitions=len(dataset),
        num_bytes=dataset.nbytes,
        shapes={name: f"{array.dtype} {list(array.shape[1:])}" for name, array in dataset.arrays().items()},
        episodes=_summarize_episodes(dataset),
        rewards=Spread.of(dataset.rewards),
        behaviour=behaviour,
        findings=findings,
        advice=tuple(_advise(dataset, behaviour, findings)),
        notes=dataset.notes,
        is_thorough=thorough,
    )


def _findings(dataset: TransitionDataset, spaces: Spaces | None, thorough: bool) -> Iterator[Finding]:
    for check in integrity_checks.CHECKS:
        yield from check(dataset)
    if spaces is not None:
        yield from integrity_checks.check_spaces(dataset, spaces)
    misses, leaps = score_steps(dataset) if thorough else (None, None)
    yield from row_checks.check_alignment(dataset, misses)
    if misses is not None and leaps is not None:
        yield from row_checks.check_jumps(dataset, misses, leaps)
        yield from row_checks.check_repeats(dataset)


def _summarize_episodes(dataset: TransitionDataset) -> EpisodeSummary:
    episodes, returns = dataset.episodes(), dataset.episode_returns()
    terminated, truncated = dataset.terminated[episodes[:, 1] - 1], dataset.truncated[episodes[:, 1] - 1]
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
    edges = np.linspace(values.min(), values.max(), NUM_BINS + 1 if np.ptp(values) else 2)
    bins = zip(edges[:-1], edges[1:], np.histogram(values, edges)[0], strict=True)
    return tuple(Bin(float(low), float(high), int(count)) for low, high, count in bins)


def _advise(dataset: TransitionDataset, behaviour: BehaviourFit | None, findings: tuple[Finding, ...]) -> Iterator[str]:
    """Which algorithm and settings fit the data, in sentences, the most important first."""
    if any(finding.level is Level.ERROR for finding in findings):
        yield "Mend the errors first: what is learned from this data would be wrong."
    if behaviour is not None:
        yield _algorithm(behaviour.determinism, is_continuous=dataset.actions.dtype.kind == "f")
    if any(finding.name == "reward_sparse" for finding in findings):
        yield "Rewards are sparse: iql with expectile 0.9 and beta 10, and a gamma near 1."
    if _scales_differ(dataset):
        yield "Observation columns differ in scale by more than 100 times: set normalize_obs to true."
    if len(dataset) < SMALL:
        yield f"{len(dataset):,} transitions are few: expect overfitting, and judge by several seeds."


def _algorithm(determinism: float, *, is_continuous: bool) -> str:
    if determinism < RANDOM_HAND:
        choice = "cql with a small cql_alpha"
        if is_continuous:
            choice = "td3_bc with a larger bc_alpha, or iql with expectile 0.9"
        return f"The actions look random, so imitating them (bc) is no use: {choice}."
    if determinism >= NEAR_DETERMINISTIC:
        rivals = "td3_bc or iql" if is_continuous else "cql"
        return f"The data looks like the work of one policy: bc equals it at the least cost; to pass it, {rivals}."
    careful = "iql with expectile 0.7 to 0.9, or td3_bc" if is_continuous else "cql"
    return f"The data is mixed: {careful} can combine its better parts; bc only averages them."


def _scales_differ(dataset: TransitionDataset) -> bool:
    if dataset.obs.dtype.kind != "f":
        return False
    flat = flat_rows(dataset.obs[spread_rows(len(dataset), 5000)]).astype(np.float64)
    finite = flat[np.isfinite(flat).all(1)]
    scales = finite.std(0) if len(finite) else np.zeros(1)
    scales = scales[scales > 0]
    return len(scales) > 1 and bool(scales.max() > 100.0 * scales.min())
