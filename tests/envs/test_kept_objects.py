"""Environments that keep objects and generators in lists, tuples, dictionaries or deques, or swap their generator."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from conftest import small_config
from run_tools import StopAt, assert_same_end
from toy_envs import Step, Timed

from rl_training.envs.state.attributes import capture_attributes, restore_attributes
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.runtime.run import run_training
from rl_training.runtime.workflows import resume_training


@dataclass
class Ball:
    place: float
    hits: int = 0


HOLDERS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "deque": deque,
    "dict": lambda balls: dict(enumerate(balls)),
    "deep": lambda balls: {"balls": [balls[0]], "others": tuple(balls[1:])},
}


class Balls(Timed):
    """Objects that are recreated at each reset, and generators that live as long as the environment."""

    observation_space = gym.spaces.Box(-9.0, 9.0, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, holder: str = "list", swap: bool = False) -> None:
        self.holder, self.swap = holder, swap
        self.sources = [np.random.default_rng(3), np.random.Generator(np.random.Philox(4))]
        self.words = (random.Random(5),)

    def observe(self) -> Any:
        if not self.time:
            self.make_balls()
        return np.clip([ball.place + ball.hits for ball in self.made], -9, 9).astype(np.float32)

    def make_balls(self) -> None:
        if self.swap:
            self.np_random = np.random.Generator(
                np.random.MT19937(int(self.np_random.integers(1000)))
            )
            self.sources[0] = np.random.Generator(np.random.SFC64(1))
        self.made = [Ball(float(self.np_random.normal())) for _ in range(3)]
        self.balls = HOLDERS[self.holder](self.made)

    def step(self, action: Any) -> Step:
        self.time += 1
        ball = self.made[self.time % 3]
        ball.hits += 1
        ball.place += 0.1 * (2 * int(action) - 1) + 0.1 * sum(
            source.normal() for source in self.sources
        )
        return self.observe(), -abs(ball.place) + self.words[0].random(), self.time == 17, False, {}


@pytest.mark.parametrize("swap", [False, True], ids=["same-generator", "other-generator"])
@pytest.mark.parametrize("holder", HOLDERS)
def test_a_run_on_it_is_resumed_exactly(holder: str, swap: bool, tmp_path: Path) -> None:
    env = {"env_id": Balls, "env_kwargs": {"holder": holder, "swap": swap}, "num_envs": 2}
    config = small_config("ppo", tmp_path, total_timesteps=64, **env)
    whole = run_training(config, run_suffix="whole")
    part = run_training(config, run_suffix="part", callbacks=[StopAt(24, "collect")])
    resumed = resume_training(part.run_dir)
    assert load_checkpoint(part.run_dir).metadata["exactness"] == "exact"
    assert_same_end(whole, resumed)


def test_objects_keep_their_identity_and_lost_ones_are_named() -> None:
    env = Balls("list")
    env.reset(seed=0)
    saved = capture_attributes(env)
    balls = env.balls
    balls[1].place = 8.0
    assert restore_attributes(env, saved) == []
    assert env.balls is balls
    assert balls[1].place != 8.0
    env.balls = balls[:2]
    assert restore_attributes(env, saved) == ["balls"]
