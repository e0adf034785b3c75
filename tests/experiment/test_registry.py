"""Which spaces each algorithm accepts, and what is recommended instead."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Space

from rl_training.errors import EnvError
from rl_training.experiment.registry import get_algorithm_spec, list_algorithm_specs
from rl_training.spaces.spec import describe_spaces

VECTOR, IMAGE = Box(-1.0, 1.0, (3,)), Box(0, 255, (40, 40), np.uint8)
GOALS = Dict(dict.fromkeys(("observation", "achieved_goal", "desired_goal"), VECTOR))
BOUNDED, UNBOUNDED = Box(-2.0, 1.0, (2,)), Box(-np.inf, np.inf, (2,))
ACCEPTING: dict[str, tuple[Space, Space, str]] = {
    "bounded": (VECTOR, BOUNDED, "a2c awac bc cql crossq ddpg iql ppo sac td3 td3_bc tqc"),
    "unbounded": (VECTOR, UNBOUNDED, "a2c ppo"),
    "discrete": (VECTOR, Discrete(3), "a2c bc c51 cql dqn ppo qrdqn sac"),
    "several": (VECTOR, MultiDiscrete([2, 2]), "a2c bc ppo"),
    "image to box": (IMAGE, BOUNDED, "a2c awac bc crossq ddpg ppo sac td3 td3_bc tqc"),
    "image to choice": (IMAGE, Discrete(3), "a2c bc c51 cql dqn ppo qrdqn sac"),
    "goals": (GOALS, BOUNDED, "a2c awac bc cql crossq ddpg her iql ppo sac td3 td3_bc tqc"),
}


@pytest.mark.parametrize("case", ACCEPTING)
def test_the_algorithms_that_accept_spaces_are_those(case: str) -> None:
    obs, action, names = ACCEPTING[case]
    spaces = describe_spaces(obs, action)
    assert [
        spec.name for spec in list_algorithm_specs() if spec.refusal_of(spaces) is None
    ] == names.split()


@pytest.mark.parametrize(
    ("algo", "case", "message"),
    [
        (
            "dqn",
            "bounded",
            "DQN needs Discrete actions, not Box; algorithms for these spaces: a2c, crossq, ddpg, ppo,",
        ),
        (
            "td3_bc",
            "discrete",
            "TD3BC needs Box actions, not Discrete; algorithms for these spaces: bc, cql",
        ),
        (
            "sac",
            "several",
            "SAC needs Box or Discrete actions, not MultiDiscrete or MultiBinary; .*: a2c, ppo",
        ),
        (
            "iql",
            "unbounded",
            r"IQL needs Box actions with finite bounds, not from \[-inf -inf\] .*; .*: none",
        ),
        (
            "cql",
            "image to box",
            "CQL reads vectors, not images; algorithms for these spaces: awac, bc, td3_bc",
        ),
        (
            "her",
            "discrete",
            "needs a Dict observation with the keys .*; algorithms for these spaces: a2c, c51, dqn",
        ),
    ],
)
def test_spaces_that_do_not_suit_are_refused_with_the_algorithms_that_fit(
    algo: str, case: str, message: str
) -> None:
    with pytest.raises(EnvError, match=message):
        get_algorithm_spec(algo).check_spaces(describe_spaces(*ACCEPTING[case][:2]))
