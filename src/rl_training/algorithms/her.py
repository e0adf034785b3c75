"""SAC with hindsight experience replay, HER (Andrychowicz et al. 2017), for goal-conditioned environments."""

from __future__ import annotations

from typing import Any

from pydantic import field_validator

from rl_training.algorithms.config import ReplayConfig
from rl_training.algorithms.sac import SACAlgorithm, SACConfig
from rl_training.replay.hindsight_replay import find_goals
from rl_training.spaces.spec import Spaces


class HERConfig(SACConfig):
    """Settings of SAC; `replay.kind` is `her` by default."""

    replay: ReplayConfig = ReplayConfig(kind="her")
    """How stored transitions are sampled: `strategy: future`, `final` or `episode`, and `goals_per_step`."""

    @field_validator("replay", mode="before")
    @classmethod
    def _is_her(cls, value: Any) -> Any:
        return {"kind": "her", **value} if isinstance(value, dict) else value


class HERAlgorithm(SACAlgorithm):
    """SAC; only the replay differs."""

    @classmethod
    def check_spaces(cls, spaces: Spaces) -> None:
        """Require the spaces of SAC and a goal-conditioned observation."""
        super().check_spaces(spaces)
        find_goals(spaces.obs)
