"""What a user gives to `predict` and to a bundle's `act`: one rule and one message for both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bundle_tools import bundle_of, make_policy
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Tuple

from rl_training.bundle.loading import load_bytes
from rl_training.errors import ConfigError, EnvError
from rl_training.evaluation.prediction import predict

BYTES = Box(0, 255, (4,), np.uint8)
SPACES: dict[str, Space] = {
    "box": Box(-1.0, 1.0, (3,)),
    "scalar": Box(-1.0, 1.0, ()),
    "bytes": BYTES,
    "discrete": Discrete(3),
    "multi_discrete": MultiDiscrete([3, 2, 4]),
    "dict": Dict({"place": Discrete(3), "arm": Box(-1.0, 1.0, (2,))}),
    "tuple": Tuple((Discrete(3, start=5), BYTES)),
}
REFUSED: list[tuple[str, Any, str]] = [
    ("box", [0.0, np.nan, 0.0], "the observation holds NaN or infinity"),
    ("box", [0.0, 1e300, 0.0], "holds NaN or infinity"),
    ("box", [[0.0, 0.0], [0.0]], "rows have different lengths"),
    ("box", ["a", "b", "c"], "not numeric"),
    ("box", [0.0, 0.0], r"has shape \(2,\), which does not fit: expected \(3,\)"),
    ("scalar", np.inf, "holds NaN or infinity"),
    ("bytes", [0.5, 0, 0, 0], "whole numbers from 0 to 255"),
    ("bytes", [256, 0, 0, 0], "whole numbers from 0 to 255"),
    ("bytes", [-1, 0, 0, 0], "whole numbers from 0 to 255"),
    ("discrete", 3, "the category 3, which is not in its space: whole numbers from 0 to 2"),
    ("discrete", 0.5, "the category 0.5"),
    ("discrete", None, "not numeric"),
    ("multi_discrete", [0, 2, 0], "the category 2, .*: whole numbers from 0 to 1"),
    ("multi_discrete", [[0, 0, 0], [0, 0, -1]], "the category -1"),
    ("multi_discrete", [np.nan, 0, 0], "holds NaN"),
    ("dict", {"place": 3, "arm": [0.0, 0.0]}, "part 'place' of the observation has the category 3"),
    ("dict", {"place": 1}, "no part 'arm'"),
    ("dict", {"place": [0, 1], "arm": np.zeros((3, 2))}, "batches of different lengths"),
    ("dict", {"place": [0, 1], "arm": np.zeros(2)}, "are a batch and others are not"),
    ("tuple", (4, [0, 0, 0, 0]), "part '0' of the observation has the category 4"),
]
ACCEPTED: list[tuple[str, Any]] = [
    ("box", [0, 1, 0]),
    ("box", np.zeros((0, 3))),
    ("bytes", [0.0, 255.0, 1.0, 2.0]),
    ("discrete", np.float32(2.0)),
    ("discrete", [0, 1, 2]),
    ("multi_discrete", [2, 1, 3]),
    ("dict", {"place": 2, "arm": (0.5, 0.5), "more": "ignored"}),
    ("tuple", [7, [255, 0, 0, 0]]),
    ("tuple", (np.array([5, 6]), np.zeros((2, 4)))),
]


@pytest.fixture(scope="module", params=SPACES)
def both(request: pytest.FixtureRequest) -> tuple[str, Any, Any]:
    space = SPACES[request.param]
    policy = make_policy("ppo", space, Discrete(2))
    return request.param, policy, load_bytes(bundle_of(policy, space)[0])


def test_what_is_not_of_the_space_is_refused_with_the_same_words(
    both: tuple[str, Any, Any],
) -> None:
    name, policy, bundle = both
    for _, obs, message in (case for case in REFUSED if case[0] == name):
        with pytest.raises(EnvError, match=message) as of_predict:
            predict(policy, obs)
        with pytest.raises(EnvError, match=message) as of_act:
            bundle.act(obs)
        assert str(of_predict.value) == str(of_act.value)


def test_every_form_of_an_observation_gives_the_same_action(both: tuple[str, Any, Any]) -> None:
    name, policy, bundle = both
    for _, obs in (case for case in ACCEPTED if case[0] == name):
        np.testing.assert_array_equal(predict(policy, obs), bundle.act(obs))


def test_a_state_of_another_form_is_refused() -> None:
    policy = make_policy("ppo", SPACES["box"], Discrete(2), memory={"size": 4})
    bundle = load_bytes(bundle_of(policy, SPACES["box"])[0])
    for state, message in (
        ("x", "not an array of numbers"),
        (np.zeros((1, 8)), r"shape \(1, 8\), where \(\d+,\) is"),
    ):
        with pytest.raises(ConfigError, match=message):
            predict(policy, [0.0, 0.0, 0.0], state=state)
        with pytest.raises(ConfigError, match=message):
            bundle.act([0.0, 0.0, 0.0], state=state)


def test_a_mask_with_nan_is_refused() -> None:
    policy = make_policy("ppo", SPACES["box"], Discrete(2), has_masks=True)
    bundle = load_bytes(bundle_of(policy, SPACES["box"])[0])
    for act in (
        lambda mask: predict(policy, [0.0] * 3, mask=mask),
        lambda mask: bundle.act([0.0] * 3, mask=mask),
    ):
        with pytest.raises(EnvError, match="holds NaN"):
            act([np.nan, 1.0])
