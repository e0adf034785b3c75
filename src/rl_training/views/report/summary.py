"""The sections that say how good the runs are: verdicts, the summary, final scores, comparisons."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rl_training.studies.groups import RunGroup
from rl_training.studies.selection import format_seeds
from rl_training.studies.statistics import MeanInterval, mean_interval
from rl_training.views.report.blocks import Block, Cell, Section, Strip, Table, Text, Verdict, number
from rl_training.views.report.data import RunFacts
from rl_training.views.report.lines import finite

MAX_VERDICTS = 4
"""Groups with a line of their own; more of them are only in the table."""
MAX_REASONS = 20
"""Runs without a score whose reason stands below the table; the events have all of them."""
SCORE_NOTE = (
    "Score: the mean return of a run's last evaluation; then the mean over the runs, with the 95 % interval of"
    " Student's t over runs."
)
OFFLINE_NOTE = (
    "Data: undiscounted returns of the recorded episodes. FQE: discounted return of the policy, estimated from a"
    " dataset; behaviour: the discounted return that the recorded actions earned in the same episodes."
)
FQE_NOTE = "`rl-training eval RUN --dataset FILE --json > RUN/fqe.json` stores an estimate for this page."


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
        """Name of the environment; that of the dataset alone is not known."""
        return next((run.info.env_id for run in self.runs if run.info.env_id), "no environment")

    @property
    def scored(self) -> list[RunFacts]:
        """Finished runs with a score; without any, the runs that were evaluated so far."""
        runs = [run for run in self.runs if run.info.last_eval is not None]
        return [run for run in runs if run.info.state == "finished"] or runs

    @property
    def is_final(self) -> bool:
        """Whether the score is that of finished runs."""
        return any(run.info.state == "finished" for run in self.scored)

    @property
    def interval(self) -> MeanInterval | None:
        """Mean score and its interval; None without an evaluation."""
        scores = [run.info.last_eval for run in self.scored if run.info.last_eval is not None]
        return mean_interval(scores) if scores else None

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
        return ", ".join(words + ([f"{len(self.group.missing)} not started"] if self.group.missing else []))

    @property
    def exactness(self) -> str:
        """Whether all runs are exact."""
        counts = Counter(run.info.exactness or "not known" for run in self.runs)
        if len(counts) < 2:
            return next(iter(counts), "not known")
        return ", ".join(f"{count} {word}" for word, count in counts.most_common())


def overview(groups: Sequence[GroupFacts]) -> Section:
    """Verdict lines, and a table of all groups if there are several."""
    blocks: list[Block] = []
    if len(groups) <= MAX_VERDICTS:
        blocks += [_verdict(group) for group in groups]
    if len(groups) > 1:
        blocks.append(_summary(groups))
    return Section("overview", "Result", [*blocks, Text(SCORE_NOTE)])


def _verdict(group: GroupFacts) -> Verdict:
    interval = group.interval
    facts = [group.algo.upper(), group.env, _counted_seeds(group), group.steps]
    if any(run.info.state != "finished" for run in group.runs) or group.group.missing:
        facts.append(group.states)
    return Verdict(
        group.index,
        "" if group.group.name.lower() == group.algo.lower() else group.group.name,
        facts,
        "no evaluation yet" if interval is None else number(interval.mean),
        ("" if group.is_final or interval is None else "so far; ") + interval_text(interval) + _share(group),
        group.exactness if "not known" not in group.exactness else f"exactness {group.exactness}",
    )


def _share(group: GroupFacts) -> str:
    """Over how many runs the score is, if not over all."""
    is_partial = group.interval is not None and len(group.scored) < len(group.runs)
    return f" over {len(group.scored)} of {len(group.runs)} runs" if is_partial else ""


def _counted_seeds(group: GroupFacts) -> str:
    count = len(group.runs)
    return f"seed{'' if count == 1 else 's'} {group.seeds}" if count else "no run yet"


def interval_text(interval: MeanInterval | None) -> str:
    """The interval in brackets."""
    if interval is None:
        return ""
    if interval.low is None or interval.high is None:
        return "one run: no interval"
    return f"[{number(interval.low)}, {number(interval.high)}]"


def _summary(groups: Sequence[GroupFacts]) -> Table:
    columns = ["group", "environment", "runs", "steps", "score", "95 % interval", "best", "success", "exactness"]
    rows: list[Sequence[Cell]] = []
    for group in groups:
        interval = group.interval
        bests = [run.info.best_eval for run in group.runs if run.info.best_eval is not None]
        success = _mean([success_rate(run) for run in group.scored])
        rows.append(
            [
                {"text": group.group.name, "group": group.index},
                group.env,
                group.states or "no run yet",
                group.steps,
                number(None if interval is None else interval.mean) + ("" if group.is_final else " so far"),
                interval_text(interval) + _share(group),
                number(max(bests, default=None)),
                number(success),
                group.exactness,
            ]
        )
    if all(row[7] == "–" for row in rows):
        columns, rows = [name for name in columns if name != "success"], [[*row[:7], row[8]] for row in rows]
    return Table("Groups of runs that differ only in their seed", columns, rows, num_text_columns=3, ends_in_text=True)


def final_scores(groups: Sequence[GroupFacts]) -> Section:
    """Every run's score as a dot, and the runs as a table."""
    blocks: list[Block] = []
    envs = dict.fromkeys(group.env for group in groups)
    for env in envs:
        rows = [_strip_row(group) for group in groups if group.env == env and group.interval is not None]
        if sum(len(row["scores"]) for row in rows) > 1:
            blocks.append(Strip(f"Return at the end, {env}" if len(envs) > 1 else "Return at the end", rows))
    runs = [(group, run) for group in groups for run in group.runs]
    columns = ["run", "state", "step", "score", "episodes", "length", "success", "best", "folder"]
    table: list[Sequence[Cell]] = [
        [
            {"text": run_label(run, groups), "group": group.index},
            {"text": run.info.state, "state": run.info.state},
            f"{run.info.step:,}",
            number(run.info.last_eval),
            _num_episodes(run),
            number(_mean(run.evaluation.get("lengths"))),
            number(success_rate(run)),
            number(run.info.best_eval),
            run.info.name,
        ]
        for group, run in runs
    ]
    if all(row[6] == "–" for row in table):  # no environment reports success
        columns, table = columns[:6] + columns[7:], [[*row[:6], *row[7:]] for row in table]
    blocks.append(Table("Runs, with their last evaluation", columns, table, 2, ends_in_text=True))
    reasons = [f"{run_label(run, groups)} has no score: {run.no_score}." for _, run in runs if run.no_score]
    return Section("scores", "Final scores", [*blocks, *map(Text, reasons[:MAX_REASONS])])


def run_label(run: RunFacts, groups: Sequence[GroupFacts]) -> str:
    """Seed of a run, after its group if there are several."""
    return run.label if len(groups) == 1 else f"{groups[run.group].group.name}, {run.label}"


def _strip_row(group: GroupFacts) -> dict[str, Any]:
    interval = group.interval
    return {
        "group": group.index,
        "scores": [[run.label, finite(run.info.last_eval), run.info.state] for run in group.scored],
        "mean": None if interval is None else interval.mean,
        "low": None if interval is None else interval.low,
        "high": None if interval is None else interval.high,
    }


def _num_episodes(run: RunFacts) -> str:
    returns = run.evaluation.get("returns")
    return str(len(returns)) if isinstance(returns, list) else "–"


def success_rate(run: RunFacts) -> float | None:
    """Fraction of the last evaluation's episodes that reported success, of those that reported it."""
    successes = run.evaluation.get("successes")
    known = [success for success in successes if isinstance(success, bool)] if isinstance(successes, list) else []
    return sum(known) / len(known) if known else None


def _mean(values: Any) -> float | None:
    numbers = [value for value in map(finite, values) if value is not None] if isinstance(values, list) else []
    return statistics.fmean(numbers) if numbers else None


def offline_blocks(groups: Sequence[GroupFacts]) -> list[Block]:
    """For offline runs the return of their dataset, and stored estimates of fitted Q evaluation (FQE)."""
    runs = [run for group in groups for run in group.runs if run.is_offline]
    rows: list[Sequence[Cell]] = [
        [
            {"text": run_label(run, groups), "group": run.group},
            number(finite(run.dataset.get("return_mean"))),
            number(finite(run.dataset.get("return_max"))),
            number(run.info.last_eval),
            number(finite(run.estimate.get("fqe_return_mean"))),
            _ends(run.estimate.get("fqe_return_low"), run.estimate.get("fqe_return_high")),
            number(finite(run.estimate.get("behaviour_return_mean"))),
            {True: "yes", False: "no"}.get(run.estimate.get("fqe_converged") is True, "") if run.estimate else "–",
        ]
        for run in runs
        if run.dataset or run.estimate
    ]
    columns = ["run", "data: mean", "data: best", "score", "FQE", "95 % interval", "behaviour", "converged"]
    blocks: list[Block] = [Table("Return of the dataset, of the policy, and estimated", columns, rows)] if rows else []
    if runs:
        blocks.append(Text(f"{OFFLINE_NOTE} {FQE_NOTE if any(not run.estimate for run in runs) else ''}".strip()))
    return blocks


def _ends(low: object, high: object) -> str:
    return interval_text(MeanInterval(0.0, finite(low), finite(high), 2)) if finite(low) is not None else "–"
