"""A search space, for a field of a user's config class: `Annotated[float, Tune(1e-5, 1e-2, log=True)]`. No torch here.

Those of the built-in algorithms are in one table, `studies/tuning/ranges.py`.
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
        fault = self._fault()
        if fault is not None:
            raise ConfigError(f"bad search space {self.text}: {fault}")

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to try."""
        return self.low is None and not self.choices

    @property
    def has_integers(self) -> bool:
        """Whether it is a range of integers."""
        return (
            isinstance(self.low, int)
            and isinstance(self.high, int)
            and isinstance(self.step, (int, type(None)))
        )

    @property
    def text(self) -> str:
        """The space in words."""
        if self.choices:
            return " | ".join(plain_text(choice) for choice in self.choices)
        if self.low is None and self.high is None:
            return "none"
        words = [
            f"{'?' if self.low is None else f'{self.low:g}'} to {'?' if self.high is None else f'{self.high:g}'}"
        ]
        words += [f"in steps of {self.step:g}"] if self.step is not None else []
        words += ["integers"] if self.has_integers and self.step is None else []
        words += ["log scale"] if self.log else []
        return ", ".join(words)

    def up_to(self, limit: float) -> Tune:
        """The space without values above `limit`; empty if fewer than two are left."""
        if self.choices:
            choices = tuple(choice for choice in self.choices if choice <= limit)
            return replace(self, choices=choices) if len(choices) > 1 else Tune()
        if self.low is None or self.high is None or self.low >= limit:
            return Tune()
        return replace(self, high=min(self.high, limit))

    def as_dict(self) -> dict[str, Any]:
        """The space as plain values, without what is not set; `Tune.from_dict` is the inverse."""
        if self.choices:
            values: dict[str, Any] = {"choices": [_listed(choice) for choice in self.choices]}
        else:
            values = {
                name: getattr(self, name)
                for name in ("low", "high", "log", "step")
                if getattr(self, name)
            }
            values |= {
                name: getattr(self, name)
                for name in ("low", "high")
                if getattr(self, name) is not None
            }
        return values | ({"by_name": True} if self.by_name else {})

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

    def _fault(self) -> str | None:
        ends = [self.low, self.high]
        if self.choices:
            texts = [plain_text(choice) for choice in self.choices]
            if ends != [None, None] or self.log or self.step is not None:
                return "give a range or choices, not both"
            return f"{texts[0]} is the only choice" if len(texts) < 2 else _repeated(texts)
        if ends == [None, None]:
            return None if not self.log and self.step is None else "low and high are missing"
        numbers = [
            end for end in ends if isinstance(end, (int, float)) and not isinstance(end, bool)
        ]
        if len(numbers) < 2 or not all(math.isfinite(number) for number in numbers):
            return "low and high should be finite numbers"
        if numbers[0] >= numbers[1]:
            return "low should be less than high"
        if self.log and numbers[0] <= 0:
            return "low should be positive on a logarithmic scale"
        if self.step is not None and (self.log or not 0 < self.step <= numbers[1] - numbers[0]):
            return "step should be positive, at most high - low, and not on a logarithmic scale"
        return None


def _repeated(texts: list[str]) -> str | None:
    twice = [text for text in texts if texts.count(text) > 1]
    return f"{twice[0]} is given twice" if twice else None


def _listed(value: Any) -> Any:
    return [_listed(item) for item in value] if isinstance(value, (list, tuple)) else value


def plain_text(value: Any) -> str:
    """A value as YAML writes it on one line: `{kind: linear, start: 0.001}`."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {plain_text(item)}' for key, item in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(plain_text, value))}]"
    return (
        {True: "true", False: "false", None: "null"}[value]
        if isinstance(value, (bool, type(None)))
        else str(value)
    )
