"""Lines of metrics as columns, thinned for a page: the first, the last and the extreme values stay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_POINTS = 400
"""Rows of one run's curves on a page."""
MIN_POINTS = 40
MAX_VALUES = 16_000
"""Numbers in all curves of a page: with them it stays under 300 KB."""
STEP = "global_step"
NOT_DRAWN = {STEP, "eval_episodes", "eval_success_reports", "gradient_steps"}
DIGITS = 6
Line = Mapping[str, float | None]


@dataclass(frozen=True)
class Columns:
    """Curves of one run that share their steps."""

    steps: tuple[float, ...] = ()
    metrics: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)

    @property
    def num_values(self) -> int:
        """Numbers in all curves."""
        return len(self.steps) * len(self.metrics)

    def as_dict(self) -> dict[str, Any]:
        """For the page: numbers with six significant digits."""
        return {
            "x": [_short(step, 12) for step in self.steps],
            "y": {name: [_short(value) for value in values] for name, values in self.metrics.items()},
        }


def evaluations_of(lines: Iterable[Line]) -> Columns:
    """The curves of evaluations, at the steps at which evaluations took place."""
    return _columns([{name: line[name] for name in line if name.startswith("eval_") or name == STEP} for line in lines])


def updates_of(lines: Iterable[Line]) -> Columns:
    """All other curves."""
    return _columns([{name: value for name, value in line.items() if not name.startswith("eval_")} for line in lines])


def speeds_of(lines: Iterable[Line]) -> Columns:
    """The curve of the speed in `timing.jsonl`; the other times are sums, of which a page shows the last."""
    return _columns([{name: line[name] for name in line if name in ("steps_per_second", STEP)} for line in lines])


def thin(columns: Columns, max_points: int) -> Columns:
    """At most about `max_points` rows: the first, the last, each curve's extremes, and others evenly between."""
    count = len(columns.steps)
    if count <= max_points:
        return columns
    kept = {0, count - 1}
    for values in columns.metrics.values():
        known = [index for index, value in enumerate(values) if value is not None]
        if known:
            kept |= {min(known, key=lambda i: values[i] or 0), max(known, key=lambda i: values[i] or 0)}
    spaced = max(2, max_points - len(kept))
    kept |= {round(index * (count - 1) / (spaced - 1)) for index in range(spaced)}
    rows = sorted(kept)
    metrics = {name: tuple(values[row] for row in rows) for name, values in columns.metrics.items()}
    return Columns(tuple(columns.steps[row] for row in rows), metrics)


def points_for(tables: Iterable[Columns]) -> int:
    """Rows for each table, so that all of them together fit into a page."""
    sizes = [(len(table.steps), len(table.metrics)) for table in tables]
    low, high = MIN_POINTS, MAX_POINTS
    while low < high:
        middle = (low + high + 1) // 2
        is_small = sum(min(steps, middle) * metrics for steps, metrics in sizes) <= MAX_VALUES
        low, high = (middle, high) if is_small else (low, middle - 1)
    return low


def _columns(lines: list[dict[str, float | None]]) -> Columns:
    names = dict.fromkeys(name for line in lines for name in line if name not in NOT_DRAWN)
    rows = [line for line in lines if any(name in line for name in names)]
    table = {name: tuple(line.get(name) for line in rows) for name in names}
    drawn = {name: values for name, values in table.items() if any(value is not None for value in values)}
    return Columns(tuple(line[STEP] or 0 for line in rows), drawn)


def _short(value: float | None, digits: int = DIGITS) -> float | None:
    """A number with few digits; whole numbers without a fraction."""
    if value is None:
        return None
    number = float(f"{value:.{digits}g}")
    return int(number) if number == int(number) and abs(number) < 1e15 else number
