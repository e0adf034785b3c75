"""The random generators of the Atari emulator, which alone determine its next episode for given actions.

The emulator's own snapshot lacks the action repeated by sticky actions, so a game restored from it can diverge; and
a snapshot with crafted bytes can crash the process. So only the generators are saved, as numbers, and a game is
restored by replaying its actions.
"""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

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
        raise ValueError("the saved generators of the Atari emulator do not fit this version of ale-py")
    words, positions = generators[:, :-1], generators[:, -1]
    if not ((words >= 0) & (words < 1 << 32)).all() or not ((positions >= 0) & (positions <= NUM_WORDS)).all():
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
