"""What `rl-training tune` tries for each setting of the built-in algorithms, by config class. Imports no torch.

A class of a user's own has its search spaces on its fields: `Annotated[float, Tune(1e-5, 1e-2, log=True)]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_training.algorithms.tune import Tune


def one_of(*choices: Any) -> Tune:
    """Choices that are tried by default."""
    return Tune(choices=choices)


def one_if_named(*choices: Any) -> Tune:
    """Choices that are tried only if the setting is named."""
    return Tune(choices=choices, by_name=True)


SIZES = ((64, 64), (128, 128), (256, 256), (400, 300))
ON_OR_OFF = one_if_named(False, True)
POLYAK = one_of(0.001, 0.005, 0.01, 0.02, 0.05, 0.08)
TEMPERATURE = one_if_named("auto", 0.05, 0.1, 0.2)
OWN_SIZES = one_if_named(None, *SIZES)
OWN_RATE = one_if_named(None, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3)
BUILT_IN = "rl_training.algorithms."
"""Beginning of the modules whose classes are in the table."""
RANGES: Mapping[str, Mapping[str, Tune]] = {
    "AlgorithmConfig": {
        "learning_rate": Tune(1e-5, 1e-2, log=True),
        "gamma": one_of(0.9, 0.95, 0.98, 0.99, 0.995, 0.999),
        "hidden_sizes": one_of(*SIZES),
        "activation": one_if_named("relu", "tanh", "silu", "gelu", "elu"),
        "layer_norm": ON_OR_OFF,
        "adam_beta1": one_if_named(0.0, 0.5, 0.9, 0.95),
        "adam_beta2": one_if_named(0.9, 0.99, 0.999),
        "weight_decay": one_if_named(0.0, 1e-4, 1e-3, 1e-2, 0.1),
    },
    "ActorCriticConfig": {
        "actor_hidden_sizes": OWN_SIZES,
        "critic_hidden_sizes": OWN_SIZES,
        "actor_learning_rate": OWN_RATE,
        "critic_learning_rate": OWN_RATE,
    },
    "OnPolicyConfig": {
        "num_steps": one_of(32, 64, 128, 256, 512, 1024, 2048),
    },
    "OffPolicyConfig": {
        "buffer_capacity": one_if_named(10_000, 100_000, 1_000_000),
        "batch_size": one_of(32, 64, 128, 256, 512),
        "learning_starts": one_if_named(100, 1000, 5000, 10_000),
        "train_frequency": one_if_named(1, 2, 4, 8, 16),
        "gradient_steps": one_if_named(1, 2, 4, 8),
        "n_step": one_if_named(1, 3, 5),
        "normalize_obs": ON_OR_OFF,
        "normalize_reward": ON_OR_OFF,
    },
    "OfflineConfig": {
        "normalize_obs": ON_OR_OFF,
        "batch_size": one_of(64, 128, 256, 512, 1024),
    },
    "A2CConfig": {
        "num_steps": one_of(5, 8, 16, 32, 64, 128),
    },
    "AWACConfig": {
        "awac_lambda": Tune(0.1, 3.0, log=True),
        "tau": POLYAK,
    },
    "BCConfig": {
        "gamma": Tune(),
    },
    "CQLConfig": {
        "actor_learning_rate": Tune(1e-5, 1e-3, log=True),
        "cql_alpha": Tune(0.5, 20.0, log=True),
        "alpha": TEMPERATURE,
        "tau": POLYAK,
    },
    "CrossQConfig": {
        "layer_norm": Tune(),
    },
    "DQNConfig": {
        "target_update_interval": Tune(10, 10_000, log=True),
        "epsilon_end": Tune(0.0, 0.2),
        "exploration_fraction": Tune(0.02, 0.5),
        "double": ON_OR_OFF,
        "dueling": ON_OR_OFF,
        "max_grad_norm": Tune(0.5, 20.0, log=True, by_name=True),
    },
    "IQLConfig": {
        "actor_learning_rate": Tune(1e-5, 1e-2, log=True),
        "expectile": Tune(0.6, 0.95),
        "beta": Tune(0.5, 10.0, log=True),
        "tau": POLYAK,
    },
    "OnPolicyActorCriticConfig": {
        "gae_lambda": one_of(0.8, 0.9, 0.92, 0.95, 0.98, 0.99, 1.0),
        "ent_coef": one_of(0.0, 1e-4, 1e-3, 3e-3, 0.01, 0.03),
        "vf_coef": Tune(0.2, 1.0, by_name=True),
        "max_grad_norm": Tune(0.3, 5.0, log=True, by_name=True),
        "normalize_advantage": ON_OR_OFF,
        "normalize_obs": ON_OR_OFF,
        "normalize_reward": ON_OR_OFF,
        "log_std_init": Tune(-3.0, 1.0, by_name=True),
    },
    "PPOConfig": {
        "update_epochs": one_of(3, 5, 10, 20),
        "minibatch_size": one_of(32, 64, 128, 256, 512),
        "clip_coef": one_of(0.1, 0.2, 0.3, 0.4),
        "target_kl": one_if_named(None, 0.01, 0.03, 0.1),
    },
    "QRDQNConfig": {
        "num_quantiles": one_of(25, 50, 100, 200),
    },
    "SACBaseConfig": {
        "alpha": TEMPERATURE,
    },
    "SACConfig": {
        "tau": POLYAK,
    },
    "TD3BaseConfig": {
        "policy_noise": Tune(0.0, 0.5, by_name=True),
        "policy_delay": one_if_named(1, 2, 4),
        "tau": POLYAK,
    },
    "TD3Config": {
        "exploration_noise": Tune(0.0, 0.5),
    },
    "TD3BCConfig": {
        "bc_alpha": Tune(0.5, 10.0, log=True),
    },
    "TQCConfig": {
        "quantiles_to_drop": Tune(0, 5),
    },
}
"""Search spaces by config class and field, inherited by subclasses; `Tune()`: not tuned."""


def spaces_of(config_class: type[Any]) -> dict[str, Tune]:
    """The search spaces of a config class by field; a field that a subclass redefines without one keeps its base's."""
    found: dict[str, Tune] = {}
    for cls in reversed(config_class.__mro__):
        found |= _own_spaces(cls)
    return {
        name: found[name]
        for name in config_class.model_fields
        if name in found and not found[name].is_empty
    }


def search_spaces(config: Any, total_timesteps: int, num_envs: int) -> dict[str, Tune]:
    """The search spaces of a configuration, for runs of this length.

    Rollouts of more than a tenth of the run are not tried: it would end late, and have too few evaluations.
    """
    spaces = {**spaces_of(type(config)), **config.search_spaces(total_timesteps, num_envs)}
    if "num_steps" in spaces:
        limit = max(config.num_steps, total_timesteps // (10 * num_envs))
        spaces["num_steps"] = spaces["num_steps"].up_to(limit)
    return {name: space for name, space in spaces.items() if not space.is_empty}


def _own_spaces(cls: type[Any]) -> dict[str, Tune]:
    """The search spaces that a class itself gives its fields: in the table, or on the fields."""
    if cls.__module__.startswith(BUILT_IN):
        return dict(RANGES.get(cls.__name__, {}))
    fields = getattr(cls, "__pydantic_fields__", {})
    return {
        name: item
        for name, field in fields.items()
        for item in field.metadata
        if isinstance(item, Tune)
    }
