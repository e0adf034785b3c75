"""HER: the choice of relabelled goals, their rewards, and runs that use it."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import TESTS, env_of, small_config, step_of
from gymnasium.spaces import Box, Dict, Discrete
from run_tools import StopAt, assert_same_end

from rl_training import HER
from rl_training.envs.factory import EnvSource
from rl_training.envs.goal_rewards import GoalRewards
from rl_training.envs.goals import BitFlipEnv
from rl_training.errors import ConfigError, EnvError
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.plugins.gate import unknown_code
from rl_training.replay.hindsight_replay import HindsightReplay, find_goals
from rl_training.runtime.run import run_training
from rl_training.runtime.workflows import evaluate_checkpoint, predict_checkpoint, resume_training
from rl_training.spaces.spec import describe_observation, describe_spaces

POINT, BITS = env_of("her"), "rl_training.envs.goals:BitFlipEnv"
HERE = str(TESTS / "replay" / "test_hindsight_replay.py")
GAMMA = 0.9
NUM_ENVS = 3
PLACE = Box(-np.inf, np.inf, (3,), np.float32)
SPACES = describe_spaces(
    Dict(observation=PLACE, achieved_goal=PLACE, desired_goal=PLACE),
    gym.spaces.Box(-1, 1, (1,), np.float32),
)
ACHIEVED, DESIRED, SEEN = (
    SPACES.obs.columns(key) for key in ("achieved_goal", "desired_goal", "observation")
)
ORIGINAL_GOAL = -1.0


def distance(achieved: np.ndarray, desired: np.ndarray) -> tuple[np.ndarray, None]:
    """A reward that tells which two steps it was computed from."""
    return (100.0 * achieved[:, 2] + desired[:, 2]).astype(np.float32), None


def reached(achieved: np.ndarray, desired: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return distance(achieved, desired)[0], (achieved == desired).all(1)


def make_buffer(
    capacity: int,
    *,
    strategy: str = "future",
    seed: int = 0,
    goal_rewards: Any = distance,
    **options: Any,
):
    options = {
        "rng": np.random.default_rng(seed),
        "device": torch.device("cpu"),
        "gamma": GAMMA,
        **options,
    }
    options = {"goals_per_step": 4, **options}
    return HindsightReplay(
        SPACES, capacity, NUM_ENVS, goal_rewards=goal_rewards, strategy=strategy, **options
    )


class Steps:
    """What happens in each environment, with episodes of chance length; every place is (env, episode, step)."""

    def __init__(self, num_rows: int, ending_rate: float = 0.2) -> None:
        rng = np.random.default_rng(7)
        self.ended = rng.random((num_rows, NUM_ENVS)) < ending_rate
        self.terminated = self.ended & (rng.random((num_rows, NUM_ENVS)) < 0.5)
        self.episode = np.vstack([np.zeros((1, NUM_ENVS), int), self.ended[:-1].cumsum(0)])

    def feed(self, buffer: HindsightReplay, first: int, stop: int) -> None:
        for row in range(first, stop):
            obs, next_obs = np.full((2, NUM_ENVS, 9), ORIGINAL_GOAL, np.float32)
            for array, step in ((obs, row), (next_obs, row + 1)):
                place = np.stack(
                    [np.arange(NUM_ENVS), self.episode[row], np.full(NUM_ENVS, step)], -1
                )
                array[:, SEEN] = array[:, ACHIEVED] = place
            truncated = self.ended[row] & ~self.terminated[row]
            actions, rewards = (
                np.zeros((NUM_ENVS, 1), np.float32),
                np.full(NUM_ENVS, -7.0, np.float32),
            )
            buffer.add(step_of(obs, actions, rewards, next_obs, self.terminated[row], truncated))

    def window(self, env: int, row: int, oldest: int, newest: int) -> tuple[int, int]:
        """The first and the last stored row of the episode that a row belongs to."""
        same = [
            r for r in range(oldest, newest + 1) if self.episode[r, env] == self.episode[row, env]
        ]
        return same[0], same[-1]


def expected_rows(strategy: str, row: int, first: int, last: int) -> range:
    return {
        "future": range(row, last + 1),
        "final": range(last, last + 1),
        "episode": range(first, last + 1),
    }[strategy]


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@pytest.mark.parametrize(
    "num_rows", [1, 4, 10, 27, 30], ids=["one", "part", "full", "wrapped", "wrapped_to_the_edge"]
)
@pytest.mark.parametrize("ending_rate", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("restored", [False, True])
def test_relabelled_goals_are_what_was_achieved_at_the_right_steps_of_the_same_episode(
    strategy: str, num_rows: int, ending_rate: float, restored: bool
):
    steps, buffer = Steps(num_rows, ending_rate), make_buffer(10 * NUM_ENVS, strategy=strategy)
    half = num_rows // 2 if restored else num_rows
    steps.feed(buffer, 0, half)
    if restored:
        saved, buffer = (
            deepcopy(buffer.state_dict()),
            make_buffer(10 * NUM_ENVS, strategy=strategy, seed=5),
        )
        buffer.load_state_dict(saved)
    steps.feed(buffer, half, num_rows)
    batch = buffer.sample(1200)
    goals, seen = batch.obs[:, DESIRED].numpy(), batch.obs[:, SEEN].numpy().astype(int)
    assert torch.equal(batch.obs[:, DESIRED], batch.next_obs[:, DESIRED])
    drawn: dict[tuple[int, int], set[int]] = {}
    for index, (env, _, row) in enumerate(seen):
        if index % 5 == 0:  # one in five keeps its original goal, reward and terminated flag
            assert goals[index].tolist() == [ORIGINAL_GOAL] * 3
            assert batch.rewards[index] == -7.0
        else:
            assert goals[index, :2].tolist() == [env, steps.episode[row, env]]
            assert (
                batch.rewards[index] == 100.0 * (row + 1) + goals[index, 2]
            )  # of the place that was reached
            drawn.setdefault((env, row), set()).add(int(goals[index, 2]) - 1)
        assert batch.terminated[index] == steps.terminated[row, env]
    oldest = max(0, num_rows - 10)
    assert len(drawn) == NUM_ENVS * (num_rows - oldest)
    for (env, row), rows in drawn.items():
        allowed = expected_rows(strategy, row, *steps.window(env, row, oldest, num_rows - 1))
        assert rows <= set(allowed)
        if len(allowed) <= 4:  # of about 30 draws
            assert rows == set(allowed)


def test_goals_are_spread_evenly_over_the_steps_to_come():
    steps, buffer = Steps(10, ending_rate=0.0), make_buffer(10 * NUM_ENVS)
    steps.feed(buffer, 0, 10)
    batch = buffer.sample(100_000)
    is_first = (batch.obs[:, SEEN][:, 2] == 0) & (batch.obs[:, DESIRED][:, 2] != ORIGINAL_GOAL)
    counts = np.bincount(batch.obs[is_first][:, DESIRED][:, 2].long() - 1)
    assert len(counts) == 10
    assert (
        abs(counts / counts.sum() - 0.1).max() < 0.02
    )  # 800 expected of each, with a standard deviation of about 27


@pytest.mark.parametrize("goals_per_step", [1, 4, 9])
def test_each_batch_has_its_fraction_of_relabelled_goals(goals_per_step: int):
    steps, buffer = Steps(10), make_buffer(30, goals_per_step=goals_per_step)
    steps.feed(buffer, 0, 10)
    for batch in buffer.sample_batches(64, 5):
        num_original = int((batch.obs[:, DESIRED][:, 0] == ORIGINAL_GOAL).sum())
        assert abs(num_original - 64 / (goals_per_step + 1)) < 1


def test_an_episode_that_was_cut_ends_there():
    steps, buffer = Steps(10, ending_rate=0.0), make_buffer(30, strategy="final")
    steps.feed(buffer, 0, 4)
    buffer.truncate_newest()
    buffer.truncate_newest()
    steps.feed(buffer, 4, 10)
    batch = buffer.sample(500)
    is_new = batch.obs[:, DESIRED][:, 0] != ORIGINAL_GOAL
    row, goal = (batch.obs[is_new][:, part][:, 2] for part in (SEEN, DESIRED))
    assert torch.equal(goal, torch.where(row < 4, 4.0, 10.0))


@pytest.mark.parametrize("goal_rewards", [distance, reached])
@pytest.mark.parametrize("n_step", [2, 4])
def test_the_rewards_of_all_n_steps_are_those_of_the_relabelled_goal(
    goal_rewards: Any, n_step: int
):
    """Against a loop: the sum ends with the episode, with the newest row, or where the relabelled goal is reached."""
    steps, buffer = Steps(33), make_buffer(20 * NUM_ENVS, n_step=n_step, goal_rewards=goal_rewards)
    steps.feed(buffer, 0, 33)
    batch = buffer.sample(600)
    for index, (env, _, row) in enumerate(batch.obs[:, SEEN].long().tolist()):
        goal = batch.obs[index, DESIRED]
        total, discount = 0.0, 1.0
        for last in range(row, row + n_step):
            is_there = last + 1 == goal[2] and goal_rewards is reached
            total += discount * (
                -7.0 if goal[0] == ORIGINAL_GOAL else 100.0 * (last + 1) + goal[2].item()
            )
            discount *= GAMMA
            if is_there or steps.ended[last, env] or last == 32:
                break
        assert batch.rewards[index].item() == pytest.approx(total, rel=1e-5)
        assert batch.discounts[index].item() == pytest.approx(discount)
        assert batch.next_obs[index, SEEN].tolist() == [env, steps.episode[row, env], last + 1]
        is_recomputed = goal_rewards is reached and goal[0] != ORIGINAL_GOAL
        assert batch.terminated[index] == (
            is_there if is_recomputed else steps.terminated[last, env]
        )


@pytest.mark.parametrize("saved_after", [6, 33])
@pytest.mark.parametrize("strategy", ["future", "episode"])
def test_a_restored_buffer_continues_identically(saved_after: int, strategy: str):
    steps, buffer = Steps(60, 0.05), make_buffer(20 * NUM_ENVS, strategy=strategy)
    steps.feed(buffer, 0, saved_after)
    buffer.sample(5)
    restored = make_buffer(20 * NUM_ENVS, strategy=strategy, seed=9)
    restored.load_state_dict(deepcopy(buffer.state_dict()))
    for first in range(saved_after, saved_after + 24, 2):
        one, other = buffer.sample(200), restored.sample(200)
        assert torch.equal(one.obs, other.obs)
        assert torch.equal(one.rewards, other.rewards)
        steps.feed(buffer, first, first + 2)
        steps.feed(restored, first, first + 2)


class OneByOne(BitFlipEnv):
    """Computes the rewards of single steps only, as an array of one, and does not tell of endings."""

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any = None) -> Any:
        assert isinstance(info, dict)
        return np.array([0.0 if (achieved_goal == desired_goal).all() else -1.0])

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any = None) -> Any:
        if info is None:
            return super().compute_terminated(achieved_goal, desired_goal)
        raise NotImplementedError


class Confusing(BitFlipEnv):
    """Takes many rows at once, and gives each what belongs to the first."""

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any = None) -> Any:
        rewards = super().compute_reward(achieved_goal, desired_goal)
        return rewards if np.ndim(rewards) == 0 else np.full_like(rewards, rewards[0])


class Mute(BitFlipEnv):
    """Cannot compute rewards."""

    compute_reward = property()  # type: ignore[assignment]


class Failing(BitFlipEnv):
    """Fails to compute rewards."""

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any = None) -> Any:
        raise ZeroDivisionError("no such goal")


@pytest.mark.parametrize("env_id", [BITS, f"{HERE}:OneByOne", f"{HERE}:Confusing"])
def test_the_environment_judges_many_rows_as_it_judges_each(env_id: str):
    goal_rewards = GoalRewards(EnvSource.parse(env_id, {"num_bits": 2}))
    rows = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float32)
    achieved, desired = rows.repeat(4, 0), np.tile(rows, (4, 1))
    rewards, terminated = goal_rewards(achieved, desired)
    assert rewards.dtype == np.float32
    assert rewards.tolist() == (np.eye(4) - 1).reshape(-1).tolist()
    if "OneByOne" in env_id:
        assert terminated is None
    else:
        assert terminated.tolist() == np.eye(4, dtype=bool).reshape(-1).tolist()
    goal_rewards.close()


def test_new_rewards_go_through_the_reward_wrappers():
    wrappers = {"reward": {"scale": 3.0, "shift": 0.5, "clip": [-2.0, 0.25]}}
    goal_rewards = GoalRewards(EnvSource.parse(POINT, {"wrappers": wrappers}))
    rewards, _ = goal_rewards(
        np.zeros((2, 2), np.float32), np.array([[0.0, 0.05], [0.5, 0.0]], np.float32)
    )
    assert rewards.tolist() == [0.25, -2.0]


def test_recorded_rewards_and_endings_are_those_computed_for_the_recorded_goal(tmp_path: Path):
    """What a run stored, judged again: relabelling with the same goal would change nothing."""
    changes = {
        "env_id": BITS,
        "env_kwargs": {"num_bits": 4, "wrappers": {"reward": {"scale": 0.1}}},
    }
    options = {"replay": {"kind": "her"}, "learning_starts": 400}
    config = small_config("dqn", tmp_path, total_timesteps=400, **changes, algo_kwargs=options)
    result = run_training(config)
    (segment,) = load_checkpoint(result.run_dir).buffer_state["segments"]
    rows = {name: array[:, 0] for name, array in segment.arrays.items()}
    achieved, desired = find_goals(describe_observation(BitFlipEnv(4).observation_space))
    rewards, terminated = GoalRewards(EnvSource.parse(BITS, config.env_kwargs))(
        rows["next_obs"][:, achieved], rows["next_obs"][:, desired]
    )
    np.testing.assert_array_equal(rewards, rows["rewards"])
    np.testing.assert_array_equal(terminated, rows["terminated"])
    assert 5 < terminated.sum() < 200


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"env_id": "CartPole-v1"},
            "needs a Dict observation with the keys observation, achieved_goal, desired_goal",
        ),
        ({"env_id": f"{HERE}:Mute"}, "Mute': it has no compute_reward"),
        ({"env_id": f"{HERE}:Failing"}, "it raised ZeroDivisionError: no such goal"),
    ],
)
def test_an_environment_that_cannot_be_judged_is_refused_before_anything_is_made(
    changes: dict[str, Any], message: str, tmp_path: Path
):
    options = {"replay": {"kind": "her"}}
    with pytest.raises(EnvError, match=message):
        run_training(small_config("dqn", tmp_path / "runs", algo_kwargs=options, **changes))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("goal", "extra", "message"),
    [
        (Discrete(3), {}, "to be Box or MultiBinary"),
        (Box(0, 255, (3,), np.uint8), {}, "to be Box or MultiBinary"),
        (PLACE, {"camera": Box(0, 255, (40, 40, 3), np.uint8)}, "without images"),
        (Dict(a=PLACE, b=PLACE), {}, "to be Box or MultiBinary"),
    ],
)
def test_goals_that_cannot_be_exchanged_are_refused(
    goal: gym.Space, extra: dict[str, gym.Space], message: str
):
    space = Dict(observation=PLACE, achieved_goal=goal, desired_goal=goal, **extra)
    with pytest.raises(EnvError, match=message):
        find_goals(describe_observation(space))
    mixed = Dict(observation=PLACE, achieved_goal=PLACE, desired_goal=Box(-1, 1, (2,)))
    with pytest.raises(EnvError, match="of one shape"):
        find_goals(describe_observation(mixed))


@pytest.mark.parametrize(("backend", "num_envs"), [("sync", 1), ("sync", 3), ("async", 3)])
def test_a_stopped_and_resumed_run_equals_one_that_never_stopped(
    backend: str, num_envs: int, tmp_path: Path
):
    algo, env_id = ("dqn", BITS) if backend == "sync" else ("sac", POINT)
    replay = {"kind": "her", "strategy": "episode", "goals_per_step": 3}
    changes = {
        "env_id": env_id,
        "env_kwargs": {"backend": backend},
        "num_envs": num_envs,
        "total_timesteps": 160,
        "algo_kwargs": {"replay": replay, "n_step": 2, "buffer_capacity": 60},
    }
    whole = run_training(small_config(algo, tmp_path / "whole", **changes))
    stopped = run_training(
        small_config(algo, tmp_path / "stopped", **changes), callbacks=[StopAt(100, "update")]
    )
    assert stopped.stop_reason == "test"
    assert_same_end(whole, resume_training(stopped.run_dir))


def test_her_is_sac_with_another_replay():
    parse = get_algorithm_spec("her").parse_kwargs
    sac = get_algorithm_spec("sac").parse_kwargs({"replay": {"kind": "her", "strategy": "final"}})
    config = parse({"replay": {"strategy": "final"}})
    assert config.model_dump() == sac.model_dump()
    assert parse({}).replay.goals_per_step == 4
    with pytest.raises(ConfigError, match="alpha is for kind 'prioritized'"):
        parse({"replay": {"alpha": 0.5}})
    assert parse({"batch_size": 5}).batch_size == 5
    with pytest.raises(ConfigError, match="batch_size 4 is too small"):
        parse({"batch_size": 4})


def test_a_policy_with_goals_predicts_from_a_dictionary_and_its_success_is_told(tmp_path: Path):
    stopping = {"metric": "eval_success_rate", "patience": 100}
    config = small_config(
        "her", tmp_path, algo_kwargs={"early_stopping": stopping}, eval_episodes=3
    )
    result = run_training(config)
    assert result.metrics["eval_success_rate"] in {0.0, 1 / 3, 2 / 3, 1.0}
    assert (
        evaluate_checkpoint(result.run_dir)["eval_success_rate"]
        == result.metrics["eval_success_rate"]
    )
    obs = {"observation": np.zeros(2), "achieved_goal": np.zeros(2), "desired_goal": np.ones(2)}
    action = predict_checkpoint(result.run_dir, obs)
    assert action.shape == (2,)
    batch = {key: np.stack([value, value]) for key, value in obs.items()}
    np.testing.assert_allclose(HER.load(result.run_dir).predict(batch), [action, action], rtol=1e-5)


def test_the_environments_of_the_package_are_code_that_a_checkpoint_may_name():
    assert unknown_code(BITS) is None
    assert unknown_code("gymnasium_robotics:FetchReach-v4") is None
    assert unknown_code("some_package:FetchReach-v4") == "some_package"


def test_success_cannot_be_watched_where_it_is_not_told(tmp_path: Path):
    stopping = {"early_stopping": {"metric": "eval_success_rate"}}
    with pytest.raises(ConfigError, match="unknown metric 'eval_success_rate'"):
        run_training(small_config("dqn", tmp_path, algo_kwargs=stopping))
