"""The dataset doctor: check a dataset before training, and suggest an algorithm and settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from rl_training.data import integrity_checks
from rl_training.data.dataset_fields import evenly_spaced_rows, flat_rows
from rl_training.data.findings import Finding, Level
from rl_training.data.fits import BehaviourFit, fit_behaviour, fit_linear_dynamics
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.replay.transitions import Array
from rl_training.spaces.spec import Spaces

__all__ = ["DatasetReport", "Finding", "Level", "check_dataset"]

NUM_BINS = 12
NEAR_DETERMINISTIC = 0.8
"""Determinism from which the dataset looks like a single deterministic policy."""
NEAR_RANDOM = 0.1
"""Determinism below which the actions hardly depend on the observations."""
FEW_TRANSITIONS = 10_000


@dataclass(frozen=True)
class Summary:
    """Range, quartiles and mean of a distribution."""

    minimum: float
    q25: float
    median: float
    q75: float
    maximum: float
    mean: float

    @classmethod
    def of(cls, values: Array) -> Summary:
        """Summarize the finite values; all NaN if there are none."""
        finite = values[np.isfinite(values)]
        if len(finite) == 0:
            finite = np.array([np.nan])
        return cls(*map(float, [*np.quantile(finite, [0, 0.25, 0.5, 0.75, 1]), finite.mean()]))


@dataclass(frozen=True)
class Bin:
    """One histogram bin."""

    low: float
    high: float
    count: int


@dataclass(frozen=True)
class EpisodeSummary:
    """Statistics of the episodes."""

    count: int
    num_terminated: int
    num_truncated: int
    num_unflagged: int
    """Episodes without an end flag: the next row does not follow, or the file ends."""
    lengths: Summary
    returns: Summary
    histogram: tuple[Bin, ...]
    """Histogram of the returns."""


@dataclass(frozen=True)
class DatasetReport:
    """Result of `check_dataset`."""

    num_transitions: int
    num_bytes: int
    shapes: dict[str, str]
    """Dtype and row shape of each field."""
    episodes: EpisodeSummary
    rewards: Summary
    behaviour: BehaviourFit | None
    """None for a quick check, or with too few transitions."""
    findings: tuple[Finding, ...]
    """Most severe first."""
    advice: tuple[str, ...]
    notes: tuple[str, ...]
    """Notes of the loader: dropped rows, derived fields."""
    is_thorough: bool

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Findings that stop a training run."""
        return tuple(finding for finding in self.findings if finding.level is Level.ERROR)

    def to_dict(self) -> dict[str, Any]:
        """JSON-compatible values; non-finite numbers become None."""
        values: dict[str, Any] = json.loads(TypeAdapter(DatasetReport).dump_json(self))
        return values


def check_dataset(
    dataset: TransitionDataset, spaces: Spaces | None = None, *, thorough: bool = True
) -> DatasetReport:
    """Check a dataset as loaded, with actions in the environment's units.

    With `spaces`, observations and actions are compared with an environment's. Without `thorough`, each number is read
    about once, which takes a fraction of a second for a million transitions.
    """
    levels = list(Level)
    found = _findings(dataset, spaces, thorough)
    findings = tuple(sorted(found, key=lambda finding: levels.index(finding.level)))
    behaviour = fit_behaviour(dataset) if thorough else None
    return DatasetReport(
        num_transitions=len(dataset),
        num_bytes=dataset.nbytes,
        shapes={
            name: f"{array.dtype} {list(array.shape[1:])}"
            for name, array in dataset.arrays().items()
        },
        episodes=_summarize_episodes(dataset),
        rewards=Summary.of(dataset.rewards),
        behaviour=behaviour,
        findings=findings,
        advice=tuple(_advise(dataset, behaviour, findings)),
        notes=dataset.notes,
        is_thorough=thorough,
    )


def _findings(
    dataset: TransitionDataset, spaces: Spaces | None, thorough: bool
) -> Iterator[Finding]:
    for check in integrity_checks.CHECKS:
        yield from check(dataset)
    if spaces is not None:
        yield from integrity_checks.check_spaces(dataset, spaces)
    residuals, step_lengths = fit_linear_dynamics(dataset) if thorough else (None, None)
    yield from integrity_checks.check_alignment(dataset, residuals)
    if residuals is not None and step_lengths is not None:
        yield from integrity_checks.check_jumps(dataset, residuals, step_lengths)
        yield from integrity_checks.check_repeats(dataset)


def _summarize_episodes(dataset: TransitionDataset) -> EpisodeSummary:
    starts, stops = dataset.episodes().T
    returns = dataset.episode_returns()
    terminated, truncated = dataset.terminated[stops - 1], dataset.truncated[stops - 1]
    return EpisodeSummary(
        count=len(starts),
        num_terminated=int(terminated.sum()),
        num_truncated=int((truncated & ~terminated).sum()),
        num_unflagged=int((~terminated & ~truncated).sum()),
        lengths=Summary.of((stops - starts).astype(np.float64)),
        returns=Summary.of(returns),
        histogram=_histogram(returns[np.isfinite(returns)]),
    )


def _histogram(values: Array) -> tuple[Bin, ...]:
    if len(values) == 0:
        return ()
    edges = np.linspace(values.min(), values.max(), NUM_BINS + 1 if np.ptp(values) else 2)
    bins = zip(edges[:-1], edges[1:], np.histogram(values, edges)[0], strict=True)
    return tuple(Bin(float(low), float(high), int(count)) for low, high, count in bins)


def _advise(
    dataset: TransitionDataset, behaviour: BehaviourFit | None, findings: tuple[Finding, ...]
) -> Iterator[str]:
    """Suggest an algorithm and settings, most important first."""
    if any(finding.level is Level.ERROR for finding in findings):
        yield "Fix the errors first: training on this dataset would learn from wrong values."
    if not dataset.has_rewards:
        yield "Without rewards, only bc can be trained, and the returns above are 0."
    elif behaviour is not None:
        yield _algorithm(behaviour.determinism, is_continuous=dataset.actions.dtype.kind == "f")
    if any(finding.name == "reward_sparse" for finding in findings):
        yield "Rewards are sparse: use iql with expectile 0.9 and beta 10, and a gamma near 1."
    if _scales_differ(dataset):
        yield "Observation columns differ in scale by a factor of more than 100: set normalize_obs to true."
    if len(dataset) < FEW_TRANSITIONS:
        yield f"{len(dataset):,} transitions are few: expect overfitting, and compare several seeds."


def _algorithm(determinism: float, *, is_continuous: bool) -> str:
    if determinism < NEAR_RANDOM:
        choice = "cql with a small cql_alpha"
        if is_continuous:
            choice = "td3_bc with a larger bc_alpha, or iql with expectile 0.9"
        return f"The actions look random, so imitating them (bc) does not help: use {choice}."
    if determinism >= NEAR_DETERMINISTIC:
        rivals = "td3_bc or iql" if is_continuous else "cql"
        return f"The dataset looks like a single policy: bc should match it; to improve on it, use {rivals}."
    choice = "iql with expectile 0.7 to 0.9, or td3_bc" if is_continuous else "cql"
    return f"The dataset mixes policies: use {choice}, which can combine the better actions; bc averages all of them."


def _scales_differ(dataset: TransitionDataset) -> bool:
    if dataset.obs.dtype.kind != "f":
        return False
    flat = flat_rows(dataset.obs[evenly_spaced_rows(len(dataset), 5000)]).astype(np.float64)
    finite = flat[np.isfinite(flat).all(1)]
    scales = finite.std(0) if len(finite) else np.zeros(1)
    scales = scales[scales > 0]
    return len(scales) > 1 and bool(np.max(scales) > 100.0 * np.min(scales))
