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
from dataset_tools import Fields, act_in
from gymnasium.spaces import Box, Discrete
from rich.console import Console

from rl_training.data.dataset_checks import DatasetReport, Finding, Level, check_dataset
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.replay.transitions import FIELDS
from rl_training.spaces.spec import Spaces, describe_spaces
from rl_training.views.findings import render_report


@cache
def rollout(env_id: str, policy: str = "random", num_steps: int = 3000) -> tuple[Fields, Spaces]:
    """Steps in a real environment, taken at random or by a hand-written policy."""
    env = gym.make(env_id)
    steps = act_in(env, num_steps, POLICIES[env_id] if policy == "skilled" else None)
    columns = map(np.asarray, zip(*steps, strict=True))
    fields = dict(zip(FIELDS, columns, strict=True))
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
    change: Callable[[Fields], Fields], env_id: str = "Pendulum-v1", *, thorough: bool = False
) -> DatasetReport:
    """The report on a real rollout in which fields were changed."""
    fields, spaces = rollout(env_id)
    dataset = TransitionDataset(**{**fields, **change(fields)})
    return check_dataset(dataset, spaces, thorough=thorough)


def put(array: np.ndarray, rows: Any, values: Any) -> np.ndarray:
    """A copy of the array with other values in these rows."""
    array = array.copy()
    array[rows] = values
    return array


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
    for thorough in (True, False):
        report = planted(
            lambda fields: {field: put(fields[field], ([70, 90], ...), value)}, thorough=thorough
        )
        finding = find(report, f"{field}_not_finite")
        assert finding.level is Level.ERROR
        assert finding.index == 70
        assert "in 2 of 3,000 rows" in finding.found


Case = tuple[Callable[[Fields], Fields], str, Level, int | None, str]
FAULTS: dict[str, Case] = {
    "a pair of opposite infinities": (
        lambda fields: {"obs": put(fields["obs"], (5, slice(2)), (np.inf, -np.inf))},
        *("obs_not_finite", Level.ERROR, 5, "in 1 of 3,000 rows"),
    ),
    "both episode ends at once": (
        lambda fields: {"terminated": put(fields["terminated"], [199, 399, 599, 799], True)},
        *("terminated_and_truncated", Level.WARNING, 199, "4 of 15 episode ends"),
    ),
    "both episode ends at once, one time": (
        lambda fields: {"terminated": put(fields["terminated"], 199, True)},
        *("terminated_and_truncated", Level.INFO, 199, "1 of 15 episode ends"),
    ),
    "episode ends a row too early": (
        lambda fields: {"truncated": np.roll(fields["truncated"], -1)},
        *("continues_after_end", Level.ERROR, 198, "15 of 15 episode ends"),
    ),
    "no episode ends": (
        lambda fields: {"truncated": fields["terminated"]},
        *("no_episode_ends", Level.WARNING, None, "none of the 3,000 transitions"),
    ),
    "a time limit as termination": (
        lambda fields: {"terminated": fields["truncated"], "truncated": fields["terminated"]},
        *("time_limit_as_termination", Level.WARNING, 199),
        "15 of 15 terminated episodes last exactly 200 steps",
    ),
    "actions beyond their bounds": (
        lambda fields: {"actions": put(fields["actions"], [33, 44], 2.5)},
        *("actions_outside", Level.ERROR, 33),
        "2 of 3,000 actions lie outside -2 to 2, first [2.5]",
    ),
    "actions at a bound, from which every policy can learn": (
        lambda fields: {"actions": put(fields["actions"], slice(None, None, 10), 2.0)},
        *("actions_at_bounds", Level.INFO, 0, "10.0% of the action components"),
    ),
    "actions on another scale": (
        lambda fields: {"actions": fields["actions"] * np.float32(0.05)},
        *("actions_narrow", Level.WARNING, None, "the actions cover 5.0% of their range -2 to 2"),
    ),
    "a constant column of obs": (
        lambda fields: {"obs": put(fields["obs"], (..., 0), 0.25)},
        *("obs_constant", Level.INFO, None, "0 (always 0.25)"),
    ),
    "a constant action": (
        lambda fields: {"actions": put(fields["actions"], ..., 0.25)},
        *("actions_constant", Level.WARNING, None, "0 (always 0.25)"),
    ),
    "constant rewards": (
        lambda fields: {"rewards": 0.0 * fields["rewards"]},
        *("reward_constant", Level.WARNING, None, "every reward is 0"),
    ),
    "tiny rewards": (
        lambda fields: {"rewards": fields["rewards"] * 1e-6},
        *("reward_tiny", Level.WARNING, None, "reward_scale to about 100000"),
    ),
    "huge rewards": (
        lambda fields: {"rewards": fields["rewards"] * 1e4},
        *("reward_huge", Level.WARNING, None, "reward_scale to about 1e-05"),
    ),
    "sparse rewards": (
        lambda fields: {"rewards": np.arange(3000) % 500 == 0},
        *("reward_sparse", Level.INFO, None, "0.20% of the rewards"),
    ),
}
THOROUGH: dict[str, Case] = {
    "next_obs of other rows": (
        lambda fields: {"next_obs": put(fields["next_obs"], [150, 1150], [[-1, 0, 8], [0, 1, -8]])},
        *("next_obs_misaligned", Level.ERROR, 150, "in 2 rows"),
    ),
    "next_obs of the same row": (
        lambda fields: {"next_obs": fields["obs"]},
        *("next_obs_misaligned", Level.ERROR, 0, "obs of the same row"),
    ),
    "next_obs two rows later": (
        lambda fields: {"next_obs": np.roll(fields["obs"], -2, axis=0)},
        *("next_obs_misaligned", Level.ERROR, 0, "two rows later"),
    ),
    "a stretch shifted by a row": (
        lambda fields: {
            "next_obs": put(fields["next_obs"], slice(410, 450), fields["obs"][412:452])
        },
        *("next_obs_misaligned", Level.ERROR, 410, "in 40 rows"),
    ),
    "episodes that end without a flag": (
        lambda fields: {"truncated": put(fields["truncated"], [799, 999], False)},
        *("unflagged_ends", Level.WARNING, 799, "2 episodes end without a flag"),
    ),
}


@pytest.mark.parametrize("case", FAULTS | THOROUGH)
def test_a_fault_is_found(case: str) -> None:
    change, name, level, index, words = (FAULTS | THOROUGH)[case]
    finding = find(planted(change, thorough=case in THOROUGH), name)
    assert (finding.level, finding.index) == (level, index)
    assert words in f"{finding.found} {finding.remedy}"


def test_shuffled_transitions_are_told_from_wrong_ones() -> None:
    order = np.random.default_rng(0).permutation(3000)
    report = planted(
        lambda fields: {name: array[order] for name, array in fields.items()}, thorough=True
    )
    assert find(report, "rows_not_in_order").level is Level.WARNING
    assert report.errors == ()


def test_terminated_episodes_without_a_flag_are_found() -> None:
    (ends,) = np.flatnonzero(rollout("CartPole-v1")[0]["terminated"])[None, 3:5]
    report = planted(
        lambda fields: {"terminated": put(fields["terminated"], ends, False)},
        "CartPole-v1",
        thorough=True,
    )
    finding = find(report, "unflagged_ends")
    assert finding.found.startswith("2 episodes end without a flag")
    assert finding.index == ends[0]


@pytest.mark.parametrize("policy", ["random", "skilled"])
@pytest.mark.parametrize("env_id", ["Pendulum-v1", "CartPole-v1"])
def test_resets_hidden_inside_an_episode_are_found_as_jumps(env_id: str, policy: str) -> None:
    """The layout without next observations, read as if nothing ever ended: each reset looks like one long step."""
    fields, _ = rollout(env_id, policy)
    ends = np.flatnonzero(fields["terminated"] | fields["truncated"])
    unended = {name: fields[name][:-1] for name in ("obs", "actions", "rewards")}
    flags = dict.fromkeys(("terminated", "truncated"), np.zeros(2999, np.bool_))
    report = check_dataset(TransitionDataset(**unended, next_obs=fields["obs"][1:], **flags))
    finding = find(report, "jumps")
    assert finding.level is Level.WARNING
    assert finding.index in ends
    assert 0.4 * len(ends) <= int(finding.found.split()[0].replace(",", "")) <= len(ends)
    assert find(report, "no_episode_ends").level is Level.WARNING


def test_the_next_episodes_first_observation_as_the_final_one_is_found() -> None:
    report = planted(
        lambda fields: {"next_obs": put(fields["next_obs"], slice(-1), fields["obs"][1:])},
        "CartPole-v1",
        thorough=True,
    )
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


def test_an_option_that_does_not_exist_is_an_error() -> None:
    report = planted(lambda fields: {"actions": put(fields["actions"], 7, 2)}, "CartPole-v1")
    assert find(report, "actions_outside").index == 7


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


def test_columns_of_unlike_scale_are_advised_to_be_normalized() -> None:
    scales = np.array([1e4, 1, 1], np.float32)
    report = planted(lambda fields: {name: fields[name] * scales for name in ("obs", "next_obs")})
    assert any("normalize_obs" in advice for advice in report.advice)


def test_the_summary_counts_what_is_there() -> None:
    obs = np.arange(10, dtype=np.float32)[:, None]
    terminated = np.arange(10) == 3
    truncated = np.arange(10) == 7
    next_obs = obs + np.where(terminated | truncated, 0.5, 1.0)[:, None]
    report = check_dataset(
        TransitionDataset(obs, np.arange(10) % 2, np.ones(10), next_obs, terminated, truncated)
    )
    episodes = report.episodes
    counts = (episodes.num_terminated, episodes.num_truncated, episodes.num_unflagged)
    assert (episodes.count, *counts) == (3, 1, 1, 1)
    lengths = episodes.lengths
    assert (lengths.minimum, lengths.median, lengths.maximum) == (2.0, 4.0, 4.0)
    assert episodes.returns.mean == pytest.approx(10 / 3)
    assert [part.count for part in episodes.histogram] == [1] + [0] * 10 + [2]
    assert report.shapes["obs"] == "float32 [1]"


def test_a_single_transition_can_be_looked_at() -> None:
    report = check_dataset(TransitionDataset([[0.0]], [1], [2.0], [[1.0]], [True], [False]))
    assert (report.episodes.count, report.behaviour, report.errors) == (1, None, ())


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
    plain = planted(lambda fields: {"rewards": fields["rewards"] * np.nan}).to_dict()
    text = json.dumps(plain, allow_nan=False)
    assert json.loads(text)["findings"][0]["level"] == "error"
    assert plain["episodes"]["returns"]["mean"] is None


@pytest.mark.parametrize("width", [60, 120])
def test_a_report_shows_its_findings_its_histogram_and_its_advice(width: int) -> None:
    report = planted(lambda fields: {"actions": put(fields["actions"], slice(2), 9.0)})
    assert report.findings[0].level is Level.ERROR
    report = replace(report, notes=("a note",))
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
