"""Runs as plain objects, and groups of runs that differ only in their seed, found by the words of a command."""

from __future__ import annotations

import contextlib
import glob
import re
from collections import Counter, UserList
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError, RLTrainingError, install_extra
from rl_training.experiment.config import leaves
from rl_training.experiment.logs import TIMES, TIMING_NAME, read_lines, read_metrics
from rl_training.experiment.yaml_text import parse_yaml
from rl_training.files import is_file
from rl_training.studies.catalog import (
    LAST,
    RunInfo,
    find_run,
    find_run_folders,
    is_run_folder,
    read_run,
)
from rl_training.studies.plan import PLAN_FILE, PlannedRun, list_studies, open_study
from rl_training.studies.variation import Setting, describe, identity, labels_of
from rl_training.validation import suggest


class RunRecord:
    """One run: `info` (state, step, scores), `settings` (its configuration) and `curves` (its metrics)."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.info: RunInfo = read_run(run_dir)
        self.settings: Mapping[str, Any] = self.info.settings
        """The configuration, as in `config.yaml`."""

    def __repr__(self) -> str:
        score = "no evaluation" if self.score is None else f"score {self.score:g}"
        return f"<run {self.run_dir.name}: {self.info.state} at step {self.info.step:,}, {score}>"

    @property
    def seed(self) -> int | None:
        """Seed of the run."""
        return self.info.seed

    @property
    def task(self) -> str:
        """Environment of the run; `offline` if it has none."""
        return self.info.env_id or "offline"

    @property
    def score(self) -> float | None:
        """Mean return of the last evaluation."""
        return self.info.last_eval

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`, as far as they can be read, each with its times from `timing.jsonl`."""
        lines, _ = self._logged
        for line, times in zip(lines, read_lines(self.run_dir / TIMING_NAME), strict=False):
            if times.get("global_step") == line.get("global_step"):
                known = {
                    name: times[name] for name in TIMES if isinstance(times.get(name), (int, float))
                }
                line.update({**known, **line})  # a metric of the same name stays
        return lines

    @property
    def damage(self) -> str | None:
        """Why `metrics.jsonl` cannot be read to its end; None if it can."""
        return self._logged[1]

    @cached_property
    def _logged(self) -> tuple[list[dict[str, Any]], str | None]:
        """The lines of `metrics.jsonl` up to the first that cannot be read, and why it cannot."""
        lines: list[dict[str, Any]] = []
        path = self.run_dir / "metrics.jsonl"
        try:
            lines.extend(read_metrics(path) if path.is_file() else ())
        except (OSError, RLTrainingError) as error:
            return lines, str(error)
        return lines, None

    def curve(self, metric: str) -> tuple[list[int], list[float]]:
        """Steps and values of a metric; both empty if it was never logged."""
        points = [
            (line["global_step"], line[metric])
            for line in self.metrics
            if line.get(metric) is not None and line.get("global_step") is not None
        ]
        return [step for step, _ in points], [value for _, value in points]

    @property
    def curves(self) -> dict[str, tuple[list[int], list[float]]]:
        """Every metric's curve by its name."""
        names = dict.fromkeys(
            name for line in self.metrics for name in line if name != "global_step"
        )
        return {name: self.curve(name) for name in names}


class RunRecords(UserList[RunRecord]):
    """Runs in the order of their folders' names."""

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with a row for each logged line: the run, its seed and settings, and the metrics."""
        try:
            import pandas
        except ImportError:
            raise RLTrainingError(f"to_pandas needs pandas: {install_extra('pandas')}") from None
        rows = [
            {"run": run.run_dir.name, **_columns(run.settings), **line}
            for run in self
            for line in run.metrics
        ]
        return pandas.DataFrame(rows)


def load_runs(path: str | Path) -> RunRecords:
    """The runs in a folder (of one run, of a study, or of many) as plain objects; torch is not imported."""
    folder = Path(path)
    if not folder.is_dir():
        raise ConfigError(f"'{path}' is not a folder (looked from {Path.cwd()})")
    return RunRecords([RunRecord(run_dir) for run_dir in find_run_folders(folder)])


def _columns(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as columns with dotted names; lists as text."""
    return {
        key: value if isinstance(value, (str, int, float, type(None))) else str(value)
        for key, value in leaves(settings)
        if value != {}
    }


RUNS = Path("runs")
NO_SETTING = {
    *("seed", "output_dir", "tags", "device", "num_threads", "compile"),
    *("keep", "log_interval", "checkpoint_interval", "loggers"),
}
"""Keys of a configuration in which the runs of a group may differ: none of them changes what is learned."""


@dataclass(frozen=True)
class RunGroup:
    """Runs of one setting; they differ in their seed."""

    name: str
    """Label for people, unique among the groups that were found together."""
    runs: tuple[RunRecord, ...]
    study: Path | None = None
    """Folder of the study that planned the runs; None: no study was named."""
    setting: str | None = None
    """Label of the setting in its study; empty if the study has only one."""
    missing: tuple[str, ...] = ()
    """Labels of the planned runs that have no folder yet."""

    @classmethod
    def planned(
        cls, name: str, runs: Sequence[PlannedRun], study: Path, setting: str | None = None
    ) -> RunGroup:
        """Planned runs of a study, as far as they have begun."""
        begun = tuple(RunRecord(run.run_dir) for run in runs if is_run_folder(run.run_dir))
        missing = tuple(run.label for run in runs if not is_run_folder(run.run_dir))
        return cls(name, begun, study, setting, missing)

    @property
    def env_id(self) -> str | None:
        """Environment of the runs; None if the group has none yet."""
        return self.runs[0].info.env_id if self.runs else None

    @property
    def seeds(self) -> tuple[int | None, ...]:
        """The seed of each run; None where the folder does not tell."""
        return tuple(run.seed for run in self.runs)


def find_groups(words: Sequence[str], folder: Path = RUNS) -> list[RunGroup]:
    """The groups of runs that `words` mean, in the order of the words; a run that is named twice counts once.

    A word is a run (its path, the unique beginning of its folder's name in `folder`, `@last`, or a checkpoint in it),
    a study (its folder, or its name in `folder`), `STUDY:SETTING`, a folder of runs, or a glob pattern. The settings
    of a study are groups; other runs are grouped by their algorithm, environment and settings.
    """
    found = [item for word in words for item in _meaning(word, folder)]
    groups = {(item.study, item.setting): item for item in found if isinstance(item, RunGroup)}
    known = {run.run_dir.resolve() for group in groups.values() for run in group.runs}
    single = [item for item in found if isinstance(item, Path) and item.resolve() not in known]
    return _with_unique_names([*groups.values(), *group_runs(single)])


def group_of_word(word: str, folder: Path = RUNS) -> RunGroup:
    """Everything that one word means as one group, whose runs differ in their seeds and environments only."""
    groups = groups_of_word(word, folder)
    if len(groups) == 1:
        return groups[0]
    runs = tuple(run for group in groups for run in group.runs)
    missing = tuple(label for group in groups for label in group.missing)
    return RunGroup(Path(word).name, runs, groups[0].study, missing=missing)


def groups_of_word(word: str, folder: Path = RUNS) -> list[RunGroup]:
    """One group for each environment of the runs that a word means.

    Runs of several settings on one environment are refused with a list of the settings.
    """
    groups = find_groups([word], folder)
    if len({group.env_id for group in groups}) == len(groups):
        return groups
    study = groups[0].study
    if study is not None and all(group.study == study for group in groups):
        names = [f"'{study}:{group.setting}'" for group in groups]
        raise ConfigError(
            f"study '{word}' has {len(groups):,} settings: name one of them, as {listed(names)}"
        )
    names = [f"'{group.name}'" for group in groups]
    raise ConfigError(
        f"the runs of '{word}' have {len(groups):,} settings, {listed(names)}: name the runs of one"
    )


def _meaning(word: str, folder: Path) -> Sequence[RunGroup | Path]:
    """What a word means: settings of studies, and folders of runs that no study groups."""
    with contextlib.suppress(OSError):  # a name longer than any file's
        if found := _runs_in(Path(word)):
            return found
    name, colon, setting = word.partition(":")
    study = next(
        (place for place in (Path(name), folder / name) if is_file(place / PLAN_FILE)), None
    )
    if study is not None:
        return _select(study, setting) if colon else _settings_of(study)
    if glob.has_magic(word):
        return _matches(word, folder)
    try:
        path = find_run(word, folder)
    except ConfigError:
        known = [path.name for path in (*list_studies(folder), *find_run_folders(folder))]
        is_begun = any(known_name.startswith(word) for known_name in known)
        if is_begun or "/" in word or word.startswith(LAST):
            raise  # the message lists the runs whose names begin so
        hint = suggest(word, known, "`rl-training runs` and `rl-training study status` list them")
        raise ConfigError(
            f"'{word}' is no run, study or folder of runs here or in '{folder}'{hint}"
        ) from None
    return [_run_around(path)]


def _runs_in(path: Path) -> Sequence[RunGroup | Path]:
    """The settings of a study, the run, or the runs in a folder; empty for any other path."""
    if is_file(path / PLAN_FILE):
        return _settings_of(path)
    if _is_run(path):
        return [path]
    return find_run_folders(path) if path.is_dir() else []


def _matches(word: str, folder: Path) -> Sequence[RunGroup | Path]:
    """The runs and studies that match a pattern; other files that match are left out."""
    anchor = Path(word).anchor
    pattern = str(Path(word).relative_to(anchor))
    for place in [Path(anchor)] if anchor else [Path(), folder]:
        paths: list[Path] = []
        with contextlib.suppress(ValueError, IndexError):  # Python cannot read the pattern
            paths = sorted(place.glob(pattern))
        found = [item for path in paths for item in _runs_in(path)]
        if found:
            return found
    raise ConfigError(
        f"no run or study matches '{word}' here or in '{folder}': `rl-training runs` lists the runs"
    )


def _run_around(path: Path) -> Path:
    """The run folder that `path` is, or lies in, as a checkpoint does."""
    for place in (path, *path.parents[:3]):
        if _is_run(place):
            return place
    raise ConfigError(
        f"'{path}' is no run folder, and holds none: name a run, a study, or a folder of runs"
    )


def _is_run(path: Path) -> bool:
    return is_run_folder(path) or is_file(path / "metrics.jsonl")


def _settings_of(study: Path) -> list[RunGroup]:
    """A group for each setting of a study, in the order of its plan."""
    members: dict[str, list[PlannedRun]] = {}
    for run in open_study(study).runs():
        members.setdefault(run.setting, []).append(run)
    return [
        RunGroup.planned(setting or study.name, runs, study, setting)
        for setting, runs in members.items()
    ]


def _select(study: Path, text: str) -> list[RunGroup]:
    """The setting of a study with that label, or the only one on each environment with those values."""
    folder = open_study(study)
    labels = folder.plan.labels()
    words = [word for word in re.split(r"\s+|,(?=[\w.]+=)", text.strip()) if word]
    chosen = [
        label
        for setting, label in zip(folder.plan.vary, labels, strict=True)
        if words and all(_has(setting, word) for word in words)
    ]
    if text in labels:
        chosen = [text]
    env_ids = {run.setting: run.config.env_id for run in folder.runs()}
    if chosen and len({env_ids[label] for label in chosen}) == len(chosen):
        return [group for group in _settings_of(study) if group.setting in chosen]
    names = listed([f"'{study}:{label}'" for label in chosen or labels])
    found = f"means {len(chosen):,} settings" if chosen else "means no setting"
    raise ConfigError(f"'{text}' {found} of study '{study}': use one of {names}")


def _has(setting: Setting, word: str) -> bool:
    """Whether a setting has a value: `gamma=0.99`, `algo_kwargs.gamma=0.99`, or `ppo` as its algorithm."""
    key, equals, text = word.partition("=")
    if not equals:
        return word in (setting.get("algo"), setting.get("env_id"))
    for name, value in setting.items():
        if name == key or name.endswith(f".{key}"):
            return describe({"algo": value}) == text or _same(value, text)
    return False


def _same(value: Any, text: str) -> bool:
    """Whether the text is another spelling of a value, such as 1e-3 of 0.001."""
    with contextlib.suppress(ConfigError, ValueError):
        other = parse_yaml(text, "the value")
        return bool(other == value) or (isinstance(value, float) and float(text) == value)
    return False


def group_runs(run_dirs: Sequence[Path]) -> list[RunGroup]:
    """Runs grouped by algorithm, environment and settings; their names say in which settings the groups differ."""
    unique: dict[Path, RunRecord] = {}
    for run_dir in run_dirs:
        if run_dir.resolve() not in unique:
            unique[run_dir.resolve()] = RunRecord(run_dir)
    members: dict[str, list[RunRecord]] = {}
    settings: dict[str, Setting] = {}
    for record in unique.values():
        learned = {
            key: value
            for key, value in record.settings.items()
            if key not in NO_SETTING and value != {}
        }
        setting = dict(leaves(learned, value_key="kind"))  # the keys of a schedule belong together
        # A run with unreadable settings stays alone.
        key = identity(sorted(setting.items())) if setting else str(record.run_dir)
        settings[key] = setting
        members.setdefault(key, []).append(record)
    return [
        RunGroup(label or _title(runs[0]), tuple(sorted(runs, key=_seed_first)))
        for label, runs in zip(labels_of(list(settings.values())), members.values(), strict=True)
    ]


def _title(record: RunRecord) -> str:
    words = [word for word in (record.info.algo, record.info.env_id) if word]
    return " ".join(words) or record.run_dir.name


def _seed_first(record: RunRecord) -> tuple[int, str]:
    return -1 if record.seed is None else record.seed, record.run_dir.name


def _with_unique_names(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """The groups, with the study's name before the names of those that would be called the same."""
    several = len({group.study for group in groups}) > 1
    named = [
        replace(group, name=f"{group.study.name}: {group.setting}")
        if several and group.study and group.setting
        else group
        for group in groups
    ]
    counts = Counter(group.name for group in named)
    numbers: Counter[str] = Counter()
    found = []
    for group in named:
        numbers[group.name] += 1
        is_unique = counts[group.name] == 1
        found.append(
            group if is_unique else replace(group, name=f"{group.name} ({numbers[group.name]})")
        )
    return found


def listed(names: Sequence[str]) -> str:
    """At most six names, and how many more there are."""
    return ", ".join(names[:6]) + (f", … ({len(names) - 6:,} more)" if len(names) > 6 else "")
