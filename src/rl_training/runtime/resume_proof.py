"""Proof that an environment can be left and brought back: restored copies against one that was never left."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import torch

from rl_training.envs.attributes import is_same
from rl_training.envs.resumable import ResumableEnv, Step
from rl_training.envs.vector import MakeEnv
from rl_training.experiment.tree_codec import pack, unpack

NUM_POINTS = 12
STEPS_COMPARED = 50
NAMES = {
    "obs": "the observation",
    "reward": "the reward",
    "terminated": "the termination",
    "truncated": "the truncation",
    "final_obs": "the last observation of an episode",
    "episode": "the return or length of an episode",
}


@dataclass(frozen=True)
class ResumeProof:
    """What was compared and what came of it."""

    num_points: int
    num_episodes: int
    length_limit: int | None
    """Where episodes were cut, if none ended by itself."""
    method: str
    doubts: tuple[str, ...]
    """What restoring complained of, and the first difference from the environment that was never left."""

    @property
    def is_exact(self) -> bool:
        """Whether every restored environment went on exactly as the original did."""
        return not self.doubts


def prove_resume(make: MakeEnv, *, steps: int, seed: int, num_points: int = NUM_POINTS) -> ResumeProof:
    """Take the state at points of a walk, restore each into a new environment, and compare what follows.

    There are about `num_points` of them. Each state goes through the form in which a checkpoint holds it.
    """
    example = make()
    actions = draw_actions(example.action_space, steps, seed)
    example.close()
    make_env, length_limit = make, None
    ends = _find_ends(make, actions, seed)
    if not ends:  # what a reset does must be seen, too
        length_limit = limit = max(1, steps // 4)
        make_env = lambda: gym.wrappers.TimeLimit(make(), limit)  # noqa: E731
        ends = _find_ends(make_env, actions, seed)
    points = choose_points(ends, steps, num_points)
    taken, states, method = _walk(make_env, actions, seed, points)
    doubts: list[str] = []
    differences: list[tuple[int, int, str]] = []
    for point, state in zip(points, states, strict=True):
        restored = ResumableEnv(make_env())
        try:
            doubts += restored.restore(state)[1]
            difference = _find_difference(restored, actions[point:], taken[point : point + STEPS_COMPARED])
        finally:
            restored.close()
        if difference is not None:
            differences.append((difference[0], point, difference[1]))
    for after, point, what in sorted(differences)[:1]:
        count = "1 step" if after == 1 else f"{after} steps"
        doubts.append(f"{what} differs {count} after a restore at step {point}")
    return ResumeProof(len(points), len(ends), length_limit, method, tuple(dict.fromkeys(doubts)))


def draw_actions(action_space: gym.Space[Any], steps: int, seed: int) -> list[Any]:
    """Random actions, the same for the same seed."""
    space = copy.deepcopy(action_space)
    space.seed(seed)
    return [space.sample() for _ in range(steps)]


def choose_points(ends: Sequence[int], steps: int, num_points: int = NUM_POINTS) -> list[int]:
    """The start, just before and just after the first and the last endings, and points spread between these."""
    last = steps - 1
    count = max(1, num_points // 6)
    chosen = [0, *(point for end in (*ends[:count], *ends[-count:]) for point in (end, end + 1))]
    num_spread = max(num_points // 4, num_points - len(set(chosen)))
    chosen += [round(last * (index + 0.5) / num_spread) for index in range(num_spread)]
    return sorted({min(point, last) for point in chosen})


def _find_ends(make: MakeEnv, actions: Sequence[Any], seed: int) -> list[int]:
    return [index for index, step in enumerate(_walk(make, actions, seed)[0]) if step.terminated or step.truncated]


def _walk(
    make: MakeEnv, actions: Sequence[Any], seed: int, points: Sequence[int] = ()
) -> tuple[list[Step], list[dict[str, Any]], str]:
    """Take the actions; returns the steps, the states before the steps at `points`, and how these are restored."""
    env = ResumableEnv(make())
    try:
        env.reset(seed)
        taken: list[Step] = []
        states = []
        for index, action in enumerate(actions):
            if index in points:
                tensors: dict[str, torch.Tensor] = {}
                text = json.dumps(pack(env.state(), tensors))
                states.append(unpack(json.loads(text), {name: tensor.clone() for name, tensor in tensors.items()}))
            taken.append(copy.deepcopy(env.step(action)))  # the environment may write into the same arrays again
        method = "its own get_state and set_state" if env.keeps_own_state else "replaying the episode's actions"
        return taken, states, method
    finally:
        env.close()


def _find_difference(env: ResumableEnv, actions: Sequence[Any], expected: Sequence[Step]) -> tuple[int, str] | None:
    """After how many steps the environment first does something else than expected, and what."""
    for count, (action, wanted) in enumerate(zip(actions, expected, strict=False), start=1):
        step = env.step(action)
        for name, words in NAMES.items():
            if not is_same(getattr(wanted, name), getattr(step, name)):
                return count, words
    return None
