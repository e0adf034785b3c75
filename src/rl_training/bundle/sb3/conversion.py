"""Turns a model of SB3 into an algorithm of ours: settings, networks, normalizers, optimizers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_training.algorithms.base import Algorithm
from rl_training.bundle.sb3.archive import Archive
from rl_training.bundle.sb3.continuous import CrossQLayout, SACLayout, TD3Layout, TQCLayout
from rl_training.bundle.sb3.layouts import ActorCriticLayout, Layout, QLayout
from rl_training.bundle.sb3.networks import BUFFERS, Part
from rl_training.bundle.sb3.normalization import Normalization, read_normalization
from rl_training.bundle.sb3.optimizers import load_moments, load_temperature
from rl_training.bundle.sb3.report import Report
from rl_training.bundle.sb3.settings import (
    MAX_STEPS,
    find_algorithm,
    is_number,
    read_bounds,
    read_hyperparameters,
    read_optimizer_settings,
    read_policy_settings,
    read_shape,
)
from rl_training.bundle.sb3.vecnormalize import VecNormalizeState
from rl_training.envs.factory import EnvSource
from rl_training.errors import CheckpointError, ConfigError, RLTrainingError
from rl_training.experiment.config import TrainConfig, resolve_config
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.models.normalizer import RewardNormalizer
from rl_training.runtime.assembly import make_algorithm
from rl_training.runtime.run_utils import RunSeeds
from rl_training.spaces.actions import ActionKind
from rl_training.spaces.spec import Spaces

LAYOUTS: dict[str, type[Layout]] = {
    "ppo": ActorCriticLayout,
    "a2c": ActorCriticLayout,
    "dqn": QLayout,
    "qrdqn": QLayout,
    "sac": SACLayout,
    "tqc": TQCLayout,
    "crossq": CrossQLayout,
    "td3": TD3Layout,
    "ddpg": TD3Layout,
}
NETWORK_SETTINGS = frozenset(
    ("activation", "layer_norm", "hidden_sizes", "actor_hidden_sizes", "critic_hidden_sizes", "network", "memory")
) | frozenset(("normalize_obs", "dueling", "num_quantiles", "num_critics"))
"""Settings on which the action for an observation depends: they are the model's."""
MAX_ENVS = 64


@dataclass(frozen=True)
class Conversion:
    """A model of SB3 as an algorithm of ours."""

    archive: Archive
    config: TrainConfig
    algorithm: Algorithm[Any]
    report: Report
    global_step: int
    """Environment steps that SB3 had trained for."""
    num_updates: int
    """Gradient steps that it had taken, as its optimizers count them."""


def convert(archive: Archive, statistics: VecNormalizeState | None, changes: Mapping[str, Any]) -> Conversion:
    """Convert a model; `changes` are settings of the run, `env_id` among them, which win over the model's."""
    for key in sorted(NETWORK_SETTINGS & changes.get("algo_kwargs", {}).keys()):
        raise ConfigError(f"'algo_kwargs.{key}' follows from the model, which would act differently: remove it")
    report = Report()
    algo = find_algorithm(archive)
    policy = read_policy_settings(archive, algo)
    with _translate_errors(archive):
        layout = LAYOUTS[algo](archive.weights, policy)
    _require_statistics(archive, statistics)
    spaces = _spaces_of(changes)
    _check_spaces(archive, layout, spaces)
    hyperparameters = read_hyperparameters(archive, algo, report) | read_optimizer_settings(archive, report)
    normalization = read_normalization(spaces.obs, statistics, policy.normalize_images, report)
    normalized = {"normalize_obs": normalization.obs, "normalize_reward": normalization.returns}
    hyperparameters |= {name: True for name, found in normalized.items() if found is not None}
    if normalization.returns is not None and statistics and statistics.gamma != hyperparameters.get("gamma"):
        report.leave("gamma of VecNormalize", f"{statistics.gamma:g}: rewards are normalized with the algorithm's here")
    with _translate_errors(archive):
        hyperparameters |= {"activation": policy.activation, **layout.sizes(spaces)}
    step = _whole(archive, "num_timesteps")
    if isinstance(layout, QLayout):
        hyperparameters |= _refill(hyperparameters, step, report)
    run = {"algo": algo, "total_timesteps": max(1, step), "num_envs": _num_envs(archive, report), "tags": ["sb3"]}
    layers = [("the model", {**run, "algo_kwargs": hyperparameters}), ("the command line", changes)]
    config = resolve_config(layers).config
    report.take("settings", ", ".join(sorted(hyperparameters)))
    algorithm = _make(config, spaces)
    with _translate_errors(archive):
        num_updates = _fill(algorithm, layout, normalization, archive, report)
    _set_counters(algorithm, step, num_updates)
    report.leave("generators, environments", "a run that continues has its own")
    if "buffer_size" in archive.settings:
        report.leave("replay buffer", "a model's zip has none: it begins empty")
    return Conversion(archive, config, algorithm, report, step, num_updates)


@contextlib.contextmanager
def _translate_errors(archive: Archive) -> Iterator[None]:
    """Raise what goes wrong with tensors of other names or shapes than SB3's as a `CheckpointError`."""
    try:
        yield
    except (KeyError, IndexError, ValueError, RuntimeError, ZeroDivisionError) as error:
        if isinstance(error, RLTrainingError):
            raise
        detail = str(error).splitlines()[0] if str(error) else ""
        raise CheckpointError(
            f"'policy.pth' of '{archive.path}' does not have the tensors of an SB3 policy: {type(error).__name__}:"
            f" {detail:.200}"
        ) from None


def _require_statistics(archive: Archive, statistics: VecNormalizeState | None) -> None:
    """An on-policy model that has been trained keeps the original observation only behind VecNormalize."""
    if "gae_lambda" not in archive.settings:
        return
    is_normalized = archive.settings.get("_last_original_obs") is not None
    if not is_normalized and statistics is not None and archive.settings.get("_last_obs") is not None:
        raise CheckpointError(
            f"'{archive.path}' was trained without VecNormalize, with whose statistics it acts differently: leave"
            " --vecnormalize out"
        )
    if is_normalized and statistics is None:
        raise CheckpointError(
            f"'{archive.path}' was trained with VecNormalize, without whose statistics it acts differently: pass"
            " --vecnormalize FILE (the file that VecNormalize.save wrote)"
        )


def _spaces_of(changes: Mapping[str, Any]) -> Spaces:
    envs = EnvSource.parse(changes["env_id"], changes.get("env_kwargs", {})).make_vector(1)
    try:
        return envs.spaces
    finally:
        envs.close()


def _check_spaces(archive: Archive, layout: Layout, spaces: Spaces) -> None:
    """Refuse spaces in which the policy would act differently, or not at all."""
    action, obs = spaces.action, spaces.obs
    if any(".extractors." in name for name in archive.weights):
        raise CheckpointError("the policy reads images within a Dict by CNNs of 256 features: no counterpart")
    shape = read_shape(archive.settings)
    if shape is not None and not obs.leaves and sorted(shape) != sorted(obs.shape):
        raise CheckpointError(
            f"the model's observations are of shape {shape}, this environment's {obs.shape}: name the environment with"
            " its wrappers (Atari: env_kwargs.wrappers.atari={}; others: env_kwargs.wrappers.list)"
        )
    if layout.has_cnn is not bool(obs.image_shapes):
        kinds = ("with a CNN", "as vectors") if layout.has_cnn else ("as vectors", "with a CNN")
        raise CheckpointError(f"the model reads observations {kinds[0]}; those of this environment are read {kinds[1]}")
    if action.kind is not ActionKind.CONTINUOUS and np.any(action.start != 0):
        raise CheckpointError("SB3 counts actions from 0, and those of this environment start elsewhere")
    bounds = read_bounds(archive.settings) if action.kind is ActionKind.CONTINUOUS else None
    if bounds is None or len(bounds[0]) != action.num_components:
        return
    for own, theirs in zip((action.low, action.high), bounds, strict=True):
        if not np.allclose(own.reshape(-1), theirs, rtol=1e-4, atol=1e-6):
            raise CheckpointError(f"the model's actions are bounded by {theirs}, this environment's by {own.tolist()}")


def _refill(hyperparameters: Mapping[str, Any], step: int, report: Report) -> dict[str, int]:
    """Collect as many steps as the model's replay buffer held before the first update.

    A Q-network acts on what the last update changed: updated from few transitions of one policy, it loses that policy.
    """
    held = min(step, int(hyperparameters.get("buffer_capacity", step)))
    needed = max(held, int(hyperparameters.get("learning_starts", 0)))
    report.take("learning_starts", f"{needed:,}: the replay buffer is refilled before the first update")
    return {"learning_starts": needed}


def _make(config: TrainConfig, spaces: Spaces) -> Algorithm[Any]:
    spec = get_algorithm_spec(config.algo)
    algo_config = spec.parse_kwargs(config.algo_kwargs)
    spec.check_spaces(spaces)
    return make_algorithm(config.replace(device="cpu"), algo_config, spaces, RunSeeds.from_seed(config.seed))


def _fill(
    algorithm: Algorithm[Any], layout: Layout, normalization: Normalization, archive: Archive, report: Report
) -> int:
    """Load networks, normalizers and optimizers; returns the gradient steps that the optimizers count."""
    members: dict[str, Any] = algorithm.stateful_members()
    parts = layout.parts(algorithm.spaces, normalization.inputs)
    steps = [0]
    for part in parts:
        module = members[part.member]
        module.load_state_dict(part.fill(module.state_dict(), layout.weights))
        report.take(part.member, f"{sum(layout.weights[name].numel() for name in part.sources()):,} numbers")
        if part.optimizer is not None:
            steps.append(load_moments(part, members[part.optimizer], module, archive, report))
        elif part.source_optimizer in archive.optimizers and not part.member.startswith("target_"):
            report.leave(f"optimizer of {part.member}", "its layers differ here: Adam begins anew")
    for name, reason in layout.left.items():
        report.leave(name, reason)
    _refuse_unused(layout, parts, archive)
    load_temperature(members, archive, report, steps)
    _load_statistics(algorithm, members, normalization)
    return max(steps)


def _load_statistics(algorithm: Algorithm[Any], members: dict[str, Any], normalization: Normalization) -> None:
    if normalization.obs is not None:
        owner = members.get("preprocessor") or members["policy"].preprocessor
        owner.normalizer.load_state_dict(normalization.obs)
    rewards = members.get("reward_normalizer")
    if normalization.returns is not None and isinstance(rewards, RewardNormalizer):
        rewards.statistics.load_state_dict(normalization.returns)


def _refuse_unused(layout: Layout, parts: list[Part], archive: Archive) -> None:
    """Refuse a model whose acting network has a tensor that was not taken."""
    used = {name for part in parts for name in part.sources()}
    for name in archive.weights.keys() - used:
        if name.startswith(layout.acting) and not name.startswith(layout.ignored) and not name.endswith(BUFFERS):
            raise CheckpointError(
                f"the policy has '{name:.100}', which has no counterpart here: it would act differently"
            )


def _set_counters(algorithm: Algorithm[Any], step: int, num_updates: int) -> None:
    """Continue the counters of target copies and delayed updates where SB3 stopped."""
    algorithm.global_step = step
    interval = getattr(algorithm.config, "target_update_interval", None)
    values = {"updates": num_updates, "target_copies": 0 if interval is None else step // interval}
    algorithm.counters |= {name: values[name] for name in algorithm.counters.keys() & values.keys()}


def _num_envs(archive: Archive, report: Report) -> int:
    count = archive.settings.get("n_envs")
    if isinstance(count, int) and 1 <= count <= MAX_ENVS:
        return count
    report.leave("n_envs", f"{count!r:.20} is not from 1 to {MAX_ENVS}: one environment here")
    return 1


def _whole(archive: Archive, key: str) -> int:
    value = archive.settings.get(key)
    return int(value) if is_number(value) and 0 <= value <= MAX_STEPS else 0
