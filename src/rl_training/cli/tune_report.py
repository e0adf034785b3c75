"""What `tune` prints: the plan of a tuning, and its result."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.cli.study_report import WIDTH, table_lines

if TYPE_CHECKING:
    from rl_training.studies.tuning.result import TuneResult
    from rl_training.studies.tuning.stages import Scores
    from rl_training.studies.tuning.tune_plan import TunePlan

WIDEST = (30, 20)
"""Columns of a setting's name and of its default in the table of the search space."""


def plan_lines(plan: TunePlan, path: Path) -> tuple[dict[str, Any], list[str]]:
    """The search space, and how many runs and steps a tuning takes at most, as values and as lines."""
    from rl_training.algorithms.tune import plain_text

    settings = plan.settings
    counts = {
        "search": settings.trials * settings.seeds_per_trial,
        "race": (min(settings.finalists, settings.trials - 1) + 1) * settings.race_seeds,
        "final": (2 if settings.trials > 1 else 1) * settings.final_seeds,
    }
    num_steps = sum(counts.values()) * plan.total_steps
    rows = [("setting", "default", "search space")]
    rows += [(key.name, plain_text(key.default), _space_text(key)) for key in plan.space]
    lines = [
        f"tuning {path}: {settings.trials:,} trials in batches of {settings.batch:,}, none started",
        *_space_lines(rows),
        "",
        *_budget_lines(plan, counts),
    ]
    warnings = plan_warnings(plan)
    lines += [line for warning in warnings for line in textwrap.wrap(f"warning: {warning}", WIDTH)]
    values = {
        "tune_dir": str(path),
        "space": {key.key: key.as_dict() for key in plan.space},
        "settings": settings.model_dump(),
        "seeds": {stage: list(plan.seeds(stage)) for stage in counts},
        "num_runs": counts,
        "num_steps": num_steps,
        "warnings": warnings,
    }
    return values, lines


def _budget_lines(plan: TunePlan, counts: Mapping[str, int]) -> list[str]:
    """Runs, steps and seeds of each stage, and their sum."""
    stages = [("stage", "runs", "steps", "seeds")]
    for stage, count in counts.items():
        seeds = plan.seeds(stage)
        text = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]}..{seeds[-1]}"
        stages.append((stage, f"{count:,}", f"{count * plan.total_steps:,}", text))
    kind, first, num_runs = plan.settings.pruner, plan.pruning.first_step, sum(counts.values())
    pruner = f"pruner {kind}, not before step {first:,} of {plan.total_steps:,}" if kind != "none" else "no pruning"
    total = f"at most {num_runs:,} runs, {num_runs * plan.total_steps:,} steps; {pruner}"
    return [*table_lines(stages), *textwrap.wrap(total, WIDTH)]


def plan_warnings(plan: TunePlan) -> list[str]:
    """What a tuning cannot find out, known before anything is trained."""
    from rl_training.studies.tuning.result import warn_of_few_seeds

    warning = warn_of_few_seeds(plan.settings.final_seeds) if plan.settings.trials > 1 else None
    return [] if warning is None else [warning]


def _space_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """The search space as a table of at most `WIDTH` columns; a long cell takes several lines."""
    widths = [min(max(len(row[column]) for row in rows), widest) for column, widest in enumerate(WIDEST)]
    widths.append(WIDTH - sum(widths) - 2 * len(widths))
    wrapped = []
    for row in rows:
        cells = [textwrap.wrap(cell, width, break_on_hyphens=False) for cell, width in zip(row, widths, strict=True)]
        wrapped += list(itertools.zip_longest(*cells, fillvalue=""))
    return table_lines(wrapped, num_left_aligned=3)


def _space_text(key: Any) -> str:
    schedule = "" if key.schedule is None else f" (start of the {key.schedule['kind']} schedule)"
    return f"{key.space.text}{schedule}"


def result_lines(result: TuneResult) -> tuple[dict[str, Any], list[str]]:
    """The result of a tuning, as values and as lines."""
    from rl_training.studies.settings import describe
    from rl_training.studies.tuning.result import difference_text

    num_repeats = len(result.trials) - result.num_settings
    counts = [
        (result.count("COMPLETE"), "trained"),
        (result.count("PRUNED"), "pruned"),
        (result.count("FAIL"), "failed"),
        (num_repeats, "repeats an earlier one" if num_repeats == 1 else "repeat an earlier one"),
    ]
    listed = ", ".join(f"{count} {word}" for count, word in counts if count)
    lines = [f"tuning {result.path}: {len(result.trials):,} trials ({listed})"]
    lines += _failed_lines(result)
    lines += [_search_line(result)]
    lines += ["  race, on fresh seeds", *_stage_lines(result, result.race)]
    lines += ["  final, on seeds that nobody used", *_stage_lines(result, result.final)]
    comparison = result.verdict.comparison
    if comparison is not None:
        text = difference_text(comparison)
        lines.append(f"    difference {text}, p = {comparison.p_value:.2g} (permutation test)")
    lines += textwrap.wrap(result.verdict.sentence, WIDTH)
    lines += textwrap.wrap(
        f"{result.winner}: {describe(result.settings[result.winner])}", WIDTH, break_long_words=False
    )
    if result.edited is not None:
        lines.append(f"{result.edited} was edited and is kept as it is")
    lines.append(f"written to {result.best}")
    return _values(result), lines


def _search_line(result: TuneResult) -> str:
    score, best, default = result.search_score, result.best_trial, result.default_search_score
    texts = [f"{result.winner} {'-' if score is None else f'{score:.1f}'}"]
    if best is not None and best not in (result.winner, "default"):
        texts.append(f"best {best} {result.search_scores[best]:.1f}")
    texts += [f"default {default:.1f}"] if default is not None and result.winner != "default" else []
    return f"  search: {', '.join(texts)} (optimistic: chosen among {result.num_settings:,} settings)"


def _failed_lines(result: TuneResult) -> list[str]:
    from rl_training.studies.tuning.stages import is_repeat

    lines = []
    for trial in result.trials:
        if trial.state.name == "FAIL" and not is_repeat(trial):
            text = f"failed: {trial.user_attrs['name']}: {trial.user_attrs.get('reason')}"
            lines += textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ")
    return lines


def _stage_lines(result: TuneResult, stage: Scores) -> list[str]:
    intervals = result.intervals(stage)
    rows = []
    for name, scores in stage.items():
        found = intervals.get(name)
        seeds = f"{len(scores)} seed{'' if len(scores) == 1 else 's'}"
        rows.append((name, "runs failed" if found is None else f"{found}", seeds))
    return [f"    {line}" for line in table_lines(rows, num_left_aligned=3)]


def _values(result: TuneResult) -> dict[str, Any]:
    from rl_training.studies.tuning.tuner import trial_values

    comparison = result.verdict.comparison
    found = None
    if comparison is not None:
        bounds = [None if abs(bound) == float("inf") else bound for bound in comparison.interval]
        found = {"difference": comparison.difference, "interval": bounds, "p_value": comparison.p_value}
    return {
        "tune_dir": str(result.path),
        "trials": [trial_values(trial) for trial in result.trials],
        "num_settings": result.num_settings,
        "search": {"score": result.search_score, "default": result.default_search_score, "is_optimistic": True},
        "race": result.race,
        "final": result.final,
        "winner": result.winner,
        "settings": result.settings[result.winner],
        "comparison": found,
        "verdict": result.verdict.kind,
        "sentence": result.verdict.sentence,
        "best": str(result.best),
        "edited": None if result.edited is None else str(result.edited),
    }
