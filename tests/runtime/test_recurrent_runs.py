"""Whole runs of policies with memory: resumed, killed, evaluated, recorded, and asked step by step."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import HELPERS, TRY_ALL, small_config
from run_tools import assert_same_end

from rl_training import PPO
from rl_training.algorithms.a2c import A2CAlgorithm, A2CConfig
from rl_training.algorithms.ppo import PPOAlgorithm, PPOConfig
from rl_training.data.dataset_loaders import load_transition_dataset
from rl_training.envs.factory import make_env
from rl_training.errors import ConfigError, DatasetError
from rl_training.evaluation.prediction import predict
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.logs import read_metrics
from rl_training.experiment.registry import Loop
from rl_training.plugins.gate import allow_path
from rl_training.runtime.run import run_training
from rl_training.runtime.run_utils import RunSeeds
from rl_training.runtime.workflows import (
    evaluate_algorithm,
    evaluate_checkpoint,
    evaluate_checkpoint_offline,
    load_algorithm,
    predict_checkpoint,
    record_checkpoint,
    resume_training,
)
from rl_training.testing import check_algorithm

ENVS = HELPERS / "recurrent_envs.py"
TARGET = "rl_training.envs.toys:HiddenTarget"
MEMORY = {"kind": "lstm", "size": 6, "sequence_length": 8}
GRU = {**MEMORY, "kind": "gru"}
CASES: dict[str, tuple[Any, Any, str, dict[str, Any]]] = {
    "ppo": (PPOAlgorithm, PPOConfig, "rl_training.envs.toys:CartPoleNoVel", {"memory": MEMORY}),
    "ppo_masks": (PPOAlgorithm, PPOConfig, TARGET, {"memory": GRU, "normalize_obs": True}),
    "ppo_dict": (
        PPOAlgorithm,
        PPOConfig,
        f"{ENVS}:DictMasks",
        {"memory": MEMORY, "normalize_reward": True},
    ),
    "ppo_images": (PPOAlgorithm, PPOConfig, f"{ENVS}:ImageMasks", {"memory": MEMORY}),
    "ppo_box": (
        PPOAlgorithm,
        PPOConfig,
        "rl_training.envs.toys:PendulumNoVel",
        {
            "memory": GRU,
            "critic_hidden_sizes": [6],
            "critic_learning_rate": 1e-3,
            "normalize_obs": True,
        },
    ),
    "a2c": (A2CAlgorithm, A2CConfig, "rl_training.envs.toys:CartPoleNoVel", {"memory": GRU}),
    "a2c_masks": (A2CAlgorithm, A2CConfig, TARGET, {"memory": MEMORY, "normalize_obs": True}),
}


@pytest.mark.parametrize(
    "name", CASES if TRY_ALL else ["ppo_masks", "ppo_images", "ppo_box", "a2c_masks"]
)
def test_the_checks_of_every_algorithm_hold_with_memory(name: str) -> None:
    algorithm_class, config_class, env_id, algo_kwargs = CASES[name]
    check_algorithm(
        algorithm_class, config_class, Loop.ON_POLICY, env_id=env_id, algo_kwargs=algo_kwargs
    )


def config_of(folder: Path, algo: str = "ppo", **changes: Any) -> Any:
    algo_kwargs = {"memory": MEMORY, "eval_interval": 64, **changes.pop("algo_kwargs", {})}
    values = {"env_id": TARGET, "num_envs": 2, "total_timesteps": 128, **changes}
    return small_config(algo, folder, algo_kwargs=algo_kwargs, **values)


@pytest.mark.parametrize("algo", ["ppo", "a2c"])
@pytest.mark.parametrize("step", [2, 38, 71, 118])
def test_a_run_stopped_within_a_rollout_equals_the_whole_one(
    algo: str, step: int, tmp_path: Path
) -> None:
    whole = run_training(config_of(tmp_path / "whole", algo))
    stopped = run_training(config_of(tmp_path / "stopped", algo), callbacks=[StopWithin(step)])
    assert step <= stopped.metrics["global_step"] < 128
    assert_same_end(whole, resume_training(stopped.run_dir))


class StopWithin:
    """Asks for a stop from the environment's side: within a rollout, after so many steps."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_start(self, trainer: Any) -> None:
        algorithm, act = trainer.algorithm, trainer.algorithm.act

        def watched(*args: Any, **kwargs: Any) -> Any:
            if kwargs["explore"] and trainer.global_step + 2 >= self.step:
                trainer.request_stop("test")
            return act(*args, **kwargs)

        algorithm.act = watched


class LargeWeights:
    """Begins with large weights, so that actions depend on what was seen before."""

    def on_train_start(self, trainer: Any) -> None:
        generator = torch.Generator().manual_seed(5)
        for parameter in trainer.algorithm.policy.parameters():
            parameter.data += torch.randn(parameter.shape, generator=generator)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A finished run whose environments write down the actions of each episode."""
    folder = tmp_path_factory.mktemp("trained")
    actions = folder / "actions"
    env_kwargs = {"actions": str(actions)}
    config = config_of(
        folder / "runs", env_id=f"{ENVS}:NotedTarget", env_kwargs=env_kwargs, eval_episodes=6
    )
    return run_training(config, callbacks=[LargeWeights()]), actions


def test_evaluating_a_checkpoint_reproduces_the_logged_score(trained: Any) -> None:
    result, _ = trained
    lines = list(read_metrics(result.run_dir / "metrics.jsonl"))
    logged = [line["eval_return_mean"] for line in lines if "eval_return_mean" in line]
    assert evaluate_checkpoint(result.run_dir)["eval_return_mean"] == logged[-1]


def test_predict_along_an_episode_takes_the_actions_of_the_evaluation(trained: Any) -> None:
    result, path = trained
    path.unlink()
    evaluate_checkpoint(result.run_dir)
    evaluated = {line.split()[0]: line.split()[1:] for line in path.read_text().splitlines()}
    config, algorithm, _ = load_algorithm(result.run_dir)
    seeds = RunSeeds.from_seed(config.seed).eval_seeds(config.eval_episodes)
    assert set(evaluated) == {str(seed) for seed in seeds}
    forgetful = 0
    for seed in seeds:
        with contextlib.closing(make_env(config.required_env_id, config.env_kwargs)) as env:
            obs, info = env.reset(seed=seed)
            state, ended, actions = None, False, []
            while not ended:
                without, _ = predict(algorithm, obs, state=None, mask=info["action_mask"])
                batched, rows = predict(
                    algorithm,
                    obs[None],
                    state=None if state is None else state[None],
                    mask=info["action_mask"][None],
                )
                action, state = predict(algorithm, obs, state=state, mask=info["action_mask"])
                assert batched.tolist() == [action]
                np.testing.assert_allclose(rows[0], state, atol=1e-6)
                forgetful += int(without != action)
                obs, _, terminated, truncated, info = env.step(action)
                actions.append(str(int(action)))
                ended = terminated or truncated
        assert actions == evaluated[str(seed)]
    assert forgetful


def test_predict_without_a_state_or_with_a_wrong_one_is_a_named_error(trained: Any) -> None:
    result, _ = trained
    _, algorithm, _ = load_algorithm(result.run_dir)
    obs, mask = np.zeros(12, np.float32), np.ones(6)
    with pytest.raises(
        ConfigError, match="this policy has memory: pass state=None at the first step of an episode"
    ):
        predict(algorithm, obs, mask=mask)
    with pytest.raises(ConfigError, match="this policy has memory"):
        predict_checkpoint(result.run_dir, obs, mask=mask)
    with pytest.raises(ConfigError, match="this policy has memory"):
        PPO.load(result.run_dir).predict(obs, mask=mask)
    with pytest.raises(ConfigError, match=r"the policy state has shape \(3,\), where"):
        predict(algorithm, obs, state=np.zeros(3), mask=mask)
    action, state = PPO.load(result.run_dir).predict(obs, state=None, mask=mask)
    assert state.shape == (2 * 2 * 6,)
    assert predict_checkpoint(result.run_dir, obs, state=None, mask=mask)[0] == action


def test_a_policy_without_memory_has_no_state(tmp_path: Path) -> None:
    result = run_training(small_config("ppo", tmp_path, total_timesteps=16))
    _, algorithm, _ = load_algorithm(result.run_dir)
    action, state = predict(algorithm, np.zeros(4, np.float32), state=None)
    assert state is None
    assert predict(algorithm, np.zeros(4, np.float32)) == action
    with pytest.raises(ConfigError, match="this policy has no memory, so it has no state"):
        predict(algorithm, np.zeros(4, np.float32), state=np.zeros(3))


def test_a_recording_holds_the_actions_of_a_policy_that_remembers(
    trained: Any, tmp_path: Path
) -> None:
    result, _ = trained
    _, algorithm, _ = load_algorithm(result.run_dir)
    dataset = record_checkpoint(result.run_dir, 60).dataset
    state = None
    for row in range(60):
        given = {"state": state, "mask": dataset.masks[row]}
        action, state = predict(algorithm, dataset.obs[row], **given)
        assert action == dataset.actions[row], row
        if dataset.dones[row]:
            state = None
    again = record_checkpoint(result.run_dir, 60, epsilon=0.3).dataset
    assert again.masks[np.arange(60), again.actions].all()
    np.savez(tmp_path / "data.npz", **again.arrays())
    with pytest.raises(
        DatasetError, match="does not support policies with memory: evaluate in an environment"
    ):
        evaluate_checkpoint_offline(
            result.run_dir, load_transition_dataset("npz", dataset_path=tmp_path / "data.npz")
        )


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_a_retried_evaluation_episode_keeps_its_state(backend: str, tmp_path: Path) -> None:
    once = tmp_path / "once"
    result = run_training(
        config_of(tmp_path, env_id=f"{ENVS}:FailingTarget"), callbacks=[LargeWeights()]
    )
    config, algorithm, _ = load_algorithm(result.run_dir)
    allow_path(str(once))
    scores = []
    for place in (None, str(once)):
        env_kwargs = {"once": place, "max_restarts": 1, "backend": backend}
        scores.append(evaluate_algorithm(config.replace(env_kwargs=env_kwargs), algorithm, 5))
    assert once.exists()
    assert scores[0] == scores[1]


def test_a_restarted_training_environment_begins_with_the_initial_state(tmp_path: Path) -> None:
    """Stored states are what the policy was given, so the log-probabilities of the update are those of acting."""
    env_kwargs = {"once": str(tmp_path / "once"), "max_restarts": 1}
    first = run_training(
        config_of(
            tmp_path, env_id=f"{ENVS}:FailingTarget", env_kwargs=env_kwargs, total_timesteps=32
        ),
        callbacks=[watch := WatchRollouts()],
    )
    assert first.metrics["global_step"] == 32
    assert (tmp_path / "once").exists()
    watch.check()


class WatchRollouts:
    """Keeps the rollouts of a run, and recomputes them with the policy that acted."""

    def __init__(self) -> None:
        self.differences: list[float] = []
        self.num_ends = 0

    def on_train_start(self, trainer: Any) -> None:
        algorithm, update = trainer.algorithm, trainer.algorithm.update

        def watched(batch: Any) -> Any:
            samples, _ = algorithm.prepare(batch)
            with torch.no_grad():
                outputs, _ = algorithm.policy(
                    samples.obs, samples.masks, samples.states, samples.starts
                )
                again, _ = algorithm.policy.head.log_prob_and_entropy(outputs, samples.actions)
            self.differences.append((again - samples.log_probs).abs().max().item())
            self.num_ends += int(batch.dones.sum())
            return update(batch)

        algorithm.update = watched

    def check(self) -> None:
        assert self.differences
        assert self.num_ends
        assert max(self.differences) < 1e-5


@pytest.mark.parametrize("algo", ["ppo", "a2c"])
def test_the_first_gradient_step_sees_the_policy_that_acted(algo: str, tmp_path: Path) -> None:
    kwargs = {"normalize_obs": True, "learning_rate": 0.01}
    run_training(
        config_of(tmp_path, algo, algo_kwargs=kwargs), callbacks=[watch := WatchRollouts()]
    )
    assert len(watch.differences) == 128 // 32
    watch.check()


def test_an_environment_that_is_not_restored_exactly_begins_with_the_initial_state(
    tmp_path: Path,
) -> None:
    env_kwargs = {"counter": str(tmp_path / "counter")}
    config = config_of(
        tmp_path / "runs", env_id=f"{ENVS}:Drifting", env_kwargs=env_kwargs, total_timesteps=64
    )
    stopped = run_training(config, callbacks=[StopWithin(20)])
    assert load_checkpoint(stopped.checkpoint_path).trainer_state["collector"]["policy_state"].any()
    resume_training(stopped.run_dir, callbacks=[watch := WatchRollouts()])
    watch.check()


def test_sequences_must_divide_the_rollout(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"num_steps 16 is not a multiple of memory\.sequence_length 5"
    ):
        run_training(config_of(tmp_path, algo_kwargs={"memory": {**MEMORY, "sequence_length": 5}}))
    assert not list(tmp_path.iterdir())
