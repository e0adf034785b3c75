"""SAC on environments with goals, learning in hindsight (Andrychowicz et al. 2017)."""

from __future__ import annotations

from typing import Any

from pydantic import field_validator

from rl_training.algorithms.config import ReplayConfig
from rl_training.algorithms.sac import SACAlgorithm, SACConfig
from rl_training.replay.hindsight_replay import find_goals
from rl_training.spaces.spec import Spaces


class HERConfig(SACConfig):
    """Settings of SAC, with hindsight replay unless another kind is chosen."""

    replay: ReplayConfig = ReplayConfig(kind="her")
    """How stored transitions are drawn: `strategy: future`, `final` or `episode`, and `goals_per_step`."""

    @field_validator("replay", mode="before")
    @classmethod
    def _is_in_hindsight(cls, value: Any) -> Any:
        return {"kind": "her", **value} if isinstance(value, dict) else value


class HERAlgorithm(SACAlgorithm):
    """SAC; what is different is the replay."""

    @classmethod
    def check_spaces(cls, spaces: Spaces) -> None:
        """Those of SAC, with goals."""
        super().check_spaces(spaces)
        find_goals(spaces.obs)
