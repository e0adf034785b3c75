"""What an import took from a model, and what it left with the reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Report:
    """Rows of two columns: the part of the model, and what became of it."""

    taken: list[tuple[str, str]] = field(default_factory=list)
    left: list[tuple[str, str]] = field(default_factory=list)

    def take(self, part: str, where: object) -> None:
        """Record that a part was taken."""
        self.taken.append((part, str(where)))

    def leave(self, part: str, reason: str) -> None:
        """Record that a part was left."""
        self.left.append((part, reason))

    def as_dict(self) -> dict[str, Any]:
        """Both lists, JSON-compatible."""
        names = ("taken", "left")
        return {name: [{"part": part, "detail": detail} for part, detail in getattr(self, name)] for name in names}
