"""The plan of a study: a base configuration, the settings that vary, and the seeds; from it follow the runs."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig, load_config_file, merge_layers, resolve_config
from rl_training.experiment.run_folder import run_name, safe_name
from rl_training.studies.selection import format_seeds, parse_seeds
from rl_training.validation import FrozenConfig, suggest

MAX_RUNS = 100_000
LONGEST_LABEL = 80
"""Characters of a setting's label in the name of a run folder; a longer one is cut and gets a checksum."""
NOT_VARIED = {
    "seed": "the seeds of a study are in its key seeds",
    "output_dir": "the runs of a study are in its own folder, and output_dir of the study says where that is",
}
Setting = dict[str, Any]
"""Dotted keys of the configuration, and their values."""


class StudyFile(FrozenConfig):
    """The keys of a study file."""

    name: str
    """Name of the study, and of its folder in output_dir."""
    base: dict[str, Any] = Field(default_factory=dict)
    """Settings that all runs share: keys of a run's configuration."""
    config: str | None = None
    """Configuration file with settings that all runs share; those of base replace them."""
    preset: bool = False
    """Begin with the preset of base.algo and base.env_id."""
    vary: dict[str, Any] | list[dict[str, Any]] = Field(default_factory=dict)
    """A grid: lists of values by dotted key, all of which are combined; or a list of settings, each a mapping."""
    seeds: Any = 0
    """Seeds of each setting: 0..4, 0,3,7 or a list."""
    output_dir: Path = Path("runs")
    """Folder that holds the study's folder."""
    plugins: list[str] = Field(default_factory=list)
    """Modules or files to import first; they register algorithms or environments."""
    callbacks: list[str] = Field(default_factory=list)
    """Callbacks of every run, each as FILE.py:NAME."""

    @classmethod
    def _title(cls) -> str:
        return "the study"


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
    suffix: str | None = None
    """End of the run folders' names before the setting's label; None: nothing."""
    threads: tuple[int, ...] = ()
    """PyTorch threads of each setting, fixed when the study begins, so that results do not depend on the machine's
    load or on how many runs are trained at once; empty: not fixed yet."""

    def values(self) -> dict[str, Any]:
        """The plan as stored in the study's folder: what decides which runs there are."""
        values: dict[str, Any] = {
            "name": self.name,
            "base": self.base,
            "vary": [dict(setting) for setting in self.vary],
            "seeds": format_seeds(self.seeds),
            "plugins": list(self.plugins),
            "callbacks": list(self.callbacks),
            "threads": list(self.threads),
        }
        return values | ({} if self.suffix is None else {"suffix": self.suffix})

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Plan:
        """The inverse of `values`."""
        try:
            settings = tuple(dict(setting) for setting in values["vary"])
            return cls(
                name=str(values["name"]),
                base=dict(values["base"]),
                vary=settings,
                seeds=parse_seeds(values["seeds"]),
                plugins=tuple(map(str, values["plugins"])),
                callbacks=tuple(map(str, values["callbacks"])),
                suffix=values.get("suffix"),
                threads=tuple(map(int, values["threads"])),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"the stored plan is damaged: {error}") from None

    def runs(self, study_dir: Path) -> list[PlannedRun]:
        """All runs in order: the settings of the first seed, then those of the next.

        Every configuration is validated; an error names the setting.
        """
        labels = labels_of(self.vary)
        suffixes = suffixes_of(self.vary, self.suffix)
        if len(self.vary) * len(self.seeds) > MAX_RUNS:
            raise ConfigError(f"the study has {len(self.vary) * len(self.seeds):,} runs, more than {MAX_RUNS:,}")
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

    def _config(self, setting: Setting, label: str, study_dir: Path, threads: int | None) -> TrainConfig:
        own = {"output_dir": study_dir, "seed": self.seeds[0]} | ({} if threads is None else {"num_threads": threads})
        try:
            return resolve_config([("base", self.base), ("vary", nested(setting)), ("the study", own)]).config
        except ConfigError as error:
            raise ConfigError(f"setting {label}: {error}" if label else str(error)) from None


def read_study_file(path: Path) -> tuple[Plan, Path]:
    """The plan in a study file, and the folder of the study."""
    values = load_config_file(path)
    wrong = [key for key in values if not isinstance(key, str)]
    if wrong:
        raise ConfigError(f"key {wrong[0]!r} of study file '{path}' is not a string")
    if "vary" in values and not values["vary"]:
        raise ConfigError("the grid 'vary' of the study is empty: give it values, or leave the key out")
    file = StudyFile(**values)
    if not file.base and file.config is None:
        raise ConfigError("missing key 'base' for the study: the settings of its runs, or 'config' with a file of them")
    layers = []
    if file.config is not None:
        shared = load_config_file(path.parent / file.config)
        layers.append({key: value for key, value in shared.items() if key not in NOT_VARIED})
    layers.append(file.base)
    if file.preset:
        layers.insert(0, _preset(layers))
    plan = make_plan(
        file.name, layers, vary=file.vary, seeds=file.seeds, plugins=file.plugins, callbacks=file.callbacks
    )
    return plan, file.output_dir / safe_name(plan.name)


def make_plan(
    name: str,
    layers: Sequence[Mapping[str, Any]],
    *,
    vary: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
    seeds: Any = 0,
    plugins: Sequence[str] = (),
    callbacks: Sequence[str] = (),
    suffix: str | None = None,
) -> Plan:
    """A plan from the settings that all runs share (later layers override earlier ones) and those that vary."""
    if not name.strip() or safe_name(name) != name:
        raise ConfigError(f"bad value {name!r} for 'name' of the study: use letters, digits and . _ - only")
    base, _ = merge_layers([("the base", nested(plain(layer), "the base")) for layer in layers])
    for key, reason in NOT_VARIED.items():
        if key in base:
            raise ConfigError(f"'{key}' of the base has no effect: {reason}; remove it")
    return Plan(name, base, tuple(expand(vary)), parse_seeds(seeds), tuple(plugins), tuple(callbacks), suffix)


def expand(vary: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> list[Setting]:
    """The settings of a grid, or of a list of settings, checked; a study that varies nothing has one, empty."""
    if not vary:
        return [{}]
    vary = plain(vary)
    settings = list(_grid(vary)) if isinstance(vary, Mapping) else [_flat(setting) for setting in vary]
    for setting in settings:
        for key in setting:
            _check_key(key)
    texts = [json.dumps(setting, sort_keys=True, default=repr) for setting in settings]
    twice = [text for text, count in Counter(texts).items() if count > 1]
    if twice:
        raise ConfigError(f"'vary' of the study has the setting {twice[0]} twice: remove one")
    return settings


def plain(value: Any) -> Any:
    """The value with NumPy's numbers and paths replaced by Python's numbers and text."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(plain(item) for item in value)
    if hasattr(value, "tolist"):  # of NumPy
        return value.tolist()
    return str(value) if isinstance(value, Path) else value


def nested(values: Mapping[str, Any], where: str = "vary") -> dict[str, Any]:
    """The values with dotted keys of the first level as nested mappings."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        *outer, last = key.split(".") if isinstance(key, str) else [key]
        target = found
        for part in outer:
            inner = target.get(part, {})
            if not isinstance(inner, Mapping):
                raise ConfigError(f"'{key}' of {where} sets a key within one that has a value")
            target[part] = dict(inner)
            target = target[part]
        known = target.get(last)
        if isinstance(known, Mapping) and isinstance(value, Mapping) and not known.keys() & value.keys():
            value = {**known, **value}
        elif last in target:
            raise ConfigError(f"'{key}' of {where} is given twice, with a dot and nested: remove one")
        target[last] = value
    return found


def labels_of(settings: Sequence[Setting]) -> list[str]:
    """A short label of each setting, for people: the first keys that tell the settings apart, with their values."""
    keys = list(dict.fromkeys(key for setting in settings for key in setting))
    varying = [key for key in keys if len({_identity(setting.get(key)) for setting in settings}) > 1]
    labels = [""] * len(settings)
    for count in range(1, len(varying) + 1):
        chosen = varying[:count]
        labels = [_describe({key: setting[key] for key in chosen if key in setting}) for setting in settings]
        if len(set(labels)) == len(settings):
            return labels
    counts = Counter(labels)
    return [
        label if counts[label] == 1 else f"{label} ({_checksum(setting)})".strip()
        for label, setting in zip(labels, settings, strict=True)
    ]


def suffixes_of(settings: Sequence[Setting], suffix: str | None) -> list[str]:
    """The end of the run folders' names of each setting: it depends on no other setting, so a study can grow."""
    found = []
    for setting in settings:
        label = _describe(setting)
        text = safe_name("-".join(part for part in (suffix, label) if part)) if suffix or label else "run"
        if len(text) > LONGEST_LABEL or not all(map(_is_plain, setting.values())):
            text = f"{text[:LONGEST_LABEL]}-{_checksum(setting)}"
        found.append(text)
    return found


def plan_differences(old: Plan, new: Plan) -> list[str]:
    """What differs between two plans of one study, in words; empty if they have the same runs."""
    found = []
    first, second = dict(_leaves(old.base)), dict(_leaves(new.base))
    for key in dict.fromkeys([*first, *second]):
        if first.get(key) != second.get(key):
            found.append(f"base.{key} was {_text(first.get(key))} and is {_text(second.get(key))}")
    if old.vary != new.vary:
        gone, added = (
            [_describe(setting) or "(no change of the base)" for setting in one if setting not in other]
            for one, other in ((old.vary, new.vary), (new.vary, old.vary))
        )
        words = [f"without {', '.join(gone[:3])}" if gone else "", f"with {', '.join(added[:3])}" if added else ""]
        found.append("vary is another: " + (" and ".join(word for word in words if word) or "in another order"))
    if old.seeds != new.seeds:
        found.append(f"seeds was {format_seeds(old.seeds)} and is {format_seeds(new.seeds)}")
    if old.suffix != new.suffix:
        found.append(f"the suffix was {old.suffix} and is {new.suffix}")
    return found


def is_extension(old: Plan, new: Plan) -> bool:
    """Whether `new` has every run of `old`, unchanged and in the same folder, and further ones."""

    def folders(plan: Plan) -> set[tuple[str, str]]:
        suffixes = suffixes_of(plan.vary, plan.suffix)
        return {(suffix, _identity(setting)) for suffix, setting in zip(suffixes, plan.vary, strict=True)}

    return old.base == new.base and {*old.seeds} <= {*new.seeds} and folders(old) <= folders(new)


def _grid(vary: Mapping[str, Any]) -> Iterator[Setting]:
    values = {}
    for key, choices in _flat_grid(vary):
        _check_key(key)
        if isinstance(choices, str) or not isinstance(choices, (list, tuple, range)):
            raise ConfigError(
                f"bad value {choices!r} for 'vary.{key}' of the study: write a list of values: [{choices}]"
            )
        if not choices:
            raise ConfigError(f"'vary.{key}' of the study is empty: give it values, or leave it out")
        if key in values:
            raise ConfigError(f"'{key}' in 'vary' of the study is given twice, with a dot and nested: remove one")
        values[key] = list(choices)
    for combination in itertools.product(*values.values()):
        yield dict(zip(values, combination, strict=True))


def _flat_grid(vary: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The lists of a grid by dotted key; `algo_kwargs: {gamma: [...]}` is the same as `algo_kwargs.gamma: [...]`."""
    for key, value in vary.items():
        if isinstance(value, Mapping):
            if not value:
                raise ConfigError(f"'vary.{prefix}{key}' of the study is empty: give it values, or leave it out")
            yield from _flat_grid(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _flat(setting: Any) -> Setting:
    if not isinstance(setting, Mapping):
        raise ConfigError(f"bad value {setting!r} for 'vary' of the study: each setting is a mapping of keys to values")
    found: Setting = {}
    for key, value in setting.items():
        is_section = key in ("algo_kwargs", "env_kwargs") and isinstance(value, Mapping)
        values = {f"{key}.{name}": item for name, item in value.items()} if is_section else {str(key): value}
        twice = found.keys() & values.keys()
        if twice:
            raise ConfigError(f"'{min(twice)}' in 'vary' of the study is given twice: remove one")
        found |= values
    return found


def _check_key(key: str) -> None:
    first = key.partition(".")[0]
    if first in NOT_VARIED:
        raise ConfigError(f"'{first}' cannot be varied: {NOT_VARIED[first]}")
    if first not in TrainConfig.model_fields:
        hint = suggest(first, TrainConfig.model_fields, f"write a key of the algorithm as algo_kwargs.{key}")
        raise ConfigError(f"unknown key '{key}' in 'vary' of the study{hint}")


def _describe(setting: Setting) -> str:
    """The keys of a setting and their values; of `algo` and `env_id` only the value."""
    starts = {key: f"{key.removeprefix('algo_kwargs.')}=" for key in setting} | {"algo": "", "env_id": ""}
    return " ".join(starts[key] + _label_text(value) for key, value in setting.items())


def _label_text(value: Any) -> str:
    return re.sub(r"[\"{}\[\] ]", "", value if isinstance(value, str) else _text(value))


def _is_plain(value: Any) -> bool:
    """Whether a value's text in a folder's name can be read in one way only."""
    if isinstance(value, str):
        is_number = re.fullmatch(r"[-+.\d].*|true|false|null|nan|inf.*", value, re.IGNORECASE) is not None
        return not is_number and safe_name(value) == value
    if isinstance(value, (list, tuple)):
        return isinstance(value, list) and len(value) > 1 and all(map(_is_plain_number, value))
    return isinstance(value, bool) or _is_plain_number(value)


def _is_plain_number(value: Any) -> bool:
    return type(value) in (int, float) and not str(value).startswith("-")


def _identity(value: Any) -> str:
    return repr(value)


def _checksum(setting: Setting) -> str:
    return hashlib.sha256(_identity(setting).encode()).hexdigest()[:8]


def _preset(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    from rl_training.experiment.presets import find_preset
    from rl_training.experiment.registry import get_algorithm_spec

    names = {key: layer[key] for layer in layers for key in ("algo", "env_id") if key in layer}
    found = None
    if len(names) == 2:
        found = find_preset(get_algorithm_spec(str(names["algo"])).name, str(names["env_id"]))
    if found is None:
        raise ConfigError("'preset: true' of the study: there is no preset for its algo and env_id; leave it out")
    return load_config_file(found)


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _text(value: Any) -> str:
    return "not set" if value is None else json.dumps(value, default=str)
