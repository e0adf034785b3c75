"""Reads the comparisons that are stored beside runs: those whose runs are all on the page."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError
from rl_training.files import read_limited
from rl_training.views.report.blocks import number
from rl_training.views.report.lines import finite

MAX_BYTES = 1 << 22
FOLDER, FILE = "comparisons", "comparison.json"
VERDICTS = ("a_better", "b_better", "equivalent", "undecided")


@dataclass(frozen=True)
class Comparison:
    """A stored comparison; what its file does not tell is None or empty."""

    a: str
    b: str
    verdict: str
    sentence: str
    measure: str
    difference: float | None
    interval: str
    p_value: float | None
    prob_a_beats_b: float | None

    @property
    def in_words(self) -> str:
        """The verdict with the names."""
        better = {"a_better": self.a, "b_better": self.b}.get(self.verdict)
        return self.verdict if better is None else f"{better} is better"


def find_comparisons(run_dirs: Iterable[Path]) -> list[Comparison]:
    """The comparisons in the folders around the runs, by name; damaged files are left out."""
    dirs = [run_dir.resolve() for run_dir in run_dirs]
    names = {run_dir.name for run_dir in dirs}
    places = dict.fromkeys(place for run_dir in dirs for place in (run_dir.parent, run_dir.parent.parent))
    found: dict[Path, list[Comparison]] = {}
    for place in places:
        for path in sorted((place / FOLDER).glob(f"*/{FILE}")):
            found.setdefault(path, _read(path, names))
    return [comparison for comparisons in found.values() for comparison in comparisons]


def _read(path: Path, names: set[str]) -> list[Comparison]:
    """The comparison in a file, or all pairs of one of several arms."""
    values: Any = None
    with contextlib.suppress(CheckpointError, OSError, ValueError, RecursionError):
        values = json.loads(read_limited(path, MAX_BYTES))
    pairs = values.get("pairs", [values]) if isinstance(values, Mapping) else []
    found = [_parse(pair, names) for pair in pairs] if isinstance(pairs, list) else []
    return [comparison for comparison in found if comparison is not None]


def _parse(values: Any, names: set[str]) -> Comparison | None:
    if not isinstance(values, Mapping) or not isinstance(values.get("runs"), list) or not values["runs"]:
        return None
    if not all(isinstance(name, str) and Path(name).name in names for name in values["runs"]):
        return None
    verdict = values.get("verdict")
    return Comparison(
        _text(values.get("a"), "a"),
        _text(values.get("b"), "b"),
        verdict if isinstance(verdict, str) and verdict in VERDICTS else "undecided",
        _text(values.get("sentence")),
        _text(values.get("measure")),
        finite(values.get("difference")),
        _interval(values.get("interval")),
        finite(values.get("p_value")),
        finite(values.get("prob_a_beats_b")),
    )


def _text(value: object, missing: str = "") -> str:
    return value if isinstance(value, str) else missing


def _interval(value: object) -> str:
    """Both ends in brackets; an end that is not finite is infinite."""
    ends = [finite(end) for end in value] if isinstance(value, (list, tuple)) else []
    return f"[{number(ends[0], '-∞')}, {number(ends[1], '∞')}]" if len(ends) == 2 else ""
