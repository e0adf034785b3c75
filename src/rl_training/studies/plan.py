"""The plan of a study, from which its runs follow: read from a file, and frozen in the study's folder."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from rl_training.errors import ConfigError, RunOwnedError
from rl_training.experiment.config import (
    TrainConfig,
    leaves,
    load_config_file,
    load_signed_file,
    merge_layers,
    resolve_config,
)
from rl_training.experiment.ownership import Lease, acquire
from rl_training.experiment.presets import preset_of
from rl_training.experiment.run_folder import run_name, safe_name
from rl_training.experiment.yaml_text import dump_yaml, parse_yaml, sign
from rl_training.files import freeze as freeze
from rl_training.files import (
    is_file,
    replace_synced,
    translate_write_errors,
)
from rl_training.studies.variation import (
    CHOSEN_BY_TUNING,
    NOT_VARIED,
    Setting,
    describe,
    expand,
    format_seeds,
    identity,
    labels_of,
    nested,
    parse_seeds,
    plain,
    suffixes_of,
    value_text,
)
from rl_training.validation import FrozenConfig, parse_config, suggest

MAX_RUNS = 100_000


class StudyFile(FrozenConfig):
    """The keys of a study file."""

    name: str
    """Name of the study, and of its folder in output_dir."""
    base: dict[str, Any] = Field(default_factory=dict)
    """Settings that all runs share: keys of a run's configuration."""
    config: str | None = None
    """Configuration file with settings that all runs share; `base` replaces them."""
    preset: bool | None = None
    """Begin with the preset of base.algo and base.env_id; null: do not, and say so if there is one."""
    vary: Any = Field(default_factory=dict)
    """A grid: lists of values by dotted key, all of which are combined; or a list of settings, each a mapping."""
    seeds: Any = 0
    """Seeds of each setting: 0..4, 0,3,7 or a list."""
    output_dir: Path = Path("runs")
    """Folder that holds the study's folder."""
    plugins: list[str] = Field(default_factory=list)
    """Modules or files to import first; they register algorithms or environments."""
    callbacks: list[str] = Field(default_factory=list)
    """Callbacks of every run, each as FILE.py:NAME."""
    tune: dict[str, Any] | None = None
    """A tuning in place of a study: how much is tried, and what. `rl-training tune FILE` runs it."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study: one setting with one seed."""

    config: TrainConfig
    suffix: str
    setting: str
    """Label of the setting; empty if the study has only one."""

    @property
    def run_dir(self) -> Path:
        """Folder of the run."""
        return self.config.output_dir / run_name(self.config, self.suffix)

    @property
    def label(self) -> str:
        """The setting and the seed, for people."""
        return f"{self.setting} seed {self.config.seed}".strip()


@dataclass(frozen=True)
class Plan:
    """A study on paper. `base` is complete: presets and files are resolved in it."""

    name: str
    base: dict[str, Any]
    vary: tuple[Setting, ...]
    seeds: tuple[int, ...]
    plugins: tuple[str, ...] = ()
    callbacks: tuple[str, ...] = ()
    threads: tuple[int, ...] = ()
    """PyTorch threads of each setting, fixed when the study begins, so that results do not depend on the machine's
    load or on how many runs are trained at once; empty: not fixed yet."""

    working_dir: str = ""
    """Working directory of the command that began the study: relative paths in its settings are relative to it."""
    suffix: str | None = None
    """End of the run folders' names before the setting's label; None: nothing."""
    names: tuple[str, ...] = ()
    """Name of each setting, for people and for its run folders; empty: settings are named by their keys and values."""
    folders: tuple[str, ...] = field(default=(), compare=False)
    """Ends of the run folders' names in a study of an older version, whose settings had tuples; not stored."""
    hint: str | None = field(default=None, compare=False)
    """What the user should know before it begins; not stored."""

    def values(self) -> dict[str, Any]:
        """The plan as stored in the study's folder: what decides which runs there are."""
        values = vars(self) | {"seeds": format_seeds(self.seeds)}
        del values["folders"], values["hint"]
        if self.suffix is None:
            del values["suffix"]
        if not self.names:
            del values["names"]
        return values

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Plan:
        """The inverse of `values`."""
        try:
            return cls(
                name=str(values["name"]),
                base=dict(values["base"]),
                vary=tuple(map(dict, values["vary"])),
                seeds=parse_seeds(values["seeds"]),
                plugins=tuple(map(str, values["plugins"])),
                callbacks=tuple(map(str, values["callbacks"])),
                suffix=values.get("suffix"),
                threads=tuple(map(int, values["threads"])),
                working_dir=str(values["working_dir"]),
                names=tuple(map(str, values.get("names", ()))),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"the stored plan is damaged: {error}") from None

    def runs(self, study_dir: Path) -> list[PlannedRun]:
        """All runs in order: all settings of the first seed, then of the next.

        Every configuration is validated; an error names the setting.
        """
        labels, suffixes = self.labels(), self.suffixes()
        num_runs = len(self.vary) * len(self.seeds)
        if num_runs > MAX_RUNS:
            raise ConfigError(f"the study has {num_runs:,} runs, more than {MAX_RUNS:,}")
        configs = [
            self._config(setting, label, study_dir, threads)
            for setting, label, threads in itertools.zip_longest(self.vary, labels, self.threads)
        ]
        return [
            # Validated once for each setting; only the seed differs.
            PlannedRun(config.model_copy(update={"seed": seed}), suffix, label)
            for seed in self.seeds
            for config, suffix, label in zip(configs, suffixes, labels, strict=True)
        ]

    def labels(self) -> list[str]:
        """A label of each setting, for people; empty if the study has only one."""
        return list(self.names) or labels_of(self.vary)

    def suffixes(self) -> list[str]:
        """The end of the run folders' names of each setting."""
        return list(self.names or self.folders) or suffixes_of(self.vary, self.suffix)

    def _config(
        self, setting: Setting, label: str, study_dir: Path, threads: int | None
    ) -> TrainConfig:
        own: dict[str, Any] = {"output_dir": study_dir, "seed": self.seeds[0]}
        if threads is not None:
            own["num_threads"] = threads
        try:
            layers = [("base", self.base), ("vary", nested(setting)), ("the study", own)]
            return resolve_config(layers).config
        except ConfigError as error:
            raise ConfigError(f"setting {label}: {error}" if label else str(error)) from None


def read_study_file(path: Path) -> tuple[Plan, Path]:
    """The plan in a study file, and the folder of the study."""
    plan, file = _read_file(path)
    if file.tune is not None:
        raise ConfigError(
            f"'{path}' has a tune block: run it with `rl-training tune {path}`, or remove the block"
        )
    return plan, file.output_dir / safe_name(plan.name)


def read_tune_file(path: Path) -> tuple[Plan, dict[str, Any], Path]:
    """The base of a study file with a `tune` block as a plan of one run, the block, and `output_dir`."""
    plan, file = _read_file(path)
    if file.tune is None:
        raise ConfigError(
            f"missing key 'tune' in '{path}': add a tune block, or run it with `rl-training study run`"
        )
    for key in ("vary", "seeds"):
        if key in file.model_fields_set:
            raise ConfigError(
                f"'{key}' of the study has no effect in a tuning, which has its own: remove it"
            )
    return plan, file.tune, file.output_dir


def _read_file(path: Path) -> tuple[Plan, StudyFile]:
    values = load_config_file(path)
    if "vary" in values and not values["vary"]:
        raise ConfigError(
            "the grid 'vary' of the study is empty: give it values, or leave the key out"
        )
    file = parse_config(StudyFile, values, "the study")
    if not file.base and file.config is None:
        raise ConfigError(
            "missing key 'base' for the study: the settings of its runs, or 'config' with a file of them"
        )
    shared = {} if file.config is None else load_config_file(path.parent / file.config)
    in_config = shared.pop("preset", None)
    wanted = in_config if file.preset is None else file.preset
    layers = [{key: shared[key] for key in shared if key not in NOT_VARIED}, file.base]
    preset, hint = preset_of(_merged(layers), wanted, f"study '{file.name}'")
    if preset is not None:
        layers.insert(0, load_config_file(preset))
    plan = make_plan(
        file.name,
        layers,
        vary=file.vary,
        seeds=file.seeds,
        plugins=file.plugins,
        callbacks=file.callbacks,
        reserved=NOT_VARIED if file.tune is None else CHOSEN_BY_TUNING,
    )
    return replace(plan, hint=hint), file


def _merged(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return merge_layers([("the base", nested(plain(layer), "the base")) for layer in layers])[0]


def make_plan(
    name: str,
    layers: Sequence[Mapping[str, Any]],
    *,
    vary: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
    seeds: Any = 0,
    plugins: Sequence[str] = (),
    callbacks: Sequence[str] = (),
    suffix: str | None = None,
    reserved: Mapping[str, str] = NOT_VARIED,
) -> Plan:
    """A plan from the settings that all runs share (later layers override earlier ones) and those that vary.

    `reserved` are keys that the base does not have, and why.
    """
    if not name.strip() or safe_name(name) != name:
        raise ConfigError(
            f"bad value {name!r} for 'name' of the study: use letters, digits and . _ - only"
        )
    base = _merged(layers)
    for key, reason in reserved.items():
        if key in base:
            raise ConfigError(f"'{key}' of the base has no effect: {reason}; remove it")
    return Plan(
        name,
        base,
        tuple(expand(vary, base.get("algo"))),
        parse_seeds(seeds),
        tuple(plugins),
        tuple(callbacks),
        suffix=suffix,
    )


def plan_differences(old: Plan, new: Plan) -> list[str]:
    """What differs between two plans of one study, in words; empty if they have the same runs."""
    found = []
    was, now = dict(leaves(old.base)), dict(leaves(new.base))
    for key in dict.fromkeys([*was, *now]):
        if key in was and key in now and identity(was[key]) == identity(now[key]):
            continue
        texts = [value_text(values[key]) if key in values else "not set" for values in (was, now)]
        found.append(f"base.{key} was {texts[0]} and is {texts[1]}")
    if identity(old.vary) != identity(new.vary):
        changes = {"removed": _lacking(new, old), "added": _lacking(old, new)}
        words = [f"{word} {settings}" for word, settings in changes.items() if settings]
        found.append(f"vary changed: {', '.join(words) or 'another order'}")
    if old.seeds != new.seeds:
        found.append(f"seeds was {format_seeds(old.seeds)} and is {format_seeds(new.seeds)}")
    if old.suffix != new.suffix:
        found.append(f"the suffix was {old.suffix} and is {new.suffix}")
    return found


def _lacking(plan: Plan, other: Plan) -> str:
    """The first settings of another plan that this one does not have."""
    settings = [setting for setting in other.vary if setting not in plan.vary]
    return ", ".join(describe(setting) or "(no change of the base)" for setting in settings[:3])


def is_extension(old: Plan, new: Plan) -> bool:
    """Whether `new` has every run of `old`, unchanged and in the same folder, and further ones."""
    known, found = (
        {*zip(plan.suffixes(), map(identity, plan.vary), strict=True)} for plan in (old, new)
    )
    is_same_base = identity(old.base) == identity(new.base)
    return is_same_base and {*old.seeds} <= {*new.seeds} and known <= found


PLAN_FILE = "study.yaml"


@dataclass(frozen=True)
class StudyFolder:
    """A study on disk."""

    path: Path
    plan: Plan

    @property
    def name(self) -> str:
        """Name of the study."""
        return self.plan.name

    def runs(self) -> list[PlannedRun]:
        """All planned runs, validated."""
        return self.plan.runs(self.path)


def find_study(name: str, parent: Path = Path("runs")) -> Path:
    """The folder of a study, given by its path or by its name in `parent`."""
    for path in (Path(name), parent / name):
        if is_file(path / PLAN_FILE):
            return path
    known = [path.name for path in list_studies(parent)]
    raise ConfigError(f"there is no study '{name}' here or in '{parent}'{suggest(name, known)}")


def list_studies(parent: Path = Path("runs")) -> list[Path]:
    """The folders of the studies in `parent`, by name."""
    return sorted(path.parent for path in parent.glob(f"*/{PLAN_FILE}"))


def open_study(path: Path) -> StudyFolder:
    """Read the stored plan of a study; a file that was edited is refused."""
    instead = (
        "plan another study from a file of your own (`rl-training study run FILE --fork NAME`)"
    )
    plan = Plan.from_values(load_signed_file(path / PLAN_FILE, "a study", instead))
    text = (path / PLAN_FILE).read_text(encoding="utf-8")
    if "!tuple" in text:
        settings = parse_yaml(text, "the plan", with_tuples=True)["vary"]
        plan = replace(plan, folders=tuple(suffixes_of(settings, plan.suffix)))
    return StudyFolder(path, plan)


def store_plan(plan: Plan, path: Path, *, is_extended: bool = False) -> StudyFolder:
    """Begin the study `plan` in the folder `path`, or continue it there.

    A stored plan that differs is refused; with `is_extended` it may gain runs.
    """
    if not (path / PLAN_FILE).is_file():
        if path.exists() and (not path.is_dir() or any(map(_is_foreign, path.iterdir()))):
            raise ConfigError(
                f"'{path}' exists and is not a study: move it away, or give the study another name"
            )
        if freeze(path / PLAN_FILE, _text(plan)):
            return StudyFolder(path, plan)
    stored = open_study(path)  # perhaps begun by another process at the same moment
    refuse_changed(plan, stored, is_extended=is_extended)
    if plan_differences(stored.plan, plan):
        with translate_write_errors(path / PLAN_FILE):
            replace_synced(path / PLAN_FILE, _text(plan).encode())
        return StudyFolder(path, plan)
    # The code that it imports may have moved.
    return StudyFolder(path, replace(stored.plan, plugins=plan.plugins, callbacks=plan.callbacks))


def _is_foreign(path: Path) -> bool:
    """Whether a study that did not begin cannot have left this path."""
    return not path.name.startswith((".", PLAN_FILE))


def refuse_changed(plan: Plan, stored: StudyFolder, *, is_extended: bool = False) -> None:
    """Raise a `ConfigError` if `plan` differs from the stored one, unless `is_extended` and it only has more runs."""
    differences = plan_differences(stored.plan, plan)
    can_grow = is_extension(stored.plan, plan)
    if not differences or (can_grow and is_extended):
        return
    grow = "--extend (in Python: extend=True) to add the new runs, or " if can_grow else ""
    raise ConfigError(
        f"study '{stored.name}' began with another plan ('{stored.path}'): {'; '.join(differences)}. Give"
        f" {grow}--fork NAME (in Python: another name) to begin a new study with this one"
    )


@contextmanager
def driven_alone(path: Path, what: str) -> Iterator[Lease]:
    """Be the only process that drives `what`, such as a tuning, in the folder `path`; else a `ConfigError`."""
    try:
        lease = acquire(path)
    except RunOwnedError as error:
        raise ConfigError(
            f"{what} '{path}' is driven by {error.owner}, which is still alive: wait for it to end, or end it"
        ) from None
    try:
        yield lease
    finally:
        lease.release()


def _text(plan: Plan) -> str:
    try:
        text = sign(dump_yaml(plan.values()))
    except yaml.YAMLError as error:
        raise ConfigError(
            f"the plan of study '{plan.name}' cannot be stored: {str(error).splitlines()[0]}"
        ) from None
    parse_yaml(
        text, f"the plan of study '{plan.name}'"
    )  # refused now if it is too large to be read
    return text
