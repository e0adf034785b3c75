"""What a look at a data set can say: findings, summaries, advice, and the report that holds them."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rl_training.data.transitions import Array


class Level(str, enum.Enum):
    """How bad a finding is."""

    ERROR = "error"
    """Training on this teaches something false."""
    WARNING = "warning"
    """Probably not what was meant."""
    INFO = "info"
    """Good to know."""


@dataclass(frozen=True)
class Finding:
    """One thing found in the data."""

    level: Level
    name: str
    found: str
    """What it is, with figures."""
    remedy: str
    """What to do about it."""
    index: int | None = None
    """The first transition that shows it."""


@dataclass(frozen=True)
class Spread:
    """A distribution in a few numbers."""

    minimum: float
    lower: float
    """A quarter lies below."""
    median: float
    upper: float
    """A quarter lies above."""
    maximum: float
    mean: float

    @classmethod
    def of(cls, values: Array) -> Spread:
        """Of the finite values; all NaN if there are none."""
        finite = values[np.isfinite(values)]
        if len(finite) == 0:
            return cls(np.nan, np.nan, np.nan, np.nan, np.nan, np.nan)
        low, lower, median, upper, high = map(float, np.quantile(finite, [0, 0.25, 0.5, 0.75, 1]))
        return cls(low, lower, median, upper, high, float(finite.mean()))


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
class BehaviourFit:
    """How well a simple model predicts the recorded actions of unseen episodes from their observations."""

    measure: str
    """`r2` for continuous actions, `accuracy` for discrete ones."""
    value: float
    baseline: float
    """What guessing without looking would reach."""

    @property
    def determinism(self) -> float:
        """0 if the actions do not depend on the observation, 1 if they follow from it."""
        room = 1.0 - self.baseline
        return float(np.clip((self.value - self.baseline) / room, 0.0, 1.0)) if room > 0.01 else 1.0


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
        return self.of_level(Level.ERROR)

    def of_level(self, level: Level) -> tuple[Finding, ...]:
        """The findings of one level."""
        return tuple(finding for finding in self.findings if finding.level is level)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; a number that is not finite becomes None."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
