"""The search space of a tuning, resolved and checked in a worker process, which has the algorithm's config class.

Each end of a range and each choice is validated by itself. Values that do not fit each other are failed trials.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl_training.algorithms.tune import Tune
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig, merge_layers
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.yaml_text import dump_yaml, parse_yaml
from rl_training.studies.settings import nested
from rl_training.studies.tuning.search_space import Asked, TunedKey, encode, resolve_space
from rl_training.validation import check_key

INSIDE = 0.618
"""Where in a range a further value is checked: a setting of whole numbers may have valid ends and refuse what is
between them."""


def write_asked(asked: Asked, fixed: Sequence[str]) -> str:
    """What a worker needs to resolve a search space, as text."""
    return dump_yaml({"asked": asked, "fixed": list(fixed)})


def resolve_asked(text: str, config: TrainConfig) -> str:
    """The resolved search space as text, for `read_resolved`; a `ConfigError` names a value that is never valid.

    Called in a worker process, with the default configuration.
    """
    values = parse_yaml(text, "the search space")
    algo_config = get_algorithm_spec(config.algo).parse_kwargs(config.algo_kwargs)
    spaces = algo_config.search_spaces(config.total_timesteps, config.num_envs)
    defaults = algo_config.model_dump(mode="json")
    known = {name: space.as_dict() for name, space in spaces.items()}
    keys = resolve_space(values["asked"], config, defaults, known, values["fixed"])
    for key in keys:
        check_values(key, config)
    space = {key.key: key.as_dict() for key in keys}
    return dump_yaml({"space": space, "eval_interval": defaults.get("eval_interval")})


def read_resolved(text: str) -> tuple[tuple[TunedKey, ...], int | None]:
    """The search space, and the steps between two evaluations if they are set."""
    values = parse_yaml(text, "the search space")
    return tuple(TunedKey.from_dict(key, item) for key, item in values["space"].items()), values["eval_interval"]


def check_values(key: TunedKey, config: TrainConfig) -> None:
    """Refuse a search space with a value that the setting never accepts; arguments of environments are not known."""
    section, *path = key.key.split(".")
    if section == "env_kwargs":
        return
    spec = get_algorithm_spec(config.algo)
    for value in _checked_values(key):
        setting = nested({key.key: key.setting(encode(value))})
        merged, _ = merge_layers([("the base", config.model_dump()), ("the search space", setting)])
        try:
            if section == "algo_kwargs":
                check_key(spec.config_class(), merged["algo_kwargs"], tuple(path), spec.name)
            else:
                TrainConfig(**merged)
        except ConfigError as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"the search space of '{key.name}' has an invalid value: {reason}") from None


def _checked_values(key: TunedKey) -> list[Any]:
    space: Tune = key.space
    if space.low is None or space.high is None:
        return list(space.choices)
    ends = [space.low, space.high]
    if space.step is not None:
        return [*ends, space.low + space.step]
    return ends if space.has_integers else [*ends, key.rounded(space.low + INSIDE * (space.high - space.low))]
