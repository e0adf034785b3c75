"""Presets: the configurations that ship with the package, one per algorithm and environment, and their scores."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig, leaves, load_config_file
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.terminal.streams import tell


@dataclass(frozen=True)
class PresetScore:
    """Measured score of a preset, as in docs/results.md."""

    metric: str
    """`eval_return_mean` or `eval_success_rate`."""
    policy: str
    """The checkpoint that was evaluated: `last` or `best`."""
    steps: int
    episodes: int
    """Evaluation episodes per seed."""
    scores: tuple[float, ...]
    """Mean over the episodes, one per seed."""

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return statistics.fmean(self.scores)


@dataclass(frozen=True)
class Preset:
    """One preset, without its settings."""

    name: str
    """Algorithm and file name: `ppo/cartpole`."""
    env_id: str
    total_timesteps: int
    score: PresetScore | None
    """None: not measured."""


def presets_dir() -> Path:
    """The folder `configs/`: inside an installed package, or beside `src/` in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "configs"
    return installed if installed.is_dir() else package.parents[1] / "configs"


def list_presets() -> list[Path]:
    """Every preset file, sorted by path."""
    return sorted(presets_dir().glob("*/*.yaml"))


def describe_presets() -> list[Preset]:
    """Every preset with its environment, length and score, sorted by name."""
    scores = _read_scores()
    presets = []
    for path in list_presets():
        name, values = f"{path.parent.name}/{path.stem}", load_config_file(path)
        presets.append(Preset(name, values["env_id"], values["total_timesteps"], scores.get(name)))
    return presets


def find_preset(algo: str, env_id: str) -> Path | None:
    """The preset file of this algorithm and `env_id`; None if there is none."""
    for path in sorted((presets_dir() / algo.lower()).glob("*.yaml")):
        if load_config_file(path).get("env_id") == env_id:
            return path
    return None


def preset_of(values: Mapping[str, Any], wanted: Any, where: str) -> tuple[Path | None, str | None]:
    """The preset with which the settings of `where`, such as a file, begin if they say `preset: true`; else None.

    The text names a preset that they neither take nor leave out; settings that have all of its keys, or all keys of a
    configuration as a run's own file has them, need none.
    """
    if wanted not in (True, False, None):
        raise ConfigError(f"bad value {wanted!r} for 'preset' of {where}: use true or false")
    algo, env_id = values.get("algo"), values.get("env_id")
    path = find_preset(algo, env_id) if isinstance(algo, str) and isinstance(env_id, str) else None
    if wanted and path is None:
        if isinstance(algo, str):
            get_algorithm_spec(algo)  # the error about an unknown name suggests one
        raise ConfigError(
            f"'preset: true' of {where}: there is no preset for its algo and env_id; leave it out"
        )
    if path is None or wanted is not None:
        return (path if wanted else None), None
    known = dict(leaves(values))
    is_resolved = TrainConfig.model_fields.keys() <= values.keys()
    if is_resolved or all(key in known for key, _ in leaves(load_config_file(path))):
        return None, None
    name = f"preset {path.parent.name}/{path.name}"
    return (
        None,
        f"{where} does not use {name}: add `preset: true` to begin with it, or `preset: false` to train without it",
    )


def preset_layers(algo: str, env_id: str) -> list[tuple[str, dict[str, Any]]]:
    """The preset as a layer of settings, its name and values, told to the user; empty if there is none."""
    path = find_preset(algo, env_id)
    if path is None:
        return []
    name = f"preset {path.parent.name}/{path.name}"
    tell(f"using {name}")
    return [(name, load_config_file(path))]


def _read_scores() -> dict[str, PresetScore]:
    """The scores that benchmarks/proof.py wrote, by preset name."""
    records: dict[str, Any] = json.loads(
        (presets_dir() / "scores.json").read_text(encoding="utf-8")
    )
    return {
        name: PresetScore(**{**record, "scores": tuple(record["scores"])})
        for name, record in records.items()
    }
