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
    finite,
    number,
)
from rl_training.views.report.data import RunFacts, mapping
from rl_training.views.report.summary import GroupFacts, runs_of

MAX_EVENTS = 200
PLACES = {"seed", "output_dir", "tags", "loggers"}
"""Settings that say which run it is, not how it learns."""
PART_NAMES = ("collecting", "updating", "evaluating", "saving", "other")


def event_section(groups: Sequence[GroupFacts]) -> Section:
    """Starts after a stop, failures, early ends, dead processes, and lines that could not be read."""
    runs = runs_of(groups)
    events = [_events(run) for run in runs]
    quiet = sum(
        run.info.state == "finished" and not found for run, found in zip(runs, events, strict=True)
    )
    blocks: list[Block] = []
    if quiet:
        blocks.append(
            Text(f"{quiet} of {len(runs)} runs: created and finished without an interruption.")
        )
    missing = [f"{group.group.name}: {label}" for group in groups for label in group.group.missing]
    if missing:
        listed = "; ".join(missing[:20]) + (" …" if len(missing) > 20 else "")
        blocks.append(Text(f"Planned and not started: {listed}"))
    rows = sorted((event for found in events for event in found), key=lambda row: str(row[0]))
    if rows:
        caption = "What happened"
        if len(rows) > MAX_EVENTS:
            caption = f"The last {MAX_EVENTS} of {len(rows):,} events"
        blocks.append(Table(caption, ["time", "run", "event"], rows[-MAX_EVENTS:], 3))
    return Section("events", "Events", blocks or [Text("There is no run yet.")])


def _events(run: RunFacts) -> list[Sequence[Cell]]:
    """Log entries other than `created` and `finished`, then events derived from the run folder."""
    found = [
        (time, text if level == "INFO" else f"{level.lower()}: {text}")
        for time, level, text in run.log
        if not text.startswith("created: ") and text != "finished"
    ]
    info, reason, derived = run.info, run.info.reason or "", []
    is_logged = any(reason in text for _, text in found)
    if info.state == "running":
        derived.append(f"running at step {info.step:,}: {info.owner}")
    if info.state == "dead":
        end = f"{info.owner} ended without recording an end"
        owner = "no process has trained it" if info.owner is None else end
        derived.append(f"dead: {owner}; to continue it: {_command('resume', info.run_dir)}")
    if info.state in ("failed", "stopped") and not is_logged:
        text = f"{info.state}: {reason or 'no reason was recorded'}"
        found.append((_text(run.metadata.get("ended")), text))
    if run.no_score:
        derived.append(f"no score: {run.no_score}")
    if count := run.logged.num_damaged:
        are = "line of its log files is" if count == 1 else "lines of its log files are"
        derived.append(f"{count:,} damaged {are} left out")
    found += [("now", text) for text in derived]
    cell: Cell = {"text": info.name, "group": run.group}
    return [[time, cell, text] for time, text in found]


def configuration(groups: Sequence[GroupFacts]) -> Section:
    """For each group what differs from its preset; then all settings."""
    begun = [group for group in groups if group.runs]
    settings = [_comparable(group.runs[0].record.settings) for group in begun]
    rows: list[Sequence[Cell]] = []
    for key in dict.fromkeys(key for values in settings for key in values):
        cells = [values.get(key, "not set") for values in settings]
        is_marked = len(set(cells)) > 1
        rows.append([key, *({"text": cell, "is_marked": is_marked} for cell in cells)])
    columns = ["setting", *(group.group.name for group in begun)]
    table = Table("All settings in config.yaml", columns, rows, len(columns), is_folded=True)
    return Section("configuration", "Configuration", [*map(_differences, begun), table])


def _differences(group: GroupFacts) -> Block:
    name, settings = group.group.name, group.runs[0].record.settings
    found = _preset(settings)
    if found is None:
        return Text(f"{name}: there is no preset of {group.algo} for {group.env}.")
    preset, values = found
    used, known = _comparable(settings), _comparable(values)
    keys = [key for key, value in known.items() if used.get(key) != value]
    keys += [key for key in used if key not in known and key.startswith(("algo_", "env_kwargs."))]
    if not keys:
        return Text(f"{name}: the settings are those of the preset {preset}.")
    rows = [[key, used.get(key, "not set"), known.get(key, "not set")] for key in keys]
    caption = f"{name}: what differs from the preset {preset}"
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
    return {
        key: json.dumps(value, default=str, ensure_ascii=False)
        for key, value in leaves(settings, value_key="kind")
        if key not in PLACES and value != {}
    }


def provenance(groups: Sequence[GroupFacts]) -> Section:
    """Versions, commit, machine and times; a value for each part of the runs where they differ."""
    runs = runs_of(groups)
    origins = [_origin(run) for run in runs]
    names = dict.fromkeys(name for origin in origins for name in origin)
    rows = [
        [name, _distinct(origin.get(name, "not known") for origin in origins)] for name in names
    ]
    reasons = dict.fromkeys(reason for run in runs for reason in _inexact_reasons(run))
    table = Table("Where the runs come from", ["fact", "value"], rows, num_text_columns=2)
    notes = [Text(f"Not exact: {reason}") for reason in reasons]
    return Section("provenance", "Provenance", [table, *notes])


def _origin(run: RunFacts) -> dict[str, str]:
    metadata, info = run.metadata, run.info
    machine = mapping(run.checkpoint.get("machine"))
    plugins = metadata.get("plugins")
    found = {str(name): _text(value) for name, value in mapping(metadata.get("versions")).items()}
    found["git commit"] = _text(metadata.get("git_commit")) or "none"
    if info.owner is not None:
        found["host"] = info.owner.host
    for name in ("processor", "instruction set"):
        if name in machine:
            found[name] = str(machine[name])
    for name, value in mapping(run.checkpoint.get("execution")).items():
        found[name.replace("_", " ")] = str(value)
    if plugins and isinstance(plugins, list):
        found["plugins"] = ", ".join(map(str, plugins))
    found["attempts"] = str(info.attempt)
    found["exactness"] = info.exactness or "not known"
    found["created"] = (info.created or "not known")[:19].replace("T", " ")
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
    runs = runs_of(groups)
    dirs = [run.record.run_dir for run in runs]
    recorded = [run.metadata.get("command") for run in runs]
    started = [shlex.join(map(str, words)) for words in recorded if isinstance(words, list)]
    studies = dict.fromkeys(group.group.study for group in groups if group.group.study is not None)
    again = "The study again, or what is left of it"
    codes = [
        Code("As the runs were started", list(dict.fromkeys(started))),
        *(Code(again, [_command("study", "run", study)]) for study in studies),
        Code(
            "Each run alone, from its stored settings",
            [_command("train", "--config", path / "config.yaml") for path in dirs],
        ),
        Code("Evaluate the last checkpoints", [_command("eval", path) for path in dirs]),
        Code("This page", [_command("report", *words)]),
    ]
    return Section("commands", "Commands", [code for code in codes if code.lines])


def _command(*words: str | Path) -> str:
    return shlex.join(["rl-training", *map(str, words)])


def speed_blocks(groups: Sequence[GroupFacts]) -> list[Block]:
    """Steps per second and duration of each run, and where the time went as far as it was recorded."""
    rows: list[Sequence[Cell]] = []
    bars = []
    for group in groups:
        recorded = []
        for run in group.runs:
            total, parts = _time_parts(run)
            cells = [duration(part) for part in parts] or ["–"] * len(PART_NAMES)
            rows.append([run.cell, number(run.info.rate), duration(total), *cells])
            recorded += [parts] if parts else []
        if recorded:
            sums = [round(sum(values), 3) for values in zip(*recorded, strict=True)]
            bars.append({"label": group.group.name, "group": group.index, "values": sums})
    caption = "Speed of the last process, and the time of all processes of a run"
    table = Table(caption, ["run", "steps/s", "duration", *PART_NAMES], rows)
    drawn = [Bars("Where the time went, in all runs", PART_NAMES, bars)] if bars else []
    return [*drawn, table.without_empty_columns()]


def _time_parts(run: RunFacts) -> tuple[float | None, list[float]]:
    """Seconds of the run, and its parts with the rest last; no parts where they were not recorded."""
    times = run.logged.times
    total = times.get("wall_time")
    if total is None:
        return finite(run.metadata.get("seconds")), []
    parts = [times.get(f"{part}_seconds") or 0.0 for part in TIME_PARTS]
    return total, [*parts, max(0.0, total - sum(parts))]


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
