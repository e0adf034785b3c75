"""Where the results of comparisons are stored: `comparisons/NAME/` beside the studies or runs that were compared."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_training.experiment.run_folder import safe_name
from rl_training.files import replace_synced, translate_write_errors
from rl_training.studies.groups import RunGroup

COMPARISONS = "comparisons"
RESULT_FILE = "comparison.json"
PICTURE = "comparison.png"
PLANNED = "__planned"
"""End of the folder's name of a comparison in planned looks."""
LONGEST_NAME = 100


def folder_of(arms: list[RunGroup], name: str | None = None, *, is_planned: bool = False) -> Path:
    """The folder of a comparison, beside the study or the runs of its first arm."""
    first = arms[0]
    place = first.study or (first.runs[0].run_dir if first.runs else Path("runs") / first.name)
    names = "__vs__".join(safe_name(arm.name) for arm in arms)
    text = safe_name(name) if name else names[:LONGEST_NAME] + (PLANNED if is_planned else "")
    return place.parent / COMPARISONS / text


def read_result(folder: Path) -> dict[str, Any]:
    """The stored result of a comparison; empty if there is none that can be read."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        values = json.loads((folder / RESULT_FILE).read_text(encoding="utf-8"))
        return values if isinstance(values, dict) else {}
    return {}


def store_result(folder: Path, values: Mapping[str, Any]) -> Path:
    """Store the result of a comparison; it replaces the last one of the same arms."""
    path = folder / RESULT_FILE
    with translate_write_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
        replace_synced(path, (json.dumps(dict(values), indent=1) + "\n").encode())
    return path
