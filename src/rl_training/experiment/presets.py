"""Finding the settings that ship with the package for a pair of algorithm and environment."""

from __future__ import annotations

from pathlib import Path

from rl_training.experiment.config import load_config_file


def presets_dir() -> Path:
    """`configs/`: inside the package when it is installed, beside `src/` in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "configs"
    return installed if installed.is_dir() else package.parents[1] / "configs"


def list_presets() -> list[Path]:
    """Every preset file, in order of its name."""
    return sorted(presets_dir().glob("*/*.yaml"))


def find_preset(algo: str, env_id: str) -> Path | None:
    """The preset whose own `algo` and `env_id` are these, if there is one."""
    for path in sorted((presets_dir() / algo.lower()).glob("*.yaml")):
        if load_config_file(path).get("env_id") == env_id:
            return path
    return None
