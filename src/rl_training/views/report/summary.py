"""The sections that say how good the runs are: verdicts, the summary, final scores, comparisons."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rl_training.studies.groups import RunGroup
from rl_training.studies.statistics.summaries import NAMES, Summary, summarize
from rl_training.studies.variation import format_seeds
from rl_training.views.report.blocks import (
    Block,
    Cell,
    Section,
    Strip,
    Table,
    Text,
    Verdict,
    finite,
    number,
)
from rl_training.views.report.data import RunFacts

MAX_REASONS = 20
"""Runs without a score whose reason stands below the table; the events have all of them."""
SCORE_NOTE = (
    "Score: the mean return of a run's last evaluation. Of two or three runs, the median and in brackets the range; of"
    " four and more, the interquartile mean and its 95 % bootstrap interval."
)
OFFLINE_NOTE = (
    "Data: undiscounted returns of the recorded episodes. FQE: discounted return of the policy, estimated from a"
    " dataset; behaviour: the discounted return that the recorded actions earned in the same episodes."
)
FQE_NOTE = (
    "`rl-training eval RUN --dataset FILE --json > RUN/fqe.json` stores an estimate for this page."
)


@dataclass(frozen=True)
class GroupFacts:
    """The runs of one group."""

    index: int
    group: RunGroup
    runs: Sequence[RunFacts]

    @property
    def algo(self) -> str:
        """Name of the algorithm."""
        return next((run.info.algo for run in self.runs if run.info.algo), "unknown algorithm")

    @property
    def env(self) -> str:
        """Name of the environment; unknown where there is only a dataset."""
        return next((run.info.env_id for run in self.runs if run.info.env_id), "no environment")

    @property
    def scored(self) -> list[RunFacts]:
        """Finished runs with a score; without any, the runs that were evaluated so far."""
        runs = [run for run in self.runs if run.info.last_eval is not None]
        return [run for run in runs if run.info.state == "finished"] or runs

    @property
    def is_final(self) -> bool:
        """Whether the score comes from finished runs."""
        return any(run.info.state == "finished" for run in self.scored)

    @property
    def summary(self) -> Summary | None:
        """The scores in short; None without an evaluation."""
        scores = [run.info.last_eval for run in self.scored if run.info.last_eval is not None]
        return summarize(scores) if scores else None

    @property
    def seeds(self) -> str:
        """The seeds in short."""
        seeds = sorted({run.info.seed for run in self.runs if run.info.seed is not None})
        return format_seeds(seeds).replace(",", ", ") if seeds else "–"

    @property
    def steps(self) -> str:
        """Steps done, and of how many if runs are not complete."""
        unit = "updates" if any(run.is_offline for run in self.runs) else "steps"
        least = min((run.info.step for run in self.runs), default=0)
        most = max((run.info.step for run in self.runs), default=0)
        total = max((run.info.total or 0 for run in self.runs), default=0)
        done = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        return f"{done} {unit}" if least >= total else f"{done} of {total:,} {unit}"

    @property
    def states(self) -> str:
        """How many runs are in which state."""
        counts = Counter(run.info.state for run in self.runs)
        words = [f"{count} {state}" for state, count in counts.most_common()]
        return ", ".join(
            words + ([f"{len(self.group.missing)} not started"] if self.group.missing else [])
        )

    @property
    def exactness(self) -> str:
        """Whether all runs are exact."""
        counts = Counter(run.info.exactness or "not known" for run in self.runs)
        if len(counts) < 2:
            return next(iter(counts), "not known")
        return ", ".join(f"{count} {word}" for word, count in counts.most_common())

    @property
    def limits(self) -> str:
        """What the score is, its limits, and over how many runs it is if not over all; empty without a score."""
        summary = self.summary
        if summary is None:
            return ""
        text = "one run"
        if summary.low is not None:
            text = f"{NAMES[summary.kind]} {limits_text(summary.low, summary.high)}"
        if len(self.scored) == len(self.runs):
            return text
        return f"{text} over {len(self.scored)} of {len(self.runs)} runs"


def overview(groups: Sequence[GroupFacts]) -> Section:
    """The score of one group in a line, of several in a table."""
    if not groups:
        return Section("overview", "Result", [])
    block = _verdict(groups[0]) if len(groups) == 1 else _summary(groups)
    return Section("overview", "Result", [block])


def _verdict(group: GroupFacts) -> Verdict:
    summary, count, exactness = group.summary, len(group.runs), group.exactness
    seeds = f"seed{'' if count == 1 else 's'} {group.seeds}" if count else "no run yet"
    facts = [group.algo.upper(), group.env, seeds, group.steps]
    if any(run.info.state != "finished" for run in group.runs) or group.group.missing:
        facts.append(group.states)
    return Verdict(
        group.index,
        facts,
        "no evaluation yet" if summary is None else number(summary.value),
        ("" if group.is_final or summary is None else "so far; ") + group.limits,
        f"exactness {exactness}" if "not known" in exactness else exactness,
    )


def limits_text(low: Any, high: Any) -> str:
    """Two limits in brackets."""
    known = finite(low) is not None and finite(high) is not None
    return f"[{number(low)}, {number(high)}]" if known else "–"


def _summary(groups: Sequence[GroupFacts]) -> Table:
    # The score stands beside the name: a phone shows these two, and the rest by scrolling.
    columns = ["group", "score", "range or interval", "best", "success", "steps", "runs"]
    columns += ["environment", "exactness"]
    rows: list[Sequence[Cell]] = []
    for group in groups:
        score = None if group.summary is None else group.summary.value
        bests = [run.info.best_eval for run in group.runs if run.info.best_eval is not None]
        rows.append(
            [
                {"text": group.group.name, "group": group.index},
                number(score) + ("" if group.is_final else " so far"),
                group.limits,
                number(max(bests, default=None)),
                number(_mean([success_rate(run) for run in group.scored])),
                group.steps,
                group.states or "no run yet",
                group.env,
                group.exactness,
            ]
        )
    caption = "Groups of runs that differ only in their seed"
    return Table(caption, columns, rows, 1, ends_in_text=True).without_empty_columns()


def final_scores(groups: Sequence[GroupFacts]) -> Section:
    """Every run's score as a dot, and the runs as a table."""
    blocks: list[Block] = []
    envs = dict.fromkeys(group.env for group in groups)
    for env in envs:
        found = [group for group in groups if group.env == env and group.summary is not None]
        if sum(len(group.scored) for group in found) > 1:
            title = f"Return at the end, {env}" if len(envs) > 1 else "Return at the end"
            blocks.append(Strip(title, [_strip_row(group) for group in found]))
    runs = runs_of(groups)
    columns = ["run", "state", "step", "score", "episodes", "length", "success", "best", "folder"]
    rows: list[Sequence[Cell]] = [
        [
            run.cell,
            {"text": run.info.state, "state": run.info.state},
            f"{run.info.step:,}",
            number(run.info.last_eval),
            _num_episodes(run),
            number(_mean(run.evaluation.get("lengths"))),
            number(success_rate(run)),
            number(run.info.best_eval),
            run.info.name,
        ]
        for run in runs
    ]
    table = Table("Runs, with their last evaluation", columns, rows, 2, ends_in_text=True)
    reasons = [f"{run.full_label} has no score: {run.no_score}." for run in runs if run.no_score]
    notes = map(Text, [SCORE_NOTE, *reasons[:MAX_REASONS]])
    return Section("scores", "Final scores", [*blocks, table.without_empty_columns(), *notes])


def runs_of(groups: Sequence[GroupFacts]) -> list[RunFacts]:
    """The runs of all groups."""
    return [run for group in groups for run in group.runs]


def _strip_row(group: GroupFacts) -> dict[str, Any]:
    assert group.summary is not None
    scores = [[run.label, finite(run.info.last_eval), run.info.state] for run in group.scored]
    return {
        "group": group.index,
        "scores": scores,
        "value": group.summary.value,
        "low": group.summary.low,
        "high": group.summary.high,
    }


def _num_episodes(run: RunFacts) -> str:
    returns = run.evaluation.get("returns")
    return str(len(returns)) if isinstance(returns, list) else "–"


def success_rate(run: RunFacts) -> float | None:
    """Fraction of the last evaluation's episodes that reported success, of those that reported it."""
    successes = run.evaluation.get("successes")
    if not isinstance(successes, list):
        return None
    return _mean([int(success) for success in successes if isinstance(success, bool)])


def _mean(values: Any) -> float | None:
    if not isinstance(values, list):
        return None
    numbers = [value for value in map(finite, values) if value is not None]
    return statistics.fmean(numbers) if numbers else None


def offline_blocks(groups: Sequence[GroupFacts]) -> list[Block]:
    """For offline runs the return of their dataset, and stored estimates of fitted Q evaluation (FQE)."""
    runs = [run for run in runs_of(groups) if run.is_offline]
    if not runs:
        return []
    columns = ["run", "data: mean", "data: best", "score", "FQE", "95 % interval", "behaviour"]
    rows = []
    for run in runs:
        data, estimate = run.dataset, run.estimate
        if data or estimate:
            is_converged = "yes" if estimate.get("fqe_converged") is True else "no"
            rows.append(
                [
                    run.cell,
                    number(data.get("return_mean")),
                    number(data.get("return_max")),
                    number(run.info.last_eval),
                    number(estimate.get("fqe_return_mean")),
                    limits_text(estimate.get("fqe_return_low"), estimate.get("fqe_return_high")),
                    number(estimate.get("behaviour_return_mean")),
                    is_converged if estimate else "–",
                ]
            )
    caption = "Return of the dataset, of the policy, and estimated"
    table = [Table(caption, [*columns, "converged"], rows)] if rows else []
    is_complete = all(run.estimate for run in runs)
    return [*table, Text(OFFLINE_NOTE if is_complete else f"{OFFLINE_NOTE} {FQE_NOTE}")]
