"""Check that an environment resumes exactly: restored copies are compared with an uninterrupted one."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import torch

from rl_training.envs.parallel.pools import Fault, Pool
from rl_training.envs.parallel.vector import make_limited, make_member
from rl_training.envs.parallel.workers import AsyncPool
from rl_training.envs.single.resumable import ResumableEnv, Step
from rl_training.envs.state.aliases import MakeEnv
from rl_training.envs.state.attributes import has_custom_state, is_same
from rl_training.errors import EnvError
from rl_training.experiment.codec import pack, unpack

NUM_POINTS = 12
STEPS_COMPARED = 50
NAMES = {
    "obs": "the observation",
    "reward": "the reward",
    "terminated": "the terminated flag",
    "truncated": "the truncated flag",
    "final_obs": "the last observation of an episode",
    "episode": "the return or length of an episode",
}


@dataclass(frozen=True)
class ResumeCheck:
    """Extent and result of one check."""

    num_points: int
    num_episodes: int
    length_limit: int | None
    """Steps after which episodes were truncated; None if some ended by themselves."""
    method: str
    inexact_reasons: tuple[str, ...]
    """Reasons given by the restore, and the first difference from the uninterrupted environment."""

    @property
    def is_exact(self) -> bool:
        """Whether every restored environment continued exactly like the uninterrupted one."""
        return not self.inexact_reasons


def check_resume(
    make: MakeEnv,
    *,
    steps: int,
    seed: int,
    num_points: int = NUM_POINTS,
    in_new_process: bool = False,
) -> ResumeCheck:
    """Save the state at about `num_points` steps of an episode sequence, restore each, and compare the next steps.

    Each state is converted to the checkpoint's form and back, then restored into a new environment. With
    `in_new_process` the last state is also restored in a new process, where class and module state is fresh.
    """
    with closing(make()) as example:
        actions = sample_actions(example.action_space, steps, seed)
    length_limit = None
    ends = _find_ends(make, actions, seed)
    if not ends:  # the comparison must include a reset
        length_limit = max(1, steps // 4)
        make = partial(make_limited, make, length_limit)
        ends = _find_ends(make, actions, seed)
    points = choose_points(ends, steps, num_points)
    taken, states, method = _take_actions(make, actions, seed, points)
    inexact_reasons: list[str] = []
    differences = []
    for point, state in zip(points, states, strict=True):
        with closing(ResumableEnv(make())) as restored:
            inexact_reasons += restored.restore(state)[1]
            found = _first_difference(restored.step, actions[point:], taken[point:])
        if found is not None:
            after, what = found
            differences.append((after, point, what))
    if in_new_process:
        with closing(AsyncPool(partial(make_member, make), 1)) as pool:
            inexact_reasons += _restore_elsewhere(pool, points[-1], states[-1], actions, taken)
    for after, point, what in sorted(differences)[:1]:
        count = "1 step" if after == 1 else f"{after} steps"
        inexact_reasons.append(f"{what} differs {count} after a restore at step {point}")
    reasons = tuple(dict.fromkeys(inexact_reasons))
    return ResumeCheck(len(points), len(ends), length_limit, method, reasons)


def _restore_elsewhere(
    pool: Pool, point: int, state: Any, actions: Sequence[Any], taken: Sequence[Step]
) -> Iterator[str]:
    """The difference from the uninterrupted steps after a restore in a new process."""
    if pool.start():  # the environment cannot be created in another process
        return

    def ask(command: str, value: Any) -> Any:
        answer = pool.run_one(0, command, value)
        if isinstance(answer, Fault):
            raise EnvError(f"in a new process, {answer.what}")
        return answer

    try:
        ask("restore", state)
        found = _first_difference(partial(ask, "step"), actions[point:], taken[point:])
    except EnvError as error:
        yield str(error)
        return
    if found is not None:
        after, what = found
        yield f"{what} differs at step {point + after} in a new process, restored at step {point}"


def _first_difference(
    step: Callable[[Any], Step], actions: Sequence[Any], expected: Sequence[Step]
) -> tuple[int, str] | None:
    """How many steps it takes until one differs from the expected one, and in which value; None if none does."""
    pairs = zip(actions[:STEPS_COMPARED], expected, strict=False)
    for count, (action, wanted) in enumerate(pairs, start=1):
        answer = step(action)
        for name, words in NAMES.items():
            if not is_same(getattr(wanted, name), getattr(answer, name)):
                return count, words
    return None


def sample_actions(action_space: gym.Space[Any], steps: int, seed: int) -> list[Any]:
    """Random actions, reproducible by seed."""
    space = copy.deepcopy(action_space)
    space.seed(seed)
    return [space.sample() for _ in range(steps)]


def choose_points(ends: Sequence[int], steps: int, num_points: int = NUM_POINTS) -> list[int]:
    """Step 0, the steps before and after the first and last episode ends, and evenly spaced steps."""
    last = steps - 1
    count = max(1, num_points // 6)
    chosen = [0, *(point for end in (*ends[:count], *ends[-count:]) for point in (end, end + 1))]
    num_spread = max(num_points // 4, num_points - len(set(chosen)))
    chosen += [round(last * (index + 0.5) / num_spread) for index in range(num_spread)]
    return sorted({min(point, last) for point in chosen})


def _find_ends(make: MakeEnv, actions: Sequence[Any], seed: int) -> list[int]:
    taken, _, _ = _take_actions(make, actions, seed)
    return [index for index, step in enumerate(taken) if step.terminated or step.truncated]


def _take_actions(
    make: MakeEnv, actions: Sequence[Any], seed: int, points: Sequence[int] = ()
) -> tuple[list[Step], list[Any], str]:
    """Take the actions; returns the steps, the states before the steps at `points`, and the restore method."""
    taken: list[Step] = []
    states = []
    with closing(ResumableEnv(make())) as env:
        env.reset(seed)
        for index, action in enumerate(actions):
            if index in points:
                tensors: dict[str, torch.Tensor] = {}
                text = json.dumps(pack(env.state(), tensors))
                # Tensors may share memory with the environment.
                states.append(unpack(json.loads(text), copy.deepcopy(tensors)))
            taken.append(copy.deepcopy(env.step(action)))  # the environment may reuse its arrays
        method = "replaying the episode's actions"
        if has_custom_state(env.env.unwrapped):
            method = "its own get_state and set_state"
    return taken, states, method
