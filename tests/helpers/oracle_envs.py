"""An environment that keeps a journal of every step, so that each stored transition can be compared with it."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple, flatten

NUM_KEYS, NUM_EPISODES, NUM_STEPS = 8, 64, 8
SIDE = 36
"""The smallest image that convolutions read."""
LENGTHS = (3, 1, 5, 2, 7)
BOX = Box(-1.0, 64.0, (3,), np.float32)
OBSERVATION_SPACES: dict[str, gym.Space] = {
    "box": BOX,
    "box64": Box(-np.inf, np.inf, (1, 3), np.float64),
    "discrete": Discrete(NUM_KEYS * NUM_EPISODES * NUM_STEPS),
    "multi_discrete": MultiDiscrete([NUM_KEYS, NUM_EPISODES, NUM_STEPS]),
    "multi_binary": MultiBinary((3, 5)),
    "bytes": Box(0, 255, (3,), np.uint8),
    "image": Box(0, 255, (SIDE, SIDE, 1), np.uint8),
    "stack": Box(0, 255, (2, SIDE, SIDE), np.uint8),
    "dict": Dict(
        where=BOX,
        small=Box(0, 255, (1, 3), np.uint8),
        kind=Discrete(NUM_STEPS, start=-2),
        flags=MultiBinary(5),
        which=MultiDiscrete([NUM_KEYS, NUM_EPISODES]),
    ),
    "tuple": Tuple([Box(0, 255, (3,), np.uint8), Dict(inner=Discrete(NUM_STEPS)), BOX]),
    "dict_image": Dict(
        image=Box(0, 255, (SIDE, SIDE), np.uint8), small=Box(0, 255, (3,), np.uint8), where=BOX
    ),
}
ACTION_SPACES: dict[str, gym.Space] = {
    "discrete": Discrete(3, start=-1),
    "multi_discrete": MultiDiscrete([2, 3]),
    "multi_binary": MultiBinary(3),
    "box": Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 5.0], np.float32)),
    "unbounded": Box(-np.inf, np.inf, (2,), np.float32),
    "half_bounded": Box(
        np.array([2.0, -np.inf, 5.0], np.float32), np.array([np.inf, -3.0, 9.0], np.float32)
    ),
}


class Moment(NamedTuple):
    """One step: which environment, which of its episodes, and how many steps came before it."""

    key: int
    episode: int
    step: int


class Event(NamedTuple):
    """What the environment was told and what it answered."""

    obs: Any
    action: Any
    reward: float
    next_obs: Any
    terminated: bool
    truncated: bool


class OracleEnv(gym.Env):
    """Observations and rewards tell environment, episode and step; the journal has every step ever taken.

    Each seed of a reset has a key of its own. Episodes have lengths of their own; every other one terminates, and the
    rest are truncated. A moment that comes again (evaluations begin with their seed each time) replaces the first.
    """

    journal: ClassVar[dict[Moment, Event]] = {}
    keys: ClassVar[dict[int, int]] = {}

    def __init__(self, obs: str = "box", action: str = "discrete") -> None:
        self.observation_space, self.action_space = OBSERVATION_SPACES[obs], ACTION_SPACES[action]
        self.key, self.episode, self.time = 0, -1, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self.key, self.episode = self.keys.setdefault(seed, len(self.keys)), -1
        self.episode, self.time = self.episode + 1, 0
        return observation(self.observation_space, self.moment), {}

    @property
    def moment(self) -> Moment:
        assert self.key < NUM_KEYS, "too many seeds: two environments would look alike"
        assert self.episode < NUM_EPISODES, "too many episodes: two would look alike"
        return Moment(self.key, self.episode, self.time)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        before = self.moment
        self.time += 1
        ends = self.time >= LENGTHS[self.episode % len(LENGTHS)]
        terminated, truncated = ends and self.episode % 2 == 0, ends and self.episode % 2 == 1
        reward = reward_of(before)
        event = Event(
            *(observation(self.observation_space, before), np.array(action), reward),
            *(observation(self.observation_space, self.moment), terminated, truncated),
        )
        self.journal[before] = event
        return event.next_obs, reward, terminated, truncated, {}


class OracleGoalEnv(OracleEnv):
    """The same with goals: what is achieved tells the moment, what is desired is never achieved."""

    def __init__(self) -> None:
        super().__init__("box", "box")
        self.observation_space = Dict(observation=BOX, achieved_goal=BOX, desired_goal=BOX)

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return goal_reward(achieved, desired)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        obs, info = super().reset(seed=seed)
        return self._with_goal(obs), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        before = self.moment
        obs, _, terminated, truncated, info = super().step(action)
        obs = self._with_goal(obs)
        reward = float(goal_reward(obs["achieved_goal"], obs["desired_goal"]))
        event = self.journal[before]
        goal_obs = self._with_goal(event.obs)
        self.journal[before] = Event(goal_obs, event.action, reward, obs, terminated, truncated)
        return obs, reward, terminated, truncated, info

    def _with_goal(self, obs: dict) -> dict:
        return {**obs, "desired_goal": np.full(3, -1.0, np.float32)}


def goal_reward(achieved: Any, desired: Any) -> Any:
    """A number that is another for every pair of goals."""
    weights = np.array([1.0, 0.125, 0.015625], np.float32)
    return (np.asarray(achieved) * weights).sum(-1) - 3.0 * (np.asarray(desired) * weights).sum(-1)


def reward_of(moment: Moment) -> float:
    """A reward that is another for every moment, exact in float32."""
    return float(code_of(moment)) / 16.0 - 1.0


def code_of(moment: Moment) -> int:
    """One number for each moment."""
    return (moment.key * NUM_EPISODES + moment.episode) * NUM_STEPS + moment.step


def observation(space: gym.Space, moment: Moment) -> Any:
    """The observation of a moment, in any space."""
    if isinstance(space, Dict):
        return {key: observation(inner, moment) for key, inner in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(observation(inner, moment) for inner in space.spaces)
    if isinstance(space, Discrete):
        is_full = space.n > NUM_STEPS
        return np.int64(code_of(moment) if is_full else moment.step % space.n + space.start)
    if isinstance(space, MultiDiscrete):
        return np.array(moment[: len(space.nvec)], space.dtype)
    if isinstance(space, MultiBinary):
        count = int(np.prod(space.shape))
        return np.array([code_of(moment) >> bit & 1 for bit in range(count)], np.int8).reshape(
            space.shape
        )
    if space.dtype == np.uint8 and len(space.shape) > 1 and SIDE in space.shape:
        return picture(space.shape, moment)
    values = np.array(moment) * 3 if space.dtype == np.uint8 else np.array(moment)
    return values.astype(space.dtype).reshape(space.shape)


def picture(shape: tuple[int, ...], moment: Moment) -> np.ndarray:
    """An image whose first pixels tell the moment; a stack shows the step before first."""
    if shape[0] == 2:
        before = moment._replace(step=max(0, moment.step - 1))
        return np.stack([picture(shape[1:], before), picture(shape[1:], moment)])
    image = np.random.default_rng(code_of(moment)).integers(0, 256, SIDE * SIDE).astype(np.uint8)
    image[:3] = moment
    return image.reshape(shape)


def stored(space: gym.Space, obs: Any) -> np.ndarray:
    """An observation as networks should get it, worked out by Gymnasium's own functions."""
    if isinstance(space, MultiBinary):
        return np.asarray(obs, np.float32)
    if isinstance(space, (Box, Discrete)):
        return np.asarray(obs).astype(
            {"f": np.float32, "u": np.uint8, "i": np.int64}[space.dtype.kind]
        )
    if isinstance(space, Dict) and "image" in space.spaces:
        numbers = [
            _scaled(inner, obs[key]) for key, inner in space.spaces.items() if key != "image"
        ]
        return np.concatenate([np.concatenate(numbers).view(np.uint8), obs["image"].reshape(-1)])
    return _scaled(space, obs)


def _scaled(space: gym.Space, obs: Any) -> np.ndarray:
    """The numbers of an observation as `gymnasium.spaces.flatten` has them, bytes divided by 255."""
    if isinstance(space, Dict):
        return np.concatenate([_scaled(inner, obs[key]) for key, inner in space.spaces.items()])
    if isinstance(space, Tuple):
        return np.concatenate(
            [_scaled(inner, part) for inner, part in zip(space.spaces, obs, strict=True)]
        )
    factor = np.float32(1 / 255) if space.dtype == np.uint8 else np.float32(1)
    return flatten(space, obs).astype(np.float32) * factor


def moment_of(space: gym.Space, row: np.ndarray) -> Moment:
    """Which moment a stored observation shows."""
    if isinstance(space, Dict) and "image" in space.spaces:
        return Moment(*row[-SIDE * SIDE :][:3].tolist())
    if isinstance(space, (Dict, Tuple)):
        columns = _columns_of_box(space)
        return Moment(*row[columns].astype(int).tolist())
    if isinstance(space, Discrete):
        rest, step = divmod(int(row), NUM_STEPS)
        return Moment(*divmod(rest, NUM_EPISODES), step)
    if isinstance(space, MultiDiscrete):
        parts = np.split(row, np.cumsum(space.nvec)[:-1])
        return Moment(*(int(part.argmax()) for part in parts))
    if isinstance(space, MultiBinary):
        code = sum(int(bit) << place for place, bit in enumerate(row.reshape(-1)))
        return moment_of(OBSERVATION_SPACES["discrete"], np.asarray(code))
    if space.dtype == np.uint8 and SIDE in space.shape:
        return Moment(*row.reshape(-1, SIDE * SIDE)[-1][:3].tolist())
    return Moment(*(row.reshape(-1).astype(int) // (3 if space.dtype == np.uint8 else 1)).tolist())


def _columns_of_box(space: gym.Space) -> slice:
    """Where the first float Box stands in the flat row."""
    start = 0
    for inner in space.spaces.values() if isinstance(space, Dict) else space.spaces:
        width = gym.spaces.flatdim(inner)
        if isinstance(inner, Box) and inner.dtype == np.float32:
            return slice(start, start + 3)
        start += width
    raise KeyError("no Box")
