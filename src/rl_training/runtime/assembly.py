"""The components of a run: made and checked before the run has a folder. Each loop has an assembler of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import nn

from rl_training.algorithms.base import Algorithm, Resources
from rl_training.algorithms.config import HINDSIGHT, AlgorithmConfig, OnPolicyConfig
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.envs.factory import EnvSource
from rl_training.envs.goal_rewards import GoalRewards
from rl_training.envs.parallel.pools import describe_error
from rl_training.envs.parallel.vector import TrainingEnv
from rl_training.envs.single.construction import newer_version
from rl_training.envs.wrapping.wrapper_list import listed_wrappers
from rl_training.errors import ConfigError, RLTrainingError
from rl_training.evaluation.evaluator import SUCCESS_RATE, Evaluator
from rl_training.experiment.checkpointing import CheckpointState
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.loggers import check_installed
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.memory import available_memory, describe_need
from rl_training.models.encoders import IMAGE_FEATURES, layer_sizes
from rl_training.replay.frame_replay import replay_bytes
from rl_training.replay.transitions import StepFields, storage_bytes
from rl_training.runtime.collector import Collector, initial_state_of
from rl_training.runtime.execution import Execution, choose_execution
from rl_training.runtime.run_utils import RunSeeds, resolve_device
from rl_training.spaces.spec import Spaces
from rl_training.validation import suggest

OBSERVATIONS_AT_ONCE = 65_536
BYTES_OF_A_WEIGHT = 4 * 4
"""Float32 weight, gradient and the two moments of Adam."""
INDEX_BYTES = {"prioritized": 9, HINDSIGHT: 8}
"""Bytes per transition beside the transition itself: priority with sum-tree nodes; index in the episode."""
LATE = 0.1
"""A run that ends later than `total_timesteps` by this fraction says so."""
STATISTICS = {
    "gymnasium.wrappers:NormalizeObservation": "normalize_obs",
    "gymnasium.wrappers:NormalizeReward": "normalize_reward",
}
"""Wrappers with running statistics, and the setting of algorithms that does the same."""


@dataclass(frozen=True)
class RunSetup:
    """Parsed settings, environment, seeds, threads and compilation of a run."""

    config: TrainConfig
    algo_config: Any
    env: EnvSource | None
    seeds: RunSeeds
    execution: Execution
    warm_start_step: int = 0
    """Step at which the run took over a trained policy, with an empty replay buffer."""

    @classmethod
    def parse(cls, config: TrainConfig, state: CheckpointState | None = None) -> RunSetup:
        """The setup of a run, which computes as in the checkpoint `state` where it resumes from one."""
        check_installed(config.loggers)
        algo_config = get_algorithm_spec(config.algo).parse_kwargs(config.algo_kwargs)
        execution = choose_execution(config, state, algo_config)
        env = None if config.env_id is None else EnvSource.parse(config.env_id, config.env_kwargs)
        return cls(config, algo_config, env, RunSeeds.from_seed(config.seed), execution)

    def make_envs(self) -> TrainingEnv:
        """The run's training environments, which return the info that the algorithm asks for."""
        keys = tuple(get_algorithm_spec(self.config.algo).algorithm_class().info_fields)
        return self.required_env.make_vector(self.config.num_envs, keys)

    def make_algorithm(self, spaces: Spaces) -> Algorithm[Any]:
        """The run's algorithm for these spaces, checked."""
        get_algorithm_spec(self.config.algo).check_spaces(spaces)
        compile_updates = self.execution.compile
        return make_algorithm(
            self.config, self.algo_config, spaces, self.seeds, compile_updates=compile_updates
        )

    def make_evaluator(self) -> Evaluator | None:
        """The run's evaluator; None without an environment."""
        return (
            None
            if self.env is None
            else Evaluator(self.env, self.seeds.eval_seeds(self.config.eval_episodes))
        )

    @property
    def required_env(self) -> EnvSource:
        """The environment, where it is needed."""
        if self.env is None:
            raise ConfigError(
                "missing key 'env_id' for the configuration: this needs an environment"
            )
        return self.env

    def warnings(self) -> list[str]:
        """Warnings: an outdated environment, wrappers whose statistics restart in each evaluation, a late end."""
        config, found = self.config, []
        newest = None if config.env_id is None else newer_version(config.env_id)
        if newest is not None:
            found.append(f"WARNING: environment '{config.env_id}' is out of date: use '{newest}'")
        for call in listed_wrappers(config.env_kwargs):
            if call.name in STATISTICS:
                found.append(
                    f"WARNING: wrapper '{call.name}' begins its statistics anew in every evaluation episode, so"
                    " evaluations differ from training: use"
                    f" algo_kwargs.{STATISTICS[call.name]}=true instead, where the algorithm has it"
                )
        total, algo_config = config.total_timesteps, self.algo_config
        last_step = algo_config.last_step(total, config.num_envs)
        if last_step >= (1 + LATE) * total:
            is_on_policy = isinstance(algo_config, OnPolicyConfig)
            rollout = f"num_steps {algo_config.num_steps:,} x " if is_on_policy else ""
            keys = "algo_kwargs.num_steps or num_envs" if is_on_policy else "num_envs"
            found.append(
                f"WARNING: the run ends at step {last_step:,} instead of total_timesteps {total:,}, since it completes"
                f" its last collection of {rollout}num_envs {config.num_envs:,}: lower {keys}"
            )
        return found


@dataclass(frozen=True)
class RunComponents:
    """The objects of a run. Offline there is no collector, and the buffer is the dataset or contains it."""

    algorithm: Algorithm[Any]
    collector: Collector | None
    buffer: Any
    evaluator: Evaluator | None
    dataset: TransitionDataset | None = None
    notes: Sequence[str] = ()
    """Messages for the user about settings and dataset."""
    dataset_facts: Mapping[str, float] = field(default_factory=dict)
    """Size and returns of the dataset as recorded, for the run's metadata."""
    goal_rewards: GoalRewards | None = None
    """Computes the rewards of relabelled goals."""

    @property
    def env_reasons(self) -> Sequence[str]:
        """Why the training environments may not be in the exact state of an uninterrupted run."""
        return self.collector.inexact_reasons if self.collector else ()

    def begin(self, seeds: RunSeeds) -> None:
        """Set up what a resumed run would restore from its checkpoint."""
        if self.collector is not None:
            self.collector.reset(seeds.env_seeds(self.collector.num_envs))
        if self.dataset is not None:
            obs = self.dataset.obs
            for start in range(0, len(obs), OBSERVATIONS_AT_ONCE):
                chunk = torch.from_numpy(obs[start : start + OBSERVATIONS_AT_ONCE].copy())
                self.algorithm.fit_observations(chunk.to(self.algorithm.device))

    def close(self) -> list[str]:
        """Close all environments; returns the failures."""
        failures = [
            try_to_close(owner) for owner in (self.collector, self.evaluator, self.goal_rewards)
        ]
        return [failure for failure in failures if failure is not None]


def make_collector(envs: TrainingEnv, algorithm: Algorithm[Any]) -> Collector:
    """The collector of these environments, with the policy state in which the algorithm begins an episode."""
    initial_state = initial_state_of(algorithm, envs.num_envs)
    return Collector(envs, envs.spaces, algorithm.device, initial_state, algorithm)


def try_to_close(owner: Collector | Evaluator | GoalRewards | TrainingEnv | None) -> str | None:
    """Close the environments of `owner`; returns the error as text if that fails."""
    try:
        if owner is not None:
            owner.close()
    except (Exception, SystemExit) as error:
        return str(error) if isinstance(error, RLTrainingError) else describe_error(error)
    return None


def check_watched_metric(algo_config: AlgorithmConfig, evaluator: Evaluator | None) -> None:
    """Raise a `ConfigError` if early stopping watches a metric that evaluations do not have."""
    if algo_config.early_stopping is None:
        return
    if evaluator is None:
        remedy = "remove early_stopping or give env_id"
        raise ConfigError(
            f"early_stopping watches evaluations, and there are none without env_id: {remedy}"
        )
    metric, known = algo_config.early_stopping.metric, evaluator.metric_names
    if metric not in known and not (metric == SUCCESS_RATE and evaluator.reports_success()):
        raise ConfigError(
            f"early_stopping watches unknown metric '{metric}'{suggest(metric, known)}"
        )


def make_algorithm(
    config: TrainConfig,
    algo_config: AlgorithmConfig,
    spaces: Spaces,
    seeds: RunSeeds,
    *,
    compile_updates: bool = False,
) -> Algorithm[Any]:
    """The algorithm of a run with its initial weights; state that no checkpoint would hold is an error here."""
    device = resolve_device(config.device)
    generator = seeds.policy_generator(device)
    resources = Resources(device, generator, config.num_envs, compile_updates, config.algo)
    algorithm_class = get_algorithm_spec(config.algo).algorithm_class().for_spaces(spaces)
    with check_networks_fit(algo_config, spaces, device):
        algorithm = algorithm_class(algo_config, spaces, resources)
    _refuse_unused_network(algo_config, algorithm)
    return algorithm


def _refuse_unused_network(config: AlgorithmConfig, algorithm: Algorithm[Any]) -> None:
    """Raise if no network of the algorithm contains the user's own one."""
    encoder_class = algorithm.mlp_spec.encoder_class
    networks = [
        member for member in algorithm.stateful_members().values() if isinstance(member, nn.Module)
    ]
    if encoder_class is None or any(
        type(part) is encoder_class for one in networks for part in one.modules()
    ):
        return
    raise ConfigError(
        f"{type(algorithm).__name__} does not use algo_kwargs.network '{config.network}': build its networks on"
        " rl_training.models.encoders.ObsNetwork, or remove the setting"
    )


def check_replay_fits(
    spaces: Spaces,
    capacity: int,
    total_steps: int,
    kind: str = "uniform",
    fields: StepFields | None = None,
    key: str = "buffer_capacity",
) -> int:
    """Bytes of a replay buffer at the end of the run; refuses one that would exceed the available memory."""
    count = min(capacity, total_steps)
    further = storage_bytes(spaces, count, fields) - storage_bytes(spaces, count)
    needed = replay_bytes(spaces, count) + further + INDEX_BYTES.get(kind, 0) * count
    return _check_fits(needed, count, "replay", key)


def check_rollout_fits(
    spaces: Spaces, num_steps: int, num_envs: int, fields: StepFields | None = None
) -> int:
    """Bytes of `num_steps` steps of every environment; refuses more than the available memory."""
    needed = storage_bytes(spaces, num_steps * num_envs, fields)
    return _check_fits(needed, num_steps, f"rollout of {num_envs:,} x {num_steps:,}", "num_steps")


def check_batch_fits(spaces: Spaces, batch_size: int) -> None:
    """Refuse a batch that exceeds the available memory."""
    _check_fits(storage_bytes(spaces, batch_size), batch_size, "batch", "batch_size")


def count_weights(config: AlgorithmConfig, spaces: Spaces) -> tuple[tuple[int, ...], int]:
    """Layer sizes of the largest network of the algorithm, and a lower bound of its number of weights."""
    return _largest_network(config, spaces)[1:]


def _largest_network(config: AlgorithmConfig, spaces: Spaces) -> tuple[str, tuple[int, ...], int]:
    """The key that sets its hidden layers, its layer sizes and a lower bound of its number of weights."""
    images = spaces.obs.image_shapes if config.network is None else ()
    inputs = spaces.obs.num_features + IMAGE_FEATURES * len(images)
    convolutions = sum(prod(size) for shape in images for size in layer_sizes(shape))
    actions = sum(spaces.action.choices) or spaces.action.num_components
    has_own_input = (
        config.network is not None or getattr(config, "memory", None) is not None
    )  # of a size unknown here
    found = []
    for place, (key, hidden_sizes) in enumerate(config.network_sizes().items()):
        sizes = (
            inputs,
            *hidden_sizes,
            1 if place else actions,
        )  # the first acts, the second is a critic
        if has_own_input:
            sizes = sizes[1:]
        found.append(
            (
                key,
                sizes,
                convolutions + sum(fan_in * fan_out for fan_in, fan_out in pairwise(sizes)),
            )
        )
    return max(found, key=lambda network: network[-1])


@contextlib.contextmanager
def check_networks_fit(
    config: AlgorithmConfig, spaces: Spaces, device: torch.device
) -> Iterator[None]:
    """Refuse networks that exceed the memory: on the CPU before they are created, elsewhere when allocation fails."""
    key, sizes, count = _largest_network(config, spaces)
    needed, available = count * BYTES_OF_A_WEIGHT, available_memory()
    remedy = f"set algo_kwargs.{key} smaller than {list(sizes[1:-1])}"
    if device.type == "cpu" and available is not None and needed > available:
        raise ConfigError(
            f"a network with layers of {', '.join(f'{size:,}' for size in sizes)} has {count:,} weights and"
            f" {describe_need(needed, available)} (weights, gradients and the two moments of Adam): {remedy}"
        )
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # on the CPU torch raises a RuntimeError
        if not isinstance(error, (MemoryError, torch.OutOfMemoryError)) and "memory" not in str(
            error
        ):
            raise
        raise ConfigError(
            f"the networks do not fit into the memory of '{device}'; one has {count:,} weights, which"
            f" take {needed / 1e9:,.2f} GB with gradients and the two moments of Adam: {remedy}"
        ) from error


def _check_fits(needed: int, count: int, what: str, key: str) -> int:
    available = available_memory()
    if available is None or needed <= available:
        return needed
    largest = int(count * available / needed * 0.8)
    what = what if key == "num_steps" else f"{what} of {count:,}"
    remedy = f"set algo_kwargs.{key} to {largest:,} or less" if largest else "lower num_envs"
    raise ConfigError(f"a {what} transitions {describe_need(needed, available)}: {remedy}")


@contextlib.contextmanager
def translate_memory_errors() -> Iterator[None]:
    """Raise a failed allocation of a buffer as a `ConfigError` that names the settings to lower."""
    try:
        yield
    except (MemoryError, OverflowError, ValueError) as error:
        raise ConfigError(
            f"the buffer cannot be allocated ({error}): set algo_kwargs.buffer_capacity or algo_kwargs.num_steps lower"
        ) from None
