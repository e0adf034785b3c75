"""The offline loop: update from samples of a dataset, where a step is an update; then optional online fine-tuning."""

from __future__ import annotations

import contextlib
import math
from typing import Any

from torch import Tensor

from rl_training.algorithms.base import ActResult, Algorithm
from rl_training.algorithms.config import OfflineConfig, OfflineToOnlineConfig, OnlineStageConfig
from rl_training.data.dataset_checks import Level, check_dataset
from rl_training.data.dataset_loaders import load_transition_dataset
from rl_training.data.dataset_spaces import infer_spaces
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.errors import ConfigError, DatasetError
from rl_training.replay.frame_replay import replay_class
from rl_training.replay.mixed_replay import MixedReplay
from rl_training.replay.sequences import sampler_of
from rl_training.replay.transitions import StepFields
from rl_training.runtime.assembly import (
    RunComponents,
    RunSetup,
    check_batch_fits,
    check_replay_fits,
    make_collector,
    translate_memory_errors,
    try_to_close,
)
from rl_training.runtime.collector import Collector, stored_fields
from rl_training.runtime.loops.off_policy import (
    collect_and_update,
    no_update_warnings,
    repeated_batch_warnings,
)
from rl_training.runtime.session import Session
from rl_training.spaces.actions import ActionKind
from rl_training.spaces.rewards import RewardTransformConfig
from rl_training.spaces.spec import Spaces

MAX_BATCHES_AT_ONCE = 16
"""Batches sampled together: indexing once costs less than indexing per batch, up to about this many."""


def assemble_offline(setup: RunSetup, on_failure: contextlib.ExitStack) -> RunComponents:
    """Make and check the components of an offline run."""
    algo_config = setup.algo_config
    evaluator = setup.make_evaluator()
    on_failure.callback(try_to_close, evaluator)
    recorded = _load_dataset(setup)
    spaces = infer_spaces(recorded) if evaluator is None else evaluator.spaces
    is_lenient = algo_config.dataset_check == "warn"
    notes = [*_notes_of(setup, recorded), *check_data(recorded, spaces, is_lenient=is_lenient)]
    if spaces.has_masks and recorded.masks is None:
        notes.append(
            "WARNING: the environment gives action masks and the dataset has none (fields 'masks' and 'next_masks'):"
            " updates consider every action, evaluation only the valid ones"
        )
    algorithm = setup.make_algorithm(spaces)
    if not recorded.has_rewards and getattr(algorithm, "uses_rewards", True):
        raise DatasetError(
            f"{setup.config.algo} learns from rewards, and the dataset has none: store them as 'rewards', or use bc"
        )
    offline_bytes(setup, spaces, stored_fields(algorithm))
    rng, facts = setup.seeds.replay_generator(), _facts_of(recorded)
    dataset = recorded.to_model_space(spaces, clip_actions=is_lenient)
    dataset = dataset.with_reward_transform(**algo_config.reward_transform)
    dataset = dataset.with_sampler(rng=rng, device=algorithm.device)
    online = _online_stage(algo_config)
    if online is None:
        return RunComponents(algorithm, None, dataset, evaluator, dataset, notes, facts)
    envs = setup.make_envs()
    on_failure.callback(try_to_close, envs)
    options: dict[str, Any] = {
        "rng": rng,
        "device": algorithm.device,
        "fields": stored_fields(algorithm),
    }
    with translate_memory_errors():
        replay = replay_class(spaces)(
            spaces, online.buffer_capacity, setup.config.num_envs, **options
        )
    transform = RewardTransformConfig(**algo_config.reward_transform)
    buffer = MixedReplay(dataset, replay, online.offline_ratio, transform)
    return RunComponents(
        algorithm, make_collector(envs, algorithm), buffer, evaluator, dataset, notes, facts
    )


def offline_bytes(setup: RunSetup, spaces: Spaces, fields: StepFields | None = None) -> int:
    """Memory of the online stage's replay buffer; raises where there is less for it or for a batch."""
    check_batch_fits(spaces, setup.algo_config.batch_size)
    online = _online_stage(setup.algo_config)
    new_steps = 0 if online is None else setup.config.total_timesteps - online.after_updates
    if online is None or new_steps <= 0:
        return 0
    return check_replay_fits(
        spaces, online.buffer_capacity, new_steps, fields=fields, key="online.buffer_capacity"
    )


def offline_loop(
    session: Session,
    algorithm: Algorithm[Any],
    collector: Collector | None,
    data: TransitionDataset | MixedReplay,
) -> None:
    """Train until the run is over."""
    config: OfflineConfig = algorithm.config
    state = session.state
    online, total = _online_stage(config), session.training_progress.total
    draw = sampler_of(data, config.sampling())
    num_updates = min(total, online.after_updates) if online else total
    while state.global_step < num_updates and not state.should_stop:
        count = min(
            session.steps_to_next_event, num_updates - state.global_step, MAX_BATCHES_AT_ONCE
        )
        # Sampled batches are used even if a stop is requested: a resumed run would not sample them again.
        for batch in draw(config.batch_size, count):
            session.set_progress()
            state.global_step += 1
            session.updated(algorithm.update(batch))
        session.end_iteration()
    if (
        online is None
        or collector is None
        or isinstance(data, TransitionDataset)
        or state.should_stop
    ):
        return

    def explore(obs: Tensor, policy_state: Tensor | None, mask: Tensor | None) -> ActResult:
        session.set_progress()
        acted = algorithm.act(obs, policy_state, explore=True, mask=mask)
        return acted._replace(
            actions=algorithm.add_exploration_noise(acted.actions, online.exploration, mask)
        )

    collect_and_update(session, algorithm, collector, data, online, explore, first_step=num_updates)


def _online_stage(config: OfflineConfig) -> OnlineStageConfig | None:
    return config.online if isinstance(config, OfflineToOnlineConfig) else None


def check_dataset_settings(setup: RunSetup) -> None:
    """Raise a `ConfigError` where the settings name no dataset that can be read."""
    config, algo_config = setup.config, setup.algo_config
    if setup.env is not None and setup.env.settings.wrappers.reward is not None:
        raise ConfigError(
            "env_kwargs.wrappers.reward does not reach recorded rewards: use reward_scale, reward_shift,"
            f" reward_clip_min and reward_clip_max of {config.algo}, which also apply to new rewards"
        )
    if algo_config.dataset_kind is None:
        words = f"rl-training train {config.algo} {config.env_id or ''}".strip()
        raise ConfigError(
            f"{config.algo} learns from recorded data, and dataset_kind is not set: set it to npz or pt with"
            " dataset_path, to minari with dataset_id, or to random for random actions in the environment. Example:"
            f" `{words} algo_kwargs.dataset_kind=npz algo_kwargs.dataset_path=data.npz` (`rl-training data collect`"
            " records a file)"
        )


def _load_dataset(setup: RunSetup) -> TransitionDataset:
    check_dataset_settings(setup)
    config, algo_config = setup.config, setup.algo_config
    kind, seed = algo_config.dataset_kind, algo_config.dataset_seed
    return load_transition_dataset(
        kind,
        dataset_path=algo_config.dataset_path,
        dataset_id=algo_config.dataset_id,
        download=algo_config.dataset_download,
        env_id=config.required_env_id if kind == "random" else config.env_id,
        env_kwargs=config.env_kwargs,
        size=algo_config.dataset_size,
        seed=setup.seeds.data if seed is None else seed,
    )


def _facts_of(dataset: TransitionDataset) -> dict[str, float]:
    """Size and raw returns of a dataset, as far as they are finite."""
    returns = dataset.episode_returns()
    facts: dict[str, float] = {"transitions": len(dataset), "episodes": len(returns)}
    if len(returns) and dataset.has_rewards:
        found = {
            "return_mean": returns.mean(),
            "return_min": returns.min(),
            "return_max": returns.max(),
        }
        facts |= {name: float(value) for name, value in found.items() if math.isfinite(value)}
    return facts


def _notes_of(setup: RunSetup, dataset: TransitionDataset) -> list[str]:
    """Messages about where the dataset comes from, and about batches and an online stage that train little."""
    config, online = setup.config, _online_stage(setup.algo_config)
    notes = repeated_batch_warnings(setup.algo_config.batch_size, len(dataset), "the dataset")
    new_steps = 0 if online is None else config.total_timesteps - online.after_updates
    if online is not None and new_steps > 0:
        notes += no_update_warnings(online, new_steps, config.num_envs, "online.learning_starts")
    if setup.algo_config.dataset_kind == "random":
        notes.append(
            f"WARNING: the dataset is {len(dataset):,} steps of random actions in {config.env_id}, because dataset_kind"
            " is random; to learn from recorded data, set it to npz, pt or minari"
        )
    if online is not None and new_steps <= 0:
        notes.append(
            f"the run ends at step {config.total_timesteps:,}, before its online stage begins"
        )
    elif online is not None and new_steps <= online.learning_starts:
        notes.append(
            f"the online stage has {new_steps:,} steps and trains only after"
            f" online.learning_starts, {online.learning_starts:,}: it changes nothing"
        )
    return [*notes, *dataset.notes]


def check_data(data: TransitionDataset, spaces: Spaces, *, is_lenient: bool = False) -> list[str]:
    """The quick checks of `data check`: an error raises unless `is_lenient`; warnings are returned."""
    findings = check_dataset(data, spaces, thorough=False).findings
    # A dataset that does not fit the spaces at all is refused by the conversion itself, also with `is_lenient`.
    errors = [
        finding
        for finding in findings
        if finding.level is Level.ERROR and not finding.name.endswith("_misfit")
    ]
    if errors and not is_lenient:
        more = "`rl-training data check` shows all findings"
        if (
            errors[0].name != "actions_outside" or spaces.action.kind is ActionKind.CONTINUOUS
        ):  # these are clipped
            more += ", dataset_check: warn trains anyway"
        raise DatasetError(f"{errors[0].found}: {errors[0].remedy} ({more})")
    return [
        f"{finding.level.value}: {finding.found}"
        for finding in findings
        if finding.level is not Level.INFO
    ]
