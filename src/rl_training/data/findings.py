"""Findings of the dataset and environment doctors: severity, description and remedy."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Level(str, enum.Enum):
    """Severity, most severe first."""

    ERROR = "error"
    """Training would fail or learn from wrong values."""
    WARNING = "warning"
    """Probably a mistake."""
    INFO = "info"
    """For information."""
    OK = "ok"
    """A check that passed."""


@dataclass(frozen=True)
class Finding:
    """Result of one check."""

    level: Level
    name: str
    found: str
    """Description, with numbers."""
    remedy: str = ""
    """Imperative remedy; empty if none is needed."""
    index: int | None = None
    """Datasets: first transition concerned."""
