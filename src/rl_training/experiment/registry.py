"""The registry: every algorithm by name, with its class, its config class, its loop and a summary.

Importing it imports neither torch nor pydantic: `import rl_training` reads the names of the built-in algorithms here.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rl_training.errors import ConfigError, EnvError
from rl_training.providers import provided

if TYPE_CHECKING:
    from rl_training.algorithms.base import Algorithm
    from rl_training.algorithms.config import AlgorithmConfig
    from rl_training.spaces.spec import Spaces


class Loop(enum.Enum):
    """The training loop of an algorithm."""

    ON_POLICY = "on_policy"
    OFF_POLICY = "off_policy"
    OFFLINE = "offline"


CONFIG_BASES = {
    Loop.ON_POLICY: "rl_training.algorithms.config:OnPolicyConfig",
    Loop.OFF_POLICY: "rl_training.algorithms.config:OffPolicyConfig",
    Loop.OFFLINE: "rl_training.algorithms.config:OfflineConfig",
}
"""Base class of the configs of each loop: it has the settings that the loop reads."""


@dataclass(frozen=True)
class AlgorithmSpec:
    """An algorithm that can be trained by name.

    `algorithm` and `config` are classes, or `module:Class` strings, imported when first needed. The config class must
    inherit the base of its loop: `OnPolicyConfig`, `OffPolicyConfig` or `OfflineConfig`.
    """

    name: str
    summary: str
    algorithm: type[Algorithm[Any]] | str
    config: type[AlgorithmConfig] | str
    loop: Loop

    def algorithm_class(self) -> type[Algorithm[Any]]:
        """The `Algorithm` subclass."""
        algorithm: type[Algorithm[Any]] = _load(self.algorithm)
        return algorithm

    def config_class(self) -> type[AlgorithmConfig]:
        """The class of `algo_kwargs`, with every default; a `ConfigError` if it does not fit the loop."""
        config: type[AlgorithmConfig] = _load(self.config)
        _check_config_base(self, config)
        return config

    @property
    def is_offline(self) -> bool:
        """Whether it trains on a dataset, without an environment."""
        return self.loop is Loop.OFFLINE

    def check_spaces(self, spaces: Spaces) -> None:
        """Raise an `EnvError` if the algorithm cannot act in these spaces; it names the algorithms that can."""
        refusal = self.refusal_of(spaces)
        if refusal is not None:
            others = [spec for spec in list_algorithm_specs() if spec.is_offline is self.is_offline]
            fitting = [spec.name for spec in others if spec.refusal_of(spaces) is None]
            raise EnvError(
                f"{refusal}; algorithms for these spaces: {', '.join(fitting) or 'none'}"
            )

    def refusal_of(self, spaces: Spaces) -> str | None:
        """Why the algorithm cannot act in these spaces; None if it can."""
        algorithm_class = self.algorithm_class()
        try:
            algorithm_class.check_spaces(spaces)
        except EnvError as error:
            return str(error)
        if not spaces.has_masks or algorithm_class.for_spaces(spaces).obeys_masks:
            return None
        return f"{self.name} does not obey the environment's action masks: set env_kwargs.action_masks=false"

    @property
    def train_fn(self) -> Callable[..., Any]:
        """`train_fn(config, *, run_suffix=None, checkpoint_state=None, callbacks=None) -> TrainResult`."""
        train_fn: Callable[..., Any] = provided("train_function")(self.name)
        return train_fn

    def parse_kwargs(self, algo_kwargs: Mapping[str, Any]) -> AlgorithmConfig:
        """Validate `algo_kwargs` and return them as the algorithm's config."""
        from rl_training.validation import parse_config

        return parse_config(self.config_class(), algo_kwargs, self.name)


_BUILT_IN = {
    Loop.ON_POLICY: {
        "ppo": (
            "PPO",
            "proximal policy optimization; Box, Discrete, MultiDiscrete and MultiBinary actions",
        ),
        "a2c": (
            "A2C",
            "advantage actor-critic; Box, Discrete, MultiDiscrete and MultiBinary actions",
        ),
    },
    Loop.OFF_POLICY: {
        "dqn": ("DQN", "deep Q-learning with double, dueling and n-step options; Discrete actions"),
        "c51": (
            "C51",
            "categorical DQN, a distribution of the return on fixed atoms; Discrete actions",
        ),
        "qrdqn": ("QRDQN", "quantile-regression DQN; Discrete actions"),
        "sac": (
            "SAC",
            "soft actor-critic with a learned entropy temperature; bounded Box and Discrete actions",
        ),
        "tqc": ("TQC", "SAC with truncated quantile critics; bounded Box actions"),
        "td3": ("TD3", "twin delayed deep deterministic policy gradient; bounded Box actions"),
        "ddpg": ("DDPG", "deep deterministic policy gradient; bounded Box actions"),
        "her": (
            "HER",
            "SAC with hindsight experience replay (HER); bounded Box and Discrete actions",
        ),
        "crossq": (
            "CrossQ",
            "SAC with batch normalization and no target networks; bounded Box actions",
        ),
    },
    Loop.OFFLINE: {
        "bc": (
            "BC",
            "behaviour cloning; bounded Box, Discrete, MultiDiscrete and MultiBinary actions",
        ),
        "td3_bc": ("TD3BC", "TD3 with behaviour cloning; bounded Box actions"),
        "iql": ("IQL", "implicit Q-learning; bounded Box actions"),
        "awac": ("AWAC", "advantage-weighted actor-critic; bounded Box actions"),
        "cql": ("CQL", "conservative Q-learning; bounded Box and Discrete actions"),
    },
}
"""Name, also of the module in `algorithms`; stem of the class names; summary. A line here also makes the class
`rl_training.<stem>`, the function `runtime.train_<name>` and the module `runtime.<name>_trainer`."""
BUILT_IN_CLASSES: dict[str, str] = {}
"""Class name in `rl_training.api` of each built-in algorithm, and its registered name: `{"PPO": "ppo", ...}`."""
_SPECS: dict[str, AlgorithmSpec] = {}
for _loop, _algorithms in _BUILT_IN.items():
    for _name, (_stem, _summary) in _algorithms.items():
        BUILT_IN_CLASSES[_stem] = _name
        _home = f"rl_training.algorithms.{_name}:{_stem}"
        _SPECS[_name] = AlgorithmSpec(_name, _summary, f"{_home}Algorithm", f"{_home}Config", _loop)


def get_algorithm_spec(name: str) -> AlgorithmSpec:
    """The algorithm of that name, or a `ConfigError` that suggests the nearest name."""
    spec = _SPECS.get(name.lower())
    if spec is None:
        from rl_training.validation import suggest

        raise ConfigError(f"unknown algorithm '{name}'{suggest(name, _SPECS)}")
    return spec


def learns_offline(name: str) -> bool:
    """Whether the algorithm of that name trains on a dataset, without an environment; False for an unknown name."""
    spec = _SPECS.get(name.lower())
    return spec is not None and spec.is_offline


def list_algorithm_specs() -> list[AlgorithmSpec]:
    """Every registered algorithm, sorted by name."""
    return [_SPECS[name] for name in sorted(_SPECS)]


def register_algorithm(spec: AlgorithmSpec) -> None:
    """Make `spec.name` trainable like a built-in algorithm; a taken name or a config of another loop is refused."""
    if spec.name != spec.name.lower():
        raise ConfigError(f"algorithm name '{spec.name}' must be lower case")
    if spec.name in _SPECS and _SPECS[spec.name] != spec:
        raise ConfigError(f"algorithm '{spec.name}' is already registered: choose another name")
    if not isinstance(spec.config, str):
        _check_config_base(spec, spec.config)
    _SPECS[spec.name] = spec


@contextlib.contextmanager
def registered(spec: AlgorithmSpec) -> Iterator[None]:
    """Register an algorithm inside the block only; its name must be free."""
    if spec.name in _SPECS:
        raise ConfigError(f"algorithm '{spec.name}' is already registered: choose another name")
    register_algorithm(spec)
    try:
        yield
    finally:
        del _SPECS[spec.name]


def _check_config_base(spec: AlgorithmSpec, config: type[AlgorithmConfig]) -> None:
    """Raise a `ConfigError` unless `config` inherits the base of the spec's loop, whose settings the loop reads."""
    if spec.loop not in CONFIG_BASES:
        known = ", ".join(str(loop) for loop in Loop)
        raise ConfigError(f"algorithm '{spec.name}': loop {spec.loop!r} is not one of {known}")
    home = CONFIG_BASES[spec.loop]
    if not issubclass(config, _load(home)):
        base = home.partition(":")[2]
        fitting = [
            str(loop) for loop, other in CONFIG_BASES.items() if issubclass(config, _load(other))
        ]
        remedy = f"derive it from {base}" + "".join(f", or set loop={loop}" for loop in fitting)
        fault = f"config class {config.__name__} does not inherit {base}, which {spec.loop} reads"
        raise ConfigError(f"algorithm '{spec.name}': {fault}: {remedy}")


def _load(target: Any) -> Any:
    if not isinstance(target, str):
        return target
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)
