"""A fixed set of transitions: what it keeps, what it draws, its episodes, and its way into model space."""

from __future__ import annotations

import warnings
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from dataset_tools import make_dataset, make_fields
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from rl_training.data.offline_dataset import TransitionDataset
from rl_training.errors import DatasetError
from rl_training.replay.transitions import FIELDS
from rl_training.spaces.spec import describe_spaces


def hand_worked(**changes: Any) -> TransitionDataset:
    """Seven rows: an episode that terminates, one that is truncated, one cut by a seam, one cut by the end."""
    values = {
        "obs": [[0.0], [1.0], [10.0], [11.0], [20.0], [30.0], [31.0]],
        "actions": [0, 1, 0, 1, 0, 1, 0],
        "rewards": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
        "next_obs": [[1.0], [2.0], [11.0], [12.0], [21.0], [31.0], [32.0]],
        "terminated": [0, 1, 0, 0, 0, 0, 0],
        "truncated": [0, 0, 0, 1, 0, 0, 0],
    }
    return TransitionDataset(**{**values, **changes})


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy])
def test_arrays_of_the_right_type_are_kept_and_not_copied(convert: Any) -> None:
    fields = make_fields()
    dataset = TransitionDataset(**{name: convert(array) for name, array in fields.items()})
    for name in FIELDS:
        assert np.shares_memory(getattr(dataset, name), fields[name]), name


def test_the_data_cannot_be_changed_through_the_dataset_and_the_inputs_stay_writable() -> None:
    fields = make_fields()
    dataset = TransitionDataset(**fields)
    with pytest.raises(ValueError, match="read-only"):
        dataset.obs[0] = 1.0
    fields["obs"][0] = 1.0


@pytest.mark.parametrize(
    ("field", "given", "kept"),
    [
        ("obs", np.float64, np.float32),
        ("obs", np.float16, np.float32),
        ("obs", np.uint8, np.uint8),
        ("obs", np.int32, np.int64),
        ("actions", np.float64, np.float32),
        ("actions", np.int32, np.int64),
        ("actions", np.uint8, np.int64),
        ("rewards", np.float64, np.float32),
        ("rewards", np.int64, np.float32),
        ("terminated", np.uint8, np.bool_),
        ("truncated", np.float32, np.bool_),
    ],
)
def test_each_field_is_kept_in_its_own_type(field: str, given: type, kept: type) -> None:
    fields = make_fields()
    fields[field] = np.abs(fields[field]).astype(given)
    if field == "obs":
        fields["next_obs"] = fields["next_obs"].astype(given)
    assert getattr(TransitionDataset(**fields), field).dtype == kept


def test_a_column_of_rewards_or_episode_ends_is_taken_as_one_number_per_transition() -> None:
    fields = make_fields()
    columns = {name: fields[name][:, None] for name in ("rewards", "terminated", "truncated")}
    dataset = TransitionDataset(**{**fields, **columns})
    assert dataset.rewards.shape == dataset.terminated.shape == (60,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewards": np.zeros(59)}, "rewards of the dataset has 59 rows and obs has 60"),
        ({"rewards": np.zeros((60, 2))}, "rewards of the dataset has shape (60, 2)"),
        (
            {"next_obs": np.zeros((60, 4), np.float32)},
            "next_obs of the dataset has rows of shape (4,) and obs (3,)",
        ),
        ({"next_obs": np.zeros((60, 3), np.uint8)}, "obs is float32 and next_obs is uint8"),
        (
            {"terminated": np.full(60, 0.5)},
            "terminated[0] of the dataset is 0.5: an episode end flag is 0 or 1",
        ),
        ({"actions": np.array([None] * 60)}, "actions of the dataset is an object array"),
        ({"obs": np.zeros((60, 3), complex)}, "has dtype complex128: store numbers or booleans"),
        ({"actions": np.array(["left"] * 60)}, "actions of the dataset has dtype <U4"),
        ({"obs": np.float32(1.0)}, "obs of the dataset is a single number"),
        ({"actions": np.zeros((60, 0))}, "actions of the dataset has rows of shape (0,)"),
        (make_fields(0), "the dataset is empty"),
    ],
)
def test_a_field_that_does_not_fit_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DatasetError) as error:
        TransitionDataset(**{**make_fields(), **changes})
    assert message in str(error.value)


def test_a_sample_holds_whole_transitions_that_are_drawn_evenly() -> None:
    fields = make_fields()
    batch = TransitionDataset(**fields).sample(60_000)
    rows = batch.obs[:, 0].numpy().astype(int)
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(batch, name).numpy(), fields[name][rows])
    # 1000 expected in each of 60 cells, with a standard deviation of about 31.
    assert abs(np.bincount(rows) - 1000).max() < 150
    assert batch.discounts is None


def test_batches_drawn_at_once_are_the_parts_of_one_sample() -> None:
    whole = make_dataset().sample(24)
    parts = list(make_dataset().sample_batches(8, 3))
    assert [len(part.rewards) for part in parts] == [8, 8, 8]
    for name in FIELDS:
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(whole, name))


def test_an_array_that_lies_unaligned_in_memory_is_sampled_like_any_other() -> None:
    fields = make_fields()
    raw = np.empty(fields["obs"].nbytes + 1, np.uint8)
    raw[1:] = fields["obs"].reshape(-1).view(np.uint8)
    unaligned = raw[1:].view(np.float32).reshape(60, 3)
    assert not unaligned.flags.aligned
    dataset = TransitionDataset(**{**fields, "obs": unaligned})
    assert np.shares_memory(dataset.obs, raw)
    plain = TransitionDataset(**fields)
    assert torch.equal(dataset.sample(100).obs, plain.sample(100).obs)
    assert dataset.fingerprint == plain.fingerprint
    np.testing.assert_array_equal(dataset.episodes(), plain.episodes())


def test_read_only_arrays_are_sampled_without_a_warning() -> None:
    fields = make_fields()
    for array in fields.values():
        array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch = TransitionDataset(**fields).sample(8)
    batch.obs.add_(1.0)


def test_samples_follow_the_seed_and_a_state_that_only_the_same_data_takes() -> None:
    one, same, other = (make_dataset(rng=np.random.default_rng(seed)) for seed in (1, 1, 2))
    first = one.sample(50).obs
    assert torch.equal(first, same.sample(50).obs)
    assert not torch.equal(first, other.sample(50).obs)
    state = deepcopy(one.state_dict())
    assert set(state) == {"rng", "fingerprint"}
    other.load_state_dict(state)
    assert torch.equal(one.sample(50).obs, other.sample(50).obs)
    with pytest.raises(DatasetError, match="differs from the one this run started with"):
        one.with_reward_transform(scale=2.0).load_state_dict(state)


@pytest.mark.parametrize("field", FIELDS)
def test_the_fingerprint_changes_with_a_single_value(field: str) -> None:
    fields = make_fields()
    before = TransitionDataset(**fields).fingerprint
    assert TransitionDataset(**fields).fingerprint == before
    value = fields[field].reshape(-1)[7:8]
    value[:] = value == 0
    assert TransitionDataset(**fields).fingerprint != before


@pytest.mark.parametrize(
    ("transform", "rewards"),
    [
        (
            {"scale": 2.0, "shift": -5.0, "clip_min": -2.0, "clip_max": 6.0},
            [-2.0, -1.0, 1.0, 3.0, 5.0, 6.0, 6.0],
        ),
        ({"clip_min": 6.0}, [6.0] * 6 + [7.0]),
        ({"clip_max": 2.0}, [1.0] + [2.0] * 6),
        ({}, [1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_rewards_are_scaled_then_shifted_then_clipped_in_a_new_object(
    transform: dict[str, float], rewards: list[float]
) -> None:
    dataset = hand_worked()
    changed = dataset.with_reward_transform(**transform)
    assert changed.rewards.tolist() == rewards
    assert dataset.rewards.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert np.shares_memory(changed.obs, dataset.obs)


def test_a_lower_clip_bound_above_the_upper_one_is_refused() -> None:
    with pytest.raises(DatasetError, match=r"lower clip bound 2\.0 is above the upper one 1\.0"):
        hand_worked().with_reward_transform(clip_min=2.0, clip_max=1.0)


def test_episodes_end_at_flags_at_seams_and_at_the_end_of_the_data() -> None:
    dataset = hand_worked()
    assert dataset.dones.nonzero()[0].tolist() == [1, 3]
    assert dataset.episodes().tolist() == [[0, 2], [2, 4], [4, 5], [5, 7]]
    assert dataset.episode_returns().tolist() == [3.0, 7.0, 5.0, 13.0]


def test_a_not_a_number_that_stands_in_both_places_is_no_seam() -> None:
    obs = np.array([[0.0], [np.nan], [2.0], [3.0]], np.float32)
    flags = [False] * 3
    dataset = TransitionDataset(obs[:-1], [0] * 3, [0.0] * 3, obs[1:], flags, flags)
    assert dataset.episodes().tolist() == [[0, 3]]


def test_a_single_transition_is_an_episode() -> None:
    dataset = TransitionDataset([[0.0]], [1], [2.0], [[1.0]], [True], [False])
    assert dataset.episodes().tolist() == [[0, 1]]
    assert dataset.sample(3).rewards.tolist() == [2.0, 2.0, 2.0]


def test_a_split_keeps_episodes_whole_loses_none_and_follows_its_seed() -> None:
    train, held_out = make_dataset(100).split_episodes(0.3, seed=1)
    rows = [part.obs[:, 0].astype(int) for part in (train, held_out)]
    assert (len(rows[0]), len(rows[1])) == (70, 30)
    assert sorted(np.concatenate(rows)) == list(range(100))
    for part in rows:
        assert all((np.diff(part.reshape(-1, 10)) == 1).ravel())
    assert len(train.episodes()) == 7
    again, other = (make_dataset(100).split_episodes(0.3, seed)[1] for seed in (1, 2))
    assert held_out.fingerprint == again.fingerprint != other.fingerprint


@pytest.mark.parametrize(("fraction", "count"), [(0.0, 60), (1.0, 60), (0.5, 10)])
def test_a_split_that_leaves_one_side_empty_is_refused(fraction: float, count: int) -> None:
    with pytest.raises(DatasetError, match="cannot hold out"):
        make_dataset(count).split_episodes(fraction, 0)


OBS = Box(-np.inf, np.inf, (3,))
UNEVEN = Box(np.array([0.0, -4.0]), np.array([1.0, 2.0]), dtype=np.float64)


@pytest.mark.parametrize(
    ("space", "actions", "model"),
    [
        (
            UNEVEN,
            [[0.0, -4.0], [0.5, -1.0], [1.0, 2.0]],
            [[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0]],
        ),
        (UNEVEN, [[1.000002, 2.00001]], [[1.0, 1.0]]),  # beyond its bound by rounding
        (Discrete(3, start=5), [5, 7, 6], [0, 2, 1]),
        (Discrete(3, start=5), [[5], [7], [6]], [0, 2, 1]),
        (MultiDiscrete([[2, 3], [4, 5]]), [[[1, 2], [3, 4]]], [[1, 2, 3, 4]]),
    ],
)
def test_actions_are_brought_to_model_space(space: Any, actions: Any, model: Any) -> None:
    dataset = TransitionDataset(**{**make_fields(len(actions)), "actions": np.array(actions)})
    in_model = dataset.to_model_space(describe_spaces(OBS, space))
    assert in_model.actions.tolist() == model
    assert dataset.actions.tolist() == np.array(actions, dataset.actions.dtype).tolist()
    assert np.shares_memory(in_model.obs, dataset.obs)


@pytest.mark.parametrize(
    ("changes", "spaces", "message"),
    [
        (
            {},  # of several misfits the observations are named first
            (Box(-1, 1, (4,)), Discrete(2)),
            "obs has rows of shape (3,) and the environment's observations have (4,)",
        ),
        (
            {},
            (Box(0, 255, (3,), np.uint8), Box(-1, 1, (2,))),
            "obs is float32 and the environment's observations are uint8",
        ),
        ({}, (Box(-1, 1, (3,)), Discrete(2)), "store each action as an integer"),
        (
            {},
            (Box(-1, 1, (3,)), Box(-1, 1, (3,))),
            "actions have rows of shape (2,) and the environment's actions have (3,)",
        ),
        (
            {},
            (Box(-1, 1, (3,)), Box(0, 1, (2,))),
            "actions lie outside the action space, first actions[",
        ),
        (
            {"actions": np.full((60, 2), np.nan)},
            (Box(-1, 1, (3,)), Box(-1, 1, (2,))),
            "60 of 60 actions lie outside",
        ),
        (
            {"actions": [0] * 59 + [2]},
            (Box(-1, 1, (3,)), Discrete(2)),
            "first actions[59] = 2; its bounds are 0 to 1",
        ),
        (
            {"actions": [0] * 60},
            (Box(-1, 1, (3,)), Box(-1, 1, (1,))),
            "store each action as floats",
        ),
        (
            {"obs": np.arange(60), "next_obs": np.arange(60)},
            (Discrete(8), Box(-1, 1, (2,))),
            "obs[8] is 8: the environment has categories 0 to 7",
        ),
    ],
)
def test_data_of_another_environment_is_refused_with_the_field_at_fault(
    changes: dict[str, Any], spaces: tuple[Any, Any], message: str
) -> None:
    dataset = TransitionDataset(**{**make_fields(), **changes})
    with pytest.raises(DatasetError) as error:
        dataset.to_model_space(describe_spaces(*spaces))
    assert message in str(error.value)


def test_changed_datasets_share_what_does_not_change_and_keep_their_notes() -> None:
    dataset = make_dataset(notes=("a note",))
    changed = dataset.to_model_space(describe_spaces(OBS, Box(-1, 1, (2,))))
    changed = changed.with_sampler(rng=np.random.default_rng(4))
    assert changed.notes == ("a note",)
    for name in FIELDS:
        assert np.shares_memory(getattr(changed, name), getattr(dataset, name)), name
    expected = make_dataset(rng=np.random.default_rng(4)).sample(40)
    assert torch.equal(changed.sample(40).obs, expected.obs)


def test_masks_are_kept_only_for_an_environment_with_masks() -> None:
    masks = np.ones((7, 2), np.bool_)
    dataset = hand_worked(masks=masks, next_masks=masks)
    for has_masks in (True, False):
        spaces = describe_spaces(Box(-99, 99, (1,)), Discrete(2), has_masks=has_masks)
        assert ("next_masks" in dataset.to_model_space(spaces).arrays()) == has_masks


def test_actions_outside_their_bounds_are_clipped_only_on_request() -> None:
    dataset = make_dataset(3)
    spaces = describe_spaces(OBS, Box(-0.01, 0.01, (2,)))
    with pytest.raises(DatasetError, match="actions lie outside the action space"):
        dataset.to_model_space(spaces)
    clipped = dataset.to_model_space(spaces, clip_actions=True)
    np.testing.assert_array_equal(clipped.actions, np.sign(dataset.actions))


def test_the_names_that_files_use_are_understood_in_a_dict() -> None:
    fields = make_fields()
    names = ("observations", "action", "reward", "next_observations", "terminals", "timeouts")
    named = dict(zip(names, fields.values(), strict=True))
    dataset = TransitionDataset.from_dict({**named, "extra": "ignored"})
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(dataset, name), fields[name])
    assert dataset.notes == ()


@pytest.mark.parametrize(
    ("endings", "terminated", "truncated"),
    [
        ({"terminated": [0, 1, 0], "truncated": [0, 0, 1]}, [0, 1, 0], [0, 0, 1]),
        ({"terminated": [0, 1, 0], "dones": [0, 1, 1]}, [0, 1, 0], [0, 0, 1]),
        ({"truncated": [0, 0, 1], "dones": [0, 1, 1]}, [0, 1, 0], [0, 0, 1]),
        ({"dones": [0, 1, 1]}, [0, 1, 1], [0, 0, 0]),
        ({"terminated": [0, 1, 0]}, [0, 1, 0], [0, 0, 0]),
        ({"truncated": [0, 1, 0], "rewards": None}, [0, 0, 0], [0, 1, 0]),
    ],
)
def test_episode_ends_are_told_apart_as_far_as_the_data_allows(
    endings: dict[str, Any], terminated: list[int], truncated: list[int]
) -> None:
    rows = np.zeros((3, 1))
    given = {"obs": rows, "next_obs": rows, "actions": [0] * 3, "rewards": [0] * 3, **endings}
    dataset = TransitionDataset.from_dict(
        {name: values for name, values in given.items() if values is not None}
    )
    assert dataset.terminated.astype(int).tolist() == terminated
    assert dataset.truncated.astype(int).tolist() == truncated
    for words, names in (
        ("every episode end is taken as terminated", {"dones"}),
        ("'truncated' is missing: time limits are unknown", {"terminated"}),
    ):
        assert any(words in note for note in dataset.notes) == (endings.keys() == names)


def test_without_next_observations_seams_are_dropped_and_the_final_observation_stays_the_next_one() -> (
    None
):
    """Rows 0-2 are truncated, 3-4 terminate at the time limit, 5-6 are cut by the end of the file."""
    dataset = TransitionDataset.from_dict(
        {
            "observations": np.arange(7.0)[:, None],
            "actions": np.arange(7),
            "rewards": np.arange(7.0),
            "terminals": [0, 0, 0, 0, 1, 0, 0],
            "timeouts": [0, 0, 1, 0, 1, 0, 0],
        }
    )
    assert dataset.obs[:, 0].tolist() == [0.0, 1.0, 3.0, 4.0, 5.0]
    assert dataset.next_obs[:, 0].tolist() == [1.0, 2.0, 4.0, 4.0, 6.0]
    assert dataset.actions.tolist() == [0, 1, 3, 4, 5]
    assert dataset.terminated.astype(int).tolist() == [0, 0, 0, 1, 0]
    assert dataset.truncated.astype(int).tolist() == [0, 1, 0, 1, 1]
    assert dataset.episodes().tolist() == [[0, 2], [2, 4], [4, 5]]
    assert "2 of 7 transitions were dropped" in dataset.notes[0]


def test_a_last_row_that_terminates_is_kept_without_next_observations() -> None:
    ends = np.array([0, 1])
    dataset = TransitionDataset.from_dict(
        {
            "obs": ends[:, None] * 1.0,
            "actions": ends,
            "rewards": ends,
            "terminated": ends,
            "truncated": ends,
        }
    )
    assert dataset.next_obs[:, 0].tolist() == [1.0, 1.0]
    assert dataset.rewards.tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        ({"obs"}, "the dataset lacks obs (named 'obs' or 'observations'); it has 'actions', "),
        ({"actions"}, "lacks actions (named 'actions' or 'action'); it has 'next_obs', "),
        ({"terminated"}, "lacks terminated (named 'terminated' or"),
        ({"obs", "terminated"}, "lacks obs (named 'obs' or 'observations'), terminated (named"),
    ],
)
def test_a_missing_field_is_named_with_what_is_there(removed: set[str], message: str) -> None:
    fields = {name: array for name, array in make_fields().items() if name not in removed}
    with pytest.raises(DatasetError) as error:
        TransitionDataset.from_dict(fields)
    assert message in str(error.value)


def test_a_field_under_two_names_is_refused() -> None:
    fields = make_fields()
    with pytest.raises(DatasetError, match="both 'obs' and 'observations'"):
        TransitionDataset.from_dict({**fields, "observations": fields["obs"]})
