"""What tests need to look into checkpoints, and to forge them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.experiment.checkpointing import _checksum


def stored_rows(buffer_state: dict[str, Any]) -> dict[str, np.ndarray]:
    """The rows of a replay buffer's state, its segments joined."""
    segments = buffer_state["segments"]
    return {name: np.concatenate([segment.arrays[name] for segment in segments]) for name in segments[0].arrays}


def forge_manifest(checkpoint: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a manifest and sign it again, as someone would who means harm."""
    path = checkpoint / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest.pop("checksum", None)
    change(manifest)
    manifest["checksum"] = _checksum(manifest)
    path.write_text(json.dumps(manifest))
