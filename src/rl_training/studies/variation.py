"""What varies in a study: the settings of a grid or a list, and its seeds; the share of them that is taken here."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rl_training.errors import ConfigError
from rl_training.experiment.config import full_key, leaves
from rl_training.experiment.run_folder import safe_name

LONGEST_LABEL = 80
"""Characters of a setting's label in the name of a run folder; a longer one is cut and gets a checksum."""
NOT_VARIED = {
    "seed": "the seeds of a study are in its key seeds",
    "output_dir": "the runs of a study are in its own folder, and output_dir of the study says where that is",
}
"""Keys of a run's configuration that a study decides by itself."""
CHOSEN_BY_TUNING = {
    "seed": "a tuning chooses the seeds of its runs; --seeds-per-trial, --race-seeds and --final-seeds say how many,"
    " and --seed shifts them",
    "output_dir": "the runs of a tuning are in its own folder, and --output-dir says where that is",
}
"""The same keys in a tuning."""
SECTIONS = ("algo_kwargs", "env_kwargs")
Setting = dict[str, Any]
"""Dotted keys of the configuration, and their values."""


def expand(
    vary: Mapping[str, Any] | Sequence[Mapping[str, Any]], algo: Any = None
) -> list[Setting]:
    """Expand `vary` into checked settings; without it, one empty setting.

    `algo_kwargs.` may be left out of a key. `algo` is the algorithm, as far as it is known: an error suggests its keys.
    """
    if not vary:
        return [{}]
    vary = plain(vary)
    if isinstance(vary, Mapping):
        settings = list(_combinations(vary, algo))
    elif isinstance(vary, list):
        settings = [_checked(setting, algo) for setting in vary]
    else:
        raise ConfigError(
            f"bad value {vary!r:.80} for 'vary' of the study: give lists by key, or a list of settings"
        )
    texts = Counter(json.dumps(setting, sort_keys=True, default=repr) for setting in settings)
    text, count = texts.most_common(1)[0]
    if count > 1:
        raise ConfigError(f"'vary' of the study has the setting {text} twice: remove one")
    return settings


def plain(value: Any) -> Any:
    """The value as a file has it: lists for tuples and ranges, Python's numbers for NumPy's, text for paths."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [plain(item) for item in value]
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
            target[part] = target = dict(inner)
        if last in target:
            known = target[last]
            are_sections = isinstance(known, Mapping) and isinstance(value, Mapping)
            if not are_sections or known.keys() & value.keys():
                raise ConfigError(
                    f"'{key}' of {where} is given twice, with a dot and nested: remove one"
                )
            value = {**known, **value}
        target[last] = value
    return found


def labels_of(settings: Sequence[Setting]) -> list[str]:
    """A short label of each setting, for people: the first keys in which the settings differ, with their values."""
    keys = list(dict.fromkeys(key for setting in settings for key in setting))
    varying = [key for key in keys if len({identity(setting.get(key)) for setting in settings}) > 1]
    labels = [""] * len(settings)
    for count in range(1, len(varying) + 1):
        chosen = varying[:count]
        labels = [
            describe({key: setting[key] for key in chosen if key in setting})
            for setting in settings
        ]
        if len(set(labels)) == len(settings):
            return labels
    return [text.strip() for text in _told_apart(labels, settings, "{} ({})")]


def suffixes_of(settings: Sequence[Setting], suffix: str | None) -> list[str]:
    """The end of the run folders' names of each setting.

    It depends on no other setting, so that a study can grow, unless two would have the same name.
    """
    found = []
    for setting in settings:
        parts = [part for part in (suffix, describe(setting)) if part]
        text = safe_name("-".join(parts)) if parts else "run"
        if len(text) > LONGEST_LABEL or not all(map(_is_plain, setting.values())):
            text = f"{text[:LONGEST_LABEL]}-{_checksum(setting)}"
        found.append(text)
    return _told_apart(found, settings, "{}-{}")


def _told_apart(texts: Sequence[str], settings: Sequence[Setting], form: str) -> list[str]:
    """The texts of the settings; equal ones get the checksums of their settings by `form`."""
    counts = Counter(texts)
    return [
        text if counts[text] == 1 else form.format(text, _checksum(setting))
        for text, setting in zip(texts, settings, strict=True)
    ]


def _combinations(grid: Mapping[str, Any], algo: Any) -> Iterator[Setting]:
    """Every combination of the lists of a grid; `algo_kwargs: {gamma: [...]}` is `algo_kwargs.gamma: [...]`."""
    choices = _by_full_key(leaves(grid), None if "algo" in grid else algo)
    for key, values in choices.items():
        if values == [] or values == {}:
            raise ConfigError(
                f"'vary.{key}' of the study is empty: give it values, or leave it out"
            )
        if not isinstance(values, list):
            raise ConfigError(
                f"bad value {values!r} for 'vary.{key}' of the study: write a list of values: [{values}]"
            )
    for combination in itertools.product(*choices.values()):
        yield dict(zip(choices, combination, strict=True))


def _checked(setting: Any, algo: Any) -> Setting:
    """One setting of a list; `algo_kwargs: {gamma: 0.9}` is `algo_kwargs.gamma: 0.9`."""
    if not isinstance(setting, Mapping):
        raise ConfigError(
            f"bad value {setting!r} for 'vary' of the study: each setting is a mapping of keys to values"
        )
    items: list[tuple[str, Any]] = []
    for key, value in setting.items():
        if key in SECTIONS and isinstance(value, Mapping):
            items += [(f"{key}.{name}", item) for name, item in value.items()]
        else:
            items.append((str(key), value))
    return _by_full_key(items, setting.get("algo", algo))


def _by_full_key(items: Iterable[tuple[str, Any]], algo: Any) -> Setting:
    """The items by the dotted key of the configuration; a `ConfigError` if one cannot be varied."""
    found: Setting = {}
    for short_key, value in items:
        first = short_key.partition(".")[0]
        if not first:
            raise ConfigError(f"empty key {short_key!r} in 'vary' of the study")
        if first in NOT_VARIED:
            raise ConfigError(f"'{first}' cannot be varied: {NOT_VARIED[first]}")
        key = full_key(short_key, "'vary' of the study", algo)
        if key in found:
            raise ConfigError(f"'{key}' in 'vary' of the study is given twice: remove one")
        found[key] = value
    return found


def describe(setting: Setting) -> str:
    """The keys of a setting and their values; of `algo` and `env_id` only the value."""
    parts = []
    for key, value in setting.items():
        text = value if isinstance(value, str) else value_text(value)
        start = "" if key in ("algo", "env_id") else f"{key.removeprefix('algo_kwargs.')}="
        parts.append(start + re.sub(r"[\"{}\[\] ]", "", text))
    return " ".join(parts)


def _is_plain(value: Any) -> bool:
    """Whether a value's text in a folder's name can be read in one way only."""
    if isinstance(value, str):
        is_number = re.fullmatch(r"[-+.\d].*|true|false|null|nan|inf.*", value, re.IGNORECASE)
        return not is_number and safe_name(value) == value
    if isinstance(value, list):
        return len(value) > 1 and all(map(_is_plain_number, value))
    return isinstance(value, bool) or _is_plain_number(value)


def _is_plain_number(value: Any) -> bool:
    return type(value) in (int, float) and not str(value).startswith("-")


def identity(value: Any) -> str:
    """Text that differs between values of different types or contents, and is the same in every process."""
    if isinstance(value, Mapping):
        items = [f"{identity(key)}: {identity(item)}" for key, item in value.items()]
        return f"{{{', '.join(items)}}}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(identity, value))})"
    return repr(value)


def value_text(value: Any) -> str:
    """A value for people."""
    return json.dumps(value, default=str)


def _checksum(setting: Setting) -> str:
    return hashlib.sha256(identity(setting).encode()).hexdigest()[:8]


MAX_SEEDS = 100_000
FORM = "write a range such as 0..4 (both ends included), a list such as 0,3,7, or a single number"
ARRAYS = (
    (
        "SLURM_ARRAY_TASK_ID",
        "SLURM_ARRAY_TASK_MIN",
        "SLURM_ARRAY_TASK_MAX",
        "SLURM_ARRAY_TASK_STEP",
    ),
    ("SGE_TASK_ID", "SGE_TASK_FIRST", "SGE_TASK_LAST", "SGE_TASK_STEPSIZE"),
)
"""Variables of job arrays, by scheduler: this task's number, the first, the last, and the step between two."""
COUNT_VARIABLE = "SLURM_ARRAY_TASK_COUNT"
T = TypeVar("T")


def parse_seeds(value: Any) -> tuple[int, ...]:
    """The seeds that `0..4`, `0,3,7`, `0..4,10`, a number or a list of numbers means."""
    is_list = isinstance(value, Iterable) and not isinstance(value, (Mapping, bytes))
    parts: Iterable[Any] = [value]
    if isinstance(value, str):
        parts = value.split(",")
    elif is_list and getattr(value, "ndim", 1) == 1:  # an array of NumPy with more is no list
        parts = value
    found: dict[int, None] = {}
    for part in parts:
        seeds = _seeds_in(part)
        if not seeds:
            raise ConfigError(f"bad value {value!r:.80} for seeds: {FORM}")
        for seed in seeds:
            if seed in found:
                raise ConfigError(f"seed {seed} is given twice in seeds {value!r:.80}: remove one")
            found[seed] = None
            if len(found) > MAX_SEEDS:
                raise ConfigError(
                    f"bad value {value!r:.80} for seeds: more than {MAX_SEEDS:,} seeds"
                )
    if not found:
        raise ConfigError(f"bad value {value!r:.80} for seeds: there are none; {FORM}")
    return tuple(found)


def _seeds_in(part: Any) -> range:
    """The seeds of one part of a list; empty if it is none."""
    if isinstance(part, str):
        match = re.fullmatch(r"\s*(\d{1,40})(?:\s*\.\.\s*(\d{1,40}))?\s*", part)
        return range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
    number = (
        -1 if isinstance(part, (bool, Iterable)) or not hasattr(part, "__index__") else int(part)
    )
    return range(max(0, number), number + 1)


def format_seeds(seeds: Sequence[int]) -> str:
    """The seeds as `parse_seeds` reads them, with consecutive ones as a range."""
    parts: list[list[int]] = []
    for seed in seeds:
        if parts and seed == parts[-1][1] + 1:
            parts[-1][1] = seed
        else:
            parts.append([seed, seed])
    return ",".join(str(first) if first == last else f"{first}..{last}" for first, last in parts)


@dataclass(frozen=True)
class Shard:
    """Share `index` of `count` of a plan: every `count`-th run."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def of(self, items: Sequence[T]) -> list[T]:
        """The items of this share."""
        return list(items[self.index - 1 :: self.count])


WHOLE = Shard(1, 1)


def parse_shard(text: str) -> Shard:
    """Share `K/N` as numbers, K from 1 to N."""
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text.strip())
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ConfigError(
            f"bad value {text!r} for --shard: write K/N, such as 1/8 for the first of eight shares"
        )
    return Shard(int(match[1]), int(match[2]))


def shard_of_array(variables: Mapping[str, str] | None = None) -> Shard | None:
    """The share of this task of a Slurm or Grid Engine job array; None outside of one."""
    variables = os.environ if variables is None else variables
    for names in ARRAYS:
        texts = [variables.get(name, "") for name in names]
        if not texts[0].isdecimal():
            continue  # Grid Engine says "undefined" outside of an array
        number, first, last, step = (int(text) if text.isdecimal() else 0 for text in texts)
        step = step or 1
        if last < first or not first <= number <= last:
            raise ConfigError(
                f"{names[0]}={texts[0]} is not between {names[1]}={texts[1]} and {names[2]}={texts[2]}: give"
                " --shard K/N instead"
            )
        shard = Shard((number - first) // step + 1, (last - first) // step + 1)
        if (count := variables.get(COUNT_VARIABLE, "")).isdecimal() and int(count) != shard.count:
            raise ConfigError(
                f"the job array has {count} tasks with gaps between {first} and {last}, so this task's share is not"
                " known: give --shard K/N"
            )
        return shard
    return None
