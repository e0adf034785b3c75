"""The algorithm under test: how it is made, the batches it is given, and the settings of its runs."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.base import (
    MAX_DEPTH,
    STATELESS,
    UNSAVED_TYPES,
    ActResult,
    Algorithm,
    Resources,
    UpdateResult,
)
from rl_training.algorithms.config import AlgorithmConfig, OfflineToOnlineConfig
from rl_training.data.dataset_loaders import load_transition_dataset
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.envs.factory import EnvSource, make_env
from rl_training.envs.state.attributes import is_same
from rl_training.envs.state.generators import drawn_from, global_generators
from rl_training.errors import ConfigError, EnvError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import AlgorithmSpec, Loop
from rl_training.replay.transitions import Segment, Transitions
from rl_training.runtime.execution import Execution
from rl_training.spaces.spec import Spaces, describe_spaces
from rl_training.terminal.streams import quieted

TEST_ENVS = ("CartPole-v1", "Pendulum-v1", "rl_training.envs.goals:PointGoalEnv")
"""An algorithm is checked in the first of these that its `check_spaces` accepts, unless `env_id` is given."""
TOTAL_STEPS, NUM_ENVS, NUM_BATCHES = 96, 2, 8
EPISODE_STEPS = 20
"""Time limit of the episodes, so that some are truncated and evaluations are short."""
SMALL: dict[Loop, dict[str, Any]] = {
    Loop.ON_POLICY: {"num_steps": 16, "minibatch_size": 16, "update_epochs": 2},
    # More updates per iteration than the loop samples at once, so that a stop can come between them.
    Loop.OFF_POLICY: {
        "buffer_capacity": 500,
        "batch_size": 16,
        "learning_starts": 32,
        "train_frequency": 32,
        "gradient_steps": 36,
    },
    Loop.OFFLINE: {"dataset_kind": "random", "dataset_size": 300, "batch_size": 16},
}
"""Settings of the runs, as far as the config class has them."""
ONLINE = {
    "after_updates": 32,
    "buffer_capacity": 500,
    "learning_starts": 16,
    "train_frequency": 24,
    "gradient_steps": 36,
}
"""The online stage of offline runs, if the config class has one."""
_numbers = itertools.count()
SAVED_ATTRIBUTES = ("global_step", "progress", "counters")
"""Attributes that the base class saves; its other ones do not change."""
MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
"""Attributes that torch itself keeps in each module."""
CONTAINERS = (list, tuple, dict, set, deque)
GENERATOR_STATES: dict[type, Callable[[Any], Any]] = {
    torch.Generator: lambda generator: generator.get_state().tolist(),
    np.random.Generator: lambda generator: generator.bit_generator.state,
    np.random.RandomState: lambda generator: generator.get_state(legacy=False),
    random.Random: random.Random.getstate,
}
"""How the state of a random generator is read, by its type."""


class AlgorithmCheckError(AssertionError):
    """An algorithm does not keep its contract: the message names the check, the fault and the remedy."""


def fail(found: str, remedy: str) -> None:
    """Report a fault; `check` adds the names of the algorithm and the check."""
    raise AlgorithmCheckError(f"{found}: {remedy}")


@dataclass(frozen=True, eq=False)
class AlgorithmCase:
    """An algorithm class with its config class, its loop, and the environment and settings it is checked with."""

    algorithm_class: type[Algorithm[Any]]
    config_class: type[AlgorithmConfig]
    loop: Loop
    env_id: str | None = None
    algo_kwargs: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise a `ConfigError` if the config class does not fit the loop, or a setting is wrong."""
        _ = self.algo_config

    @property
    def name(self) -> str:
        """Name of the algorithm class."""
        return self.algorithm_class.__name__

    @functools.cached_property
    def spec(self) -> AlgorithmSpec:
        """The algorithm under a name that no other has."""
        name = f"{self.name.lower()}_checked_{next(_numbers)}"
        return AlgorithmSpec(
            name, "an algorithm that is checked", self.algorithm_class, self.config_class, self.loop
        )

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """The `algo_kwargs` of the runs."""
        fields = self.spec.config_class().model_fields
        small = {"hidden_sizes": [8, 8], "eval_interval": 64, **SMALL[self.loop]}
        if issubclass(self.config_class, OfflineToOnlineConfig):
            small["online"] = ONLINE
        return {
            **{name: value for name, value in small.items() if name in fields},
            **self.algo_kwargs,
        }

    @functools.cached_property
    def algo_config(self) -> Any:
        """The parsed settings."""
        return self.spec.parse_kwargs(self.settings)

    @functools.cached_property
    def env(self) -> str:
        """The environment of the runs."""
        for env_id in TEST_ENVS if self.env_id is None else (self.env_id,):
            with contextlib.closing(make_env(env_id)) as env, contextlib.suppress(EnvError):
                self.algorithm_class.check_spaces(
                    describe_spaces(env.observation_space, env.action_space)
                )
                return env_id
        tried = self.env_id or ", ".join(TEST_ENVS)
        raise ConfigError(
            f"check_spaces of {self.name} does not accept {tried}: pass the env_id of one it accepts"
        )

    @functools.cached_property
    def spaces(self) -> Spaces:
        """The spaces of that environment."""
        with contextlib.closing(EnvSource.parse(self.env).make_vector()) as envs:
            return envs.spaces

    def train_config(self, output_dir: Path, seed: int = 1) -> TrainConfig:
        """Configuration of a run; the algorithm must be registered."""
        return TrainConfig(
            algo=self.spec.name,
            env_id=self.env,
            env_kwargs={"max_episode_steps": EPISODE_STEPS},
            seed=seed,
            total_timesteps=TOTAL_STEPS,
            output_dir=output_dir,
            device="cpu",
            num_envs=NUM_ENVS,
            num_threads=1,
            compile=False,
            eval_episodes=2,
            log_interval=32,
            checkpoint_interval=64,
            algo_kwargs=self.settings,
        )

    def make(self, seed: int = 1, spaces: Spaces | None = None) -> Algorithm[Any]:
        """A new algorithm object, prepared for training."""
        spaces = spaces or self.spaces
        resources = Resources(torch.device("cpu"), torch.Generator().manual_seed(seed), NUM_ENVS)
        algorithm = self.algorithm_class.for_spaces(spaces)(self.algo_config, spaces, resources)
        if self.loop is Loop.OFFLINE and spaces is self.spaces:
            algorithm.fit_observations(torch.from_numpy(self._transitions.obs.copy()))
        return algorithm

    @functools.cached_property
    def _transitions(self) -> TransitionDataset:
        rows = self._batch_rows * NUM_BATCHES
        limit = {"max_episode_steps": EPISODE_STEPS}
        recorded = load_transition_dataset("random", env_id=self.env, env_kwargs=limit, size=rows)
        return recorded.to_model_space(self.spaces)

    @property
    def _batch_rows(self) -> int:
        is_rollout = self.loop is Loop.ON_POLICY
        return int(
            self.algo_config.num_steps * NUM_ENVS if is_rollout else self.algo_config.batch_size
        )

    def batch(self, number: int) -> Transitions:
        """A new copy of a batch of random actions: [T, N, ...] for the on-policy loop, else [B, ...] or sequences."""
        sampling = self.algo_config.sampling()
        if self.loop is not Loop.ON_POLICY and sampling.kind != "transitions":
            recorded = self._transitions.with_sampler(rng=np.random.default_rng(number))
            return self._with_step_fields(recorded.sample_sequences(self._batch_rows, sampling))
        size, start = self._batch_rows, number % NUM_BATCHES * self._batch_rows
        tensors = {
            name: torch.tensor(array[start : start + size])
            for name, array in self._transitions.arrays().items()
        }
        if self.loop is Loop.ON_POLICY:
            tensors = {
                name: tensor.view(NUM_ENVS, -1, *tensor.shape[1:]).transpose(0, 1).contiguous()
                for name, tensor in tensors.items()
            }
        return self._with_step_fields(Transitions.from_tensors(tensors))

    def _with_step_fields(self, batch: Transitions) -> Transitions:
        """The batch with the fields that the algorithm declares: returned by a new object's `act`, and zero info."""
        algorithm = self.make()
        declared, leading = algorithm.step_fields(), tuple(batch.rewards.shape)
        extras = {
            name: torch.zeros((*leading, *part.shape), dtype=getattr(torch, part.dtype))
            for name, part in algorithm.info_fields.items()
        }
        if not declared:
            return dataclasses.replace(batch, extras=extras)
        obs = batch.obs.flatten(0, len(leading) - 1)
        masks = None if batch.masks is None else batch.masks.flatten(0, len(leading) - 1)
        acted = algorithm.act(obs, algorithm.initial_state(len(obs)), explore=True, mask=masks)
        for name, part in declared.items():
            extras[name] = acted.fields[name].view(*leading, *part.shape)
        return dataclasses.replace(
            batch, actions=acted.actions.view_as(batch.actions), extras=extras
        )

    def obs(self, count: int) -> Tensor:
        """A new copy of `count` observations, [count, ...]."""
        return torch.from_numpy(np.resize(self._transitions.obs, (count, *self.spaces.obs.shape)))

    def masks(self, count: int) -> Tensor | None:
        """Action masks of `obs(count)`, if the environment gives them."""
        masks = self._transitions.masks
        return (
            None if masks is None else torch.from_numpy(np.resize(masks, (count, masks.shape[1])))
        )

    def act(self, algorithm: Algorithm[Any], count: int, *, explore: bool) -> ActResult:
        """Act at the start of `count` episodes."""
        state, mask = algorithm.initial_state(count), self.masks(count)
        return algorithm.act(self.obs(count), state, explore=explore, mask=mask)

    def train(self, algorithm: Algorithm[Any], number: int) -> tuple[Tensor, UpdateResult]:
        """Explore once and update with a batch, as a loop does; returns the actions and the result."""
        set_progress(algorithm, number)
        acted = self.act(algorithm, NUM_ENVS, explore=True)
        return acted.actions, algorithm.update(self.batch(number))


def set_progress(algorithm: Algorithm[Any], number: int) -> None:
    """Set the point of training of update `number`, as a run does."""
    algorithm.global_step, algorithm.progress = 10 * number, number / 100


Check = Callable[[AlgorithmCase], None]


def check(function: Check) -> Check:
    """Make a check: it runs quietly on one thread, and its errors name the algorithm and the check."""

    @functools.wraps(function)
    def run(case: AlgorithmCase) -> None:
        with quieted(), Execution(1, compile=False).applied():
            case.obs(1)  # errors of the environment are not the algorithm's
            failed = f"{case.name} fails {function.__name__}"
            try:
                function(case)
            except AlgorithmCheckError as error:
                error.args = (f"{failed}: {error}",)
                raise
            except Exception as error:
                found = f"{type(error).__name__}: {error}"
                raise AlgorithmCheckError(f"{failed}: {found}") from error

    return run


def first_difference(one: Any, other: Any, *, path: str) -> str | None:
    """Path of the first place where two states are not bit-exactly the same; None if there is none."""
    if type(one) is not type(other):
        return path
    if isinstance(one, Segment):
        one, other = vars(one), vars(other)
    if isinstance(one, (list, tuple)):
        one, other = dict(enumerate(one)), dict(enumerate(other))
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return f"{path}/{min(one.keys() ^ other.keys(), key=str)}"
        found = (first_difference(one[key], other[key], path=f"{path}/{key}") for key in one)
        return next((place for place in found if place is not None), None)
    is_equal = torch.equal(one, other) if isinstance(one, Tensor) else is_same(one, other)
    return None if is_equal else path


def saved_state(algorithm: Algorithm[Any]) -> dict[str, Any]:
    """A copy of `state_dict`, which shares nothing with the algorithm."""
    return copy.deepcopy(algorithm.state_dict())


def unsaved_attributes(algorithm: Algorithm[Any]) -> dict[str, str]:
    """Content of every attribute, by path, that is neither the base class's nor in the `state_dict` of a member."""
    base = (algorithm.config, algorithm.spaces, algorithm.generator, algorithm.mlp_spec)
    seen = {id(value) for value in (algorithm, *base)}
    return {
        path: content
        for name, value in vars(algorithm).items()
        if name not in SAVED_ATTRIBUTES
        for path, content in _contents(name, value, seen)
    }


def _contents(path: str, value: Any, seen: set[int]) -> Iterator[tuple[str, str]]:
    """Paths and contents of the values in an attribute: objects are entered, containers are one value."""
    if isinstance(value, STATELESS) or id(value) in seen:
        return
    inside = _attributes(value) if path.count(".") < MAX_DEPTH else None
    if inside is None:
        yield path, _describe(value, seen)
        return
    seen.add(id(value))
    for name, part in inside.items():
        yield from _contents(f"{path}.{name}", part, seen)


def _attributes(value: Any) -> Mapping[str, Any] | None:
    """The attributes of an object that its `state_dict` does not hold; None for a plain value or container."""
    if isinstance(value, nn.Module):
        own = {name: part for name, part in vars(value).items() if name not in MODULE_ATTRIBUTES}
        unsaved = {name: value._buffers[name] for name in value._non_persistent_buffers_set}
        return {**own, **unsaved, **value._modules}
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return {}
    if isinstance(value, (*UNSAVED_TYPES, *CONTAINERS)):
        return None
    return getattr(value, "__dict__", None)


def _describe(value: Any, seen: set[int]) -> str:
    """Text that changes when a value changes."""
    if isinstance(value, (Tensor, np.ndarray)):
        return f"{value.dtype}{tuple(value.shape)}{value.tolist()}"
    for kind, read_state in GENERATOR_STATES.items():
        if isinstance(value, kind):
            return repr(read_state(value))
    if isinstance(value, dict):
        value = list(value.items())
    if isinstance(value, (list, tuple, deque)):
        return repr([list(_contents("", item, seen)) for item in value])
    return repr(value)


@contextlib.contextmanager
def no_global_randomness(during: str) -> Iterator[None]:
    """Fail if the block draws from the global generator of torch, NumPy or Python."""
    before = global_generators()
    yield
    used = drawn_from(before)
    if used:
        fail(
            f"{during} draws from the global generator of {' and '.join(used)}, which no checkpoint holds",
            "draw from self.generator; self.mlp_spec.make makes networks whose initial weights come from it",
        )
