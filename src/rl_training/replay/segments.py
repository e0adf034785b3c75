"""Segments of a replay buffer: a checkpoint writes only those that changed since the last one."""

from __future__ import annotations

from dataclasses import dataclass

from rl_training.replay.transitions import Array

SEGMENT_BYTES = 1 << 20
MAX_SEGMENTS = 1024


@dataclass(frozen=True)
class Segment:
    """Consecutive rows of a replay buffer. Equal non-zero `version` and length imply equal content."""

    version: int
    arrays: dict[str, Array]


def rows_per_segment(num_rows: int, row_bytes: int) -> int:
    """Rows per segment: a power of two, about `SEGMENT_BYTES`, larger if `MAX_SEGMENTS` would be exceeded."""
    rows = max(1, SEGMENT_BYTES // max(1, row_bytes))
    rows = 1 << (rows.bit_length() - 1)
    while num_rows > rows * MAX_SEGMENTS:
        rows *= 2
    return rows
