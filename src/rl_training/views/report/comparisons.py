"""The comparisons that are stored beside runs: those whose runs are all on the page, read and as a section."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError
from rl_training.files import read_limited
from rl_training.views.report.blocks import Cell, Section, Table, Text, number
from rl_training.views.report.lines import finite

MAX_BYTES = 1 << 22
FOLDER, FILE = "comparisons", "comparison.json"
VERDICTS = ("a_better", "b_better", "equivalent", "undecided")


@dataclass(frozen=True)
class Comparison:
    """A stored comparison; what its file does not tell is None or empty."""

    name: str
    """Name of its folder."""
    a: str
    b: str
    verdict: str
    sentence: str
    measure: str
    mode: str
    margin: float | None
    is_planned: bool | None
    look: float | None
    """The last look of a planned one."""
    difference: float | None
    interval: str
    p_value: float | None
    prob_a_beats_b: float | None

    @property
    def in_words(self) -> str:
        """The verdict with the names."""
        better = {"a_better": (self.a, self.b), "b_better": (self.b, self.a)}.get(self.verdict)
        return self.verdict if better is None else f"{better[0]} is better than {better[1]}"

    @property
    def kind(self) -> str:
        """Whether its looks were planned."""
        if self.is_planned is None:
            return "–"
        at = "" if self.look is None else f", look {self.look:g}"
        return f"planned{at}" if self.is_planned else "ad hoc"

    @property
    def rule(self) -> str:
        """What is compared, and within which margin arms count as equal."""
        lower = "lower is better" if self.mode == "min" else ""
        margin = "" if self.margin is None else f"margin {number(self.margin)}"
        return ", ".join(filter(None, (self.measure, lower, margin)))


def find_comparisons(run_dirs: Iterable[Path]) -> list[Comparison]:
    """The comparisons in the folders around the runs, planned ones first, by name; damaged files are left out."""
    dirs = [run_dir.resolve() for run_dir in run_dirs]
    names = {run_dir.name for run_dir in dirs}
    places = dict.fromkeys(place for run_dir in dirs for place in (run_dir.parent, run_dir.parent.parent))
    found: dict[Path, list[Comparison]] = {}
    for place in places:
        for path in sorted((place / FOLDER).glob(f"*/{FILE}")):
            found.setdefault(path, _read(path, names))
    comparisons = [comparison for comparisons in found.values() for comparison in comparisons]
    return sorted(comparisons, key=lambda comparison: comparison.is_planned is not True)


def _read(path: Path, names: set[str]) -> list[Comparison]:
    """The comparison in a file, or all pairs of one of several arms."""
    values: Any = None
    with contextlib.suppress(CheckpointError, OSError, ValueError, RecursionError):
        values = json.loads(read_limited(path, MAX_BYTES))
    pairs = values.get("pairs", [values]) if isinstance(values, Mapping) else []
    found = [_parse(pair, values, path.parent.name, names) for pair in pairs] if isinstance(pairs, list) else []
    return [comparison for comparison in found if comparison is not None]


def _parse(values: Any, shared: Mapping[str, Any], folder: str, names: set[str]) -> Comparison | None:
    """The comparison of a pair; `shared` is the whole file, which has the settings of all pairs."""
    if not isinstance(values, Mapping) or not isinstance(values.get("runs"), list) or not values["runs"]:
        return None
    if not all(isinstance(name, str) and Path(name).name in names for name in values["runs"]):
        return None
    verdict, values = values.get("verdict"), {**shared, **values}
    planned = values.get("planned")
    return Comparison(
        folder,
        _text(values.get("a"), "a"),
        _text(values.get("b"), "b"),
        verdict if isinstance(verdict, str) and verdict in VERDICTS else "undecided",
        _text(values.get("sentence")),
        _text(values.get("measure")),
        _text(values.get("mode")),
        finite(values.get("margin")),
        planned if isinstance(planned, bool) else None,
        finite(values.get("look")),
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


def comparison_section(comparisons: Sequence[Comparison]) -> Section | None:
    """The stored comparisons of these runs with their verdicts; None if there are none."""
    if not comparisons:
        return None
    rows: list[Sequence[Cell]] = [
        [
            found.name,
            f"{found.a} and {found.b}",
            {"text": found.in_words, "is_marked": found.verdict != "undecided"},
            found.kind,
            found.rule,
            number(found.difference),
            found.interval,
            number(found.p_value),
            number(found.prob_a_beats_b),
        ]
        for found in comparisons
    ]
    columns = ["comparison", "a and b", "verdict", "looks", "measure", "a − b", "interval", "p-value", "P(a > b)"]
    return Section(
        "comparisons", "Comparisons", [*_sentences(comparisons), Table("Stored comparisons", columns, rows, 5)]
    )


def _sentences(comparisons: Sequence[Comparison]) -> list[Text]:
    """What the comparisons say beyond their verdicts; where one of the arms was planned, ad-hoc ones say nothing."""
    planned = {frozenset((found.a, found.b)) for found in comparisons if found.is_planned}
    told = [found for found in comparisons if found.is_planned or frozenset((found.a, found.b)) not in planned]
    return [
        Text(f"{found.a} and {found.b} ({found.name}): {found.sentence}")
        for found in told
        if found.sentence not in ("", found.in_words)
    ]
