"""Which seeds a study has, and which share of its runs this process takes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rl_training.errors import ConfigError

MAX_SEEDS = 100_000
FORM = "write a range such as 0..4 (both ends included), a list such as 0,3,7, or a single number"
ARRAYS = (
    ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_MAX", "SLURM_ARRAY_TASK_STEP"),
    ("SGE_TASK_ID", "SGE_TASK_FIRST", "SGE_TASK_LAST", "SGE_TASK_STEPSIZE"),
)
"""Variables of job arrays, by scheduler: this task's number, the first, the last, and the step between two."""
COUNT_VARIABLE = "SLURM_ARRAY_TASK_COUNT"
T = TypeVar("T")


def parse_seeds(value: Any) -> tuple[int, ...]:
    """The seeds that `0..4`, `0,3,7`, `0..4,10`, a number or a list of numbers stands for."""
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str):
        parts: Iterable[Any] = (part.strip() for part in value.split(","))
    else:
        is_list = isinstance(value, Iterable) and not isinstance(value, Mapping) and getattr(value, "ndim", 1) == 1
        parts = value if is_list else [value]
    found: dict[int, None] = {}
    for part in parts:
        for seed in _parse_part(part, value):
            if seed in found:
                raise ConfigError(f"seed {seed} is given twice in seeds {value!r:.80}: remove one")
            found[seed] = None
            if len(found) > MAX_SEEDS:
                raise ConfigError(f"bad value {value!r:.80} for seeds: more than {MAX_SEEDS:,} seeds")
    if not found:
        raise ConfigError(f"bad value {value!r:.80} for seeds: there are none; {FORM}")
    return tuple(found)


def _parse_part(part: Any, value: Any) -> range:
    first, last = part, part
    if isinstance(part, str):
        match = re.fullmatch(r"(\d{1,40})(?:\s*\.\.\s*(\d{1,40}))?", part)
        if match is None:
            raise ConfigError(f"bad value {value!r:.80} for seeds: {FORM}")
        first, last = int(match[1]), int(match[2] or match[1])
    is_whole = hasattr(first, "__index__") and not isinstance(first, bool) and getattr(first, "ndim", 0) == 0
    if not is_whole or not 0 <= first <= last or (hasattr(first, "tolist") and isinstance(first, Iterable)):
        raise ConfigError(f"bad value {value!r:.80} for seeds: {FORM}")
    return range(int(first), int(last) + 1)


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
    """The share that `K/N` stands for, K from 1 to N."""
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text.strip())
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ConfigError(f"bad value {text!r} for --shard: write K/N, such as 1/8 for the first of eight shares")
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
