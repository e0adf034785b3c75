"""Shell completion of algorithms, environments and run folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import typer


def complete_algorithm(incomplete: str) -> list[tuple[str, str]]:
    """Names of the algorithms, each with its summary."""
    from rl_training.experiment.registry import list_algorithm_specs

    return [(spec.name, spec.summary) for spec in list_algorithm_specs() if spec.name.startswith(incomplete)]


def complete_words(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """ALGO, then the environments that have a preset for it."""
    words = [word for word in ctx.params.get("words") or [] if "=" not in word and word != incomplete]
    if not words:
        return complete_algorithm(incomplete)
    if len(words) > 1:
        return []
    from rl_training.experiment.config import load_config_file
    from rl_training.experiment.presets import list_presets

    files = [path for path in list_presets() if path.parent.name == words[0]]
    found = {str(load_config_file(path).get("env_id")): path for path in files}
    return [
        (name, f"preset {path.parent.name}/{path.name}") for name, path in found.items() if name.startswith(incomplete)
    ]


def complete_run(incomplete: str) -> Iterator[str]:
    """Run folders whose path starts with `incomplete`, also one level below."""
    for pattern in (f"{incomplete}*", f"{incomplete}*/*"):
        for path in sorted(Path().glob(pattern)) if not incomplete.startswith(("/", "~")) else ():
            if (path / "checkpoints").is_dir() and (path / "config.yaml").is_file():
                yield str(path)
