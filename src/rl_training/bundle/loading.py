"""Loads a bundle, whose every byte and number is checked, proves it by its golden pairs, and acts."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from types import EllipsisType
from typing import Any

import numpy as np

from rl_training.bundle.archive import (
    GOLDEN,
    MANIFEST,
    OPERATIONS,
    SPACES,
    WEIGHTS,
    read_file,
    unpack,
)
from rl_training.bundle.program import ACTION, MASK, NEXT_STATE, OBS, STATE, Program
from rl_training.bundle.reading import Array, Settings, parse_json, parse_tensors
from rl_training.bundle.spaces import BundleSpaces, parse_spaces
from rl_training.errors import BundleError, ConfigError, EnvError
from rl_training.spaces.actions import ActionKind
from rl_training.spaces.given import check_masks, mask_in, read_state

FORMAT = "rl-training policy bundle"
SCHEMA_VERSION = 1
TOLERANCE = 1e-5
"""Largest difference of a continuous action from its golden pair, in units of the action's range."""
MAX_PAIRS = 4096
CHUNK_ELEMENTS = 1 << 24
"""Golden pairs are replayed in chunks, whose values have at most this many numbers together."""
MAX_WORK = 1 << 36
"""Limit of golden pairs times weights and values: some seconds of work."""
NO_STATE: EllipsisType = ...
"""Default of `state`: the caller does not ask for the next policy state."""


def load(path: str | os.PathLike[str]) -> BundlePolicy:
    """Load a policy from a bundle that `rl-training export` wrote, or raise a `BundleError`.

    Needs NumPy and safetensors only, and runs no code of the file.
    """
    path = Path(path)
    data = read_file(path)
    try:
        return load_bytes(data)
    except BundleError as error:
        raise BundleError(f"cannot load '{path}': {error}") from None


def load_bytes(data: bytes) -> BundlePolicy:
    """The policy of a bundle in memory."""
    files = unpack(data)
    manifest = _read_manifest(files)
    spaces = parse_spaces(parse_json(files[SPACES], SPACES))
    tensors = parse_tensors(files[WEIGHTS], WEIGHTS)
    settings = Settings(parse_json(files[OPERATIONS], OPERATIONS), OPERATIONS)
    program = Program(settings.any("operations"), tensors, spaces)
    settings.finish()
    prove(program, spaces, parse_tensors(files[GOLDEN], GOLDEN))
    return BundlePolicy(program, spaces, manifest)


def prove(program: Program, spaces: BundleSpaces, golden: dict[str, Array]) -> None:
    """Raise a `BundleError` unless the program gives the golden actions and states."""
    total = _check_golden(spaces, golden)
    if total * (program.size + program.num_weights) > MAX_WORK:
        raise BundleError(
            f"its {total:,} golden pairs are too many for a policy of {program.num_weights:,} weights"
        )
    size = max(1, CHUNK_ELEMENTS // program.size)
    for first in range(0, total, size):
        rows = slice(first, first + size)
        actions, state = replay(
            program, spaces, {name: array[rows] for name, array in golden.items()}
        )
        differs = differing(spaces, actions, golden[ACTION][rows])
        if state is not None:
            expected = golden[NEXT_STATE][rows]
            close = np.abs(state - expected) <= TOLERANCE * np.maximum(np.abs(expected), 1.0)
            differs |= ~close.all(1)
        if differs.any():
            number = int(np.argmax(differs))
            given, right = actions[number].tolist(), golden[ACTION][first + number].tolist()
            raise BundleError(
                f"golden pair {first + number} of {total} is not reproduced: the action is {given!s:.100}, and was"
                f" {right!s:.100} when the policy was exported"
            )


def replay(
    program: Program, spaces: BundleSpaces, golden: dict[str, Array]
) -> tuple[Array, Array | None]:
    """Actions and next states of the program for the observations of golden pairs."""
    leaves = [golden[f"{OBS}.{index}"] for index in range(len(spaces.observation))]
    try:
        with np.errstate(all="ignore"):
            return program.run(leaves, golden.get(STATE), golden.get(MASK))
    except EnvError as error:
        raise BundleError(f"its golden pairs do not fit its spaces: {error}") from None


def differing(spaces: BundleSpaces, actions: Array, expected: Array, factor: float = 1.0) -> Array:
    """Which rows of actions differ: discrete ones at all, continuous ones by more than `factor` times `TOLERANCE`.

    The unit is the range of each component; without two bounds, the largest magnitude in the row, or 1.
    """
    rows = actions.reshape(len(actions), -1)
    targets = expected.reshape(len(expected), -1)
    action = spaces.action
    if action.kind is not ActionKind.CONTINUOUS:
        return np.asarray((rows != targets).any(1))
    rows, targets = rows.astype(np.float64), targets.astype(np.float64)
    magnitude = np.maximum(
        np.abs(np.where(np.isfinite(targets), targets, 0.0)).max(1, keepdims=True, initial=0.0), 1.0
    )
    span = (action.high - action.low).reshape(1, -1)
    unit = np.where(np.isfinite(span), span, magnitude)
    # Half precision cannot hold the tolerance: there, neighbouring numbers count as equal.
    spacing = 2.0 * np.finfo(action.dtype).eps * magnitude if action.dtype == "float16" else 0.0
    close = np.abs(rows - targets) <= factor * TOLERANCE * unit + spacing
    return np.asarray(~close.all(1))


def _check_golden(spaces: BundleSpaces, golden: dict[str, Array]) -> int:
    """Number of golden pairs, after checking their names, shapes and types."""
    action = spaces.action
    expected: dict[str, tuple[tuple[int, ...], str]] = {
        f"{OBS}.{index}": (leaf.shape, leaf.dtype) for index, leaf in enumerate(spaces.observation)
    }
    expected[ACTION] = (action.shape, action.dtype)
    if spaces.mask_use != "none":
        expected[MASK] = ((action.num_options,), "bool")
    if spaces.state_size:
        expected |= dict.fromkeys((STATE, NEXT_STATE), ((spaces.state_size,), "float32"))
    if golden.keys() != expected.keys():
        raise BundleError(
            f"{GOLDEN} holds {', '.join(sorted(golden)):.200}, not {', '.join(sorted(expected)):.200}"
        )
    total = len(golden[ACTION]) if golden[ACTION].ndim else 0
    if not 0 < total <= MAX_PAIRS:
        raise BundleError(f"{GOLDEN} holds {total:,} pairs, not 1 to {MAX_PAIRS:,}")
    for name, (shape, dtype) in expected.items():
        array = golden[name]
        if array.shape != (total, *shape) or array.dtype != np.dtype(dtype):
            raise BundleError(
                f"{GOLDEN}: '{name}' is {array.dtype} {list(array.shape)}, not {dtype} {[total, *shape]}"
            )
    if action.choices:
        options = golden[ACTION].astype(np.int64) - action.start
        if not ((options >= 0) & (options < np.reshape(action.choices, action.shape))).all():
            raise BundleError(f"{GOLDEN} has actions outside of the action space in {SPACES}")
    return total


def _read_manifest(files: dict[str, bytes]) -> dict[str, Any]:
    """The manifest, after comparing the size and hash of every other file with it."""
    values = parse_json(files[MANIFEST], MANIFEST)
    settings = Settings(values, MANIFEST)
    settings.text("format", (FORMAT,))
    version = settings.any("schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        raise BundleError(
            f"it has schema version {version!r:.50}; this version of rl-training reads {SCHEMA_VERSION}"
        )
    for key in ("package_version", "algorithm"):
        settings.text(key)
    if settings.any("env_id") is not None:
        settings.text("env_id")
    settings.whole("seed", 0, (1 << 63) - 1)
    settings.whole("global_step", 0, (1 << 63) - 1)
    entries = settings.any("files")
    settings.finish()
    if not isinstance(entries, dict) or entries.keys() != files.keys() - {MANIFEST}:
        raise BundleError("the files are not those that its manifest lists")
    for name, entry in entries.items():
        listed = Settings(entry, f"{MANIFEST}, {name}")
        size, digest = listed.whole("bytes", 0, 1 << 62), listed.text("sha256")
        listed.finish()
        if size != len(files[name]):
            raise BundleError(
                f"{name} has {len(files[name]):,} bytes, where the manifest says {size:,}"
            )
        if hashlib.sha256(files[name]).hexdigest() != digest:
            raise BundleError(f"{name} is damaged: its SHA-256 is not the one in the manifest")
    return values


class BundlePolicy:
    """A deterministic policy that was loaded from a bundle, and has reproduced its golden pairs."""

    def __init__(self, program: Program, spaces: BundleSpaces, manifest: dict[str, Any]) -> None:
        self._program = program
        self.spaces = spaces
        """What the policy reads and returns: `spaces.observation`, `spaces.action`, `spaces.state_size`."""
        self.manifest = manifest
        """Content of manifest.json: versions, algorithm, environment, and the hash of each file."""

    def act(self, obs: Any, state: Any = NO_STATE, mask: Any = None) -> Any:
        """Environment action for one observation, or actions for a batch.

        With `state` the result is a pair: the actions, and the policy state to pass with the next observations. Pass
        `state=None` at the first step of an episode. A policy with memory requires it; for others the next state is
        None. `mask` marks the valid actions, one row per observation.
        """
        leaves, is_batch = self.spaces.as_batch(obs)
        before = self._state_before(state, len(leaves[0]), is_batch=is_batch)
        masks = self._masks(obs, mask, len(leaves[0]), is_batch=is_batch)
        actions, after = self._program.run(leaves, before, masks)
        if state is NO_STATE:
            return actions if is_batch else actions[0]
        if is_batch or after is None:
            return actions if is_batch else actions[0], after
        return actions[0], after[0]

    def __repr__(self) -> str:
        what = f"{self.manifest['algorithm']} on {self.manifest['env_id'] or 'a dataset'}"
        parts = ", ".join(
            f"{leaf.name or 'obs'} {leaf.dtype}{list(leaf.shape)}"
            for leaf in self.spaces.observation
        )
        action = self.spaces.action
        options = f" of {list(action.choices)} options" if action.choices else ""
        memory = f", memory of {self.spaces.state_size}" if self.spaces.state_size else ""
        return f"<BundlePolicy {what}: {parts:.200} -> {action.dtype}{list(action.shape)}{options:.60}{memory}>"

    def _state_before(self, state: Any, count: int, *, is_batch: bool) -> Array | None:
        size = self.spaces.state_size
        if not size:
            if state is not NO_STATE and state is not None:
                raise ConfigError(
                    "this policy has no memory, so it has no state: pass state=None or leave it out"
                )
            return None
        if state is NO_STATE:
            raise ConfigError(
                "this policy has memory: pass state=None at the first step of an episode, and afterwards the state"
                " that act returned: action, state = policy.act(obs, state=state)"
            )
        if state is None:
            return np.zeros((count, size), np.float32)
        return read_state(state, count, (size,), is_batch=is_batch)

    def _masks(self, obs: Any, mask: Any, count: int, *, is_batch: bool) -> Array | None:
        use = self.spaces.mask_use
        if mask is None and use == "required":
            mask = mask_in(obs, self.spaces.observation)
            if mask is None:
                raise ConfigError(
                    "this policy was trained with action masks: pass mask=…, one boolean for each action (all true"
                    " permits every action)"
                )
        if mask is None:
            return None
        if use == "none":
            raise ConfigError(
                "mask is given, but this policy does not obey action masks: leave it out"
            )
        return check_masks(mask, count, self.spaces.action.choices, is_batch=is_batch)
