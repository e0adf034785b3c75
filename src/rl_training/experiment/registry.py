"""The one page that lists every algorithm: its class, its config class, its loop."""

from __future__ import annotations

import enum
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rl_training.errors import ConfigError
from rl_training.providers import provided
from rl_training.validation import parse_config, suggest

if TYPE_CHECKING:
    from rl_training.algorithms.base import Algorithm
    from rl_training.algorithms.config import AlgorithmConfig


class Loop(enum.Enum):
    """Which loop trains an algorithm."""

    ON_POLICY = "on_policy"
    OFF_POLICY = "off_policy"
    OFFLINE = "offline"


@dataclass(frozen=True)
class AlgorithmSpec:
    """An algorithm that can be trained by name.

    `algorithm` and `config` are classes, or `module:Class` strings that are imported when first needed.
    """

    name: str
    summary: str
    algorithm: type[Algorithm[Any]] | str
    config: type[AlgorithmConfig] | str
    loop: Loop

    def algorithm_class(self) -> type[Algorithm[Any]]:
        """The class that acts and learns."""
        algorithm: type[Algorithm[Any]] = _load(self.algorithm)
        return algorithm

    def config_class(self) -> type[AlgorithmConfig]:
        """The class of its settings, which holds every default."""
        config: type[AlgorithmConfig] = _load(self.config)
        return config

    @property
    def train_fn(self) -> Callable[..., Any]:
        """`train_fn(config, *, run_suffix=None, checkpoint_state=None, callbacks=None)` trains it: `TrainResult`."""
        train_fn: Callable[..., Any] = provided("train_function")(self.name)
        return train_fn

    def parse_kwargs(self, algo_kwargs: Mapping[str, Any]) -> AlgorithmConfig:
        """Turn `algo_kwargs` into the algorithm's own typed settings."""
        return parse_config(self.config_class(), algo_kwargs, self.name)


_BUILT_IN = (
    ("ppo", "PPO", Loop.ON_POLICY, "proximal policy optimization; actions of every supported kind"),
    ("a2c", "A2C", Loop.ON_POLICY, "advantage actor-critic; actions of every supported kind"),
    ("dqn", "DQN", Loop.OFF_POLICY, "deep Q-learning with double, dueling and n-step options; Discrete actions"),
    ("c51", "C51", Loop.OFF_POLICY, "DQN that learns a categorical distribution of the return; Discrete actions"),
    ("qrdqn", "QRDQN", Loop.OFF_POLICY, "DQN that learns the quantiles of the return; Discrete actions"),
    ("sac", "SAC", Loop.OFF_POLICY, "soft actor-critic with a learned temperature; bounded Box and Discrete actions"),
    ("tqc", "TQC", Loop.OFF_POLICY, "SAC with truncated quantile critics; bounded Box actions"),
    ("td3", "TD3", Loop.OFF_POLICY, "twin delayed deterministic policy gradients; bounded Box actions"),
    ("ddpg", "DDPG", Loop.OFF_POLICY, "deep deterministic policy gradients; bounded Box actions"),
    ("her", "HER", Loop.OFF_POLICY, "sac with hindsight replay, for goals; bounded Box and Discrete actions"),
    ("crossq", "CrossQ", Loop.OFF_POLICY, "SAC with batch normalization and no target networks; bounded Box actions"),
    ("bc", "BC", Loop.OFFLINE, "behaviour cloning; bounded Box and Discrete actions"),
    ("td3_bc", "TD3BC", Loop.OFFLINE, "TD3 with behaviour cloning; bounded Box actions"),
    ("iql", "IQL", Loop.OFFLINE, "implicit Q-learning; bounded Box actions"),
    ("awac", "AWAC", Loop.OFFLINE, "advantage-weighted actor-critic; bounded Box actions"),
    ("cql", "CQL", Loop.OFFLINE, "conservative Q-learning; bounded Box and Discrete actions"),
)
"""Name, which is also the module's; what its classes' names begin with; loop; summary."""
_SPECS: dict[str, AlgorithmSpec] = {}
for _name, _stem, _loop, _summary in _BUILT_IN:
    _home = f"rl_training.algorithms.{_name}:{_stem}"
    _SPECS[_name] = AlgorithmSpec(_name, _summary, f"{_home}Algorithm", f"{_home}Config", _loop)


def get_algorithm_spec(name: str) -> AlgorithmSpec:
    """The algorithm of that name, or a `ConfigError` with the nearest one."""
    spec = _SPECS.get(name.lower())
    if spec is None:
        raise ConfigError(f"unknown algorithm '{name}'{suggest(name, _SPECS)}")
    return spec


def learns_offline(name: str) -> bool:
    """Whether an algorithm of that name needs no environment."""
    spec = _SPECS.get(name.lower())
    return spec is not None and spec.loop is Loop.OFFLINE


def list_algorithm_specs() -> list[AlgorithmSpec]:
    """Every registered algorithm, by name."""
    return [_SPECS[name] for name in sorted(_SPECS)]


def register_algorithm(spec: AlgorithmSpec) -> None:
    """Let `spec.name` be trained like the built-in algorithms; a name that is taken is refused."""
    if spec.name != spec.name.lower():
        raise ConfigError(f"algorithm name '{spec.name}' must be lower case")
    if spec.name in _SPECS and _SPECS[spec.name] != spec:
        raise ConfigError(f"algorithm '{spec.name}' is already registered; choose another name")
    _SPECS[spec.name] = spec


def _load(target: Any) -> Any:
    if not isinstance(target, str):
        return target
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)
