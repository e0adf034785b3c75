"""What a run is assembled from: made and checked before the run has a folder."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rl_training.algorithms.base import Algorithm, Resources
from rl_training.algorithms.config import (
    HINDSIGHT,
    AlgorithmConfig,
    OfflineConfig,
    OfflineToOnlineConfig,
    OffPolicyConfig,
)
from rl_training.data.dataset_checks import Level, check_dataset
from rl_training.data.dataset_loaders import load_transition_dataset
from rl_training.data.dataset_spaces import infer_spaces
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.envs.factory import make_vector_env, split_env_kwargs
from rl_training.envs.goal_rewards import GoalRewards
from rl_training.envs.pools import describe_error
from rl_training.envs.vector import TrainingEnv
from rl_training.errors import ConfigError, DatasetError, RLTrainingError
from rl_training.evaluation.evaluator import SUCCESS_RATE, Evaluator
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.replay.frame_replay import replay_class
from rl_training.replay.hindsight_replay import find_goals
from rl_training.replay.mixed_replay import MixedReplay
from rl_training.replay.rollout_buffer import RolloutBuffer
from rl_training.runtime.checks.memory import (
    check_batch_fits,
    check_networks_fit,
    check_replay_fits,
    check_rollout_fits,
    translate_memory_errors,
)
from rl_training.runtime.collector import Collector
from rl_training.runtime.execution import Execution
from rl_training.runtime.loops.off_policy import make_replay_buffer
from rl_training.runtime.run_utils import RunSeeds, resolve_device
from rl_training.spaces.rewards import RewardTransformConfig
from rl_training.spaces.spec import Spaces, describe_spaces
from rl_training.validation import suggest

OBSERVATIONS_AT_ONCE = 65_536


@dataclass(frozen=True)
class RunComponents:
    """The objects of a run. Offline there is no collector, and the data set is the buffer or a part of it."""

    algorithm: Algorithm[Any]
    collector: Collector | None
    buffer: Any
    evaluator: Evaluator | None
    execution: Execution
    dataset: TransitionDataset | None = None
    notes: Sequence[str] = ()
    """What the user should know of the data."""
    goal_rewards: GoalRewards | None = None
    """What computes the rewards of other goals."""

    def begin(self, seeds: RunSeeds) -> None:
        """Set up what a resumed run would take from its checkpoint."""
        if self.collector is not None:
            self.collector.reset(seeds.env_seeds(self.collector.num_envs))
        if self.dataset is not None:
            obs = self.dataset.obs
            for start in range(0, len(obs), OBSERVATIONS_AT_ONCE):
                part = torch.from_numpy(obs[start : start + OBSERVATIONS_AT_ONCE].copy())
                self.algorithm.fit_observations(part.to(self.algorithm.device))

    def close(self) -> list[str]:
        """Close all environments; returns which failed to, and how."""
        failures = [try_to_close(part) for part in (self.collector, self.evaluator, self.goal_rewards)]
        return [failure for failure in failures if failure is not None]


def try_to_close(part: Collector | Evaluator | GoalRewards | TrainingEnv | None) -> str | None:
    """Close a part of a run; returns how that failed, if it did: what was done before stays done."""
    try:
        if part is not None:
            part.close()
    except (Exception, SystemExit) as error:
        return str(error) if isinstance(error, RLTrainingError) else describe_error(error)
    return None


def assemble_run(config: TrainConfig, execution: Execution) -> RunComponents:
    """Make and check everything the run needs; a mistake in the configuration is found here."""
    algo_config = get_algorithm_spec(config.algo).parse_kwargs(config.algo_kwargs)
    with contextlib.ExitStack() as on_failure:
        if isinstance(algo_config, OfflineConfig):
            parts = _make_offline_parts(config, algo_config, execution, on_failure)
        else:
            parts = _make_online_parts(config, algo_config, execution, on_failure)
        _check_watched_metric(algo_config, parts.evaluator)
        on_failure.pop_all()
    return parts


def _check_watched_metric(algo_config: AlgorithmConfig, evaluator: Evaluator | None) -> None:
    if algo_config.early_stopping is None:
        return
    if evaluator is None:
        remedy = "remove early_stopping or give env_id"
        raise ConfigError(f"early_stopping watches evaluations, and there are none without env_id: {remedy}")
    metric, known = algo_config.early_stopping.metric, evaluator.metric_names
    if metric not in known and not (metric == SUCCESS_RATE and evaluator.reports_success()):
        raise ConfigError(f"early_stopping watches unknown metric '{metric}'{suggest(metric, known)}")


def _make_online_parts(
    config: TrainConfig, algo_config: AlgorithmConfig, execution: Execution, on_failure: contextlib.ExitStack
) -> RunComponents:
    seeds, env_id = RunSeeds.from_seed(config.seed), config.required_env_id
    envs = make_vector_env(env_id, config.env_kwargs, num_envs=config.num_envs)
    on_failure.callback(try_to_close, envs)
    spaces = describe_spaces(envs.single_observation_space, envs.single_action_space)
    get_algorithm_spec(config.algo).algorithm_class().check_spaces(spaces)
    algorithm = make_algorithm(config, algo_config, spaces, compile_updates=execution.compile)
    goal_rewards = None
    if isinstance(algo_config, OffPolicyConfig):
        check_replay_fits(spaces, algo_config.buffer_capacity, config.total_timesteps, algo_config.replay.kind)
        check_batch_fits(spaces, algo_config.batch_size)
        if algo_config.replay.kind == HINDSIGHT:
            find_goals(spaces.obs)
            goal_rewards = GoalRewards(env_id, config.env_kwargs)
            on_failure.callback(try_to_close, goal_rewards)
    else:
        check_rollout_fits(spaces, algorithm.config.num_steps, config.num_envs)
    buffer: Any
    with translate_memory_errors():
        if isinstance(algo_config, OffPolicyConfig):
            rng = seeds.replay_generator()
            buffer = make_replay_buffer(algo_config, spaces, config.num_envs, rng, algorithm.device, goal_rewards)
        else:
            buffer = RolloutBuffer(spaces, algorithm.config.num_steps, config.num_envs, algorithm.device)
    evaluator = Evaluator(env_id, config.env_kwargs, seeds.eval_seeds(config.eval_episodes))
    on_failure.callback(try_to_close, evaluator)
    collector = Collector(envs, spaces, algorithm.device)
    return RunComponents(algorithm, collector, buffer, evaluator, execution, goal_rewards=goal_rewards)


def _make_offline_parts(
    config: TrainConfig, algo_config: OfflineConfig, execution: Execution, on_failure: contextlib.ExitStack
) -> RunComponents:
    seeds = RunSeeds.from_seed(config.seed)
    evaluator = None
    if config.env_id is not None:
        evaluator = Evaluator(config.env_id, config.env_kwargs, seeds.eval_seeds(config.eval_episodes))
        on_failure.callback(try_to_close, evaluator)
    data = _load_data(config, algo_config)
    spaces = infer_spaces(data) if evaluator is None else evaluator.spaces
    notes = []
    if algo_config.dataset_kind == "random":
        notes.append(
            f"WARNING: the data are {len(data):,} steps of random actions in {config.env_id}, because dataset_kind is"
            " random; to learn from recorded data, set it to npz, pt or minari"
        )
    notes += [*data.notes, *check_data(data, spaces, go_on=algo_config.dataset_check == "warn")]
    get_algorithm_spec(config.algo).algorithm_class().check_spaces(spaces)
    algorithm = make_algorithm(config, algo_config, spaces, compile_updates=execution.compile)
    check_batch_fits(spaces, algo_config.batch_size)
    dataset = data.to_model_space(spaces, clip_actions=algo_config.dataset_check == "warn")
    dataset = dataset.with_reward_transform(**algo_config.reward_transform)
    rng = seeds.replay_generator()
    dataset = dataset.with_sampler(rng=rng, device=algorithm.device)
    if not isinstance(algo_config, OfflineToOnlineConfig) or algo_config.online is None:
        return RunComponents(algorithm, None, dataset, evaluator, execution, dataset, notes)
    online = algo_config.online
    if config.total_timesteps <= online.after_updates:
        notes.append(f"the run ends at step {config.total_timesteps:,}, before its online stage begins")
    envs = make_vector_env(config.required_env_id, config.env_kwargs, num_envs=config.num_envs)
    on_failure.callback(try_to_close, envs)
    new_steps = config.total_timesteps - online.after_updates
    check_replay_fits(spaces, online.buffer_capacity, new_steps, key="online.buffer_capacity")
    with translate_memory_errors():
        replay = replay_class(spaces)(spaces, online.buffer_capacity, config.num_envs, rng=rng, device=algorithm.device)
    buffer = MixedReplay(dataset, replay, online.offline_ratio, RewardTransformConfig(**algo_config.reward_transform))
    collector = Collector(envs, spaces, algorithm.device)
    return RunComponents(algorithm, collector, buffer, evaluator, execution, dataset, notes)


def make_algorithm(
    config: TrainConfig, algo_config: AlgorithmConfig, spaces: Spaces, *, compile_updates: bool = False
) -> Algorithm[Any]:
    """The algorithm of a run, with the weights it begins with."""
    device = resolve_device(config.device)
    generator = RunSeeds.from_seed(config.seed).policy_generator(device)
    resources = Resources(device, generator, config.num_envs, compile_updates)
    with check_networks_fit(algo_config, spaces, device):
        return get_algorithm_spec(config.algo).algorithm_class()(algo_config, spaces, resources)


def _load_data(config: TrainConfig, algo_config: OfflineConfig) -> TransitionDataset:
    if split_env_kwargs(config.env_kwargs)[0].wrappers.reward is not None:
        raise ConfigError(
            "env_kwargs.wrappers.reward does not reach recorded rewards: use reward_scale, reward_shift,"
            f" reward_clip_min and reward_clip_max of {config.algo}, which new ones go through too"
        )
    kind, seed = algo_config.dataset_kind, algo_config.dataset_seed
    if kind is None:
        raise ConfigError(_describe_missing_data(config))
    return load_transition_dataset(
        kind,
        dataset_path=algo_config.dataset_path,
        dataset_id=algo_config.dataset_id,
        download=algo_config.dataset_download,
        env_id=config.required_env_id if kind == "random" else config.env_id,
        env_kwargs=config.env_kwargs,
        size=algo_config.dataset_size,
        seed=RunSeeds.from_seed(config.seed).data if seed is None else seed,
    )


def _describe_missing_data(config: TrainConfig) -> str:
    example = "algo_kwargs.dataset_kind=npz algo_kwargs.dataset_path=data.npz"
    words = f"rl-training train {config.algo} {config.env_id or ''}".strip()
    return (
        f"{config.algo} learns from recorded data, and dataset_kind is not set: set it to npz or pt with dataset_path,"
        " to minari with dataset_id, or to random for random actions in the environment. Example:"
        f" `{words} {example}` (`rl-training data collect` records a file)"
    )


def check_data(data: TransitionDataset, spaces: Spaces, *, go_on: bool = False) -> list[str]:
    """The cheap half of the data doctor: errors stop the run unless it is told to go on; the rest is returned."""
    findings = check_dataset(data, spaces, thorough=False).findings
    # What does not fit the spaces at all is refused later, by the conversion itself: nothing could go on with it.
    errors = [finding for finding in findings if finding.level is Level.ERROR and not finding.name.endswith("_misfit")]
    if errors and not go_on:
        more = "`rl-training data check` tells all of it, dataset_check: warn trains anyway"
        raise DatasetError(f"{errors[0].found}: {errors[0].remedy} ({more})")
    return [f"{finding.level.value}: {finding.found}" for finding in findings if finding.level is not Level.INFO]
