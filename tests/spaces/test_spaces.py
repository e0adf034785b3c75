"""The way between model actions and environment actions, and which spaces are supported."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

from rl_training.errors import EnvError
from rl_training.models.actions import executed, random_actions
from rl_training.spaces.actions import ActionKind
from rl_training.spaces.spec import Spaces, describe_spaces

OBS = Box(-1.0, 1.0, (3,))


def action_spec(space):
    return describe_spaces(OBS, space).action


def uneven_box(shape, dtype=np.float32):
    count = np.arange(1, int(np.prod(shape)) + 1, dtype=dtype).reshape(shape)
    return Box(np.asarray(-count), np.asarray(2 * count + 3), shape, dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 2), (2, 1, 3)])
def test_a_bounded_box_maps_from_minus_one_to_one_and_back(shape, dtype):
    space = uneven_box(shape, dtype)
    spec = action_spec(space)
    model = np.random.default_rng(0).uniform(-1, 1, (7, *spec.model_shape)).astype(np.float32)
    env = spec.to_env(model)
    assert env.shape == (7, *shape)
    assert env.dtype == dtype
    assert all(space.contains(np.asarray(action)) for action in env)
    back = spec.to_model(env)
    assert back.shape == (7, spec.num_components)
    assert back.dtype == np.float32
    np.testing.assert_allclose(back, model, atol=1e-5)


def test_minus_one_zero_and_one_are_the_low_end_the_middle_and_the_high_end():
    space = Box(np.array([[0.0], [-4.0]], np.float32), np.array([[1.0], [2.0]], np.float32))
    env = action_spec(space).to_env(np.array([[-1, -1], [0, 0], [1, 1]], np.float32))
    assert env.tolist() == [[[0.0], [-4.0]], [[0.5], [-1.0]], [[1.0], [2.0]]]


def test_model_actions_outside_one_are_clipped_to_the_bounds_of_a_bounded_box():
    space = uneven_box((3, 2))
    env = action_spec(space).to_env(
        np.stack([np.full(6, -7.0), np.full(6, 7.0)]).astype(np.float32)
    )
    np.testing.assert_array_equal(env, np.stack([space.low, space.high]))


def test_an_unbounded_box_is_left_untouched():
    spec = action_spec(Box(-np.inf, np.inf, (2, 2)))
    model = np.array([[-50.0, -0.5, 0.5, 50.0]], np.float32)
    np.testing.assert_array_equal(spec.to_env(model), model.reshape(1, 2, 2))
    np.testing.assert_array_equal(spec.to_model(model.reshape(1, 2, 2)), model)
    assert not spec.is_bounded


@pytest.mark.parametrize(
    ("low", "high", "clipped"),
    [
        ((-2, -np.inf, -np.inf), (np.inf, 3, np.inf), [[-2.0, 3.0, 9.0], [1.5, -9.0, -9.0]]),
        ((-2, -3, -4), (np.inf, np.inf, np.inf), [[-2.0, 9.0, 9.0], [1.5, -3.0, -4.0]]),
        ((-np.inf, -np.inf, -np.inf), (1, 2, 3), [[-9.0, 2.0, 3.0], [1.0, -9.0, -9.0]]),
    ],
)
def test_a_half_bounded_box_is_clipped_but_not_scaled(low, high, clipped):
    spec = action_spec(Box(np.array(low, np.float32), np.array(high, np.float32)))
    model = np.array([[-9.0, 9.0, 9.0], [1.5, -9.0, -9.0]], np.float32)
    assert spec.to_env(model).tolist() == clipped
    np.testing.assert_array_equal(spec.to_model(model), model)


@pytest.mark.parametrize(
    "space",
    [
        uneven_box((3, 2)),
        Box(-np.inf, np.inf, (6,), np.float64),
        Box(np.array([-2.0, -np.inf, 0.0], np.float32), np.array([np.inf, 3.0, 1.0], np.float32)),
    ],
    ids=["bounded", "unbounded", "half bounded"],
)
def test_the_action_that_is_executed_is_the_one_that_meets_the_environment(space):
    spec = action_spec(space)
    model = torch.from_numpy(
        np.random.default_rng(0).normal(0, 4, (50, *spec.model_shape)).astype(np.float32)
    )
    within = executed(spec, model)
    np.testing.assert_array_equal(spec.to_env(within.numpy()), spec.to_env(model.numpy()))
    np.testing.assert_allclose(spec.to_model(spec.to_env(model.numpy())), within, atol=1e-6)


def test_a_discrete_action_is_executed_as_it_is():
    choice = torch.tensor([0, 2])
    assert executed(action_spec(Discrete(3)), choice) is choice


@pytest.mark.parametrize("start", [0, 5, -2])
def test_a_discrete_action_counts_from_zero_for_the_model_and_from_start_for_the_environment(start):
    space = Discrete(3, start=start)
    spec = action_spec(space)
    env = spec.to_env(np.array([0, 1, 2]))
    assert env.tolist() == [start, start + 1, start + 2]
    assert all(space.contains(action) for action in env)
    back = spec.to_model(env)
    assert back.tolist() == [0, 1, 2]
    assert back.dtype == np.int64
    assert spec.choices == (3,)


def test_a_two_dimensional_multi_discrete_is_flat_for_the_model_and_shaped_for_the_environment():
    space = MultiDiscrete([[2, 3, 4], [5, 6, 7]], start=[[0, 1, 2], [3, 4, 5]])
    spec = action_spec(space)
    assert spec.choices == (2, 3, 4, 5, 6, 7)
    model = np.array([[0, 0, 0, 0, 0, 0], [1, 2, 3, 4, 5, 6]])
    env = spec.to_env(model)
    assert env.tolist() == [[[0, 1, 2], [3, 4, 5]], [[1, 3, 5], [7, 9, 11]]]
    assert all(space.contains(action) for action in env)
    np.testing.assert_array_equal(spec.to_model(env), model)


@pytest.mark.parametrize(
    "action_space",
    [
        Discrete(4, start=2),
        MultiDiscrete([[2, 3], [4, 5]]),
        uneven_box((2, 3)),
        Box(-np.inf, np.inf, (2,), np.float64),
    ],
    ids=str,
)
@pytest.mark.parametrize("obs_space", [Box(0, 255, (4, 4, 3), np.uint8), Discrete(6), OBS], ids=str)
def test_spaces_restored_from_their_state_act_the_same(obs_space, action_space):
    spaces = describe_spaces(obs_space, action_space)
    restored = Spaces.from_state_dict(spaces.state_dict())
    assert restored.obs == spaces.obs
    action_space.seed(0)
    env = np.stack([action_space.sample() for _ in range(5)])
    model = spaces.action.to_model(env)
    np.testing.assert_array_equal(restored.action.to_model(env), model)
    np.testing.assert_array_equal(restored.action.to_env(model), spaces.action.to_env(model))
    assert restored.action.to_env(model).dtype == action_space.dtype
    assert restored.equals(spaces)


@pytest.mark.parametrize(
    ("space", "described"),
    [
        (Box(0, 255, (4, 4, 3), np.uint8), ((4, 4, 3), "uint8", 48)),
        (Box(-1, 1, (3,), np.float64), ((3,), "float32", 3)),
        (Discrete(6), ((), "int64", 6)),
    ],
)
def test_observations_are_described_as_they_are_stored(space, described):
    spec = describe_spaces(space, Discrete(2)).obs
    assert (spec.shape, spec.dtype, spec.num_features) == described


def test_a_multi_binary_action_is_a_choice_of_two_for_each_bit():
    space = MultiBinary((2, 3))
    spec = action_spec(space)
    assert (spec.kind, spec.choices) == (ActionKind.MULTI_DISCRETE, (2,) * 6)
    env = spec.to_env(np.array([[0, 1, 0, 1, 1, 0]]))
    assert space.contains(env[0])
    assert env.tolist() == [[[0, 1, 0], [1, 1, 0]]]
    assert spec.to_model(env).tolist() == [[0, 1, 0, 1, 1, 0]]


@pytest.mark.parametrize("space", [Tuple([Discrete(2)]), Box(0, 5, (2,), np.int64)], ids=str)
def test_an_unsupported_action_space_is_named(space):
    with pytest.raises(EnvError) as error:
        describe_spaces(OBS, space)
    assert f"action space {space}" in str(error.value)


@pytest.mark.parametrize("space", [Dict(a=Text(4)), Text(4), Discrete(3, start=1)], ids=str)
def test_an_unsupported_observation_space_is_named(space):
    with pytest.raises(EnvError) as error:
        describe_spaces(space, Discrete(2))
    inner = space["a"] if isinstance(space, Dict) else space
    assert f"observation space {inner}" in str(error.value)


@pytest.mark.parametrize("generator", [torch.Generator().manual_seed(0), np.random.default_rng(0)])
def test_random_actions_cover_the_space_with_either_kind_of_generator(generator):
    bounded = random_actions(
        action_spec(Box(np.float32([-2.0, 5.0]), np.float32([0.0, 9.0]))), 500, generator
    )
    half_bounded = random_actions(action_spec(Box(3.0, np.inf, (1,))), 500, generator)
    choices = random_actions(action_spec(MultiDiscrete([3, 2])), 200, generator)
    assert bounded.dtype == half_bounded.dtype == torch.float32
    assert -1.0 <= bounded.min() < -0.95
    assert 0.95 < bounded.max() <= 1.0
    assert 3.0 <= half_bounded.min() < 3.1
    assert 4.9 < half_bounded.max() <= 5.0
    assert len(choices.unique(dim=0)) == 6
    singles = random_actions(action_spec(Discrete(4)), 100, generator)
    assert singles.unique().tolist() == [0, 1, 2, 3]
