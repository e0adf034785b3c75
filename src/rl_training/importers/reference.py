"""Prints nothing, and writes the actions of an SB3 model for given observations: a script that SB3's Python runs.

It needs stable-baselines3 (and sb3-contrib for its algorithms) and NumPy, not this package. SB3 unpickles the model.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

CODE = ("lr_schedule", "clip_range", "exploration_schedule")
"""Functions in old files, whose bytecode a newer Python cannot run; acting needs none of them."""


def main(folder: Path) -> None:
    """Write the actions for the observations in `folder` by the model that its `request.json` names."""
    import numpy as np

    values = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    with np.load(folder / "observations.npz", allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    obs: Any = arrays if values["is_dict"] else arrays["obs"]
    custom: dict[str, Any] = dict.fromkeys(CODE, _nothing)
    custom |= {
        "learning_rate": 0.0,
        "replay_buffer_class": None,
        "replay_buffer_kwargs": {},
        "buffer_size": 1,
    }
    if values["old_spaces"]:
        _alias_gym()
        custom |= {name: _make_space(space) for name, space in values["old_spaces"].items()}
    if values["package"] == "sb3_contrib":
        import sb3_contrib as package
    else:
        import stable_baselines3 as package
    model = getattr(package, values["name"]).load(
        values["model"], device="cpu", custom_objects=custom
    )
    if values["vecnormalize"]:
        obs = _normalized(values["vecnormalize"], model, obs)
    actions, _ = model.predict(obs, deterministic=True)
    np.save(folder / "actions.npy", actions)


def _normalized(path: str, model: Any, obs: Any) -> Any:
    import gymnasium
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    class Spaces(gymnasium.Env[Any, Any]):
        """The spaces of the model, which VecNormalize asks for."""

        observation_space, action_space = model.observation_space, model.action_space

    return VecNormalize.load(path, DummyVecEnv([Spaces])).normalize_obs(obs)


def _alias_gym() -> None:
    """Let files that were written with the package gym find its successor."""
    import gymnasium
    from gymnasium import spaces
    from gymnasium.spaces import box, dict, discrete, multi_binary, multi_discrete, space

    sys.modules.setdefault("gym", gymnasium)
    for module in (spaces, box, dict, discrete, multi_binary, multi_discrete, space):
        sys.modules.setdefault(module.__name__.replace("gymnasium", "gym"), module)


def _make_space(values: dict[str, Any]) -> Any:
    import numpy as np
    from gymnasium import spaces

    if values["n"] is not None:
        return spaces.Discrete(values["n"])
    low, high = (np.asarray(values[name], values["dtype"]) for name in ("low", "high"))
    return spaces.Box(low, high, dtype=low.dtype.type)


def _nothing(_: float) -> float:
    return 0.0


if __name__ == "__main__":
    main(Path(sys.argv[1]))
