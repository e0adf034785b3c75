"""From the arguments of an algorithm's class to a configuration: defaults < preset < algo_kwargs < keywords."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig, config_values, resolve_config
from rl_training.experiment.presets import preset_layers
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.validation import FrozenConfig, suggest

OPTIONS: dict[str, Any] = {"preset": True, "progress": True, "eval_env": None}
"""Keywords that are no settings, and their defaults."""
LONGEST_VALUE, LONGEST_LIST = 60, 300
"""Characters of one value, and of all values, in the text of an agent."""


def run_settings() -> dict[str, FieldInfo]:
    """Keys of a run that an algorithm's class takes as keywords: all but `algo`."""
    return {name: field for name, field in TrainConfig.model_fields.items() if name != "algo"}


def own_settings(algo: str) -> dict[str, FieldInfo]:
    """Settings of the algorithm, which its class takes as keywords."""
    return get_algorithm_spec(algo).config_class().model_fields


def signature_of(algo: str) -> inspect.Signature:
    """Signature of an algorithm's class, for `help` and the completion of notebooks."""
    fields = {**run_settings(), **own_settings(algo)}
    defaults = {
        **OPTIONS,
        **{name: field.get_default(call_default_factory=True) for name, field in fields.items()},
    }
    first = inspect.Parameter("config", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
    rest = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=one)
        for name, one in defaults.items()
    ]
    return inspect.Signature([first, *rest])


def refuse_policy_name(owner: str, *given: object) -> None:
    """Raise for positional arguments beside the environment; the name of a network kind is one of SB3's."""
    if isinstance(given[0], str) and re.fullmatch(r"(Mlp|Cnn|MultiInput)(Lstm)?Policy", given[0]):
        env = repr(given[1]) if len(given) > 1 and isinstance(given[1], str) else "env"
        raise ConfigError(
            f"{owner} takes no '{given[0]}', since the observations choose the network: write"
            f" {owner}({env}, hidden_sizes=[64, 64])"
        )
    if len(given) > 1:
        raise ConfigError(
            f"{owner} takes one positional argument, the environment: give settings by name, as seed=1"
        )


def read_settings(
    owner: str,
    algo: str,
    first: object,
    *,
    preset: bool,
    eval_env: object = None,
    given: Mapping[str, Any],
) -> TrainConfig:
    """The validated configuration that the arguments of the class `owner` describe."""
    if isinstance(first, TrainConfig):
        given = given if eval_env is None else {"eval_env": eval_env, **given}
        found = _check_whole(owner, algo, first, given)
    else:
        found = _merge(owner, algo, first, preset=preset, eval_env=eval_env, given=given)
    get_algorithm_spec(algo).parse_kwargs(found.algo_kwargs)
    return found


def _check_whole(
    owner: str, algo: str, config: TrainConfig, given: Mapping[str, Any]
) -> TrainConfig:
    """A complete configuration; it must be of this algorithm, and without further settings."""
    if config.algo != algo:
        fault = f"{owner} trains '{algo}', but the configuration has algo: {config.algo}"
        raise ConfigError(f"{fault}: set algo: {algo}, or use the class of {config.algo}")
    if given:
        name = next(iter(given))
        raise ConfigError(
            f"'{name}' is given beside a TrainConfig: use {owner}(config.replace({name}=...))"
        )
    return config


def _merge(
    owner: str, algo: str, env: object, *, preset: bool, eval_env: object, given: Mapping[str, Any]
) -> TrainConfig:
    """The configuration of an environment and settings, upon the preset if there is one."""
    if (
        env is not None
        and not isinstance(env, str)
        and not callable(env)
        and not hasattr(env, "reset")
    ):
        raise ConfigError(
            f"{owner} takes an environment id, a class, a function that returns an environment, an environment, a"
            f" vector environment or a TrainConfig, not a {type(env).__name__}"
        )
    _refuse_unknown(owner, algo, given)
    absent = {name for name in ("algo_kwargs", "env_kwargs") if given.get(name) is None}
    values = {name: value for name, value in given.items() if name not in absent}
    if env is not None:
        if "env_id" in values:
            raise ConfigError(f"{owner} got env_id twice: remove one")
        values["env_id"] = env
    if eval_env is not None or not isinstance(values.get("env_id"), (str, type(None))):
        from rl_training.envs.given.objects import env_settings

        values |= env_settings(values.get("env_id"), values.get("num_envs"), eval_env)
    below, above = _split(owner, algo, values)
    env_id = above.get("env_id")
    layers = preset_layers(algo, env_id) if preset and isinstance(env_id, str) else []
    named = {"algo": algo}
    return resolve_config(
        [*layers, ("the class", named), ("algo_kwargs", below), ("the arguments", above)]
    ).config


def _refuse_unknown(owner: str, algo: str, given: Mapping[str, Any]) -> None:
    if "algo" in given:
        raise ConfigError(
            f"'algo' is no setting of {owner}, which trains '{algo}': use the class of the algorithm"
        )
    known = {*run_settings(), *own_settings(algo), *OPTIONS}
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        hint = suggest(
            unknown, known, f"`rl-training algos {algo}` lists the settings of the algorithm"
        )
        raise ConfigError(f"unknown setting '{unknown}' for {owner}{hint}")


def _split(owner: str, algo: str, values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Values of `algo_kwargs` and of keywords, in the form of a configuration."""
    base = values.pop("algo_kwargs", {})
    if isinstance(base, FrozenConfig):
        base = config_values(base, algo)
    if not isinstance(base, Mapping):
        raise ConfigError(
            f"bad value {base!r:.100} for algo_kwargs of {owner}: should be a mapping or a config object"
        )
    own = {name: _plain(values.pop(name)) for name in own_settings(algo) if name in values}
    twice = base.keys() & own.keys()
    if twice:
        raise ConfigError(
            f"'{min(twice)}' of {owner} is given as a keyword and in algo_kwargs: remove one"
        )
    get_algorithm_spec(algo).parse_kwargs(base)  # so that an error names the argument's own keys
    return {"algo_kwargs": dict(base)}, {**values, "algo_kwargs": own}


def _plain(value: Any) -> Any:
    """A config object, such as a schedule, as the mapping of what was set in it; any other value as it is."""
    return value.model_dump(exclude_unset=True) if isinstance(value, FrozenConfig) else value


def describe_settings(config: TrainConfig) -> str:
    """The environment and the settings that differ from their defaults: `'CartPole-v1', seed=1, gamma=0.98`."""
    plain = TrainConfig(
        algo=config.algo, env_id=config.env_id, total_timesteps=config.total_timesteps
    )
    derived = {
        "log_interval": plain.log_every_steps,
        "checkpoint_interval": plain.checkpoint_every_steps,
    }
    fields = {
        name: getattr(config, name)
        for name in run_settings()
        if name not in ("env_id", "algo_kwargs")
    }
    defaults = {
        name: field.get_default(call_default_factory=True)
        for name, field in TrainConfig.model_fields.items()
    }
    shown = {
        name: value
        for name, value in fields.items()
        if value not in (defaults[name], derived.get(name))
    }
    parsed = get_algorithm_spec(config.algo).parse_kwargs(config.algo_kwargs)
    own = {name: field.default for name, field in type(parsed).model_fields.items()}
    shown |= {
        name: value
        for name, value in config.algo_kwargs.items()
        if getattr(parsed, name) != own[name]
    }
    return _join([] if config.env_id is None else [_short(config.env_id)], shown)


def _join(words: list[str], shown: Mapping[str, Any]) -> str:
    length = 0
    for name, value in shown.items():
        word = f"{name}={_short(value)}"
        length += len(word) + 2
        if length > LONGEST_LIST:
            return ", ".join([*words, "…"])
        words.append(word)
    return ", ".join(words)


def _short(value: Any) -> str:
    text = repr(str(value) if isinstance(value, Path) else value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"
