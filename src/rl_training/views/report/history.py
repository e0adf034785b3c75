"""The sections that say where the runs come from: events, configuration, provenance, commands, time."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError
from rl_training.experiment.config import leaves, load_config_file
from rl_training.experiment.presets import find_preset
from rl_training.views.report.blocks import (
    TIME_PARTS,
    Bars,
    Block,
    Cell,
    Code,
    Section,
    Table,
    Text,
    duration,
    number,
)
from rl_training.views.report.data import RunFacts, finite, mapping
from rl_training.views.report.summary import GroupFacts, drop_empty, run_cell, runs_of

MAX_EVENTS = 200
PLACES = {"seed", "output_dir", "tags", "loggers"}
"""Settings that say which run it is, not how it learns."""
PART_NAMES = ("collecting", "updating", "evaluating", "saving", "other")


def event_section(groups: Sequence[GroupFacts]) -> Section:
    """Starts after a stop, failures, early ends, dead processes, and lines that could not be read."""
    rows = sorted((event for run in runs_of(groups) for event in _events(run)), key=_time_of)
    runs = runs_of(groups)
    quiet = sum(1 for run in runs if run.info.state == "finished" and not _events(run))
    blocks: list[Block] = []
    if quiet:
        blocks.append(
            Text(f"{quiet} of {len(runs)} runs: created and finished without an interruption.")
        )
    missing = [f"{group.group.name}: {label}" for group in groups for label in group.group.missing]
    if missing:
        blocks.append(
            Text(
                f"Planned and not started: {'; '.join(missing[:20])}{' …' if len(missing) > 20 else ''}"
            )
        )
    if rows:
        caption = (
            "What happened"
            if len(rows) <= MAX_EVENTS
            else f"The last {MAX_EVENTS} of {len(rows):,} events"
        )
        blocks.append(
            Table(caption, ["time", "run", "event"], rows[-MAX_EVENTS:], num_text_columns=3)
        )
    return Section("events", "Events", blocks or [Text("There is no run yet.")])


def _time_of(row: Sequence[Cell]) -> str:
    return str(row[0])


def _events(run: RunFacts) -> list[Sequence[Cell]]:
    """Log entries other than `created` and `finished`, then events derived from the run folder."""
    found: list[tuple[str, str]] = []
    for time, level, text in run.log:
        if not text.startswith("created: ") and text != "finished":
            found.append((time, text if level == "INFO" else f"{level.lower()}: {text}"))
    info, now = run.info, "now"
    if info.state == "running":
        found.append((now, f"running at step {info.step:,}: {info.owner}"))
    if info.state == "dead":
        owner = (
            "no process has trained it"
            if info.owner is None
            else f"{info.owner} ended without recording an end"
        )
        found.append((now, f"dead: {owner}; to continue it: {_command('resume', info.run_dir)}"))
    if info.state in ("failed", "stopped") and not any(
        (info.reason or "") in text for _, text in found
    ):
        found.append(
            (
                _text(run.metadata.get("ended")),
                f"{info.state}: {info.reason or 'no reason was recorded'}",
            )
        )
    if run.no_score:
        found.append((now, f"no score: {run.no_score}"))
    if run.logged.num_damaged:
        count = run.logged.num_damaged
        are = "line of its log files is" if count == 1 else "lines of its log files are"
        found.append((now, f"{count:,} damaged {are} left out"))
    state: dict[str, Any] = {"text": info.name, "group": run.group}
    return [[time, state, text] for time, text in found]


def configuration(groups: Sequence[GroupFacts]) -> Section:
    """For each group what differs from its preset; then all settings."""
    blocks: list[Block] = []
    for group in groups:
        if group.runs:
            blocks.append(_differences(group))
    columns = ["setting", *(group.group.name for group in groups if group.runs)]
    settings = [_comparable(group.runs[0].settings) for group in groups if group.runs]
    keys = dict.fromkeys(key for values in settings for key in values)
    rows: list[Sequence[Cell]] = []
    for key in keys:
        cells = [values.get(key, "not set") for values in settings]
        is_marked = len(set(cells)) > 1
        rows.append([key, *({"text": cell, "is_marked": is_marked} for cell in cells)])
    blocks.append(Table("All settings in config.yaml", columns, rows, len(columns), is_folded=True))
    return Section("configuration", "Configuration", blocks)


def _differences(group: GroupFacts) -> Block:
    settings = group.runs[0].settings
    preset = _preset(settings)
    if preset is None:
        return Text(f"{group.group.name}: there is no preset of {group.algo} for {group.env}.")
    name, values = preset
    used, known = _comparable(settings), _comparable(values)
    given = {key: value for key, value in known.items() if used.get(key) != value}
    added = {
        key: value
        for key, value in used.items()
        if key not in known and key.startswith(("algo_", "env_kwargs."))
    }
    rows = [
        [key, used.get(key, "not set"), known.get(key, "not set")] for key in {**given, **added}
    ]
    if not rows:
        return Text(f"{group.group.name}: the settings are those of the preset {name}.")
    caption = f"{group.group.name}: what differs from the preset {name}"
    return Table(caption, ["setting", "these runs", "preset"], rows, num_text_columns=3)


def _preset(settings: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    algo, env_id = settings.get("algo"), settings.get("env_id")
    is_plain = isinstance(algo, str) and isinstance(env_id, str) and algo.replace("_", "").isalnum()
    try:
        path = find_preset(str(algo), str(env_id)) if is_plain else None
        return None if path is None else (f"{path.parent.name}/{path.stem}", load_config_file(path))
    except (ConfigError, OSError):
        return None


def _comparable(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings with dotted keys, as text; a schedule, whose keys belong together, is one value."""
    found = {
        key: value
        for key, value in leaves(settings, value_key="kind")
        if key not in PLACES and value != {}
    }
    return {key: json.dumps(value, default=str, ensure_ascii=False) for key, value in found.items()}


def provenance(groups: Sequence[GroupFacts]) -> Section:
    """Versions, commit, machine and times; a value for each part of the runs where they differ."""
    runs = runs_of(groups)
    rows: list[Sequence[Cell]] = []
    names = dict.fromkeys(name for run in runs for name in _origin(run))
    for name in names:
        rows.append([name, _distinct(_origin(run).get(name, "not known") for run in runs)])
    reasons = dict.fromkeys(reason for run in runs for reason in _inexact_reasons(run))
    blocks: list[Block] = [
        Table("Where the runs come from", ["fact", "value"], rows, num_text_columns=2)
    ]
    return Section(
        "provenance", "Provenance", [*blocks, *(Text(f"Not exact: {reason}") for reason in reasons)]
    )


def _origin(run: RunFacts) -> dict[str, str]:
    metadata, checkpoint = run.metadata, run.checkpoint
    versions, machine, execution = (
        mapping(value)
        for value in (
            metadata.get("versions"),
            checkpoint.get("machine"),
            checkpoint.get("execution"),
        )
    )
    plugins = metadata.get("plugins")
    found = {str(name): _text(value) for name, value in versions.items()}
    found["git commit"] = _text(metadata.get("git_commit")) or "none"
    if run.info.owner is not None:
        found["host"] = run.info.owner.host
    found |= {
        str(name): str(machine[name])
        for name in ("processor", "instruction set")
        if name in machine
    }
    found |= {name.replace("_", " "): str(value) for name, value in execution.items()}
    if plugins and isinstance(plugins, list):
        found["plugins"] = ", ".join(map(str, plugins))
    found["attempts"] = str(run.info.attempt)
    found["exactness"] = run.info.exactness or "not known"
    found["created"] = (run.info.created or "not known")[:19].replace("T", " ")
    return found


def _inexact_reasons(run: RunFacts) -> list[str]:
    reasons = run.checkpoint.get("inexact_reasons")
    return [str(reason) for reason in reasons] if isinstance(reasons, list) else []


def _distinct(values: Iterable[str]) -> str:
    """The values with how often each occurs; of many, the first and the last."""
    counts = Counter(values)
    if len(counts) == 1:
        return next(iter(counts))
    if len(counts) > 4:
        return f"{len(counts)} values, {min(counts)} to {max(counts)}"
    return ", ".join(
        f"{value} ({count} run{'' if count == 1 else 's'})" for value, count in counts.items()
    )


def commands(groups: Sequence[GroupFacts], words: Sequence[str]) -> Section:
    """The commands that make the runs again, evaluate them, and make this page."""
    dirs = [run.record.run_dir for run in runs_of(groups)]
    recorded = [run.metadata.get("command") for run in runs_of(groups)]
    started = dict.fromkeys(
        shlex.join(map(str, command)) for command in recorded if isinstance(command, list)
    )
    studies = dict.fromkeys(group.group.study for group in groups if group.group.study is not None)
    codes = [Code("As the runs were started", list(started))]
    codes += [
        Code("The study again, or what is left of it", [_command("study", "run", study)])
        for study in studies
    ]
    again = [_command("train", "--config", path / "config.yaml") for path in dirs]
    codes.append(Code("Each run alone, from its stored settings", again))
    codes.append(Code("Evaluate the last checkpoints", [_command("eval", path) for path in dirs]))
    codes.append(Code("This page", [_command("report", *words)]))
    return Section("commands", "Commands", [code for code in codes if code.lines])


def _command(*words: str | Path) -> str:
    return shlex.join(["rl-training", *map(str, words)])


def speed_blocks(groups: Sequence[GroupFacts]) -> list[Block]:
    """Steps per second and duration of each run, and where the time went as far as it was recorded."""
    rows: list[Sequence[Cell]] = []
    sums: dict[int, list[float]] = {}
    for run in runs_of(groups):
        total, parts = _time_parts(run)
        cells = [duration(part) for part in parts] or ["–"] * len(PART_NAMES)
        rows.append([run_cell(run, groups), number(run.info.rate), duration(total), *cells])
        if parts:
            before = sums.get(run.group, [0.0] * len(parts))
            sums[run.group] = [old + part for old, part in zip(before, parts, strict=True)]
    bars = [
        {
            "label": groups[index].group.name,
            "group": index,
            "values": [round(part, 3) for part in parts],
        }
        for index, parts in sums.items()
    ]
    blocks: list[Block] = (
        [Bars("Where the time went, in all runs", PART_NAMES, bars)] if bars else []
    )
    caption = "Speed of the last process, and the time of all processes of a run"
    return [*blocks, drop_empty(Table(caption, ["run", "steps/s", "duration", *PART_NAMES], rows))]


def _time_parts(run: RunFacts) -> tuple[float | None, list[float]]:
    """Seconds of the run, and its parts with the rest last; no parts where they were not recorded."""
    times = run.logged.times or {}
    total = times.get("wall_time")
    if total is None:
        return finite(run.metadata.get("seconds")), []
    parts = [times.get(f"{part}_seconds") or 0.0 for part in TIME_PARTS]
    return total, [*parts, max(0.0, total - sum(parts))]


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
