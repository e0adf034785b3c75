"""A search space, for a field of a user's config class: `Annotated[float, Tune(1e-5, 1e-2, log=True)]`. No torch here.

The search spaces of the built-in algorithms are in one table, `studies/tuning/ranges.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rl_training.errors import ConfigError


@dataclass(frozen=True)
class Tune:
    """The values that `rl-training tune` tries for a setting: a range of numbers, or choices.

    A range of two integers has integers only. `Tune()` has no values: a subclass uses it to leave out a setting whose
    base class has a search space.
    """

    low: float | None = None
    high: float | None = None
    log: bool = False
    """Sample the logarithm uniformly."""
    step: float | None = None
    """Distance between two values of a range; None: every number, or every integer."""
    choices: tuple[Any, ...] = ()
    by_name: bool = False
    """Tuned only if it is named (`--tune KEY`), not by default."""

    def __post_init__(self) -> None:
        fault = self._fault_of_choices() if self.choices else self._fault_of_range()
        if fault is not None:
            raise ConfigError(f"bad search space {self.text}: {fault}")

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to try."""
        return self.low is None and not self.choices

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest value of a range."""
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high

    @property
    def has_integers(self) -> bool:
        """Whether it is a range of integers."""
        numbers = (self.low, self.high, 1 if self.step is None else self.step)
        return all(isinstance(number, int) for number in numbers)

    @property
    def text(self) -> str:
        """The space in words."""
        if self.choices:
            return " | ".join(plain_text(choice) for choice in self.choices)
        if self.low is None and self.high is None:
            return "none"
        words = [f"{_short(self.low)} to {_short(self.high)}"]
        if self.step is not None:
            words.append(f"in steps of {_short(self.step)}")
        elif self.has_integers:
            words.append("integers")
        if self.log:
            words.append("log scale")
        return ", ".join(words)

    def up_to(self, limit: float) -> Tune:
        """The space without values above `limit`; empty if fewer than two are left."""
        if self.choices:
            choices = tuple(choice for choice in self.choices if choice <= limit)
            return replace(self, choices=choices) if len(choices) > 1 else Tune()
        low, high = self.ends
        return replace(self, high=min(high, limit)) if low < limit else Tune()

    def as_dict(self) -> dict[str, Any]:
        """The space as plain values, without what is not set; `Tune.from_dict` is the inverse."""
        return {
            name: _listed(value)
            for name, value in vars(self).items()
            if value != getattr(Tune, name)
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Tune:
        """A search space from plain values."""
        unknown = sorted(map(str, values.keys() - cls.__dataclass_fields__.keys()))
        if unknown:
            raise ConfigError(
                f"unknown key '{unknown[0]}' of a search space (known: low, high, log, step, choices)"
            )
        choices = values.get("choices", ())
        if not isinstance(choices, (list, tuple)):
            raise ConfigError(
                f"bad value {choices!r} for the choices of a search space: write a list"
            )
        return cls(**{**values, "choices": tuple(choices)})

    def _fault_of_choices(self) -> str | None:
        if self.log or [self.low, self.high, self.step] != [None] * 3:
            return "give a range or choices, not both"
        texts = [plain_text(choice) for choice in self.choices]
        if len(texts) < 2:
            return f"{texts[0]} is the only choice"
        twice = [text for text in texts if texts.count(text) > 1]
        return f"{twice[0]} is given twice" if twice else None

    def _fault_of_range(self) -> str | None:
        low, high, step = self.low, self.high, self.step
        if low is None and high is None:
            return "low and high are missing" if self.log or step is not None else None
        if not (_is_number(low) and _is_number(high)):
            return "low and high should be finite numbers"
        low, high = self.ends
        if low >= high:
            return "low should be less than high"
        if self.log and low <= 0:
            return "low should be positive on a logarithmic scale"
        if step is not None and (self.log or not 0 < step <= high - low):
            return "step should be positive, at most high - low, and not on a logarithmic scale"
        return None


def _is_number(value: Any) -> bool:
    is_plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_plain and math.isfinite(value)


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else "?"


def _listed(value: Any) -> Any:
    """The value with lists in place of tuples."""
    return list(map(_listed, value)) if isinstance(value, (list, tuple)) else value


def plain_text(value: Any) -> str:
    """A value as YAML writes it on one line: `{kind: linear, start: 0.001}`."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {plain_text(item)}' for key, item in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(plain_text, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)
