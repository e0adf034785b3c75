"""Normalized scores (D4RL): 0 is the return of random actions, 100 that of an expert."""

from __future__ import annotations

from functools import cache
from importlib import resources

import yaml

from rl_training.envs.factory import EnvSource


@cache
def reference_scores() -> dict[str, tuple[float, float]]:
    """Returns of random actions and of an expert, by environment id; reference_scores.yaml names their sources."""
    text = resources.files(__package__).joinpath("reference_scores.yaml").read_text()
    return {env_id: tuple(pair) for group in yaml.safe_load(text) for env_id, pair in group["scores"].items()}


def normalized_score(source: EnvSource, score: float) -> float | None:
    """The score from 0 (random) to 100 (expert); None if there is no reference for the environment and its settings."""
    env_id, limit = source.env_id, source.settings.max_episode_steps
    if env_id not in reference_scores() or source.arguments or limit is not None or source.settings.wrappers.list:
        return None
    random, expert = reference_scores()[env_id]
    return 100.0 * (score - random) / (expert - random)
