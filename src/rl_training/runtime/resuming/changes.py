"""Configuration keys that may change on resume, keys that may not, and keys that affect the results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, get_args

from pydantic import BaseModel

from rl_training.algorithms.config import AlgorithmConfig, Schedule
from rl_training.algorithms.on_policy import OnPolicyActorCriticConfig
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig, serialize_train_config
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.run_utils import resolve_device

NETWORKS = "the saved networks have the old shape"
STACKED = "with one learning rate policy and value function are saved as one network, with two as two networks"
REPLAY = "the saved replay buffer was filled with the old value"
UPDATE_RATIO = "gradient steps are counted from the first step of the run"
DATASET = "the run was trained on the old dataset"
START = "it has an effect only when a run starts"
FIXED = {
    "algo": "the checkpoint holds the networks and optimizers of the old algorithm",
    "env_id": "the checkpoint holds a policy and simulator state of the old environment",
    "env_kwargs": "the environments are restored with their saved settings",
    "seed": "every random generator continues from its saved state",
    "num_envs": "the checkpoint holds the state of each environment",
    "init_from": START,
    "init_parts": START,
}
"""Keys of `TrainConfig` that cannot change, and why."""
ALGO_FIXED = {
    **dict.fromkeys(("v_min", "v_max", "num_atoms"), NETWORKS),
    "alpha": "the checkpoint holds the old entropy temperature",
    **dict.fromkeys(
        ("hidden_sizes", "actor_hidden_sizes", "critic_hidden_sizes", "layer_norm", "network"),
        NETWORKS,
    ),
    "memory": "the checkpoint holds the networks and policy states of the old memory",
    **dict.fromkeys(("activation", "dueling", "policy", "num_critics", "num_quantiles"), NETWORKS),
    **dict.fromkeys(("buffer_capacity", "n_step", "replay", "prioritized"), REPLAY),
    **dict.fromkeys(
        ("learning_starts", "train_frequency", "gradient_steps", "online"), UPDATE_RATIO
    ),
    **dict.fromkeys(
        ("reward_scale", "reward_shift", "reward_clip_min", "reward_clip_max"), DATASET
    ),
    **dict.fromkeys(("dataset_kind", "dataset_id", "dataset_size", "dataset_check"), DATASET),
    "dataset_download": START,
    "log_std_init": START,
    "num_steps": "the saved rollout has the old length",
    "normalize_obs": "the checkpoint holds or lacks the normalizer's statistics",
    "normalize_reward": "the checkpoint holds or lacks the normalizer's statistics",
    "lagrange_threshold": "the saved multiplier was adapted to the old threshold",
}
"""Keys of `algo_kwargs` that cannot change, and why."""
WITHOUT_EFFECT = {
    *(
        "total_timesteps",
        "output_dir",
        "eval_episodes",
        "log_interval",
        "checkpoint_interval",
        "keep",
        "tags",
    ),
    "loggers",
    *("algo_kwargs.eval_interval", "algo_kwargs.early_stopping", "algo_kwargs.dataset_path"),
}
"""Keys that do not affect the weights, except through the schedules, whose change the run reports."""
COUNTS = {"batch_size", "minibatch_size", "update_epochs", "num_cql_samples"}
"""Integer keys of `algo_kwargs` that may change: every update reads them."""


@dataclass(frozen=True)
class Change:
    """A configuration key whose value changed on resume."""

    step: int
    key: str
    old: Any
    new: Any
    affects_results: bool

    def __str__(self) -> str:
        return f"{self.key} changed from {self.old} to {self.new} at step {self.step:,}"

    def as_dict(self) -> dict[str, Any]:
        """The entry in `metadata.json`."""
        return asdict(self)


def config_differences(old: TrainConfig, new: TrainConfig) -> dict[str, tuple[Any, Any]]:
    """Dotted keys whose values differ, with both values; a missing value counts as its default."""
    first, second = dict(_flat(old)), dict(_flat(new))
    keys = dict.fromkeys([*first, *second])
    return {
        key: (first.get(key), second.get(key)) for key in keys if first.get(key) != second.get(key)
    }


def _flat(config: TrainConfig) -> Iterator[tuple[str, Any]]:
    values = serialize_train_config(config)
    algo_kwargs = (
        get_algorithm_spec(config.algo).parse_kwargs(config.algo_kwargs).model_dump(mode="json")
    )
    for key, value in {**values, "algo_kwargs": algo_kwargs}.items():
        if key in ("algo_kwargs", "env_kwargs"):
            yield from ((f"{key}.{name}", item) for name, item in value.items())
        else:
            yield key, value


def find_changes(old: TrainConfig, new: TrainConfig, step: int) -> list[Change]:
    """Changes from a checkpoint's configuration to the resumed run's; raises if a key cannot change."""
    differences = config_differences(old, new)
    for key, values in differences.items():
        reason = _reason_against(key, *values, old)
        if reason is not None:
            raise _refusal(key, *values, reason)
    if _networks_are_stacked(old) != _networks_are_stacked(new):
        rates = [key for key in differences if key.endswith("learning_rate")]
        raise _refusal(rates[0], *differences[rates[0]], STACKED)
    return [
        Change(step, key, *values, _affects_results(key, old, new))
        for key, values in differences.items()
    ]


def _networks_are_stacked(config: TrainConfig) -> bool | None:
    """Whether policy and value function are saved as one network; None for other algorithms."""
    algo_config = get_algorithm_spec(config.algo).parse_kwargs(config.algo_kwargs)
    return algo_config.is_stacked() if isinstance(algo_config, OnPolicyActorCriticConfig) else None


def refuse_fixed(old: TrainConfig, given: Mapping[str, Any]) -> None:
    """Raise for a new value of a key that cannot change; first, because other keys are parsed by its value (`algo`)."""
    for key in FIXED.keys() & given.keys() - {"env_kwargs"}:
        if given[key] != getattr(old, key):
            raise _refusal(key, getattr(old, key), given[key], FIXED[key])


def _refusal(key: str, old: Any, new: Any, reason: str) -> ConfigError:
    return ConfigError(
        f"'{key}' cannot change from {old} to {new} on resume: {reason}; start a new run instead"
    )


def _reason_against(key: str, old: Any, new: Any, config: TrainConfig) -> str | None:
    section, _, name = key.partition(".")
    if section != "algo_kwargs":
        return FIXED.get(section)
    if name == "replay" and isinstance(old, Mapping) and isinstance(new, Mapping):
        return None if {**old, "beta": None} == {**new, "beta": None} else REPLAY
    if key in WITHOUT_EFFECT:  # the fingerprint shows whether a dataset at another path is the same
        return None
    if (
        name == "network" and isinstance(old, str) and isinstance(new, str)
    ):  # the same class may have moved
        return None
    if isinstance(old, str) or isinstance(new, str):
        return ALGO_FIXED.get(
            name, "it selects a method, and the saved state belongs to the old one"
        )
    if name in ALGO_FIXED:
        return ALGO_FIXED[name]
    config_class = get_algorithm_spec(config.algo).config_class()
    is_changeable = key in WITHOUT_EFFECT or name in COUNTS or _is_coefficient(config_class, name)
    return (
        None
        if is_changeable
        else "the saved state may depend on it; only schedules and coefficients can change"
    )


def _is_coefficient(config_class: type[AlgorithmConfig], name: str) -> bool:
    """Whether a field is a float or a schedule."""
    field = config_class.model_fields.get(name)
    return field is not None and bool({float, Schedule} & set(_types_in(field.annotation)))


def _types_in(annotation: Any) -> Iterator[Any]:
    yield annotation
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        for part in get_args(annotation):
            yield from _types_in(part)


def _affects_results(key: str, old: TrainConfig, new: TrainConfig) -> bool:
    if key == "device":
        try:
            return resolve_device(old.device) != resolve_device(new.device)
        except ConfigError:  # this machine lacks the old device
            return True
    return key not in WITHOUT_EFFECT
