"""Action masks as environments give them: every source, wrong masks, episode ends, restarts and resumed runs."""

from __future__ import annotations

import itertools
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import HELPERS, small_config
from gymnasium.spaces import Box, Dict, Discrete
from stored_steps import collect

from rl_training.algorithms.dqn import DQNAlgorithm, DQNConfig
from rl_training.algorithms.ppo import PPOAlgorithm
from rl_training.envs.factory import make_vector_env
from rl_training.envs.parallel.vector import TrainingEnv
from rl_training.errors import EnvError, RLTrainingError
from rl_training.evaluation.prediction import predict
from rl_training.experiment.registry import (
    AlgorithmSpec,
    Loop,
    get_algorithm_spec,
    list_algorithm_specs,
    registered,
)
from rl_training.models.actions import random_actions
from rl_training.replay.replay_buffer import ReplayBuffer
from rl_training.runtime.run import run_training
from rl_training.spaces.given import read_masks
from rl_training.spaces.spec import describe_action, describe_spaces
from rl_training.testing.case import AlgorithmCase

ENVS = HELPERS / "masked_envs.py"
MASKED = f"{ENVS}:RandomMasks"
NUM_OPTIONS = {"discrete": 5, "started": 5, "multi_discrete": 7, "multi_binary": 6}
SOURCES = ["info", "method", "dict"]


def make(
    name: str = "RandomMasks", num_envs: int = 2, backend: str = "sync", **kwargs: Any
) -> TrainingEnv:
    return make_vector_env(f"{ENVS}:{name}", {"backend": backend, **kwargs}, num_envs=num_envs)


@pytest.mark.parametrize(
    ("action", "source"),
    [
        *itertools.product(NUM_OPTIONS, SOURCES),
        ("multi_discrete", "parts"),
        ("multi_binary", "parts"),
    ],
)
def test_masks_are_read_from_every_source(action: str, source: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with closing(make(action=action, source=source, notes=str(notes))) as envs:
        assert envs.has_masks
        assert envs.spaces.action.num_options == NUM_OPTIONS[action]
        rows, _ = collect(envs, 40)
        members = [member.env.unwrapped for member in envs.pool.members]  # type: ignore[attr-defined]
        assert np.array_equal(envs.current_masks(), np.stack([member.mask for member in members]))
    assert rows["masks"].shape == (40, 2, NUM_OPTIONS[action])
    assert rows["masks"].dtype == np.bool_
    assert 0.3 < rows["masks"].mean() < 0.9
    assert not notes.exists(), notes.read_text()


def test_the_method_is_found_through_wrappers() -> None:
    with closing(make("WrappedMasks")) as envs:
        assert envs.has_masks
        envs.reset(seed=0)
        members = [member.env.unwrapped for member in envs.pool.members]  # type: ignore[attr-defined]
        assert np.array_equal(envs.current_masks(), np.stack([member.mask for member in members]))


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_the_mask_of_a_step_is_the_one_that_the_step_before_returned(backend: str) -> None:
    with closing(make(backend=backend)) as envs:
        rows, _ = collect(envs, 60)
    ended = rows["terminated"] | rows["truncated"]
    assert rows["terminated"].any()
    assert rows["truncated"].any()
    assert np.array_equal(rows["masks"][1:][~ended[:-1]], rows["next_masks"][:-1][~ended[:-1]])
    differ = (rows["masks"][1:][ended[:-1]] != rows["next_masks"][:-1][ended[:-1]]).any(-1)
    assert differ.mean() > 0.5  # at an episode end, next_masks belong to the final observation


def test_next_masks_of_an_n_step_transition_belong_to_its_last_step() -> None:
    with closing(make(end_probability=0.05)) as envs:
        (rows, _), spaces = collect(envs, 40), envs.spaces
    options: dict[str, Any] = {"rng": np.random.default_rng(0), "device": torch.device("cpu")}
    buffer = ReplayBuffer(spaces, 80, 2, n_step=3, **options)
    for t in range(40):
        buffer.add({name: array[t] for name, array in rows.items()})
    batch = buffer.sample(500)
    places = {
        obs.tobytes(): place for place in np.ndindex(40, 2) for obs in [rows["next_obs"][place]]
    }
    firsts = {obs.tobytes(): place for place in np.ndindex(40, 2) for obs in [rows["obs"][place]]}
    lengths = set()
    for index in range(500):
        first, last = (
            firsts[batch.obs[index].numpy().tobytes()],
            places[batch.next_obs[index].numpy().tobytes()],
        )
        lengths.add(last[0] - first[0] + 1)
        assert np.array_equal(batch.masks[index], rows["masks"][first])
        assert np.array_equal(batch.next_masks[index], rows["next_masks"][last])
    assert lengths == {1, 2, 3}


def test_next_masks_at_an_episode_end_are_those_of_the_final_observation() -> None:
    with closing(make(final="all")) as envs:
        rows, _ = collect(envs, 60)
    ended = rows["terminated"] | rows["truncated"]
    assert rows["next_masks"][ended].all()
    assert not rows["next_masks"][~ended].all(-1).all()
    assert not rows["masks"].all(-1).all()


def test_after_a_terminated_step_a_mask_may_permit_nothing() -> None:
    with closing(make(final="none", end_probability=0.2, length=10_000)) as envs:
        rows, _ = collect(envs, 60)
    assert rows["next_masks"][rows["terminated"]].all()


FORBIDS_ALL = "permits no action: permit at least one"
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "forbids_all": ({}, FORBIDS_ALL),
    "short": ({}, r"shape \(4,\): give one boolean for each option, 5 in all"),
    "two_rows": ({}, r"has shape \(2, 5\)"),
    "text": ({}, "an action mask is <U3"),
    "number": ({}, r"of shape \(\)"),
    "ragged": ({}, "an action mask is object"),
    "forbids_one": ({"action": "multi_discrete"}, "permits no option of component"),
    "missing": ({}, r"no action mask in info\['action_mask'\], where reset gave one"),
}


@pytest.mark.parametrize(
    ("fault", "at", "backend"),
    [
        *((fault, "step", "sync") for fault in FAULTS),
        *((fault, "reset", "sync") for fault in list(FAULTS)[:6]),
        *((fault, "step", "async") for fault in list(FAULTS)[:2]),
    ],
)
def test_a_wrong_mask_is_an_error_that_says_what_is_expected(
    fault: str, at: str, backend: str
) -> None:
    options, words = FAULTS[fault]
    with (
        closing(make("BadMasks", backend=backend, fault=fault, at=at, **options)) as envs,
        pytest.raises(EnvError, match=f"environment 0 of 2 failed in {at}(.|\n)*{words}"),
    ):
        collect(envs, 10)


def test_after_a_truncated_step_a_mask_must_permit_something() -> None:
    with (
        closing(make(final="none", end_probability=0.0)) as envs,
        pytest.raises(EnvError, match=FORBIDS_ALL),
    ):
        collect(envs, 60)


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_in_evaluation_a_wrong_mask_is_a_named_error(backend: str, tmp_path: Path) -> None:
    kwargs = {"fault": "forbids_all", "backend": backend, "max_episode_steps": 20}
    config = small_config(
        "bc",
        tmp_path,
        env_id=f"{ENVS}:BadMasks",
        env_kwargs=kwargs,
        algo_kwargs={"dataset_kind": "npz", "dataset_path": str(tmp_path / "data.npz")},
    )
    with closing(make(num_envs=1)) as envs:
        rows, _ = collect(envs, 50)
    np.savez(tmp_path / "data.npz", **{name: array[:, 0] for name, array in rows.items()})
    with pytest.raises(
        EnvError, match=r"evaluation episode 0(.|\n)*permits no action: permit at least one"
    ):
        run_training(config)


def test_masks_are_not_read_if_they_are_switched_off() -> None:
    with closing(make(action_masks=False)) as envs:
        assert not envs.has_masks
        assert envs.current_masks() is None
        rows, _ = collect(envs, 5)
    assert "masks" not in rows
    with closing(make("BadMasks", fault="forbids_all", at="reset", action_masks=False)) as envs:
        collect(envs, 5)


def test_box_actions_have_no_masks() -> None:
    with closing(make(action="box")) as envs:
        assert not envs.has_masks
        collect(envs, 5)


def test_native_backends_refuse_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    import gymnasium as gym
    from masked_envs import RandomMasks

    gym.register("rl_training_test/Masked-v0", RandomMasks, vector_entry_point=RandomMasks)
    monkeypatch.setitem(
        gym.registry, "rl_training_test/Masked-v0", gym.registry.pop("rl_training_test/Masked-v0")
    )
    with pytest.raises(
        EnvError, match=r"backend: vector does not read the action masks(.|\n)*use sync or async"
    ):
        make_vector_env("rl_training_test/Masked-v0", {"backend": "vector"}, num_envs=2)


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_a_restarted_environment_gives_the_mask_of_its_new_episode(
    backend: str, tmp_path: Path
) -> None:
    kwargs = {"once": str(tmp_path / "once"), "notes": str(tmp_path / "notes"), "max_restarts": 1}
    with closing(make("FailingMasks", backend=backend, **kwargs)) as envs:
        rows, _ = collect(envs, 40)
        assert envs.num_restarts == 1
    assert not (tmp_path / "notes").exists()
    assert (
        rows["truncated"][3].all() or rows["terminated"][3].any()
    )  # the step before the one that was lost


@pytest.mark.parametrize("name", ["RandomMasks", "SavedMasks"])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("backend", ["sync", "async"])
def test_a_restored_environment_has_the_saved_mask(name: str, source: str, backend: str) -> None:
    make_one = partial(make, name, backend=backend, source=source, end_probability=0.0, length=9)
    with closing(make_one()) as first, closing(make_one()) as second:
        collect(first, 13)
        before, state = first.current_masks(), first.state()
        _, reasons = second.restore(state)
        assert reasons == []
        assert np.array_equal(second.current_masks(), before)
        actions = before.reshape(2, -1).argmax(1)
        one, other = (envs.step(actions)[-1] for envs in (first, second))
        for key in ("masks", "next_masks"):
            assert np.array_equal(one[key], other[key])


class MaskBlind(DQNAlgorithm):
    """Would take invalid actions."""

    obeys_masks = False


def test_algorithms_that_do_not_obey_masks_are_refused_with_the_remedy(tmp_path: Path) -> None:
    spec = AlgorithmSpec("mask_blind", "a test's own", MaskBlind, DQNConfig, Loop.OFF_POLICY)
    settings = {"total_timesteps": 48, "env_id": MASKED}
    with registered(spec):
        with pytest.raises(
            EnvError, match="mask_blind does not obey the environment's action masks"
        ) as caught:
            run_training(small_config("mask_blind", tmp_path, **settings))
        remedy = "set env_kwargs.action_masks=false; algorithms for these spaces: a2c, c51, dqn, ppo, qrdqn, sac"
        assert str(caught.value).endswith(remedy)
        assert not list(tmp_path.iterdir())
        run_training(
            small_config("mask_blind", tmp_path, **settings, env_kwargs={"action_masks": False})
        )


def test_the_remedy_names_the_algorithms_that_obey_masks_with_these_observations() -> None:
    plain = describe_spaces(Box(-1.0, 1.0), Discrete(3))
    goals = describe_spaces(
        Dict(dict.fromkeys(("observation", "achieved_goal", "desired_goal"), Box(-1.0, 1.0))),
        Discrete(3),
    )
    for spaces, names in ((plain, set()), (goals, {"her"})):
        masked = replace(spaces, has_masks=True)
        obeying = {spec.name for spec in list_algorithm_specs() if spec.refusal_of(masked) is None}
        assert obeying == {"ppo", "a2c", "dqn", "qrdqn", "c51", "sac", "bc", "cql"} | names


def masked_policy(action: str = "discrete", source: str = "info") -> Any:
    config = get_algorithm_spec("ppo").config_class()
    with closing(make(action=action, source=source)) as envs:
        return AlgorithmCase(PPOAlgorithm, config, Loop.ON_POLICY, MASKED).make(spaces=envs.spaces)


def test_predict_takes_the_mask_of_one_observation_or_of_a_batch() -> None:
    policy, obs = masked_policy(), np.zeros((4, 3), np.float32)
    for number, deterministic in itertools.product(range(5), (True, False)):
        mask = np.eye(5, dtype=bool)[number]
        for given in (mask, mask.tolist()):
            assert predict(policy, obs[0], mask=given, deterministic=deterministic) == number
    rows = np.eye(5)[[3, 0, 4, 1]]
    for given in (rows, rows.tolist()):
        assert predict(policy, obs, mask=given).tolist() == [3, 0, 4, 1]


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("kind", [np.asarray, list])
def test_predict_takes_the_masks_of_several_components_in_every_form(count: int, kind: Any) -> None:
    policy, obs = masked_policy("multi_discrete"), np.zeros((count, 3), np.float32)
    parts = [np.array([0, 1, 0], bool), np.array([0, 0, 0, 1], bool)]
    rows = kind([np.concatenate(parts)] * count)
    for given in (rows, [np.stack([part] * count) for part in parts]):
        assert predict(policy, obs, mask=given).tolist() == [[1, 3]] * count
    for given in (rows[0], parts, [part.tolist() for part in parts]):
        assert predict(policy, obs[0], mask=given).tolist() == [1, 3]


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (None, "trained with action masks: pass mask="),
        ([[1] * 5, [1] * 5, [0] * 5, [1] * 5], f"mask 2 {FORBIDS_ALL}"),
        (np.ones(5), "give one row of 5 per observation"),
        (np.ones((4, 4)), "give one boolean for each option, 5 in all"),
    ],
)
def test_predict_names_what_is_wrong_with_a_mask(mask: Any, words: str) -> None:
    with pytest.raises(RLTrainingError, match=words):
        predict(masked_policy(), np.zeros((4, 3), np.float32), mask=mask)


def test_predict_finds_the_mask_in_a_dict_observation() -> None:
    policy, mask = masked_policy(source="dict"), np.eye(5, dtype=np.int8)
    one = {"vector": np.zeros(3, np.float32), "action_mask": mask[2]}
    assert predict(policy, one) == 2
    assert predict(policy, one, mask=mask[1]) == 1
    batch = {"vector": np.zeros((5, 3), np.float32), "action_mask": mask}
    assert predict(policy, batch).tolist() == list(range(5))


def test_masks_of_an_action_that_starts_elsewhere_count_from_zero() -> None:
    with closing(make(action="started")) as envs:
        spec = envs.spaces.action
    actions = random_actions(spec, 9, np.random.default_rng(0), torch.eye(5).bool()[[0] * 9])
    assert spec.to_env(actions.numpy()).tolist() == [-2] * 9


def test_masks_are_copied_from_what_the_environment_gives() -> None:
    given = np.ones(5, np.bool_)
    assert not np.shares_memory(read_masks(given, (5,)), given)
    assert (read_masks(([1, 0], [0, 1, 1]), (2, 3)) == [1, 0, 0, 1, 1]).all()
    assert describe_action(Box(-1.0, 1.0)).num_options == 0
