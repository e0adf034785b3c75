"""Observations of every supported space: how they are stored, read by networks, trained on and predicted from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import small_config
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple, flatten
from gymnasium.vector.utils import concatenate, create_empty_array
from run_tools import StopAt, assert_same_end

from rl_training.errors import ConfigError, EnvError, NonFiniteError
from rl_training.models.encoders import ObsNetwork, make_preprocessor
from rl_training.models.mlp import MLPSpec
from rl_training.runtime.run import run_training
from rl_training.runtime.workflows import load_algorithm, predict, resume_training
from rl_training.spaces.observations import ObsSpec
from rl_training.spaces.spec import describe_observation

IMAGE = Box(0, 255, (40, 44, 3), np.uint8)
NESTED = Dict(
    position=Box(-1, 1, (2, 2)),
    inner=Dict(kind=Discrete(3, start=5), bits=MultiBinary(4)),
    pair=Tuple([MultiDiscrete([2, 3]), Box(0, 1, (1,), np.float64)]),
)


def batch_of(space: gym.Space, count: int = 5) -> tuple[list[Any], Any]:
    space.seed(0)
    single = [space.sample() for _ in range(count)]
    return single, concatenate(space, single, create_empty_array(space, count))


def test_a_nested_space_is_stored_as_gymnasium_flattens_it():
    spec = describe_observation(NESTED)
    single, batch = batch_of(NESTED)
    stored = spec.as_stored(batch)
    assert (spec.dtype, stored.dtype, stored.shape) == ("float32", np.float32, (5, *spec.shape))
    np.testing.assert_array_equal(
        stored, np.stack([flatten(NESTED, obs) for obs in single]).astype(np.float32)
    )
    np.testing.assert_array_equal(spec.one_as_stored(single[3]), stored[3])
    assert spec.num_features == spec.shape[0] == 4 + 3 + 4 + 5 + 1


@pytest.mark.parametrize("space", [MultiBinary((2, 3)), MultiDiscrete([3, 2])], ids=str)
def test_bits_and_several_categories_are_stored_as_numbers(space):
    spec = describe_observation(space)
    single, batch = batch_of(space)
    flat = spec.as_stored(batch).reshape(5, -1)
    np.testing.assert_array_equal(flat, np.stack([flatten(space, obs) for obs in single]))


def test_images_among_numbers_are_stored_as_bytes_behind_them():
    space = Dict(camera=IMAGE, speed=Box(-9, 9, (2,)), tiny=Box(0, 255, (3,), np.uint8))
    spec = describe_observation(space)
    _, batch = batch_of(space)
    stored = spec.as_stored(batch)
    assert (spec.dtype, stored.shape) == ("uint8", (5, 4 * 5 + 40 * 44 * 3))
    numbers = spec.numbers(stored)
    np.testing.assert_array_equal(numbers[:, :2], batch["speed"])
    np.testing.assert_allclose(numbers[:, 2:], batch["tiny"] / 255, rtol=1e-6)
    np.testing.assert_array_equal(stored[:, 20:].reshape(5, 40, 44, 3), batch["camera"])
    assert (spec.num_features, spec.image_shapes) == (5, ((40, 44, 3),))


@pytest.mark.parametrize(
    "space", [NESTED, Dict(a=IMAGE, b=Discrete(3)), IMAGE, MultiDiscrete([3, 2])], ids=str
)
def test_a_spec_restored_from_its_state_stores_the_same(space):
    spec = describe_observation(space)
    restored = ObsSpec.from_state_dict(spec.state_dict())
    assert restored == spec
    _, batch = batch_of(space)
    np.testing.assert_array_equal(restored.as_stored(batch), spec.as_stored(batch))


@pytest.mark.parametrize(
    ("changes", "of_leaf"),
    [
        ({"shape": [10**9]}, {}),
        ({"dtype": "object"}, {}),
        ({}, {"shape": [-1]}),
        ({}, {"shape": [2, 2], "is_image": True}),
        ({}, {"path": [None]}),
        ({}, {"choices": [17], "start": [0]}),
        ({}, {"shape": [1], "choices": [17]}),
        ({}, {"scale": []}),
        ({}, {"shape": [1], "choices": [17], "start": ["x"]}),
    ],
)
def test_a_forged_state_is_refused(changes, of_leaf):
    space = Dict(a=Box(-1, 1, (17,)))
    state = describe_observation(space).state_dict()
    assert ObsSpec.from_state_dict(state) == describe_observation(space)
    state["leaves"][0] |= of_leaf
    with pytest.raises(ValueError, match=r"leaf|leaves|observation|size"):
        ObsSpec.from_state_dict({**state, **changes})


@pytest.mark.parametrize(
    "shape",
    [(40, 44, 3), (3, 40, 44), (40, 44), (2, 40, 44, 3), (2, 3, 40, 44), (4, 40, 44)],
    ids=str,
)
def test_an_image_goes_through_convolutions_however_its_axes_are_ordered(shape):
    spec = describe_observation(Box(0, 255, shape, np.uint8))
    network = ObsNetwork(spec, MLPSpec((), "relu", torch.Generator().manual_seed(0)))
    obs = torch.randint(0, 256, (2, *shape), dtype=torch.uint8)
    features = network.features(obs)
    assert features.shape == (2, network.num_features) == (2, 512)
    planes = obs.float() / 255
    if shape[-1] == 3:
        planes = planes.movedim(-1, -3)
    planes = planes.reshape(2, -1, 40, 44)
    weights, biases = network.features.images[0].weights, network.features.images[0].biases
    for index, stride in enumerate((4, 2, 1)):
        planes = torch.conv2d(planes, weights[index], biases[index], stride).relu()
    torch.testing.assert_close(features, (planes.flatten(1) @ weights[3].T + biases[3]).relu())


def test_images_and_numbers_are_read_side_by_side():
    space = Dict(camera=IMAGE, speed=Box(-9, 9, (2,)), front=IMAGE)
    spec = describe_observation(space)
    network = ObsNetwork(spec, MLPSpec((), "relu", torch.Generator().manual_seed(0)))
    _, batch = batch_of(space)
    features = network.features(torch.from_numpy(spec.as_stored(batch)))
    torch.testing.assert_close(features[:, :2], torch.from_numpy(batch["speed"]))
    read = [
        network.features.images[n](torch.from_numpy(batch[name]))
        for n, name in enumerate(("camera", "front"))
    ]
    torch.testing.assert_close(features[:, 2:], torch.cat(read, 1))


def test_images_cannot_be_normalized():
    with pytest.raises(ConfigError, match="normalize_obs is for vectors"):
        make_preprocessor(describe_observation(IMAGE), normalize=True)


@pytest.mark.parametrize(
    ("space", "normalize", "is_needed"),
    [
        (Box(-1, 1, (3,)), False, False),
        (Box(-1, 1, (3,)), True, True),
        (Box(-1, 1, (2, 3)), False, True),
        (Box(0, 255, (3,), np.uint8), False, True),
        (Discrete(4), False, True),
        (Dict(a=Discrete(2), b=Box(-1, 1, (2, 2))), False, False),
        (IMAGE, False, False),
    ],
)
def test_stored_vectors_and_images_need_no_preprocessing(space, normalize, is_needed):
    spec = describe_observation(space)
    assert (make_preprocessor(spec, normalize=normalize) is not None) == is_needed


class MixedEnv(gym.Env):
    """A picture and a number tell which of the actions pays."""

    def __init__(self, images: bool = True, continuous: bool = False) -> None:
        picture = {"picture": Box(0, 255, (36, 36, 1), np.uint8)} if images else {}
        self.observation_space = Dict(goal=Dict(at=Box(-1, 1, (2,)), kind=Discrete(3)), **picture)
        self.action_space = Box(-1, 1, (1,)) if continuous else Discrete(3)
        self.time = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self._obs(), float(np.sum(action)), False, self.time == 9, {}

    def _obs(self) -> dict[str, Any]:
        rng = self.np_random
        obs = {"goal": {"at": rng.uniform(-1, 1, 2).astype(np.float32), "kind": rng.integers(3)}}
        if "picture" in self.observation_space.spaces:
            obs["picture"] = rng.integers(0, 256, (36, 36, 1), np.uint8)
        return obs


@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("algo", ["ppo", "dqn", "sac"])
def test_a_run_on_nested_observations_resumes_exactly_and_predicts_without_an_environment(
    algo, images, tmp_path: Path
):
    changes = {
        "env_id": "test_observations:MixedEnv",
        "env_kwargs": {"images": images, "continuous": algo == "sac"},
        "total_timesteps": 96,
        "num_envs": 2,
    }
    whole = run_training(small_config(algo, tmp_path / "whole", **changes))
    stopped = run_training(
        small_config(algo, tmp_path / "stopped", **changes), callbacks=[StopAt(40, "collect")]
    )
    assert stopped.stop_reason == "test"
    assert_same_end(whole, resume_training(stopped.run_dir))
    _, algorithm, _ = load_algorithm(whole.run_dir)
    env = MixedEnv(images, algo == "sac")
    single, batch = batch_of(env.observation_space)
    actions = predict(algorithm, batch)
    assert len(actions) == 5
    # One row and five are other shapes, for which the kernels may round in another way.
    np.testing.assert_allclose(predict(algorithm, single[2]), actions[2], atol=1e-5)
    with pytest.raises(EnvError, match="no part 'goal/kind'"):
        predict(algorithm, {"goal": {"at": single[0]["goal"]["at"]}})


def test_a_nan_among_bytes_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real = MixedEnv._obs

    def broken(self: MixedEnv) -> dict[str, Any]:
        obs = real(self)
        if self.time == 5:
            obs["goal"]["at"][1] = np.nan
        return obs

    monkeypatch.setattr(MixedEnv, "_obs", broken)
    config = small_config(
        "dqn", tmp_path, env_id="test_observations:MixedEnv", env_kwargs={"images": True}
    )
    with pytest.raises(NonFiniteError, match="observation of environment 0 is not finite"):
        run_training(config)
