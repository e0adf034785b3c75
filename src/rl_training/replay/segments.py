"""A replay buffer in segments, so that a checkpoint writes only the segments that have changed."""

from __future__ import annotations

from dataclasses import dataclass

from rl_training.replay.transitions import Array

SEGMENT_BYTES = 1 << 20
MAX_SEGMENTS = 1024


@dataclass(frozen=True)
class Segment:
    """Consecutive rows of a store. Where two have the same `version`, other than 0, and length, so is the content."""

    version: int
    arrays: dict[str, Array]


def rows_per_segment(num_rows: int, row_bytes: int) -> int:
    """A power of two of rows that makes about a megabyte, or more where the pieces would be too many."""
    rows = max(1, SEGMENT_BYTES // max(1, row_bytes))
    rows = 1 << (rows.bit_length() - 1)
    while num_rows > rows * MAX_SEGMENTS:
        rows *= 2
    return rows
