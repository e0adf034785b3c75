"""Normalized observations and rewards of the off-policy algorithms: statistics, network inputs, resumed runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TRY_ALL, small_config
from gymnasium.spaces import Box
from torch import Tensor

from rl_training.algorithms.base import Resources
from rl_training.algorithms.replay import Batch
from rl_training.algorithms.sac import SACAlgorithm, SACConfig
from rl_training.errors import ConfigError
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import Loop, get_algorithm_spec, list_algorithm_specs
from rl_training.replay.replay_buffer import ReplayBuffer
from rl_training.replay.transitions import FIELDS, Transitions
from rl_training.runtime.loops.off_policy import ObservedReplay
from rl_training.runtime.run import run_training
from rl_training.runtime.workflows import evaluate_checkpoint, load_algorithm
from rl_training.spaces.spec import describe_spaces
from rl_training.testing import check_algorithm

ALGOS = [spec.name for spec in list_algorithm_specs() if spec.loop is Loop.OFF_POLICY]
BOTH = {"normalize_obs": True, "normalize_reward": True}
NUM_ENVS, NUM_STEPS, GAMMA = 2, 7, 0.9
SPACES = describe_spaces(Box(-np.inf, np.inf, (3,)), Box(-1.0, 1.0, (1,)))


def make(**settings: Any) -> Any:
    config = SACConfig(hidden_sizes=(8,), gamma=GAMMA, **settings)
    resources = Resources(torch.device("cpu"), torch.Generator().manual_seed(0), NUM_ENVS)
    return SACAlgorithm(config, SPACES, resources)


def hand_made_steps() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    steps = {
        "obs": rng.normal(5.0, 3.0, (NUM_STEPS, NUM_ENVS, 3)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (NUM_STEPS, NUM_ENVS, 1)).astype(np.float32),
        "rewards": rng.normal(2.0, 4.0, (NUM_STEPS, NUM_ENVS)).astype(np.float32),
        "next_obs": rng.normal(5.0, 3.0, (NUM_STEPS, NUM_ENVS, 3)).astype(np.float32),
        "terminated": np.zeros((NUM_STEPS, NUM_ENVS), bool),
        "truncated": np.zeros((NUM_STEPS, NUM_ENVS), bool),
    }
    steps["terminated"][2, 0] = steps["truncated"][4, 1] = True
    return steps


def running_returns(rewards: np.ndarray, dones: np.ndarray) -> np.ndarray:
    """Discounted sum of the rewards of each episode so far, [T, N]."""
    returns, running = np.zeros(rewards.shape), np.zeros(rewards.shape[1])
    for step in range(len(rewards)):
        running = GAMMA * running + rewards[step].astype(np.float64)
        returns[step] = running
        running = np.where(dones[step], 0.0, running)
    return returns


def stored(algorithm: Any, steps: dict[str, np.ndarray], **options: Any) -> ReplayBuffer:
    """A buffer filled as a run fills it: all steps but the newest are observed."""
    rng = np.random.default_rng(0)
    buffer = ReplayBuffer(
        SPACES, 100, NUM_ENVS, rng=rng, device=algorithm.device, gamma=GAMMA, **options
    )
    replay = ObservedReplay(buffer, algorithm)
    for step in range(NUM_STEPS):
        replay.add({name: steps[name][step] for name in FIELDS})
    return buffer


def test_statistics_are_those_of_the_collected_steps() -> None:
    algorithm, steps = make(**BOTH), hand_made_steps()
    stored(algorithm, steps)
    normalizer = algorithm.preprocessor.normalizer
    seen = steps["obs"][:-1].reshape(-1, 3).astype(np.float64)
    np.testing.assert_allclose(normalizer.mean.numpy(), seen.mean(0), rtol=1e-12)
    np.testing.assert_allclose(normalizer.variance.numpy(), seen.var(0), rtol=1e-12)
    assert normalizer.count == len(seen)
    returns = running_returns(steps["rewards"], steps["terminated"] | steps["truncated"])[:-1]
    statistics = algorithm.reward_normalizer.statistics
    np.testing.assert_allclose(statistics.mean.numpy(), [returns.mean()], rtol=1e-12)
    np.testing.assert_allclose(statistics.variance.numpy(), [returns.var()], rtol=1e-12)


def test_a_step_lost_with_its_environment_ends_the_running_return() -> None:
    algorithm, steps = make(normalize_reward=True), hand_made_steps()
    replay = ObservedReplay(stored(algorithm, steps), algorithm)
    replay.truncate_newest()
    for _ in range(2):
        replay.add({name: steps[name][0] for name in FIELDS})
    np.testing.assert_allclose(
        algorithm.reward_normalizer.running_return.numpy(), steps["rewards"][0], rtol=1e-6
    )


class SeenError(Exception):
    """Carries the input of a gradient step."""


def input_of_update(algorithm: SACAlgorithm, batch: Transitions) -> Batch:
    def gradient_step(inputs: Batch, *noise: Tensor) -> None:
        raise SeenError(inputs)

    algorithm.gradient_step = gradient_step  # type: ignore[assignment, method-assign]
    with pytest.raises(SeenError) as caught:
        algorithm.update(batch)
    inputs: Batch = caught.value.args[0]
    return inputs


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_sampled_batch_is_normalized_when_it_is_used(n_step: int) -> None:
    algorithm, steps = make(**BOTH, n_step=n_step), hand_made_steps()
    batch = stored(algorithm, steps, n_step=n_step).sample(64)
    inputs = input_of_update(algorithm, batch)
    seen = steps["obs"][:-1].reshape(-1, 3).astype(np.float64)
    for given, used in ((batch.obs, inputs.obs), (batch.next_obs, inputs.next_obs)):
        expected = (given.numpy() - seen.mean(0)) / np.sqrt(seen.var(0) + 1e-8)
        np.testing.assert_allclose(used.numpy(), expected.clip(-10, 10), rtol=1e-5, atol=1e-5)
    returns = running_returns(steps["rewards"], steps["terminated"] | steps["truncated"])[:-1]
    expected = (batch.rewards.numpy() / returns.std()).clip(-10, 10)
    np.testing.assert_allclose(inputs.rewards.numpy(), expected, rtol=1e-5)
    raw = {round(float(reward), 5) for reward in steps["rewards"].reshape(-1)}
    is_raw = [round(float(reward), 5) in raw for reward in batch.rewards]
    assert all(is_raw) if n_step == 1 else not all(is_raw)


def test_large_rewards_are_clipped() -> None:
    algorithm, steps = make(normalize_reward=True), hand_made_steps()
    batch = stored(algorithm, steps).sample(4)
    batch.rewards[:] = torch.tensor([1e6, -1e6, 0.0, 1.0])
    assert input_of_update(algorithm, batch).rewards[:3].tolist() == [10.0, -10.0, 0.0]


def test_nothing_is_observed_unless_it_is_needed() -> None:
    assert not make().needs_steps
    assert make(normalize_obs=True).needs_steps
    assert make(normalize_reward=True).needs_steps
    assert make().reward_normalizer is None

    class Counting(SACAlgorithm):
        def observe(self, steps: Transitions) -> None:
            self.counters["seen"] = self.counters.get("seen", 0) + steps.rewards.numel()

    algorithm = Counting(
        SACConfig(), SPACES, Resources(torch.device("cpu"), torch.Generator(), NUM_ENVS)
    )
    assert algorithm.needs_steps
    stored(algorithm, hand_made_steps())
    assert algorithm.counters["seen"] == (NUM_STEPS - 1) * NUM_ENVS


@pytest.mark.parametrize("algo", ALGOS if TRY_ALL else ["dqn", "td3"])
def test_every_off_policy_algorithm_passes_the_suite_with_both(algo: str) -> None:
    spec = get_algorithm_spec(algo)
    check_algorithm(
        spec.algorithm_class(), spec.config_class(), spec.loop, algo_kwargs={**BOTH, "n_step": 2}
    )


def test_discrete_sac_passes_the_suite_with_both() -> None:
    check_algorithm(
        SACAlgorithm, SACConfig, Loop.OFF_POLICY, env_id="CartPole-v1", algo_kwargs=BOTH
    )


@pytest.mark.parametrize("algo", ALGOS if TRY_ALL else ["dqn", "sac"])
def test_a_run_keeps_its_statistics_and_raw_transitions(algo: str, tmp_path: Path) -> None:
    result = run_training(small_config(algo, tmp_path, total_timesteps=160, algo_kwargs=BOTH))
    _, algorithm, _ = load_algorithm(result.run_dir, device="cpu")
    buffer = load_checkpoint(result.run_dir).buffer_state
    obs, rewards = (
        np.concatenate([segment.arrays[name] for segment in buffer["segments"]])[:-1]
        for name in ("obs", "rewards")
    )
    flat = obs.reshape(-1, obs.shape[-1]).astype(np.float64)
    np.testing.assert_allclose(
        algorithm.preprocessor.normalizer.mean.numpy(), flat.mean(0), rtol=1e-9, atol=1e-12
    )
    np.testing.assert_allclose(
        algorithm.preprocessor.normalizer.variance.numpy(), flat.var(0), rtol=1e-9, atol=1e-12
    )
    assert algorithm.reward_normalizer.statistics.count == rewards.size
    again = evaluate_checkpoint(result.run_dir, device="cpu")
    assert again["eval_return_mean"] == result.metrics["eval_return_mean"]


def test_images_refuse_normalized_observations_but_not_rewards(tmp_path: Path) -> None:
    env = {"env_id": "oracle_envs:OracleEnv", "env_kwargs": {"obs": "stack"}}
    config = small_config(
        "dqn", tmp_path, total_timesteps=64, **env, algo_kwargs={"normalize_obs": True}
    )
    with pytest.raises(ConfigError, match="normalize_obs is for vectors"):
        run_training(config)
    assert not list(tmp_path.iterdir())
    kwargs = {
        "normalize_reward": True,
        "learning_starts": 16,
        "train_frequency": 16,
        "batch_size": 4,
    }
    result = run_training(
        config.replace(algo_kwargs={**config.algo_kwargs, **kwargs, "normalize_obs": False})
    )
    _, algorithm, _ = load_algorithm(result.run_dir, device="cpu")
    assert algorithm.reward_normalizer.statistics.count > 0
