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
from rl_training.experiment.config import TrainConfig, load_config_file, resolve_config
from rl_training.experiment.run_folder import run_name, safe_name
from rl_training.studies.selection import format_seeds, parse_seeds
from rl_training.validation import FrozenConfig, suggest

MAX_RUNS = 100_000
LONGEST_LABEL = 80
"""Characters of a setting's label in the name of a run folder; a longer one is cut and gets a checksum."""
NOT_VARIED = {
    "seed": "the seeds of a study are its key seeds",
    "output_dir": "the runs of a study are in its own folder",
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
        suffixes = suffixes_of(labels, self.suffix)
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
    if "vary" in values and not values["vary"]:
        raise ConfigError("the grid 'vary' of the study is empty: give it values, or leave the key out")
    file = StudyFile(**values)
    if not file.base and file.config is None:
        raise ConfigError("missing key 'base' for the study: the settings of its runs, or 'config' with a file of them")
    layers = []
    if file.config is not None:
        layers.append(load_config_file(path.parent / file.config))
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
    base: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            _merge(base, str(key), value)
    if "seed" in base:
        raise ConfigError("'seed' of the base is not used: set the key seeds of the study instead")
    base.pop("output_dir", None)
    return Plan(name, base, tuple(expand(vary)), parse_seeds(seeds), tuple(plugins), tuple(callbacks), suffix)


def expand(vary: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> list[Setting]:
    """The settings of a grid, or of a list of settings, checked; a study that varies nothing has one, empty."""
    if not vary:
        return [{}]
    settings = list(_grid(vary)) if isinstance(vary, Mapping) else [_flat(setting) for setting in vary]
    for setting in settings:
        for key in setting:
            _check_key(key)
    texts = [json.dumps(setting, sort_keys=True, default=str) for setting in settings]
    twice = [text for text, count in Counter(texts).items() if count > 1]
    if twice:
        raise ConfigError(f"'vary' of the study has the setting {twice[0]} twice: remove one")
    return settings


def nested(setting: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as nested mappings."""
    values: dict[str, Any] = {}
    for key, value in setting.items():
        *outer, last = key.split(".")
        target = values
        for part in outer:
            target = target.setdefault(part, {})
        target[last] = value
    return values


def labels_of(settings: Sequence[Setting]) -> list[str]:
    """A short label of each setting: the first keys that tell the settings apart, each with its value."""
    keys = list(dict.fromkeys(key for setting in settings for key in setting))
    varying = [key for key in keys if len({_text(setting.get(key)) for setting in settings}) > 1]
    names = {key: key.rpartition(".")[2] for key in varying}
    counts = Counter(names.values())
    names = {key: name if counts[name] == 1 else key for key, name in names.items()}
    names |= {key: "" for key in ("algo", "env_id") if key in names}
    labels = [""] * len(settings)
    for count in range(1, len(varying) + 1):
        chosen = varying[:count]
        labels = [
            " ".join(_label_part(names[key], setting[key]) for key in chosen if key in setting) for setting in settings
        ]
        if len(set(labels)) == len(settings):
            break
    return labels


def suffixes_of(labels: Sequence[str], suffix: str | None) -> list[str]:
    """The end of the run folders' names of each setting: unique and safe."""
    safe = [
        safe_name("-".join(part for part in (suffix, label) if part)) if suffix or label else "run" for label in labels
    ]
    counts = Counter(safe)
    found = []
    for label, text in zip(labels, safe, strict=True):
        if counts[text] > 1 or len(text) > LONGEST_LABEL:
            text = f"{text[:LONGEST_LABEL]}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"
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
        labels = labels_of(old.vary), labels_of(new.vary)
        gone, added = (sorted({*one} - {*other}) for one, other in (labels, reversed(labels)))
        words = [f"without {', '.join(gone[:3])}" if gone else "", f"with {', '.join(added[:3])}" if added else ""]
        found.append("vary is another: " + (" and ".join(word for word in words if word) or "in another order"))
    if old.seeds != new.seeds:
        found.append(f"seeds was {format_seeds(old.seeds)} and is {format_seeds(new.seeds)}")
    if old.suffix != new.suffix:
        found.append(f"the suffix was {old.suffix} and is {new.suffix}")
    return found


def is_extension(old: Plan, new: Plan) -> bool:
    """Whether `new` has every run of `old`, unchanged, and further ones."""
    same = (old.base, old.suffix) == (new.base, new.suffix)
    settings = [json.dumps(setting, sort_keys=True, default=str) for setting in new.vary]
    known = [json.dumps(setting, sort_keys=True, default=str) for setting in old.vary]
    # The labels name the folders, so they must stay.
    labels = dict(zip(settings, labels_of(new.vary), strict=True))
    old_labels = dict(zip(known, labels_of(old.vary), strict=True))
    return same and {*old.seeds} <= {*new.seeds} and old_labels.items() <= labels.items()


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
        values[key] = list(choices)
    for combination in itertools.product(*values.values()):
        yield dict(zip(values, combination, strict=True))


def _flat_grid(vary: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The lists of a grid by dotted key; `algo_kwargs: {gamma: [...]}` is the same as `algo_kwargs.gamma: [...]`."""
    for key, value in vary.items():
        if isinstance(value, Mapping):
            yield from _flat_grid(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _flat(setting: Any) -> Setting:
    if not isinstance(setting, Mapping):
        raise ConfigError(f"bad value {setting!r} for 'vary' of the study: each setting is a mapping of keys to values")
    found: Setting = {}
    for key, value in setting.items():
        if key in ("algo_kwargs", "env_kwargs") and isinstance(value, Mapping):
            found |= {f"{key}.{name}": item for name, item in value.items()}
        else:
            found[str(key)] = value
    return found


def _check_key(key: str) -> None:
    first = key.partition(".")[0]
    if first in NOT_VARIED:
        raise ConfigError(f"'{first}' cannot be varied: {NOT_VARIED[first]}")
    if first not in TrainConfig.model_fields:
        hint = suggest(first, TrainConfig.model_fields, f"write a key of the algorithm as algo_kwargs.{key}")
        raise ConfigError(f"unknown key '{key}' in 'vary' of the study{hint}")


def _label_part(name: str, value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    text = re.sub(r"[\"{}\[\] ]", "", text)
    return f"{name}={text}" if name else text


def _merge(into: dict[str, Any], key: str, value: Any) -> None:
    """Set a key of the base, dotted or nested; mappings of the same key are merged."""
    first, _, rest = key.partition(".")
    if rest:
        value = nested({rest: value})
    if isinstance(value, Mapping) and isinstance(into.get(first), dict) and "kind" not in value:
        into[first] = dict(into[first])
        for name, item in value.items():
            _merge(into[first], str(name), item) if isinstance(item, Mapping) else into[first].__setitem__(name, item)
    else:
        into[first] = dict(value) if isinstance(value, Mapping) else value


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
