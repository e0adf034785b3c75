"""What the doctors of data and of environments can say: findings, each with how bad it is and what to do."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter


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


def as_plain(report: Any) -> Any:
    """A data class as plain values, for JSON; a number that is not finite becomes None."""
    return json.loads(TypeAdapter(type(report)).dump_json(report))
