"""The components of a run: made and checked before the run has a folder. Each loop has an assembler of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from rl_training.algorithms.base import Algorithm, Resources
from rl_training.algorithms.config import AlgorithmConfig
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.envs.factory import EnvSource
from rl_training.envs.goal_rewards import GoalRewards
from rl_training.envs.parallel.pools import describe_error
from rl_training.envs.parallel.vector import TrainingEnv
from rl_training.errors import ConfigError, RLTrainingError
from rl_training.evaluation.evaluator import SUCCESS_RATE, Evaluator
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.checks.acting import initial_state_of
from rl_training.runtime.checks.memory import check_networks_fit
from rl_training.runtime.collector import Collector
from rl_training.runtime.execution import Execution
from rl_training.runtime.run_utils import RunSeeds, resolve_device
from rl_training.spaces.spec import Spaces
from rl_training.validation import suggest

OBSERVATIONS_AT_ONCE = 65_536


@dataclass(frozen=True)
class RunSetup:
    """Parsed settings, environment, seeds, threads and compilation of a run."""

    config: TrainConfig
    algo_config: Any
    env: EnvSource | None
    seeds: RunSeeds
    execution: Execution

    def make_envs(self) -> TrainingEnv:
        """The run's training environments, which return the info that the algorithm asks for."""
        keys = tuple(get_algorithm_spec(self.config.algo).algorithm_class().info_fields)
        return self.required_env.make_vector(self.config.num_envs, keys)

    def make_algorithm(self, spaces: Spaces) -> Algorithm[Any]:
        """The run's algorithm for these spaces, checked."""
        get_algorithm_spec(self.config.algo).check_spaces(spaces)
        compile_updates = self.execution.compile
        return make_algorithm(self.config, self.algo_config, spaces, self.seeds, compile_updates=compile_updates)

    def make_evaluator(self) -> Evaluator | None:
        """The run's evaluator; None without an environment."""
        return None if self.env is None else Evaluator(self.env, self.seeds.eval_seeds(self.config.eval_episodes))

    @property
    def required_env(self) -> EnvSource:
        """The environment, where it is needed."""
        if self.env is None:
            raise ConfigError("missing key 'env_id' for the configuration: this needs an environment")
        return self.env


@dataclass(frozen=True)
class RunComponents:
    """The objects of a run. Offline there is no collector, and the buffer is the dataset or contains it."""

    algorithm: Algorithm[Any]
    collector: Collector | None
    buffer: Any
    evaluator: Evaluator | None
    dataset: TransitionDataset | None = None
    notes: Sequence[str] = ()
    """Messages about the dataset for the user."""
    dataset_facts: Mapping[str, float] = field(default_factory=dict)
    """Size and returns of the dataset as recorded, for the run's metadata."""
    goal_rewards: GoalRewards | None = None
    """Computes the rewards of relabelled goals."""

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
        failures = [try_to_close(owner) for owner in (self.collector, self.evaluator, self.goal_rewards)]
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
        raise ConfigError(f"early_stopping watches evaluations, and there are none without env_id: {remedy}")
    metric, known = algo_config.early_stopping.metric, evaluator.metric_names
    if metric not in known and not (metric == SUCCESS_RATE and evaluator.reports_success()):
        raise ConfigError(f"early_stopping watches unknown metric '{metric}'{suggest(metric, known)}")


def make_algorithm(
    config: TrainConfig, algo_config: AlgorithmConfig, spaces: Spaces, seeds: RunSeeds, *, compile_updates: bool = False
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
    networks = [member for member in algorithm.stateful_members().values() if isinstance(member, nn.Module)]
    if encoder_class is None or any(type(part) is encoder_class for one in networks for part in one.modules()):
        return
    raise ConfigError(
        f"{type(algorithm).__name__} does not use algo_kwargs.network '{config.network}': build its networks on"
        " rl_training.models.encoders.ObsNetwork, or remove the setting"
    )
