"""What the doctors of data and of environments can say: findings, each with how bad it is and what to do."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Level(str, enum.Enum):
    """How bad a finding is, the worst first."""

    ERROR = "error"
    """Training would fail, or learn something false."""
    WARNING = "warning"
    """Probably not what was meant."""
    INFO = "info"
    """Good to know."""
    OK = "ok"
    """As it should be."""


@dataclass(frozen=True)
class Finding:
    """One thing found."""

    level: Level
    name: str
    found: str
    """What it is, with figures."""
    remedy: str = ""
    """What to do about it."""
    index: int | None = None
    """In data, the first transition that shows it."""
