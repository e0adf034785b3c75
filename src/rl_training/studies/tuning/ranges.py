"""What `rl-training tune` tries for each setting of the built-in algorithms, by config class. Imports no torch.

A class of a user's own has its search spaces on its fields: `Annotated[float, Tune(1e-5, 1e-2, log=True)]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_training.algorithms.tune import Tune

SIZES = ((64, 64), (128, 128), (256, 256), (400, 300))
RATES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3)
BUILT_IN = "rl_training.algorithms."
"""Beginning of the modules whose classes are in the table."""
RANGES: Mapping[str, Mapping[str, Tune | None]] = {
    "AlgorithmConfig": {
        "learning_rate": Tune(1e-5, 1e-2, log=True),
        "gamma": Tune(choices=(0.9, 0.95, 0.98, 0.99, 0.995, 0.999)),
        "hidden_sizes": Tune(choices=SIZES),
        "activation": Tune(choices=("relu", "tanh", "silu", "gelu", "elu"), by_name=True),
        "layer_norm": Tune(choices=(False, True), by_name=True),
        "adam_beta1": Tune(choices=(0.0, 0.5, 0.9, 0.95), by_name=True),
        "adam_beta2": Tune(choices=(0.9, 0.99, 0.999), by_name=True),
        "weight_decay": Tune(choices=(0.0, 1e-4, 1e-3, 1e-2, 0.1), by_name=True),
    },
    "ActorCriticConfig": {
        "actor_hidden_sizes": Tune(choices=(None, *SIZES), by_name=True),
        "critic_hidden_sizes": Tune(choices=(None, *SIZES), by_name=True),
        "actor_learning_rate": Tune(choices=(None, *RATES), by_name=True),
        "critic_learning_rate": Tune(choices=(None, *RATES), by_name=True),
    },
    "OnPolicyConfig": {
        "num_steps": Tune(choices=(32, 64, 128, 256, 512, 1024, 2048)),
    },
    "OffPolicyConfig": {
        "buffer_capacity": Tune(choices=(10_000, 100_000, 1_000_000), by_name=True),
        "batch_size": Tune(choices=(32, 64, 128, 256, 512)),
        "learning_starts": Tune(choices=(100, 1000, 5000, 10_000), by_name=True),
        "train_frequency": Tune(choices=(1, 2, 4, 8, 16), by_name=True),
        "gradient_steps": Tune(choices=(1, 2, 4, 8), by_name=True),
        "n_step": Tune(choices=(1, 3, 5), by_name=True),
        "normalize_obs": Tune(choices=(False, True), by_name=True),
        "normalize_reward": Tune(choices=(False, True), by_name=True),
    },
    "OfflineConfig": {
        "normalize_obs": Tune(choices=(False, True), by_name=True),
        "batch_size": Tune(choices=(64, 128, 256, 512, 1024)),
    },
    "A2CConfig": {
        "num_steps": Tune(choices=(5, 8, 16, 32, 64, 128)),
    },
    "AWACConfig": {
        "awac_lambda": Tune(0.1, 3.0, log=True),
        "tau": Tune(choices=(0.001, 0.005, 0.01, 0.02, 0.05, 0.08)),
    },
    "BCConfig": {
        "gamma": None,
    },
    "CQLConfig": {
        "actor_learning_rate": Tune(1e-5, 1e-3, log=True),
        "cql_alpha": Tune(0.5, 20.0, log=True),
        "alpha": Tune(choices=("auto", 0.05, 0.1, 0.2), by_name=True),
        "tau": Tune(choices=(0.001, 0.005, 0.01, 0.02, 0.05, 0.08)),
    },
    "CrossQConfig": {
        "layer_norm": None,
    },
    "DQNConfig": {
        "target_update_interval": Tune(10, 10_000, log=True),
        "epsilon_end": Tune(0.0, 0.2),
        "exploration_fraction": Tune(0.02, 0.5),
        "double": Tune(choices=(False, True), by_name=True),
        "dueling": Tune(choices=(False, True), by_name=True),
        "max_grad_norm": Tune(0.5, 20.0, log=True, by_name=True),
    },
    "IQLConfig": {
        "actor_learning_rate": Tune(1e-5, 1e-2, log=True),
        "expectile": Tune(0.6, 0.95),
        "beta": Tune(0.5, 10.0, log=True),
        "tau": Tune(choices=(0.001, 0.005, 0.01, 0.02, 0.05, 0.08)),
    },
    "OnPolicyActorCriticConfig": {
        "gae_lambda": Tune(choices=(0.8, 0.9, 0.92, 0.95, 0.98, 0.99, 1.0)),
        "ent_coef": Tune(choices=(0.0, 1e-4, 1e-3, 3e-3, 0.01, 0.03)),
        "vf_coef": Tune(0.2, 1.0, by_name=True),
        "max_grad_norm": Tune(0.3, 5.0, log=True, by_name=True),
        "normalize_advantage": Tune(choices=(False, True), by_name=True),
        "normalize_obs": Tune(choices=(False, True), by_name=True),
        "normalize_reward": Tune(choices=(False, True), by_name=True),
        "log_std_init": Tune(-3.0, 1.0, by_name=True),
    },
    "PPOConfig": {
        "update_epochs": Tune(choices=(3, 5, 10, 20)),
        "minibatch_size": Tune(choices=(32, 64, 128, 256, 512)),
        "clip_coef": Tune(choices=(0.1, 0.2, 0.3, 0.4)),
        "target_kl": Tune(choices=(None, 0.01, 0.03, 0.1), by_name=True),
    },
    "QRDQNConfig": {
        "num_quantiles": Tune(choices=(25, 50, 100, 200)),
    },
    "SACBaseConfig": {
        "alpha": Tune(choices=("auto", 0.05, 0.1, 0.2), by_name=True),
    },
    "SACConfig": {
        "tau": Tune(choices=(0.001, 0.005, 0.01, 0.02, 0.05, 0.08)),
    },
    "TD3BaseConfig": {
        "policy_noise": Tune(0.0, 0.5, by_name=True),
        "policy_delay": Tune(choices=(1, 2, 4), by_name=True),
        "tau": Tune(choices=(0.001, 0.005, 0.01, 0.02, 0.05, 0.08)),
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
"""Search spaces by config class and field, inherited by subclasses; None: not that of the base class."""


def spaces_of(config_class: type[Any]) -> dict[str, Tune]:
    """The search spaces of a config class by field; a field that a subclass redefines without one keeps its base's."""
    found = {}
    for name in config_class.model_fields:
        spaces = (
            space for cls in config_class.__mro__ if (space := _own_space(cls, name)) is not None
        )
        found[name] = next(spaces, Tune())
    return {name: space for name, space in found.items() if not space.is_empty}


def search_spaces(config: Any, total_timesteps: int, num_envs: int) -> dict[str, Tune]:
    """The search spaces of a configuration, for runs of this length.

    Rollouts of more than a tenth of the run are not tried: it would end late, and have too few evaluations.
    """
    spaces = {**spaces_of(type(config)), **config.search_spaces(total_timesteps, num_envs)}
    if "num_steps" in spaces:
        limit = max(config.num_steps, total_timesteps // (10 * num_envs))
        spaces["num_steps"] = spaces["num_steps"].up_to(limit)
    return {name: space for name, space in spaces.items() if not space.is_empty}


def _own_space(cls: type[Any], name: str) -> Tune | None:
    """The search space that a class itself gives a field: in the table, or on the field."""
    if cls.__module__.startswith(BUILT_IN):
        ranges = RANGES.get(cls.__name__, {})
        return (ranges[name] or Tune()) if name in ranges else None
    field = getattr(cls, "__pydantic_fields__", {}).get(name)
    return (
        next((item for item in field.metadata if isinstance(item, Tune)), None) if field else None
    )
