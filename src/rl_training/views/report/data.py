"""What a page shows of runs, read from their folders: new lines of their logs, curves as columns, facts."""

from __future__ import annotations

import contextlib
import json
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpoint_folder import last_metadata
from rl_training.experiment.logs import LOG_NAME
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.run_folder import TrainingRun
from rl_training.files import open_regular, read_limited
from rl_training.studies.catalog import RunInfo, last_line
from rl_training.studies.groups import RunRecord
from rl_training.views.report.blocks import (
    ESTIMATE,
    EVALUATIONS,
    TIMES,
    UPDATES,
    Cell,
    finite,
    table_of,
)

CHECKED_BYTES = 256
"""Bytes before a place whose checksum shows that the file is still the one that was read."""
TOKEN = re.compile(r"([0-9a-f]{1,15})\.([0-9a-f]{8})")
START = f"0.{0:08x}"
"""Token of the beginning of a file."""
MAX_POINTS = 400
"""Rows of one run's curves on a page."""
MIN_POINTS = 40
MAX_VALUES = 16_000
"""Numbers in all curves of a page: with them it stays under 300 KB."""
STEP = "global_step"
NOT_DRAWN = {STEP, "eval_episodes", "eval_success_reports", "gradient_steps"}
DIGITS = 6
Line = Mapping[str, float | None]
OFFLINE, ONLINE, UNKNOWN = "updates", "environment steps", "steps"
FIRST_OFFLINE = f"{OFFLINE}, then {ONLINE}"
"""What the steps of runs count."""
MAX_LOG_BYTES = 1 << 18
ESTIMATE_FILE = "fqe.json"
DEFAULT_DISCOUNT = 0.99
"""Discount factor of a run that sets none: the default of every algorithm, whose classes would import torch."""
PLAIN_REWARDS = {
    **{"reward_scale": 1.0, "reward_shift": 0.0, "normalize_reward": False},
    **{"reward_clip_min": None, "reward_clip_max": None},
}
"""Settings that transform rewards, with the values that do not."""
LOG_LINE = re.compile(r"^(\d{4}-\d\d-\d\dT\S+) ([A-Z]+) (.*)", re.MULTILINE)


@dataclass(frozen=True)
class NewLines:
    """Lines of a file, and the place after them."""

    lines: list[dict[str, float | None]] = field(default_factory=list)
    """Steps and finite numbers; a value that is not finite is None."""
    token: str = START
    """Place after the last complete line: its offset, and a checksum of the bytes before it."""
    is_whole: bool = True
    """Whether the lines begin at the file's first: everything read before is void."""
    num_damaged: int = 0
    """Complete lines that hold no object with a step."""


def read_new_lines(path: Path, token: str = START) -> NewLines:
    """The complete lines after the place `token`; all lines if the file before that place has changed."""
    with contextlib.suppress(CheckpointError, OSError), open_regular(path) as file:
        offset = _offset(file, token)
        file.seek(offset)
        data, end, _ = file.read().rpartition(
            b"\n"
        )  # what follows the last line break is incomplete
        texts = (data + end).splitlines()
        lines = [line for line in map(_parse, texts) if line is not None]
        place = _token(file, offset + len(data + end))
        return NewLines(lines, place, offset == 0, len(texts) - len(lines))
    return NewLines()


def _offset(file: BinaryIO, token: str) -> int:
    """The offset of a token; 0 if the token is not of this file."""
    match = TOKEN.fullmatch(token)
    offset = int(match[1], 16) if match else 0
    is_same = offset <= file.seek(0, os.SEEK_END) and _token(file, offset) == token
    return offset if is_same else 0


def _token(file: BinaryIO, offset: int) -> str:
    start = max(0, offset - CHECKED_BYTES)
    file.seek(start)
    return f"{offset:x}.{zlib.crc32(file.read(offset - start)):08x}"


def _parse(line: bytes) -> dict[str, float | None] | None:
    with contextlib.suppress(ValueError, RecursionError):
        values = json.loads(line)
        if isinstance(values, dict) and finite(values.get(STEP)) is not None:
            return {name: finite(value) for name, value in values.items()}
    return None


@dataclass(frozen=True)
class Columns:
    """Curves of one run that share their steps."""

    steps: tuple[float, ...] = ()
    metrics: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For the page: numbers with six significant digits."""
        return {
            "x": [_short(step, 12) for step in self.steps],
            "y": {
                name: [_short(value) for value in values] for name, values in self.metrics.items()
            },
        }


def thin(columns: Columns, max_points: int) -> Columns:
    """At most about `max_points` rows: the first, the last, each curve's extremes, and others evenly between."""
    count = len(columns.steps)
    if count <= max_points:
        return columns
    kept = {0, count - 1}
    for values in columns.metrics.values():
        known = {row: value for row, value in enumerate(values) if value is not None}
        if known:
            kept |= {min(known, key=known.__getitem__), max(known, key=known.__getitem__)}
    spaced = max(2, max_points - len(kept))
    kept |= {round(index * (count - 1) / (spaced - 1)) for index in range(spaced)}
    rows = sorted(kept)
    metrics = {name: tuple(values[row] for row in rows) for name, values in columns.metrics.items()}
    return Columns(tuple(columns.steps[row] for row in rows), metrics)


def points_for(tables: Sequence[Columns]) -> int:
    """Rows for each table, so that all of them together fit into a page."""
    sizes = [(len(table.steps), len(table.metrics)) for table in tables]
    limit = MAX_POINTS
    while limit > MIN_POINTS and sum(min(n, limit) * width for n, width in sizes) > MAX_VALUES:
        limit -= 1
    return limit


def columns_of(lines: Sequence[Line], table: str) -> Columns:
    """The metrics of one table that have values, at the steps at which they were logged."""
    names = dict.fromkeys(
        name
        for line in lines
        for name, value in line.items()
        if value is not None and name not in NOT_DRAWN and table_of(name) == table
    )
    rows = [line for line in lines if not names.keys().isdisjoint(line)]
    return Columns(
        tuple(line[STEP] or 0 for line in rows),
        {name: tuple(line.get(name) for line in rows) for name in names},
    )


def _short(value: float | None, digits: int = DIGITS) -> float | None:
    """A number with few digits; whole numbers without a fraction."""
    if value is None:
        return None
    number = float(f"{value:.{digits}g}")
    return int(number) if number == int(number) and abs(number) < 1e15 else number


@dataclass(frozen=True)
class Curves:
    """Curves of one run, or what is new of them."""

    tables: Mapping[str, Columns]
    """The curves of evaluations, of updates and of the speed."""
    tokens: tuple[str, str]
    """Places in `metrics.jsonl` and `timing.jsonl` up to which they were read."""
    is_whole: tuple[bool, bool]
    """Whether each of the two files was read from its beginning: earlier points are void."""
    num_damaged: int
    last_times: Mapping[str, float | None]
    """Last line of `timing.jsonl` among these."""

    @property
    def names(self) -> frozenset[str]:
        """Metrics that were logged."""
        return frozenset(name for table in self.tables.values() for name in table.metrics)

    def as_dict(self) -> dict[str, Any]:
        """For the page."""
        tables = {name: table.as_dict() for name, table in self.tables.items()}
        return {**tables, "tokens": self.tokens, "is_whole": self.is_whole}


def read_curves(run: RunRecord, tokens: Sequence[str] = (START, START)) -> Curves:
    """The curves of a run after the places `tokens`."""
    metrics = read_new_lines(run.run_dir / "metrics.jsonl", tokens[0])
    times = read_new_lines(run.run_dir / "timing.jsonl", tokens[1])
    lines = with_estimates(metrics, run.settings)
    tables = {name: columns_of(lines, name) for name in (EVALUATIONS, UPDATES)}
    return Curves(
        {**tables, TIMES: columns_of(times.lines, TIMES)},
        (metrics.token, times.token),
        (metrics.is_whole, times.is_whole),
        metrics.num_damaged + times.num_damaged,
        times.lines[-1] if times.lines else {},
    )


def thinned(curves: Sequence[Curves]) -> tuple[list[Curves], int | None]:
    """The curves with few enough points for a page, and their limit; None if all points are kept."""
    tables = [table for run in curves for table in run.tables.values()]
    limit = points_for(tables)
    thin_curves = [
        replace(run, tables={name: thin(table, limit) for name, table in run.tables.items()})
        for run in curves
    ]
    return thin_curves, limit if any(len(table.steps) > limit for table in tables) else None


def with_estimates(metrics: NewLines, settings: Mapping[str, Any]) -> list[Line]:
    """The lines with an estimate of the discounted return, where a Q-value can be compared with it."""
    gamma = discount(settings)
    if gamma is None:
        return list(metrics.lines)
    return [{**line, **_estimate(line, gamma)} for line in metrics.lines]


def _estimate(line: Line, gamma: float) -> Line:
    """Return R of an episode of L steps, discounted as if each step gave R / L."""
    total, length = line.get("eval_return_mean"), line.get("eval_length_mean")
    if total is None or not length or length < 1:
        return {}
    steps = length if gamma == 1 else (1 - gamma**length) / (1 - gamma)
    return {ESTIMATE: total / length * steps}


def discount(settings: Mapping[str, Any]) -> float | None:
    """The discount factor of a run; None if its rewards are transformed, so that Q-values have another scale."""
    kwargs, env = mapping(settings.get("algo_kwargs")), mapping(settings.get("env_kwargs"))
    is_transformed = any(
        kwargs.get(key) not in (plain, None) for key, plain in PLAIN_REWARDS.items()
    )
    if is_transformed or mapping(env.get("wrappers")):
        return None
    gamma = finite(kwargs.get("gamma", DEFAULT_DISCOUNT))
    return gamma if gamma is not None and 0 <= gamma <= 1 else None


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty one: files may be damaged."""
    return value if isinstance(value, Mapping) else {}


@dataclass(frozen=True)
class Logged:
    """What the log files of a run hold, in short, up to the places `tokens`."""

    names: frozenset[str] = frozenset()
    times: Mapping[str, float | None] = field(default_factory=dict)
    num_damaged: int = 0
    tokens: tuple[str, str] = (START, START)

    def extended(self, curves: Curves) -> Logged:
        """With newer lines."""
        before = Logged() if curves.is_whole[0] else self
        times = curves.last_times or ({} if curves.is_whole[1] else self.times)
        num_damaged = before.num_damaged + curves.num_damaged
        return Logged(before.names | curves.names, times, num_damaged, curves.tokens)


@dataclass(frozen=True)
class RunFacts:
    """One run on a page."""

    record: RunRecord
    group: int
    logged: Logged
    group_name: str = ""
    """Empty if the page has one group only."""

    @property
    def info(self) -> RunInfo:
        """State, step and scores."""
        return self.record.info

    @property
    def label(self) -> str:
        """Seed, or the name of the folder."""
        return self.info.name if self.info.seed is None else f"seed {self.info.seed}"

    @property
    def full_label(self) -> str:
        """The label, after the group's name if there are several groups."""
        return f"{self.group_name}, {self.label}" if self.group_name else self.label

    @property
    def cell(self) -> Cell:
        """The label in a table, with the color of its group."""
        return {"text": self.full_label, "group": self.group}

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """Content of `metadata.json`."""
        return TrainingRun(self.record.run_dir).metadata()

    @cached_property
    def evaluation(self) -> dict[str, Any]:
        """The last evaluation, episode by episode."""
        return last_line(self.record.run_dir / "evaluations.jsonl")

    @cached_property
    def no_score(self) -> str | None:
        """Why a run that was evaluated or has finished has no score; None if it has one, or is not so far."""
        is_finished = self.info.state == "finished"
        if self.info.last_eval is not None or not (is_finished or self.evaluation):
            return None
        if not self.evaluation:
            return "evaluations.jsonl has no last line that can be read"
        evaluated = finite(self.evaluation.get(STEP))
        logged = finite(last_line(self.record.run_dir / "metrics.jsonl").get(STEP))
        if is_finished and logged is not None and evaluated != logged:
            at = "no step" if evaluated is None else f"step {evaluated:,}"
            return f"its last evaluation is of {at}, and its metrics end at step {logged:,}"
        return "the returns of its last evaluation are not all finite numbers, or too large"

    @cached_property
    def log(self) -> list[tuple[str, str, str]]:
        """Time, level and text of the entries of `run.log`, without tracebacks."""
        with contextlib.suppress(CheckpointError, OSError):
            text = read_limited(self.record.run_dir / LOG_NAME, MAX_LOG_BYTES)
            return LOG_LINE.findall(text.decode(errors="replace"))
        return []

    @cached_property
    def checkpoint(self) -> dict[str, Any]:
        """Metadata of the last checkpoint: machine, threads, reasons why it is not exact."""
        return last_metadata(self.record.run_dir)

    @cached_property
    def estimate(self) -> Mapping[str, Any]:
        """A stored result of fitted Q evaluation, as `rl-training eval RUN --dataset FILE --json` prints it."""
        return read_object(self.record.run_dir / ESTIMATE_FILE, MAX_LOG_BYTES)

    @property
    def dataset(self) -> Mapping[str, Any]:
        """Size and returns of an offline run's dataset, from its metadata."""
        return mapping(self.metadata.get("dataset"))

    @cached_property
    def steps(self) -> tuple[str, int | None]:
        """What its steps count, and the step at which it went online, if it has."""
        return step_unit(self.record)

    @property
    def is_offline(self) -> bool:
        """Whether its steps are, or begin with, updates on a dataset."""
        return self.steps[0] in (OFFLINE, FIRST_OFFLINE)


def read_object(path: Path, max_bytes: int) -> Mapping[str, Any]:
    """The JSON object in a file; an empty one if the file is missing, damaged or larger than `max_bytes`."""
    with contextlib.suppress(CheckpointError, OSError, ValueError, RecursionError):
        return mapping(json.loads(read_limited(path, max_bytes)))
    return {}


def step_unit(run: RunRecord) -> tuple[str, int | None]:
    """What a step of a run is, and the step at which online fine-tuning began, if it has."""
    kwargs = mapping(run.settings.get("algo_kwargs"))
    try:
        is_offline = get_algorithm_spec(str(run.settings.get("algo"))).is_offline
    except (
        ConfigError
    ):  # settings that cannot be read, or an algorithm of a plugin that is not loaded
        return (OFFLINE if "dataset_kind" in kwargs else UNKNOWN), None
    first = mapping(kwargs.get("online")).get("after_updates")
    if is_offline and isinstance(first, int) and run.info.step > first:
        return FIRST_OFFLINE, first
    return (OFFLINE if is_offline else ONLINE), None
