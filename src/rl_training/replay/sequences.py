"""How batches are sampled: transitions, sequences of consecutive steps, or whole episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from rl_training.errors import ConfigError
from rl_training.replay.transitions import Array, Transitions
from rl_training.validation import suggest


@dataclass(frozen=True)
class Sampling:
    """What one sample of a batch is."""

    kind: Literal["transitions", "sequences", "episodes"] = "transitions"
    """`transitions` [B, ...]; `sequences` [L, B, ...] that begin at any step; `episodes`: those that begin at the first
    step of an episode."""
    length: int = 1
    """Sequence length, or maximum episode length; shorter samples are padded (`Transitions.valid`).

    L is this length for sequences, so that the shape of a batch stays the same; for episodes it is the longest of the
    batch.
    """

    def __post_init__(self) -> None:
        """Raise a `ConfigError` for an unknown kind, or a length below 1."""
        kinds = ("transitions", "sequences", "episodes")
        if self.kind not in kinds:
            raise ConfigError(
                f"unknown kind '{self.kind}' of Sampling{suggest(str(self.kind), kinds)}"
            )
        if type(self.length) is not int or self.length < 1:
            raise ConfigError(
                f"length of Sampling is {self.length!r}: give a number of steps, at least 1"
            )


class Source(Protocol):
    """A replay buffer or a dataset."""

    def sample_batches(self, batch_size: int, count: int) -> Iterator[Transitions]:
        """Sample several batches of transitions."""

    def sample_sequences(self, batch_size: int, sampling: Sampling) -> Transitions:
        """Sample one batch of sequences."""


def sampler_of(source: Source, sampling: Sampling) -> Callable[[int, int], Iterator[Transitions]]:
    """The function that samples `count` batches of `batch_size`, as an algorithm's `sampling` asks for."""
    if sampling.kind == "transitions":
        return source.sample_batches
    return lambda batch_size, count: (
        source.sample_sequences(batch_size, sampling) for _ in range(count)
    )


def choose_starts(
    first_steps: Callable[[], Array],
    num_steps: int,
    size: int,
    sampling: Sampling,
    rng: np.random.Generator,
) -> Array:
    """Where `size` samples begin: at any of `num_steps` steps, or at one of `first_steps`, uniformly."""
    if sampling.kind == "sequences":
        return rng.integers(0, num_steps, size)
    starts = first_steps()
    chosen: Array = starts[rng.integers(0, len(starts), size)]
    return chosen


def follow(starts: Array, is_last: Array, stride: int, sampling: Sampling) -> tuple[Array, Array]:
    """Slots [L, B] of the steps from each start on, and which of them are valid.

    `is_last` [slots] marks episode ends and the newest step; consecutive steps of an environment are `stride` slots
    apart, in a ring. After its last step a sequence repeats it.
    """
    length = sampling.length
    slots, valid = (
        np.empty((length, len(starts)), np.int64),
        np.ones((length, len(starts)), np.bool_),
    )
    slots[0] = starts
    for number in range(1, length):
        ended = is_last[slots[number - 1]] | ~valid[number - 1]
        slots[number] = np.where(
            ended, slots[number - 1], (slots[number - 1] + stride) % len(is_last)
        )
        valid[number] = ~ended
    used = length if sampling.kind == "sequences" else int(valid.any(1).sum())
    return slots[:used], valid[:used]


def gather(take: Callable[[Array], dict[str, Tensor]], slots: Array, valid: Array) -> Transitions:
    """The steps at slots [L, B] as one batch, [L, B, ...]; `take` reads flat slots."""
    flat = take(slots.reshape(-1))
    tensors = {name: tensor.view(*slots.shape, *tensor.shape[1:]) for name, tensor in flat.items()}
    device = tensors["rewards"].device
    return Transitions.from_tensors({**tensors, "valid": torch.from_numpy(valid).to(device)})


def pad_to_one_length(first: Transitions, second: Transitions) -> tuple[Transitions, Transitions]:
    """Repeat the last row of the shorter batch of sequences, as steps that are not valid."""
    length = max(len(first.rewards), len(second.rewards))
    return _padded(first, length), _padded(second, length)


def _padded(batch: Transitions, length: int) -> Transitions:
    missing = length - len(batch.rewards)
    if not missing:
        return batch
    tensors = {
        name: torch.cat([value, *[value[-1:]] * missing]) for name, value in batch.tensors().items()
    }
    tensors["valid"][-missing:] = False
    return Transitions.from_tensors(tensors)
