"""The random generators inside the Atari emulator, which alone decide how its next episode begins and goes on.

The emulator's own snapshot lacks the action that a sticky joystick holds, so a game restored from it can go on
differently; and a snapshot with crafted bytes can break the process. So only the generators are kept, as numbers,
and a game is brought back by playing it again.
"""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

NUM_WORDS = 624
GENERATOR_TEXT = re.compile(rb"(?:[0-9]{1,10} ){%d}[0-9]{1,3}" % NUM_WORDS)
"""A Mersenne twister as the emulator writes it: its words and its position."""
LENGTH = struct.Struct("<i")
OUTER_LENGTH_AT = 24
"""Where a snapshot holds the length of its main part."""


def is_atari(core: Any) -> bool:
    """Whether this is the environment of `ale_py`."""
    return hasattr(core, "ale") and hasattr(core, "clone_state")


def snapshot(core: Any) -> bytes:
    """The emulator as it is, generators included."""
    data: bytes = core.clone_state(include_rng=True).serialize()
    return data


def read_generators(data: bytes) -> npt.NDArray[np.int64] | None:
    """The generators [generators, 625] in a snapshot; None if it is laid out in another way than we know."""
    texts = [match.group() for match in GENERATOR_TEXT.finditer(data)]
    if not texts or _with_texts(data, texts) != data:
        return None
    return np.array([[int(word) for word in text.split()] for text in texts], np.int64)


def set_generators(core: Any, generators: npt.NDArray[np.int64]) -> None:
    """Give the emulator other generators; all else of it stays."""
    from ale_py import ALEState

    data = snapshot(core)
    known = read_generators(data)
    if known is None or generators.shape != known.shape or generators.dtype.kind not in "iu":
        raise ValueError("the Atari emulator's generators are not what this version of ale-py has")
    words, positions = generators[:, :-1], generators[:, -1]
    if not ((words >= 0) & (words < 1 << 32)).all() or not ((positions >= 0) & (positions <= NUM_WORDS)).all():
        raise ValueError("the Atari emulator's generators hold numbers that no generator has")
    texts = [b" ".join(b"%d" % int(number) for number in row) for row in generators]
    core.restore_state(ALEState(_with_texts(data, texts)))


def _with_texts(data: bytes, texts: list[bytes]) -> bytes:
    """The snapshot with other generators in it, and the lengths that go before them."""
    pieces: list[bytes] = []
    end = 0
    for match, text in zip(GENERATOR_TEXT.finditer(data), texts, strict=True):
        pieces += [data[end : match.start() - LENGTH.size], LENGTH.pack(len(text)), text]
        end = match.end()
    changed = bytearray(b"".join([*pieces, data[end:]]))
    (outer,) = LENGTH.unpack_from(changed, OUTER_LENGTH_AT)
    LENGTH.pack_into(changed, OUTER_LENGTH_AT, outer + len(changed) - len(data))
    return bytes(changed)
