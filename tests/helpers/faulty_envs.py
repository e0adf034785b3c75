"""Environments with one planted fault or one way of keeping state each."""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from toy_envs import make_once


class Walk(gym.Env):
    """A random walk of twenty steps at most, without a fault. Its state is an array."""

    def __init__(self) -> None:
        self.observation_space = Box(-100.0, 100.0, (2,), np.float64)
        self.action_space = Discrete(2)
        self.place, self.time = np.zeros(2), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        self.begin(seed)
        super().reset(seed=seed)
        self.place, self.time = self.np_random.normal(size=2), 0
        return self.place.copy(), {}

    def begin(self, seed: int | None) -> None:
        """Called before each reset."""

    def step(self, action: Any) -> tuple[Any, ...]:
        self.time += 1
        self.place = self.place + (2 * action - 1) * 0.1 + self.noise()
        return (
            self.place.copy(),
            float(self.place[0]),
            abs(self.place[1]) > 3.0,
            self.time >= 20,
            {},
        )

    def noise(self) -> Any:
        return self.np_random.normal(size=2)


class OwnState(Walk):
    """Says itself where it is. What it says is all there is: nothing of it is a plain attribute."""

    def get_state(self) -> dict[str, Any]:
        return {"place": self.place, "time": self.time}

    def set_state(self, state: dict[str, Any]) -> None:
        self.place, self.time = state["place"], state["time"]


class Unsavable(OwnState):
    def get_state(self) -> Any:
        return object()


class Forgetful(OwnState):
    def set_state(self, state: dict[str, Any]) -> None:
        self.time = state["time"]


class GlobalChance(Walk):
    def noise(self) -> Any:
        return np.random.normal(size=2)


class WallClock(Walk):
    def noise(self) -> Any:
        return time.perf_counter_ns() % 1000 / 1000


class Scored(Walk):
    """A walk whose rewards come from one place that no checkpoint holds: the observations tell nothing of it."""

    def step(self, action: Any) -> tuple[Any, ...]:
        obs, _, *rest = super().step(action)
        return (obs, self.score(), *rest)

    def score(self) -> float:
        raise NotImplementedError


class WallClockReward(Scored):
    def score(self) -> float:
        return time.perf_counter_ns() % 1000 / 1000


class OwnGenerator(Walk):
    """Has a generator of its own, as many do."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        if seed is not None:
            self.chance = np.random.default_rng(seed)
        self.place, self.time = self.chance.normal(size=2), 0
        return self.place.copy(), {}

    def noise(self) -> Any:
        return self.chance.normal(size=2)


class Curriculum(Walk):
    """Gets harder with each episode, and counts them in plain attributes of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.episodes, self.recent, self.seen = 0, [(0, 0.0)], {"best": 0.0}

    def begin(self, seed: int | None) -> None:
        self.episodes += 1
        self.recent = [*self.recent, (self.episodes, float(self.place[0]))][-3:]
        self.seen["best"] = max(self.seen["best"], float(self.place[0]))

    def noise(self) -> Any:
        assert all(isinstance(pair, tuple) for pair in self.recent)
        return (
            self.np_random.normal(size=2) * 0.01 * self.episodes
            + self.recent[0][1]
            + self.seen["best"]
        )


class Inner:
    def __init__(self) -> None:
        self.count = 0


class Middle:
    def __init__(self) -> None:
        self.inner = Inner()


class Hidden(Scored):
    """Counts its episodes where no one looks: in an object inside an object."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = Middle()

    def begin(self, seed: int | None) -> None:
        self.middle.inner.count += 1

    def score(self) -> float:
        return float(self.middle.inner.count)


class Remembering(Walk):
    """Remembers what no reset undoes: how many episodes it has begun, and a generator that only its making seeds."""

    def __init__(self) -> None:
        super().__init__()
        self.episodes, self.chance = 0, np.random.default_rng(5)

    def begin(self, seed: int | None) -> None:
        self.episodes += 1

    def noise(self) -> Any:
        return self.chance.normal(size=2) + 0.1 * self.episodes


class FailsOnSeed(Walk):
    """Fails in its third step if it was reset with one of some seeds; with `once` (a file), only the first time."""

    def __init__(self, fault: str, seeds: list[int], once: str | None = None) -> None:
        super().__init__()
        self.fault, self.seeds, self.once, self.will_fail = fault, seeds, once, False

    def begin(self, seed: int | None) -> None:
        if seed is not None:
            self.will_fail = seed in self.seeds

    def step(self, action: Any) -> tuple[Any, ...]:
        obs, reward, _, truncated, info = super().step(action)
        result = obs, reward, False, truncated, info
        if self.time != 3 or not self.will_fail:
            return result
        if self.once is not None and not make_once(self.once):
            return result
        if self.fault == "raise":
            raise ZeroDivisionError("the simulator exploded")
        if self.fault == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.fault == "hang":
            time.sleep(1000)
        if self.fault == "exit":
            sys.exit(0)
        wrong = {
            "shape": (np.zeros(3), reward),
            "nan observation": (np.full_like(obs, np.nan), reward),
            "nan reward": (obs, float("nan")),
        }
        return (*wrong[self.fault], *result[2:])


class Ends(Walk):
    """Raises, or leaves with `sys.exit(0)`, at one place: `__init__`, `reset`, `step` or `close`."""

    def __init__(self, place: str, leaves: bool = True) -> None:
        self.place_of_end, self.leaves = place, leaves
        super().__init__()
        self.end("__init__")

    def begin(self, seed: int | None) -> None:
        self.end("reset")

    def step(self, action: Any) -> tuple[Any, ...]:
        self.end("step")
        return super().step(action)

    def close(self) -> None:
        self.end("close")

    def end(self, place: str) -> None:
        if place == self.place_of_end:
            if self.leaves:
                sys.exit(0)
            raise RuntimeError("the simulator exploded")


class TorchChance(Scored):
    def score(self) -> float:
        import torch

        return float(torch.rand(()))


MODULE_CHANCE = np.random.default_rng(3)
MODULE_TABLE: dict[str, int] = {"count": 0}


class ModuleChance(Scored):
    def score(self) -> float:
        return float(MODULE_CHANCE.random())


class ModuleTable(Scored):
    """Counts in a dictionary of the module, which may as well be a table of known results."""

    def score(self) -> float:
        MODULE_TABLE["count"] += 1
        return float(MODULE_TABLE["count"])


class ClassCounter(Scored):
    count = 0

    def begin(self, seed: int | None) -> None:
        type(self).count += 1

    def score(self) -> float:
        return float(self.count)


class ConstructorCounter(Scored):
    made = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).made += 1
        self.number = self.made

    def score(self) -> float:
        return float(self.number)


CONSTRUCTOR_CHANCE = random.Random(8)


class ConstructorChance(Scored):
    def __init__(self) -> None:
        super().__init__()
        self.number = CONSTRUCTOR_CHANCE.random()

    def score(self) -> float:
        return self.number


class CloseCounter(Scored):
    closed = 0

    def close(self) -> None:
        type(self).closed += 1

    def score(self) -> float:
        return float(self.closed)


class SharedPlace(Scored):
    """Keeps in its class what belongs to one episode of one environment."""

    last = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        obs, info = super().reset(seed=seed)
        type(self).last = float(obs[0])
        return obs, info

    def score(self) -> float:
        type(self).last += float(self.place[0])
        return self.last


class CountIterator(Scored):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count()

    def score(self) -> float:
        return float(next(self.numbers))


class SpaceChance(Scored):
    def score(self) -> float:
        return float(self.action_space.sample())


class RareChance(Scored):
    """Draws from a global generator in every sixteenth step only."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def score(self) -> float:
        self.total += 1
        return random.random() if self.total % 16 == 0 else 0.0


class DoublesAction(Walk):
    """Writes into the action it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)

    def step(self, action: Any) -> tuple[Any, ...]:
        action *= 2
        return super().step(float(action[0]))


class SameArray(Walk):
    """Writes each observation into the same array."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        self.shown[:] = super().reset(seed=seed)[0]
        return self.shown, {}

    def step(self, action: Any) -> tuple[Any, ...]:
        obs, *rest = super().step(action)
        self.shown[:] = obs
        return (self.shown, *rest)


class Twisted(Walk):
    """Returns one thing wrongly, after a few steps: the fault is named by the argument."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        if fault == "dict space":
            self.observation_space = Dict({"x": self.observation_space})
        if fault == "empty bounds":
            self.action_space = Box(np.array([1.0]), np.array([1.0]), dtype=np.float32)
        if fault == "no bounds":
            self.action_space = Box(-np.inf, np.inf, (1,), np.float32)
        if fault == "wide bounds":
            self.action_space = Box(-1e6, 1e6, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        obs, info = super().reset(seed=None if self.fault == "seedless" else seed)
        if self.fault == "one seed":
            self._np_random = np.random.default_rng(3)
            obs, _ = super().reset()
        return obs if self.fault == "reset" else (obs, info)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(np.sign(np.sum(action)) > 0)
        if self.fault == "endless":
            return obs, reward, False, False, info
        if self.fault == "truncates":
            return obs, reward, False, self.time == 5, info
        if self.time == 3:
            obs = {
                "nan": np.array([0.0, np.nan]),
                "shape": np.zeros(3),
                "words": "hello",
                "outside": np.array([0.0, 101.0]),
                "dtype": obs.astype(np.float32),
                "large": obs,
            }.get(self.fault, obs)
            reward = {"reward words": "good", "reward nan": np.nan, "reward list": [1.0]}.get(
                self.fault, reward
            )
            terminated = {"ending number": 0.0}.get(self.fault, terminated)
            if self.fault == "raises":
                raise ZeroDivisionError("the simulator exploded")
            if self.fault == "exits":
                raise SystemExit(3)
            if self.fault == "four":
                return obs, reward, terminated, info
        return (obs * 30 if self.fault == "large" else obs), reward, terminated, truncated, info


class NeverMade(Walk):
    def __init__(self) -> None:
        raise RuntimeError("no licence")


class CountingWrapper(gym.Wrapper):
    """Adds to the reward how many steps it has seen in all its life."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.total = 0

    def step(self, action: Any) -> tuple[Any, ...]:
        self.total += 1
        obs, reward, *rest = self.env.step(action)
        return (obs, reward + self.total, *rest)


class WrappedOwnState(CountingWrapper):
    """`OwnState` below a time limit below a wrapper that counts."""

    def __init__(self) -> None:
        super().__init__(gym.wrappers.TimeLimit(OwnState(), 7))


class WrappedWalk(CountingWrapper):
    def __init__(self) -> None:
        super().__init__(gym.wrappers.TimeLimit(Walk(), 7))
