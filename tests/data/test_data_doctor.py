"""The dataset doctor finds every fault planted in a rollout, and reports none in clean rollouts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from io import StringIO
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from rich.console import Console

from rl_training.data.dataset_checks import DatasetReport, Finding, Level, check_dataset
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.spaces.spec import Spaces, describe_spaces
from rl_training.views.findings import render_report

Fields = dict[str, np.ndarray]


@cache
def rollout(env_id: str, policy: str = "random", num_steps: int = 3000) -> tuple[Fields, Spaces]:
    """Steps in a real environment, taken at random or by a hand-written policy."""
    env = gym.make(env_id)
    env.action_space.seed(0)
    steps = []
    obs, _ = env.reset(seed=0)
    for _ in range(num_steps):
        action = env.action_space.sample() if policy == "random" else POLICIES[env_id](obs)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        steps.append((obs, action, reward, next_obs, terminated, truncated))
        obs = next_obs
        if terminated or truncated:
            obs, _ = env.reset()
    names = ("obs", "actions", "rewards", "next_obs", "terminated", "truncated")
    fields = {
        name: np.asarray(values)
        for name, values in zip(names, zip(*steps, strict=True), strict=True)
    }
    return fields, describe_spaces(env.observation_space, env.action_space)


def balance_cart(obs: np.ndarray) -> int:
    return int(0.1 * obs[0] + 0.5 * obs[1] + 3 * obs[2] + obs[3] > 0)


def swing_up(obs: np.ndarray) -> np.ndarray:
    cosine, sine, speed = obs
    torque = -10 * np.arctan2(sine, cosine) - 2 * speed if cosine > 0.8 else 1.9 * np.sign(speed)
    return np.clip(np.array([torque], np.float32), -1.99, 1.99)


POLICIES: dict[str, Callable[[np.ndarray], Any]] = {
    "CartPole-v1": balance_cart,
    "Pendulum-v1": swing_up,
}


def planted(
    env_id: str, damage: Callable[[Fields], None], *, thorough: bool = True
) -> DatasetReport:
    """The report on a real rollout after `damage` was done to its arrays."""
    fields, spaces = rollout(env_id)
    fields = {name: array.copy() for name, array in fields.items()}
    damage(fields)
    return check_dataset(TransitionDataset(**fields), spaces, thorough=thorough)


def find(report: DatasetReport, name: str) -> Finding:
    found = {finding.name: finding for finding in report.findings}
    assert name in found, list(found)
    return found[name]


@pytest.mark.parametrize("thorough", [True, False])
@pytest.mark.parametrize(
    ("env_id", "policy"),
    [
        *((env_id, "skilled") for env_id in POLICIES),
        *(
            (env_id, "random")
            for env_id in (*POLICIES, "MountainCar-v0", "Acrobot-v1", "FrozenLake-v1")
        ),
    ],
)
def test_a_clean_rollout_gives_no_alarm(env_id: str, policy: str, thorough: bool) -> None:
    fields, spaces = rollout(env_id, policy)
    report = check_dataset(TransitionDataset(**fields), spaces, thorough=thorough)
    assert [finding for finding in report.findings if finding.level is not Level.INFO] == []


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("field", ["obs", "next_obs", "actions", "rewards"])
def test_a_number_that_is_not_finite_is_found_in_every_field(field: str, value: float) -> None:
    def damage(fields: Fields) -> None:
        fields[field].reshape(len(fields[field]), -1)[[70, 90], -1] = value

    for thorough in (True, False):
        finding = find(planted("Pendulum-v1", damage, thorough=thorough), f"{field}_not_finite")
        assert finding.level is Level.ERROR
        assert finding.index == 70
        assert "in 2 of 3,000 rows" in finding.found


def test_a_pair_of_opposite_infinities_is_found() -> None:
    def damage(fields: Fields) -> None:
        fields["obs"][5, :2] = np.inf, -np.inf

    assert find(planted("Pendulum-v1", damage, thorough=False), "obs_not_finite").index == 5


def test_next_observations_of_other_rows_are_found() -> None:
    def damage(fields: Fields) -> None:
        fields["next_obs"][[150, 1150]] = [[-1.0, 0.0, 8.0], [0.0, 1.0, -8.0]]

    finding = find(planted("Pendulum-v1", damage), "next_obs_misaligned")
    assert finding.level is Level.ERROR
    assert finding.index == 150
    assert "in 2 rows" in finding.found


@pytest.mark.parametrize(("shift", "words"), [(0, "obs of the same row"), (2, "two rows later")])
def test_next_observations_shifted_by_a_row_are_found(shift: int, words: str) -> None:
    def damage(fields: Fields) -> None:
        fields["next_obs"] = np.roll(fields["obs"], -shift, axis=0)

    finding = find(planted("Pendulum-v1", damage), "next_obs_misaligned")
    assert finding.level is Level.ERROR
    assert words in finding.found


def test_a_stretch_shifted_by_a_row_is_found() -> None:
    def damage(fields: Fields) -> None:
        fields["next_obs"][410:450] = fields["obs"][412:452]

    finding = find(planted("Pendulum-v1", damage), "next_obs_misaligned")
    assert finding.index == 410
    assert "in 40 rows" in finding.found


def test_shuffled_transitions_are_told_from_wrong_ones() -> None:
    def damage(fields: Fields) -> None:
        order = np.random.default_rng(0).permutation(3000)
        for name in fields:
            fields[name] = fields[name][order]

    report = planted("Pendulum-v1", damage)
    assert find(report, "rows_not_in_order").level is Level.WARNING
    assert report.errors == ()


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "CartPole-v1"])
def test_episodes_that_end_without_a_flag_are_found(env_id: str) -> None:
    def damage(fields: Fields) -> None:
        ends = np.flatnonzero(fields["terminated"] | fields["truncated"])
        fields["terminated"][ends[3:5]] = fields["truncated"][ends[3:5]] = False

    finding = find(planted(env_id, damage), "unflagged_ends")
    assert finding.level is Level.WARNING
    assert finding.found.startswith("2 episodes end without a flag")
    fields, _ = rollout(env_id)
    assert finding.index == np.flatnonzero(fields["terminated"] | fields["truncated"])[3]


@pytest.mark.parametrize("policy", ["random", "skilled"])
@pytest.mark.parametrize("env_id", ["Pendulum-v1", "CartPole-v1"])
def test_resets_hidden_inside_an_episode_are_found_as_jumps(env_id: str, policy: str) -> None:
    """The layout without next observations, read as if nothing ever ended: each reset looks like one long step."""
    fields, _ = rollout(env_id, policy)
    ends = np.flatnonzero(fields["terminated"] | fields["truncated"])
    nothing = np.zeros(2999, np.bool_)
    dataset = TransitionDataset(
        fields["obs"][:-1],
        fields["actions"][:-1],
        fields["rewards"][:-1],
        fields["obs"][1:],
        nothing,
        nothing,
    )
    report = check_dataset(dataset)
    finding = find(report, "jumps")
    assert finding.level is Level.WARNING
    assert finding.index in ends
    assert 0.4 * len(ends) <= int(finding.found.split()[0].replace(",", "")) <= len(ends)
    assert find(report, "no_episode_ends").level is Level.WARNING


def test_both_episode_ends_at_once_are_found_and_one_is_no_alarm() -> None:
    def damage(fields: Fields, count: int) -> None:
        ends = np.flatnonzero(fields["truncated"])[:count]
        fields["terminated"][ends] = True

    for count, level in ((1, Level.INFO), (4, Level.WARNING)):
        finding = find(
            planted("Pendulum-v1", lambda fields, n=count: damage(fields, n), thorough=False),
            "terminated_and_truncated",
        )
        assert finding.level is level
        assert finding.index == 199
        assert finding.found.startswith(f"{count} of 15 episode ends")


def test_episode_ends_marked_a_row_too_early_are_found() -> None:
    def damage(fields: Fields) -> None:
        fields["truncated"] = np.roll(fields["truncated"], -1)

    finding = find(planted("Pendulum-v1", damage, thorough=False), "continues_after_end")
    assert finding.level is Level.ERROR
    assert finding.index == 198


def test_the_next_episodes_first_observation_as_the_final_one_is_found() -> None:
    def damage(fields: Fields) -> None:
        fields["next_obs"][:-1] = fields["obs"][1:]

    report = planted("CartPole-v1", damage)
    finding = find(report, "continues_after_end")
    assert finding.level is Level.ERROR
    assert "next episode's first observation" in finding.remedy
    assert report.errors == (finding,)
    assert "jumps" not in {other.name for other in report.findings}


def test_a_world_of_few_states_may_begin_where_it_ended() -> None:
    count = 50
    everywhere = np.ones((count, 1), np.float32)
    ends = np.ones(count, np.bool_)
    dataset = TransitionDataset(
        everywhere, np.arange(count) % 2, np.arange(count), everywhere, ends, ~ends
    )
    assert find(check_dataset(dataset), "continues_after_end").level is Level.INFO


def test_data_without_episode_ends_is_found() -> None:
    def damage(fields: Fields) -> None:
        fields["truncated"][:] = False

    assert (
        find(planted("Pendulum-v1", damage, thorough=False), "no_episode_ends").level
        is Level.WARNING
    )


def test_a_time_limit_recorded_as_termination_is_found() -> None:
    def damage(fields: Fields) -> None:
        fields["terminated"], fields["truncated"] = fields["truncated"], fields["terminated"]

    finding = find(planted("Pendulum-v1", damage, thorough=False), "time_limit_as_termination")
    assert finding.level is Level.WARNING
    assert "15 of 15 terminated episodes last exactly 200 steps" in finding.found


def test_actions_beyond_their_bounds_are_an_error() -> None:
    def damage(fields: Fields) -> None:
        fields["actions"][[33, 44]] = 2.5

    finding = find(planted("Pendulum-v1", damage, thorough=False), "actions_outside")
    assert finding.level is Level.ERROR
    assert finding.index == 33
    assert "2 of 3,000 actions lie outside -2 to 2, first [2.5]" in finding.found


def test_an_option_that_does_not_exist_is_an_error() -> None:
    def damage(fields: Fields) -> None:
        fields["actions"][7] = 2

    assert find(planted("CartPole-v1", damage, thorough=False), "actions_outside").index == 7


def test_many_actions_exactly_at_a_bound_are_worth_a_word() -> None:
    def damage(fields: Fields) -> None:
        fields["actions"][::10] = 2.0

    finding = find(planted("Pendulum-v1", damage, thorough=False), "actions_at_bounds")
    assert finding.level is Level.INFO  # every policy here can learn from such actions
    assert finding.found.startswith("10.0% of the action components")


def test_actions_on_another_scale_are_a_warning() -> None:
    def damage(fields: Fields) -> None:
        fields["actions"] *= 0.05

    assert (
        find(planted("Pendulum-v1", damage, thorough=False), "actions_narrow").level
        is Level.WARNING
    )


@pytest.mark.parametrize(
    ("spaces", "name"),
    [
        (describe_spaces(Box(-1, 1, (4,)), Box(-2, 2, (1,))), "obs_misfit"),
        (describe_spaces(Box(-1, 1, (3,)), Discrete(2)), "actions_misfit"),
        (describe_spaces(Box(-1, 1, (3,)), Box(-2, 2, (2,))), "actions_misfit"),
    ],
)
def test_data_of_another_environment_is_an_error(spaces: Spaces, name: str) -> None:
    fields, _ = rollout("Pendulum-v1")
    report = check_dataset(TransitionDataset(**fields), spaces, thorough=False)
    assert find(report, name).level is Level.ERROR


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "CartPole-v1"])
def test_episodes_that_occur_twice_are_found(env_id: str) -> None:
    fields, _ = rollout(env_id)
    end = int(np.flatnonzero(fields["terminated"] | fields["truncated"])[4]) + 1
    doubled = {name: np.concatenate([array, array[:end]]) for name, array in fields.items()}
    finding = find(check_dataset(TransitionDataset(**doubled)), "repeated_transitions")
    assert finding.level is Level.WARNING
    assert finding.index == 3000
    assert finding.found.startswith(f"{end:,} transitions")


@pytest.mark.parametrize(("field", "level"), [("obs", Level.INFO), ("actions", Level.WARNING)])
def test_a_column_that_never_changes_is_found(field: str, level: Level) -> None:
    def damage(fields: Fields) -> None:
        fields[field][:, 0] = 0.25

    finding = find(planted("Pendulum-v1", damage, thorough=False), f"{field}_constant")
    assert finding.level is level
    assert "0 (always 0.25)" in finding.found


@pytest.mark.parametrize(
    ("change", "name", "level", "words"),
    [
        (
            lambda rewards: np.zeros_like(rewards),
            "reward_constant",
            Level.WARNING,
            "every reward is 0",
        ),
        (
            lambda rewards: rewards * 1e-6,
            "reward_tiny",
            Level.WARNING,
            "reward_scale to about 100000",
        ),
        (
            lambda rewards: rewards * 1e4,
            "reward_huge",
            Level.WARNING,
            "reward_scale to about 1e-05",
        ),
        (
            lambda rewards: (np.arange(len(rewards)) % 500 == 0) * 1.0,
            "reward_sparse",
            Level.INFO,
            "0.20% of the rewards",
        ),
    ],
    ids=["constant", "tiny", "huge", "sparse"],
)
def test_rewards_that_teach_badly_are_found(
    change: Callable[[np.ndarray], np.ndarray], name: str, level: Level, words: str
) -> None:
    def damage(fields: Fields) -> None:
        fields["rewards"] = change(fields["rewards"])

    finding = find(planted("Pendulum-v1", damage, thorough=False), name)
    assert finding.level is level
    assert words in f"{finding.found} {finding.remedy}"


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "CartPole-v1"])
def test_a_near_deterministic_policy_is_distinguished_from_a_random_one(env_id: str) -> None:
    random, skilled = (
        check_dataset(TransitionDataset(**rollout(env_id, policy)[0]))
        for policy in ("random", "skilled")
    )
    assert random.behaviour is not None
    assert skilled.behaviour is not None
    assert random.behaviour.measure == ("r2" if env_id == "Pendulum-v1" else "accuracy")
    assert random.behaviour.determinism < 0.1
    assert skilled.behaviour.determinism > 0.8
    assert "imitating them (bc) does not help" in random.advice[0]
    assert "bc should match it; to improve on it" in skilled.advice[0]


def test_a_mixture_is_advised_to_be_combined() -> None:
    random, skilled = rollout("Pendulum-v1")[0], rollout("Pendulum-v1", "skilled")[0]
    mixed = {name: np.concatenate([random[name], skilled[name]]) for name in random}
    assert (
        "The dataset mixes policies: use iql" in check_dataset(TransitionDataset(**mixed)).advice[0]
    )


def test_errors_are_to_be_fixed_first() -> None:
    def damage(fields: Fields) -> None:
        fields["rewards"][3] = np.nan

    report = planted("Pendulum-v1", damage)
    assert report.findings[0].level is Level.ERROR
    assert report.advice[0].startswith("Fix the errors first")


def test_columns_of_unlike_scale_are_advised_to_be_normalized() -> None:
    def damage(fields: Fields) -> None:
        fields["obs"][:, 0] *= 1e4
        fields["next_obs"][:, 0] *= 1e4

    assert any("normalize_obs" in advice for advice in planted("Pendulum-v1", damage).advice)


def test_the_summary_counts_what_is_there() -> None:
    obs = np.arange(10, dtype=np.float32)[:, None]
    terminated = np.arange(10) == 3
    truncated = np.arange(10) == 7
    next_obs = obs + np.where(terminated | truncated, 0.5, 1.0)[:, None]
    report = check_dataset(
        TransitionDataset(obs, np.arange(10) % 2, np.ones(10), next_obs, terminated, truncated)
    )
    episodes = report.episodes
    assert (
        episodes.count,
        episodes.num_terminated,
        episodes.num_truncated,
        episodes.num_unflagged,
    ) == (3, 1, 1, 1)
    assert (episodes.lengths.minimum, episodes.lengths.median, episodes.lengths.maximum) == (
        2.0,
        4.0,
        4.0,
    )
    assert episodes.returns.mean == pytest.approx(10 / 3)
    assert [part.count for part in episodes.histogram] == [1] + [0] * 10 + [2]
    assert report.shapes["obs"] == "float32 [1]"


def test_a_single_transition_can_be_looked_at() -> None:
    report = check_dataset(TransitionDataset([[0.0]], [1], [2.0], [[1.0]], [True], [False]))
    assert report.episodes.count == 1
    assert report.behaviour is None
    assert report.errors == ()


def test_images_can_be_looked_at() -> None:
    rng = np.random.default_rng(0)
    obs = rng.integers(0, 256, (201, 8, 8, 3), np.uint8)
    truncated = np.arange(200) % 50 == 49
    next_obs = np.where(truncated[:, None, None, None], obs[1:] ^ 1, obs[1:])
    dataset = TransitionDataset(
        obs[:-1],
        rng.integers(0, 4, 200),
        rng.normal(size=200),
        next_obs,
        np.zeros(200, np.bool_),
        truncated,
    )
    spaces = describe_spaces(Box(0, 255, (8, 8, 3), np.uint8), Discrete(4))
    assert check_dataset(dataset, spaces).findings == ()


def test_a_report_is_plain_enough_for_json() -> None:
    def damage(fields: Fields) -> None:
        fields["rewards"][:] = np.nan

    plain = planted("Pendulum-v1", damage).to_dict()
    text = json.dumps(plain, allow_nan=False)
    assert json.loads(text)["findings"][0]["level"] == "error"
    assert plain["episodes"]["returns"]["mean"] is None


@pytest.mark.parametrize("width", [60, 120])
def test_a_report_shows_its_findings_its_histogram_and_its_advice(width: int) -> None:
    def damage(fields: Fields) -> None:
        fields["actions"][:2] = 9.0

    report = replace(planted("Pendulum-v1", damage), notes=("a note",))
    out = StringIO()
    Console(file=out, width=width).print(render_report(report))
    text = " ".join(out.getvalue().split())
    assert "1 error" in text
    assert "actions_outside: 2 of 3,000 actions lie outside" in text
    assert "█" in text
    assert "• a note" in text
    assert "Fix the errors first" in text


def test_a_report_on_clean_data_says_so() -> None:
    fields, spaces = rollout("Pendulum-v1")
    out = StringIO()
    Console(file=out, width=100).print(
        render_report(check_dataset(TransitionDataset(**fields), spaces))
    )
    assert "no faults found" in out.getvalue()
