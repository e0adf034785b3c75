"""What the verbs for studies print: plans, states and results."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rl_training.cli.command_lines import program_command, wrap_command
from rl_training.cli.output import say, show
from rl_training.terminal.pace import format_seconds

if TYPE_CHECKING:
    from rl_training.studies.catalog import RunInfo
    from rl_training.studies.driver import Driver
    from rl_training.studies.plan import PlannedRun
    from rl_training.studies.results import SettingResult
    from rl_training.studies.selection import Shard
    from rl_training.studies.study import Study
    from rl_training.studies.study_folder import StudyFolder

SHORTEST_NAME = 24
WIDTH = 80
NEW_LINE = "\n"
INTERVAL = "95 % interval of Student's t over runs"


def report_study(path: Path, driver: Driver, words: Sequence[str] = (), *, as_json: bool) -> None:
    """Print every run's score, the means and the picture; `words` are the options of the command that continues.

    Exits with 1 if runs failed, with 128 + signal number if a signal stopped the study.
    """
    from rl_training.studies.driver import Outcome
    from rl_training.studies.results import results_by_setting

    tasks, shard = driver.tasks, driver.shard
    groups = results_by_setting(tasks)
    failed = [task for task in tasks if task.outcome in (Outcome.FAILED, Outcome.GIVEN_UP)]
    num_done = sum(task.outcome is Outcome.DONE for task in tasks)
    picture = _draw(path) if num_done else None
    share = "" if shard is None else f"share {shard} of "
    lines = [f"{share}study {path}: {num_done:,} of {len(tasks):,} runs finished"]
    lines += [line for group in groups for line in setting_lines(group)]
    lines += [f"  {INTERVAL}"] if any(_has_interval(group) for group in groups) else []
    for task in failed:
        lines.append(f"  {task.outcome.value}: {task.run.label}: {task.reason}")
    approximate = [task.run.label for task in tasks if task.info and task.info.exactness == "approximate"]
    if approximate:
        lines.append(f"  approximate, not bit-exact: {', '.join(approximate)} (`rl-training runs show RUN` says why)")
    lines += [f"  picture  {picture}"] if picture else []
    values = {
        "study_dir": str(path),
        "complete": num_done == len(tasks) and shard is None,
        "shard": shard,
        "settings": [group.as_dict() for group in groups],
        "runs": [task.as_dict() for task in tasks],
        "picture": picture,
    }
    show(values, lines, as_json)
    _leave(driver, program_command("study", "run", str(path), *words), num_failed=len(failed))


def _leave(driver: Driver, command: str, *, num_failed: int) -> None:
    command = "\n".join(f"  {line}" for line in wrap_command(command, 2))
    if driver.interrupted_by is not None:
        say(f"stopped, all runs saved; to continue:\n{command}")
        raise typer.Exit(128 + driver.interrupted_by)
    if num_failed:
        plural = "" if num_failed == 1 else "s"
        say(f"{num_failed} run{plural} failed; after fixing the cause, continue:\n{command}")
        raise typer.Exit(1)


def setting_lines(group: SettingResult) -> list[str]:
    """The scores of a setting's seeds, and their mean."""
    scores = [
        f"seed {seed}: {'-' if score is None else f'{score:.1f}'}" for seed, score in sorted(group.scores.items())
    ]
    lines = [f"  {group.setting}"] if group.setting else []
    indent = "    " if group.setting else "  "
    lines += cell_lines(scores, indent)
    if group.interval is not None:
        count = group.interval.count
        missing = "" if count == len(group.tasks) else f", {len(group.tasks) - count} missing"
        lines.append(f"{indent}mean {group.interval} ({count} run{'' if count == 1 else 's'}{missing})")
    return lines


def cell_lines(cells: Sequence[str], indent: str) -> list[str]:
    """Cells of equal width, as many a line as fit into 80 columns."""
    width = max(map(len, cells), default=0)
    count = max(1, (WIDTH - len(indent) + 2) // (width + 2))
    return [
        indent + "  ".join(f"{text:<{width}}" for text in cells[start : start + count]).rstrip()
        for start in range(0, len(cells), count)
    ]


def _has_interval(group: SettingResult) -> bool:
    return group.interval is not None and group.interval.low is not None


def _draw(path: Path) -> str | None:
    """Draw all curves; the reason if that fails, for example without matplotlib."""
    # In a process of its own: the driver of a study stays small.
    words = [sys.executable, "-m", "rl_training.views.plotting", str(path)]
    answer = subprocess.run(words, capture_output=True, text=True, check=False)
    if answer.returncode == 0:
        return answer.stdout.strip()
    reason = answer.stderr.strip().splitlines()[-1:] or ["its process was killed"]
    say(f"no picture of the curves: {reason[0]}")
    return None


def status_lines(folder: StudyFolder) -> tuple[dict[str, Any], list[str]]:
    """The state of every planned run, as values and as lines."""
    from rl_training.studies.catalog import is_run_folder, read_run
    from rl_training.studies.progress import progress_cells

    runs = folder.runs()
    infos = [read_run(run.run_dir) if is_run_folder(run.run_dir) else None for run in runs]
    states = ["planned" if info is None else _state(info) for info in infos]
    rows = [("run", "state", "done", "last eval", "steps/s", "left")]
    for run, info, state in zip(runs, infos, states, strict=True):
        note = " (approximate)" if info is not None and info.exactness == "approximate" else ""
        rows.append((run.label or "run", state + note, *progress_cells(info)))
    counts = ", ".join(f"{count:,} {state}" for state, count in Counter(states).items())
    lines = [f"study {folder.path}: {len(runs):,} runs: {counts}", *table_lines(rows, num_left_aligned=2)]
    lines += [
        f"{run.label}: {(info.reason or '').partition(NEW_LINE)[0]}"
        for run, info in zip(runs, infos, strict=True)
        if info is not None and info.state == "failed"
    ]
    values = {
        "name": folder.name,
        "study_dir": str(folder.path),
        "counts": dict(Counter(states)),
        "runs": [_planned_values(run, info) for run, info in zip(runs, infos, strict=True)],
    }
    return values, lines


def _state(info: RunInfo) -> str:
    """State of a run in a study: one that stopped by its own rule has nothing left to do."""
    from rl_training.studies.driver import is_complete

    return "finished early" if info.state == "stopped" and is_complete(info) else info.state


def plan_lines(study: Study, shard: Shard, *, extend: bool = False) -> tuple[dict[str, Any], list[str]]:
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
        need = needs[setting]
        time = "?" if seconds is None else format_seconds(seconds)
        memory = f"{need.memory_bytes / 1e9:.1f} GB"
        steps = f"{members[0].config.total_timesteps:,}"
        rows.append((setting or "(one setting)", str(len(members)), steps, str(need.num_threads), memory, time))
        settings.append(
            {
                "setting": setting,
                "runs": [str(run.run_dir) for run in members],
                "num_threads": need.num_threads,
                "memory_bytes": need.memory_bytes,
                "seconds": seconds,
            }
        )
    lines = [f"study {study.path}: {len(runs):,} runs, none started by this command", *table_lines(rows)]
    lines.append("memory: estimate for the process of one run, without its environments and a dataset")
    lines.append("time: from the speed of earlier runs of the same algorithm and environment; ?: there are none")
    lines += [str(run.run_dir) for run in runs]
    return {"study_dir": str(study.path), "num_runs": len(runs), "settings": settings}, lines


def _expected_seconds(run: PlannedRun, known: Sequence[RunInfo]) -> float | None:
    """Seconds that a run takes at the median speed of the finished runs of its algorithm and environment."""
    config = run.config
    rates = [
        info.rate
        for info in known
        if info.rate and info.state == "finished" and (info.algo, info.env_id) == (config.algo, config.env_id)
    ]
    return config.total_timesteps / statistics.median(rates) if rates else None


def _planned_values(run: PlannedRun, info: RunInfo | None) -> dict[str, Any]:
    values = {"run_dir": str(run.run_dir), "state": "planned", "seed": run.config.seed}
    return {**(values if info is None else info.as_dict()), "setting": run.setting}


def fit_first_column(rows: Sequence[tuple[str, ...]], width: int) -> list[tuple[str, ...]]:
    """The rows with the first column shortened in its middle, so that `table_lines` gives lines of `width` columns."""
    others = sum(max(len(row[column]) for row in rows) + 2 for column in range(1, len(rows[0])))
    room = max(SHORTEST_NAME, width - others)

    def shorten(text: str) -> str:
        half = (room - 1) // 2
        return text if len(text) <= room else f"{text[: room - 1 - half]}…{text[-half:]}"

    return [(shorten(row[0]), *row[1:]) for row in rows]


def table_lines(rows: Sequence[Sequence[str]], num_left_aligned: int = 1) -> list[str]:
    """Rows as lines with aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            f"{cell:<{width}}" if column < num_left_aligned else f"{cell:>{width}}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
