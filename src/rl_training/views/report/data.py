"""What a page shows of runs, read from their folders: facts, curves, and which metrics were logged."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpoint_folder import last_metadata
from rl_training.experiment.registry import Loop, get_algorithm_spec
from rl_training.experiment.run_folder import TrainingRun
from rl_training.experiment.run_log import LOG_NAME
from rl_training.files import read_limited
from rl_training.studies.catalog import RunInfo, last_line
from rl_training.studies.groups import RunGroup
from rl_training.studies.records import RunRecord
from rl_training.views.report.charts import ESTIMATE
from rl_training.views.report.columns import Columns, Line, evaluations_of, points_for, speeds_of, thin, updates_of
from rl_training.views.report.lines import START, NewLines, finite, read_new_lines

MAX_LOG_BYTES = 1 << 18
ESTIMATE_FILE = "fqe.json"
DEFAULT_DISCOUNT = 0.99
"""Discount factor of a run that sets none: the default of every algorithm, whose classes would import torch."""
LOG_LINE = re.compile(r"(\d{4}-\d\d-\d\dT\S+) ([A-Z]+) (.*)")


@dataclass(frozen=True)
class Curves:
    """Curves of one run, or what is new of them."""

    evaluations: Columns
    updates: Columns
    times: Columns
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
        return frozenset(name for table in self.tables for name in table.metrics)

    @property
    def tables(self) -> tuple[Columns, Columns, Columns]:
        """The three tables."""
        return self.evaluations, self.updates, self.times

    def as_dict(self) -> dict[str, Any]:
        """For the page."""
        tables = dict(zip(("evaluations", "updates", "times"), self.tables, strict=True))
        return {
            **{name: table.as_dict() for name, table in tables.items()},
            "tokens": self.tokens,
            "is_whole": self.is_whole,
        }


def read_curves(run: RunRecord, tokens: Sequence[str] = (START, START)) -> Curves:
    """The curves of a run after the places `tokens`."""
    metrics = read_new_lines(run.run_dir / "metrics.jsonl", tokens[0])
    times = read_new_lines(run.run_dir / "timing.jsonl", tokens[1])
    lines = with_estimates(metrics, run.settings)
    return Curves(
        evaluations_of(lines),
        updates_of(lines),
        speeds_of(times.lines),
        (metrics.token, times.token),
        (metrics.is_whole, times.is_whole),
        metrics.num_damaged + times.num_damaged,
        times.lines[-1] if times.lines else {},
    )


def thinned(curves: Sequence[Curves]) -> tuple[list[Curves], int | None]:
    """The curves with few enough points for a page, and their limit; None if all points are kept."""
    limit = points_for(table for run in curves for table in run.tables)
    is_thinned = any(len(table.steps) > limit for run in curves for table in run.tables)
    found = []
    for run in curves:
        evaluations, updates, times = (thin(table, limit) for table in run.tables)
        found.append(replace(run, evaluations=evaluations, updates=updates, times=times))
    return found, limit if is_thinned else None


def with_estimates(metrics: NewLines, settings: Mapping[str, Any]) -> list[Line]:
    """The lines with an estimate of the discounted return, where a Q-value can be compared with it."""
    gamma = discount(settings)
    if gamma is None:
        return list(metrics.lines)
    return [{**line, **_estimate(line, gamma)} for line in metrics.lines]


def _estimate(line: Line, gamma: float) -> dict[str, float | None]:
    """Return R of an episode of L steps, discounted as if each step gave R / L."""
    total, length = line.get("eval_return_mean"), line.get("eval_length_mean")
    if total is None or not length or length < 1:
        return {}
    steps = length if gamma == 1 else (1 - gamma**length) / (1 - gamma)
    return {ESTIMATE: total / length * steps}


def discount(settings: Mapping[str, Any]) -> float | None:
    """The discount factor of a run; None if its rewards are transformed, so that Q-values have another scale."""
    kwargs, env = mapping(settings.get("algo_kwargs")), mapping(settings.get("env_kwargs"))
    is_scaled = any(
        kwargs.get(key, plain) not in (plain, None)
        for key, plain in (("reward_scale", 1.0), ("reward_shift", 0.0), ("normalize_reward", False))
    )
    is_clipped = any(kwargs.get(key) is not None for key in ("reward_clip_min", "reward_clip_max"))
    if is_scaled or is_clipped or mapping(env.get("wrappers")):
        return None
    gamma = finite(kwargs.get("gamma", DEFAULT_DISCOUNT))
    return gamma if gamma is not None and 0 <= gamma <= 1 else None


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty one: files may be damaged."""
    return value if isinstance(value, Mapping) else {}


@dataclass(frozen=True)
class Logged:
    """What the log files of a run hold, in short."""

    names: frozenset[str] = frozenset()
    times: Mapping[str, float | None] | None = None
    num_damaged: int = 0

    def extended(self, curves: Curves) -> Logged:
        """With newer lines."""
        before = Logged() if curves.is_whole[0] else self
        times = curves.last_times or (None if curves.is_whole[1] else self.times)
        return Logged(before.names | curves.names, times, before.num_damaged + curves.num_damaged)


@dataclass(frozen=True)
class RunFacts:
    """One run on a page."""

    record: RunRecord
    group: int
    logged: Logged

    @property
    def info(self) -> RunInfo:
        """State, step and scores."""
        return self.record.info

    @property
    def label(self) -> str:
        """Seed, or the name of the folder."""
        return self.info.name if self.info.seed is None else f"seed {self.info.seed}"

    @property
    def settings(self) -> Mapping[str, Any]:
        """The configuration."""
        return self.record.settings

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
        evaluated = finite(self.evaluation.get("global_step"))
        logged = finite(last_line(self.record.run_dir / "metrics.jsonl").get("global_step"))
        if is_finished and logged is not None and evaluated != logged:
            at = "no step" if evaluated is None else f"step {evaluated:,}"
            return f"its last evaluation is of {at}, and its metrics end at step {logged:,}"
        return "the returns of its last evaluation are not all finite numbers, or too large"

    @cached_property
    def log(self) -> list[tuple[str, str, str]]:
        """Time, level and text of the entries of `run.log`, without tracebacks."""
        with contextlib.suppress(CheckpointError, OSError):
            path = self.record.run_dir / LOG_NAME
            text = read_limited(path, MAX_LOG_BYTES).decode(errors="replace")
            found = (LOG_LINE.match(line) for line in text.splitlines())
            return [(match[1], match[2], match[3]) for match in found if match]
        return []

    @cached_property
    def checkpoint(self) -> dict[str, Any]:
        """Metadata of the last checkpoint: machine, threads, reasons why it is not exact."""
        return last_metadata(self.record.run_dir)

    @cached_property
    def estimate(self) -> Mapping[str, Any]:
        """A stored result of fitted Q evaluation, as `rl-training eval RUN --dataset FILE --json` prints it."""
        with contextlib.suppress(CheckpointError, OSError, ValueError, RecursionError):
            return mapping(json.loads(read_limited(self.record.run_dir / ESTIMATE_FILE, MAX_LOG_BYTES)))
        return {}

    @property
    def dataset(self) -> Mapping[str, Any]:
        """Size and returns of the dataset of an offline run, as its metadata tells."""
        return mapping(self.metadata.get("dataset"))

    @property
    def loop(self) -> Loop | None:
        """The training loop of its algorithm; None if it is not known, as of a plugin that is not loaded."""
        with contextlib.suppress(ConfigError):
            return get_algorithm_spec(self.info.algo or "").loop
        return None

    @property
    def is_offline(self) -> bool:
        """Whether its steps are updates on a dataset."""
        is_given = "dataset_kind" in mapping(self.settings.get("algo_kwargs"))
        return self.loop is Loop.OFFLINE or (self.loop is None and is_given)

    @property
    def online_from(self) -> int | None:
        """The step at which an offline run continues in the environment."""
        online = mapping(mapping(self.settings.get("algo_kwargs")).get("online"))
        first = online.get("after_updates")
        return first if self.is_offline and isinstance(first, int) and self.info.step > first else None


def facts_of(groups: Sequence[RunGroup], logged: Mapping[Path, Logged]) -> list[RunFacts]:
    """The runs of all groups."""
    return [
        RunFacts(record, index, logged.get(record.run_dir, Logged()))
        for index, group in enumerate(groups)
        for record in group.runs
    ]
