"""Text of studies and tunings: plans, states, results."""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.terminal.progress import format_seconds
from rl_training.terminal.streams import tell
from rl_training.terminal.tables import WIDTH, cell_lines, table_lines

if TYPE_CHECKING:
    from rl_training.studies.catalog import RunInfo
    from rl_training.studies.launching.driver import Task
    from rl_training.studies.launching.study import SettingResult, Study
    from rl_training.studies.plan import PlannedRun, StudyFolder
    from rl_training.studies.tuning.stages import Scores, TuneResult
    from rl_training.studies.tuning.tune_plan import TunePlan
    from rl_training.studies.variation import Shard

WIDEST = (30, 20)
"""Columns of a setting's name and of its default in the table of a search space."""


def study_lines(
    path: Path, tasks: Sequence[Task], shard: str | None
) -> tuple[dict[str, Any], list[str]]:
    """Every run's score, the means and the picture, as values and as lines."""
    from rl_training.studies.launching.driver import Outcome
    from rl_training.studies.launching.study import results_by_setting

    groups = results_by_setting(tasks)
    num_done = sum(task.outcome is Outcome.DONE for task in tasks)
    picture = _draw(path) if num_done else None
    share = "" if shard is None else f"share {shard} of "
    lines = [f"{share}study {path}: {num_done:,} of {len(tasks):,} runs finished"]
    for group in groups:
        lines += setting_lines(group)
    lines += _explanations(groups)
    for task in failed_tasks(tasks):
        lines.append(f"  {task.outcome.value}: {task.run.label}: {task.reason}")
    approximate = [
        task.run.label for task in tasks if task.info and task.info.exactness == "approximate"
    ]
    if approximate:
        lines.append(
            f"  approximate, not bit-exact: {', '.join(approximate)} (`rl-training runs show RUN` says why)"
        )
    if picture is not None:
        lines.append(f"  picture  {picture}")
    values = {
        "study_dir": str(path),
        "complete": num_done == len(tasks) and shard is None,
        "shard": shard,
        "settings": [group.as_dict() for group in groups],
        "runs": [task.as_dict() for task in tasks],
        "picture": picture,
    }
    return values, lines


def _explanations(groups: Sequence[SettingResult]) -> list[str]:
    """What the limits in brackets are."""
    from rl_training.studies.statistics.summaries import WORDS, summary_kind

    counts = [len(_known_scores(group)) for group in groups]
    kinds = dict.fromkeys(summary_kind(count) for count in counts if count > 1)
    return [f"  in brackets: {WORDS[kind].partition(' and ')[2]}" for kind in kinds]


def failed_tasks(tasks: Sequence[Task]) -> list[Task]:
    """The runs that failed or were given up."""
    from rl_training.studies.launching.driver import Outcome

    return [task for task in tasks if task.outcome in (Outcome.FAILED, Outcome.GIVEN_UP)]


def _known_scores(group: SettingResult) -> list[float]:
    return [score for score in group.scores.values() if score is not None]


def setting_lines(group: SettingResult) -> list[str]:
    """The scores of a setting's seeds, and their summary with its limits."""
    from rl_training.studies.statistics.summaries import NAMES, summarize

    indent = "    " if group.setting else "  "
    lines = [f"  {group.setting}"] if group.setting else []
    cells = [
        f"seed {seed}: {'-' if score is None else f'{score:.1f}'}"
        for seed, score in sorted(group.scores.items())
    ]
    lines += cell_lines(cells, indent)
    known = _known_scores(group)
    if known:
        found = summarize(known)
        limits = "" if found.low is None else f" [{found.low:.1f}, {found.high:.1f}]"
        count = f"{len(known)} run{'' if len(known) == 1 else 's'}"
        missing = len(group.tasks) - len(known)
        if missing:
            count += f", {missing} missing"
        lines.append(f"{indent}{NAMES[found.kind]} {found.value:.1f}{limits} ({count})")
    return lines


def _draw(path: Path) -> str | None:
    """Draw all curves; reports the reason if that fails, for example without matplotlib."""
    # In a process of its own: the driver of a study stays small.
    words = [sys.executable, "-m", "rl_training.views.plotting", str(path)]
    answer = subprocess.run(words, capture_output=True, text=True, check=False)
    if answer.returncode == 0:
        return answer.stdout.strip()
    reason = answer.stderr.strip().splitlines()[-1:] or ["its process was killed"]
    tell(f"no picture of the curves: {reason[0]}")
    return None


def status_lines(folder: StudyFolder) -> tuple[dict[str, Any], list[str]]:
    """The state of every planned run, as values and as lines."""
    from rl_training.studies.catalog import is_run_folder, read_run
    from rl_training.studies.launching.progress import progress_cells

    rows = [("run", "state", "done", "last eval", "steps/s", "left")]
    counts: Counter[str] = Counter()
    failures, values = [], []
    for run in folder.runs():
        info = read_run(run.run_dir) if is_run_folder(run.run_dir) else None
        state = "planned" if info is None else _state(info)
        counts[state] += 1
        facts = {"run_dir": str(run.run_dir), "state": "planned", "seed": run.config.seed}
        note = ""
        if info is not None:
            facts = info.as_dict()
            note = " (approximate)" if info.exactness == "approximate" else ""
            if info.state == "failed":
                reason, _, _ = (info.reason or "").partition("\n")
                failures.append(f"{run.label}: {reason}")
        rows.append((run.label or "run", state + note, *progress_cells(info)))
        values.append({**facts, "setting": run.setting})
    listed = ", ".join(f"{count:,} {state}" for state, count in counts.items())
    title = f"study {folder.path}: {len(values):,} runs: {listed}"
    found = {
        "name": folder.name,
        "study_dir": str(folder.path),
        "counts": dict(counts),
        "runs": values,
    }
    return found, [title, *table_lines(rows, "llr"), *failures]


def _state(info: RunInfo) -> str:
    """State of a run in a study: one that stopped by its own rule has nothing left to do."""
    from rl_training.studies.catalog import is_complete

    return "finished early" if info.state == "stopped" and is_complete(info) else info.state


def plan_lines(
    study: Study, shard: Shard, *, extend: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """The runs of a study, checked, with their memory and time as far as they can be told."""
    from rl_training.studies.catalog import list_runs

    needs = {need.setting: need for need in study.check(extend=extend)}
    runs = shard.of(study.runs())
    known = list_runs(study.path.parent) if study.path.parent.is_dir() else []
    groups: dict[str, list[PlannedRun]] = {}
    for run in runs:
        groups.setdefault(run.setting, []).append(run)
    rows = [("setting", "runs", "steps each", "threads", "memory", "time each")]
    settings = []
    for setting, members in groups.items():
        seconds = _expected_seconds(members[0], known)
        facts = {
            "setting": setting,
            "runs": [str(run.run_dir) for run in members],
            "num_threads": needs[setting].num_threads,
            "memory_bytes": needs[setting].memory_bytes,
            "seconds": seconds,
        }
        settings.append(facts)
        counts = f"{len(members)}", f"{members[0].config.total_timesteps:,}"
        memory = f"{needs[setting].memory_bytes / 1e9:.1f} GB"
        time = "?" if seconds is None else format_seconds(seconds)
        rows.append(
            (setting or "(one setting)", *counts, f"{needs[setting].num_threads}", memory, time)
        )
    lines = [
        f"study {study.path}: {len(runs):,} runs, none started by this command",
        *table_lines(rows),
        "memory: estimate for the process of one run, without its environments and a dataset",
        "time: from the speed of earlier runs of the same algorithm and environment; ?: there are none",
        *(str(run.run_dir) for run in runs),
    ]
    return {"study_dir": str(study.path), "num_runs": len(runs), "settings": settings}, lines


def _expected_seconds(run: PlannedRun, known: Sequence[RunInfo]) -> float | None:
    """Seconds that a run takes at the median speed of the finished runs of its algorithm and environment."""
    config = run.config
    rates = [
        info.rate
        for info in known
        if info.rate
        and info.state == "finished"
        and (info.algo, info.env_id) == (config.algo, config.env_id)
    ]
    return config.total_timesteps / statistics.median(rates) if rates else None


def tune_plan_lines(plan: TunePlan, path: Path) -> tuple[dict[str, Any], list[str]]:
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
    for key in plan.space:
        schedule = f" (start of the {key.schedule['kind']} schedule)" if key.schedule else ""
        rows.append((key.name, plain_text(key.default), f"{key.space.text}{schedule}"))
    lines = [
        f"tuning {path}: {settings.trials:,} trials in batches of {settings.batch:,}, none started",
        *table_lines(rows, "l", width=WIDTH, widest=WIDEST),
        "",
        *_budget_lines(plan, counts),
    ]
    warnings = tune_warnings(plan)
    for warning in warnings:
        lines += textwrap.wrap(f"warning: {warning}", WIDTH)
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
    rows = [("stage", "runs", "steps", "seeds")]
    for stage, count in counts.items():
        seeds = plan.seeds(stage)
        text = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]}..{seeds[-1]}"
        rows.append((stage, f"{count:,}", f"{count * plan.total_steps:,}", text))
    pruner, num_runs = "no pruning", sum(counts.values())
    if plan.settings.pruner != "none":
        pruner = f"pruner {plan.settings.pruner}, not before step {plan.pruning.first_step:,}"
        pruner += f" of {plan.total_steps:,}"
    total = f"at most {num_runs:,} runs, {num_runs * plan.total_steps:,} steps; {pruner}"
    return [*table_lines(rows), *textwrap.wrap(total, WIDTH)]


def tune_warnings(plan: TunePlan) -> list[str]:
    """What a tuning cannot find out, known before anything is trained."""
    from rl_training.studies.tuning.stages import warn_of_few_seeds

    warning = warn_of_few_seeds(plan.settings.final_seeds) if plan.settings.trials > 1 else None
    return [] if warning is None else [warning]


def tune_result_lines(result: TuneResult) -> tuple[dict[str, Any], list[str]]:
    """The result of a tuning, as values and as lines."""
    from rl_training.studies.tuning.stages import difference_text
    from rl_training.studies.variation import describe

    num_repeats = len(result.trials) - result.num_settings
    counts = {
        "trained": result.count("COMPLETE"),
        "pruned": result.count("PRUNED"),
        "failed": result.count("FAIL"),
        "repeats an earlier one" if num_repeats == 1 else "repeat an earlier one": num_repeats,
    }
    listed = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    lines = [
        f"tuning {result.path}: {len(result.trials):,} trials ({listed})",
        *_failed_lines(result),
        _search_line(result),
        "  race, on fresh seeds",
        *_stage_lines(result, result.race),
        "  final, on seeds that nobody used",
        *_stage_lines(result, result.final),
    ]
    comparison, is_better = result.verdict.comparison, result.verdict.is_better
    if comparison is not None:
        text = difference_text(comparison)
        lines.append(f"    difference {text}, p = {comparison.p_value:.2g} (permutation test)")
    lines += textwrap.wrap(result.verdict.sentence, WIDTH)
    if is_better or result.winner != "default":
        note = "" if is_better else " (not better)"
        chosen = f"{result.winner}{note}: {describe(result.settings[result.winner])}"
        lines += textwrap.wrap(chosen, WIDTH, break_long_words=False)
    if result.edited is not None:
        lines.append(f"{result.edited} was edited and is kept as it is")
    lines.append(f"written to {result.best}{'' if is_better else ': the default configuration'}")
    return _tune_values(result), lines


def _search_line(result: TuneResult) -> str:
    scores, best = result.search_scores, result.best_trial
    score = result.search_score
    texts = [f"{result.winner} {'-' if score is None else f'{score:.1f}'}"]
    if best is not None and best not in (result.winner, "default"):
        texts.append(f"best {best} {scores[best]:.1f}")
    if result.winner != "default" and "default" in scores:
        texts.append(f"default {scores['default']:.1f}")
    count = f"{result.num_settings:,} settings"
    return f"  search: {', '.join(texts)} (optimistic: chosen among {count})"


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
        mean = f"{intervals[name]}" if name in intervals else "runs failed"
        rows.append((name, mean, f"{len(scores)} seed{'' if len(scores) == 1 else 's'}"))
    return table_lines(rows, "l", "    ")


def _tune_values(result: TuneResult) -> dict[str, Any]:
    from rl_training.studies.tuning.tuner import trial_values

    comparison = result.verdict.comparison
    found = None
    if comparison is not None:
        found = {
            "difference": comparison.difference,
            "interval": [bound if math.isfinite(bound) else None for bound in comparison.interval],
            "p_value": comparison.p_value,
        }
    return {
        "tune_dir": str(result.path),
        "trials": [trial_values(trial) for trial in result.trials],
        "num_settings": result.num_settings,
        "search": {
            "score": result.search_score,
            "default": result.default_search_score,
            "is_optimistic": True,
        },
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
