"""The parts of a page as plain values, which its script draws, and the metrics that it shows."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

Cell = str | dict[str, Any]
"""Text, or `{"text": …, "group": index, "state": …, "is_marked": true}`."""
EVALUATIONS, UPDATES, TIMES = "evaluations", "updates", "times"
"""The three tables of a run's curves."""
ESTIMATE = "eval_discounted_estimate"
"""Realised return, discounted: computed for the page."""
TOLD = {"eval_return_std", "eval_normalized_score", ESTIMATE}
"""Metrics that a table shows, or another chart."""
TIME_PARTS = ("collect", "update", "eval", "save")
"""Parts of a run's time in `timing.jsonl`: `collect_seconds`, and so on."""


@dataclass(frozen=True)
class Block:
    """One part of a section."""

    def as_dict(self) -> dict[str, Any]:
        """Its values and its kind."""
        return {"kind": type(self).__name__.lower(), **asdict(self)}


@dataclass(frozen=True)
class Text(Block):
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Verdict(Block):
    """The only group in a line: what was trained, and its score."""

    group: int
    facts: Sequence[str]
    score: str
    interval: str
    exactness: str


@dataclass(frozen=True)
class Table(Block):
    """A table; columns after the first `num_text_columns` are numbers, except the last if it `ends_in_text`."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    num_text_columns: int = 1
    ends_in_text: bool = False
    is_folded: bool = False

    def without_empty_columns(self) -> Table:
        """The table without columns of dashes, which no run reports; without rows it keeps all columns."""
        kept = [
            column
            for column in range(len(self.columns))
            if not self.rows or any(row[column] != "–" for row in self.rows)
        ]
        rows = [[row[column] for column in kept] for row in self.rows]
        return replace(self, columns=[self.columns[column] for column in kept], rows=rows)


@dataclass(frozen=True)
class Plot(Block):
    """Curves of one metric in one facet."""

    metric: str
    table: str
    facet: int
    title: str
    note: str
    reference: str | None
    levels: Sequence[tuple[float, str]] = ()
    """Values that are drawn as dotted horizontal lines, with a word."""


@dataclass(frozen=True)
class Fold(Block):
    """Parts that are shown when they are opened."""

    title: str
    blocks: Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Strip(Block):
    """Scores of runs as dots, a row for each group, with their summary."""

    title: str
    rows: Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Bars(Block):
    """Shares of a whole, a bar for each row."""

    caption: str
    parts: Sequence[str]
    rows: Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Code(Block):
    """Commands to copy."""

    title: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Film(Block):
    """A film of a run, inside the page or beside it."""

    group: int
    title: str
    size: str
    media: str
    """Media type: `video/mp4` or `image/gif`."""
    source: str
    """The film as a data URI; empty if it is linked only."""
    link: str
    """Address of the file, relative to the page."""


@dataclass(frozen=True)
class Section:
    """A headed part of the page."""

    id: str
    title: str
    blocks: Sequence[Block]

    def as_dict(self) -> dict[str, Any]:
        """For the page."""
        return {
            "id": self.id,
            "title": self.title,
            "blocks": [block.as_dict() for block in self.blocks],
        }


def finite(value: Any) -> float | None:
    """The value as a number; None if it is none, or not finite."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    with contextlib.suppress(OverflowError):
        if is_number and math.isfinite(value):
            return value  # type: ignore[no-any-return]
    return None


def number(value: Any, missing: str = "–") -> str:
    """A number for people: thousands separated, about four digits; `missing` for what is no finite number."""
    known = finite(value)
    if known is None:
        return missing
    if abs(known) >= 100:
        return f"{known:,.1f}"
    return f"{known:.2f}" if abs(known) >= 1 else f"{known:.3g}"


def duration(seconds: float | None) -> str:
    """A time span in one or two units."""
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


@dataclass(frozen=True)
class Chart:
    """One metric on a page."""

    metric: str
    title: str
    note: str = ""
    reference: str | None = None
    """A second metric, drawn dashed: the mean over the runs."""


LEARNING = (
    Chart(
        "eval_return_mean",
        "Evaluation return",
        "Mean raw return of each evaluation, with the deterministic policy.",
    ),
    Chart(
        "train_return_mean",
        "Training return",
        "Mean raw return of the last 100 training episodes, with exploration.",
    ),
)
EPISODES = (
    Chart(
        "eval_success_rate",
        "Success rate",
        "Fraction of evaluation episodes that reported success.",
    ),
    Chart("eval_length_mean", "Episode length in evaluations", "Mean, in environment steps."),
    Chart(
        "train_length_mean",
        "Episode length in training",
        "Mean of the last 100 episodes, in environment steps.",
    ),
    Chart(
        "env_restarts",
        "Restarted environments",
        "Environments that failed and were recreated, so far.",
    ),
)
HEALTH = (
    Chart(
        "approx_kl",
        "KL divergence",
        "Between the policy that collected and the updated one. Usual: 0.001 to 0.03; much more is too large a step.",
    ),
    Chart(
        "clip_fraction",
        "Clip fraction",
        "Fraction of samples whose probability ratio was clipped. Usual: 0.05 to 0.3; at 0, clipping never acts.",
    ),
    Chart(
        "explained_variance",
        "Explained variance",
        "1 is a perfect value function; 0 is no better than a constant; below 0 is worse.",
    ),
    Chart(
        "entropy",
        "Entropy of the policy",
        "A fast fall to its lowest value is an early end of exploration.",
    ),
    Chart(
        "q_mean",
        "Predicted value and realised return",
        "Solid: mean Q-value of the batch's actions. Dashed, where rewards are not transformed: the evaluation return,"
        " discounted as if its reward were spread evenly over the episode (per-step rewards are not recorded). Q-values"
        " far above it are overestimates; states late in an episode and entropy bonuses move Q a little.",
        reference=ESTIMATE,
    ),
    Chart(
        "alpha",
        "Entropy temperature (alpha)",
        "Weight of the entropy; it falls as the policy reaches its target.",
    ),
    Chart(
        "conservative_gap",
        "Conservative gap",
        "Soft maximum of Q over actions minus Q of the dataset's action.",
    ),
    Chart("advantage_mean", "Advantage", "Mean advantage of the dataset's actions."),
    Chart("grad_norm", "Gradient norm", "Before clipping."),
    Chart("critic_grad_norm", "Gradient norm of the critics", "Before clipping."),
    Chart("actor_grad_norm", "Gradient norm of the actor", "Before clipping."),
    Chart("value_grad_norm", "Gradient norm of the state value", "Before clipping."),
    Chart("policy_loss", "Policy loss"),
    Chart("value_loss", "Value loss", "Squared error of the state value; IQL: its expectile loss."),
    Chart("critic_loss", "Critic loss", "Summed over the critics."),
    Chart("actor_loss", "Actor loss"),
    Chart(
        "imitation_loss",
        "Imitation loss",
        "Mean squared difference between the policy's and the dataset's actions.",
    ),
    Chart("learning_rate", "Learning rate"),
)
SPEED = (
    Chart(
        "steps_per_second",
        "Steps per second",
        "Since the line before; evaluations and checkpoints included.",
    ),
)


CHARTS = {chart.metric: chart for chart in (*LEARNING, *EPISODES, *HEALTH, *SPEED)}
"""Charts of the metrics that have a place on the page."""


def others(logged: Iterable[str]) -> list[Chart]:
    """A chart for each logged metric that has no place elsewhere."""
    names = sorted(set(logged) - CHARTS.keys() - TOLD)
    return [Chart(name, name.replace("_", " ")) for name in names]


def metric_label(metric: str) -> str:
    """A metric in words, for the axis of a picture."""
    title = CHARTS[metric].title if metric in CHARTS else metric.replace("_", " ")
    return title if title.startswith("KL") else title[0].lower() + title[1:]


def table_of(metric: str) -> str:
    """The table of a run that has the metric."""
    if metric == "steps_per_second":
        return TIMES
    return EVALUATIONS if metric.startswith("eval_") else UPDATES
