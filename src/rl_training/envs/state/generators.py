"""Random generators beside an environment's own: the global ones of NumPy, Python and torch; the Atari emulator's.

The emulator's own snapshot lacks the action repeated by sticky actions, so a game restored from it can diverge; and
a snapshot with crafted bytes can crash the process. So only its generators, which alone determine its next episode for
given actions, are saved, as numbers, and a game is restored by replaying its actions.
"""

from __future__ import annotations

import contextlib
import random
import re
import struct
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt


def global_generators() -> dict[str, Any]:
    """States of the global generators, in a form that compares quickly; torch's only if torch is imported."""
    state: Any = np.random.get_state(legacy=False)
    words = np.asarray(state["state"].pop("key", ())).tobytes()
    found: dict[str, Any] = {"numpy": (state, words), "Python": random.getstate()}
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = torch.default_generator.get_state().numpy().tobytes()
    return found


def drawn_from(before: dict[str, Any]) -> list[str]:
    """Names of the generators whose state has changed since `before`, a result of `global_generators`."""
    now = global_generators()
    return [name for name in before if now[name] != before[name]]


def seed_global_generators(seed: int) -> None:
    """Seed the global generators; torch's only if torch is imported."""
    np.random.seed(seed % 2**32)
    random.seed(seed)
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(seed)


@contextlib.contextmanager
def seeded_global_generators(seed: int) -> Iterator[None]:
    """Seed the global generators within the block, then restore them."""
    numpy_state, python_state = np.random.get_state(legacy=False), random.getstate()
    torch: Any = sys.modules.get("torch")
    torch_state = None if torch is None else torch.default_generator.get_state()
    seed_global_generators(seed)
    try:
        yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
        if torch_state is not None:
            torch.default_generator.set_state(torch_state)


NUM_WORDS = 624
GENERATOR_TEXT = re.compile(rb"(?:[0-9]{1,10} ){%d}[0-9]{1,3}" % NUM_WORDS)
"""Text form of a Mersenne twister in a snapshot: its words and its position."""
LENGTH = struct.Struct("<i")
OUTER_LENGTH_AT = 24
"""Offset of the length of the snapshot's main part."""


def is_atari(core: Any) -> bool:
    """Whether this is an environment of `ale_py`."""
    return hasattr(core, "ale") and hasattr(core, "clone_state")


def snapshot(core: Any) -> bytes:
    """Snapshot of the emulator, including its generators."""
    data: bytes = core.clone_state(include_rng=True).serialize()
    return data


def read_generators(data: bytes) -> npt.NDArray[np.int64] | None:
    """The generators [generators, 625] in a snapshot; None if its layout is unknown."""
    texts = [match.group() for match in GENERATOR_TEXT.finditer(data)]
    if not texts or _with_texts(data, texts) != data:
        return None
    return np.array([[int(word) for word in text.split()] for text in texts], np.int64)


def set_generators(core: Any, generators: npt.NDArray[np.int64]) -> None:
    """Set the emulator's generators; the rest of its state stays."""
    from ale_py import ALEState

    data = snapshot(core)
    known = read_generators(data)
    if known is None or generators.shape != known.shape or generators.dtype.kind not in "iu":
        raise ValueError(
            "the saved generators of the Atari emulator do not fit this version of ale-py"
        )
    words, positions = generators[:, :-1], generators[:, -1]
    if (
        not ((words >= 0) & (words < 1 << 32)).all()
        or not ((positions >= 0) & (positions <= NUM_WORDS)).all()
    ):
        raise ValueError("the saved generators of the Atari emulator hold numbers out of range")
    texts = [b" ".join(b"%d" % int(number) for number in row) for row in generators]
    core.restore_state(ALEState(_with_texts(data, texts)))


def _with_texts(data: bytes, texts: list[bytes]) -> bytes:
    """The snapshot with its generators and their length fields replaced."""
    pieces: list[bytes] = []
    end = 0
    for match, text in zip(GENERATOR_TEXT.finditer(data), texts, strict=True):
        pieces += [data[end : match.start() - LENGTH.size], LENGTH.pack(len(text)), text]
        end = match.end()
    changed = bytearray(b"".join([*pieces, data[end:]]))
    (outer,) = LENGTH.unpack_from(changed, OUTER_LENGTH_AT)
    LENGTH.pack_into(changed, OUTER_LENGTH_AT, outer + len(changed) - len(data))
    return bytes(changed)
