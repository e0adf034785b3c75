"""What an environment and its wrappers need of the user: the code they would run, and the files they may open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_training.envs.factory import EnvSettings
from rl_training.envs.wrapping.wrapper_list import listed_wrappers
from rl_training.plugins.gate import Kind, Need, paths_in


def env_needs(env_id: str | None, env_kwargs: Mapping[str, Any]) -> list[Need]:
    """Code and paths that an environment and its wrappers name: either may open the files among its arguments."""
    calls = listed_wrappers(env_kwargs)
    needs = [] if env_id is None else [Need(Kind.CODE, f"environment '{env_id}'", env_id)]
    needs += [Need(Kind.CODE, f"wrapper '{call.name}'", call.name) for call in calls]
    arguments = {
        key: value for key, value in env_kwargs.items() if key not in EnvSettings.model_fields
    }
    needs += paths_in(arguments, "env_kwargs")
    for index, call in enumerate(calls):
        needs += paths_in(call.arguments, f"env_kwargs.wrappers.list.{index}")
    return list(dict.fromkeys(needs))
