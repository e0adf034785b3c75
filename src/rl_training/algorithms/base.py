"""The contract of an algorithm: act on observations, learn from a batch, save and restore all of its state."""

from __future__ import annotations

import inspect
import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType, MethodType, ModuleType
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.config import AlgorithmConfig, Scheduled
from rl_training.algorithms.optim import Adam
from rl_training.errors import ConfigError, EnvError
from rl_training.models.actions import executed, random_actions
from rl_training.models.encoders import find_network
from rl_training.models.mlp import MLPSpec
from rl_training.replay.transitions import StepFields, Transitions
from rl_training.spaces.actions import ActionKind
from rl_training.spaces.spec import Spaces

ConfigT = TypeVar("ConfigT", bound=AlgorithmConfig)
UNSAVED_TYPES = (
    Tensor,
    torch.Generator,
    np.ndarray,
    np.random.Generator,
    np.random.RandomState,
    random.Random,
)
"""Types that hold state but have no `state_dict`: a checkpoint would not save such an attribute."""
STATELESS = (type, AlgorithmConfig, Spaces, FunctionType, MethodType, ModuleType)
MAX_DEPTH = 4
"""Plain objects are searched for members down to this depth."""


KIND_NAMES = {
    ActionKind.CONTINUOUS: "Box",
    ActionKind.DISCRETE: "Discrete",
    ActionKind.MULTI_DISCRETE: "MultiDiscrete or MultiBinary",
}


class Stateful(Protocol):
    """Anything whose state can be saved and restored."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes."""

    def load_state_dict(self, state: dict[str, Any], /) -> Any:
        """Restore what `state_dict` returned."""


class ActResult(NamedTuple):
    """Result of one `Algorithm.act`."""

    actions: Tensor
    """Model actions, [B, ...]."""
    state: Tensor | None = None
    """Policy state after this step, one row per environment, [B, ...]; None for a policy without memory."""
    fields: Mapping[str, Tensor] = {}
    """What `step_fields` declares, [B, ...], stored with the step; needed only when exploring."""


@dataclass(frozen=True)
class UpdateResult:
    """Result of one `Algorithm.update`."""

    metrics: dict[str, Tensor]
    """Scalars by name, as detached tensors."""
    gradient_steps: int = 1
    """Optimizer steps taken."""
    td_errors: Tensor | None = None
    """Absolute TD error per transition, [B], for prioritized replay; else None."""

    @property
    def num_gradient_steps(self) -> int:
        """The same as `gradient_steps`."""
        return self.gradient_steps


@dataclass(frozen=True)
class Resources:
    """Device, random generator and options that a run passes to its algorithm."""

    device: torch.device
    generator: torch.Generator
    """Source of every random number of the algorithm, initial weights included."""
    num_envs: int = 1
    compile: bool = False
    """Whether to compile each update into one graph."""
    algo: str = ""
    """Registered name of the algorithm."""


class Algorithm(ABC, Generic[ConfigT]):
    """One update rule with its networks and optimizers.

    A run sets `global_step`, its environment steps (offline: updates) so far, and `progress`, the fraction of training
    done, before each `act` and `update`; schedules follow them. Integers in `counters` are saved in the state_dict.
    """

    action_kinds: ClassVar[tuple[ActionKind, ...]] = tuple(ActionKind)
    """Kinds of action spaces in which it can act."""
    needs_bounds: ClassVar[bool] = False
    """Whether Box actions need finite bounds."""
    reads_images: ClassVar[bool] = True
    """Whether observations may have images; if not, environments that give them are refused."""
    obeys_masks: ClassVar[bool] = False
    """Whether `act` and `update` obey action masks; if not, environments that give masks are refused."""
    info_fields: ClassVar[StepFields] = {}
    """Keys of the environment's info that are stored with each step, in `Transitions.extras`."""
    starts_trained = False
    """Whether the run began with a trained policy, which needs no exploration schedule; set by its loop."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse an `act` without policy state and mask, where it is defined."""
        super().__init_subclass__(**options)
        if "act" in vars(cls):
            _check_signature(cls.act, f"{cls.__module__}.{cls.__qualname__}")

    def __init__(self, config: ConfigT, spaces: Spaces, resources: Resources) -> None:
        self.config = config
        self.spaces = spaces
        self.device = resources.device
        self.generator = resources.generator
        encoder_class = None if config.network is None else find_network(config.network)
        self.mlp_spec = MLPSpec(
            config.hidden_sizes,
            config.activation,
            self.generator,
            config.layer_norm,
            encoder_class=encoder_class,
        )
        self.global_step = 0
        self.progress = 0.0
        self.counters: dict[str, int] = {}
        self._algo = resources.algo

    def __str__(self) -> str:
        """The registered name, as the configuration has it."""
        return self._algo or type(self).__name__

    @classmethod
    def for_spaces(cls, spaces: Spaces) -> type[Algorithm[Any]]:
        """The class that handles these spaces: this one, unless another action space needs another update rule."""
        return cls

    @classmethod
    def check_spaces(cls, spaces: Spaces) -> None:
        """Raise an `EnvError` if the algorithm cannot act in these spaces; override it for further conditions."""
        name, action = cls.__name__.removesuffix("Algorithm"), spaces.action
        if action.kind not in cls.action_kinds:
            needed = " or ".join(KIND_NAMES[kind] for kind in cls.action_kinds)
            raise EnvError(f"{name} needs {needed} actions, not {KIND_NAMES[action.kind]}")
        if cls.needs_bounds and action.kind is ActionKind.CONTINUOUS and not action.is_bounded:
            raise EnvError(
                f"{name} needs Box actions with finite bounds, not from {action.low} to {action.high}: wrap the"
                " environment in gymnasium.wrappers.TransformAction with a bounded Box"
            )
        if spaces.obs.image_shapes and not cls.for_spaces(spaces).reads_images:
            raise EnvError(f"{name} reads vectors, not images")

    @abstractmethod
    def act(
        self, obs: Tensor, state: Tensor | None = None, *, explore: bool, mask: Tensor | None = None
    ) -> ActResult:
        """Model actions [B, ...] for observations [B, ...]; without `explore` no random number is drawn.

        `state` is the policy state before this step: `initial_state` at the first step of an episode, else what the
        step before returned. `mask` [B, num_options] marks the valid actions, if the environment gives masks.
        """

    @abstractmethod
    def update(self, batch: Transitions) -> UpdateResult:
        """Learn from a batch."""

    def initial_state(self, count: int) -> Tensor | None:
        """Policy state at the start of `count` episodes, [count, ...]; None for a policy without memory."""
        return None

    def step_fields(self) -> StepFields:
        """Further fields of the step record that `act` returns when exploring; none by default."""
        return {}

    def stateful_members(self) -> dict[str, Stateful]:
        """Networks, optimizers and all else with a `state_dict`, by attribute name; these are saved.

        Members of lists, tuples, dicts and plain objects are found too, as `critics.0` or `agent.critic`. Override it
        only to add more. A tensor, an array or a random generator that no checkpoint would hold, as an attribute or
        in a list, tuple or dict, raises a `ConfigError`.
        """
        return dict(self._find_members())

    @cached_property
    def optimizers(self) -> list[Adam]:
        """The optimizers of the package's own class among the members."""
        return [member for member in self.stateful_members().values() if isinstance(member, Adam)]

    @cached_property
    def scheduled_optimizers(self) -> list[Adam]:
        """Those whose learning rate follows a schedule."""
        return [optimizer for optimizer in self.optimizers if optimizer.schedule is not None]

    @property
    def actor_spec(self) -> MLPSpec:
        """Hidden layers of the actor: `mlp_spec`, unless the config has other `actor_hidden_sizes`."""
        return self.mlp_spec.resized(self.config.network_sizes().get("actor_hidden_sizes"))

    @property
    def critic_spec(self) -> MLPSpec:
        """Hidden layers of the critics: `mlp_spec`, unless the config has other `critic_hidden_sizes`."""
        return self.mlp_spec.resized(self.config.network_sizes().get("critic_hidden_sizes"))

    def make_optimizer(
        self,
        parameters: Iterable[nn.Parameter],
        learning_rate: Scheduled | None = None,
        *,
        weight_decay: float | None = None,
    ) -> Adam:
        """Adam with the settings of the config; a learning rate or weight decay that is given replaces its own."""
        config = self.config
        return Adam(
            parameters,
            config.learning_rate if learning_rate is None else learning_rate,
            eps=config.adam_eps,
            betas=(config.adam_beta1, config.adam_beta2),
            weight_decay=config.weight_decay if weight_decay is None else weight_decay,
        )

    def fit_observations(self, obs: Tensor) -> None:
        """Called with chunks of the dataset's observations before offline training; does nothing by default."""

    @property
    def needs_steps(self) -> bool:
        """Whether the loop calls `observe`: if it is overridden."""
        return type(self).observe is not Algorithm.observe

    def observe(self, steps: Transitions) -> None:
        """Called with each step of all environments, [1, N], before the next is stored; does nothing by default.

        Only where steps go into a replay buffer: the off-policy loop, and the online stage of the offline loop. A step
        that was lost with its environment has ended its episode by then: the step before it is `truncated`.
        """

    def random_actions(self, count: int, mask: Tensor | None = None) -> Tensor:
        """Model actions sampled uniformly from the valid actions, for warm-up."""
        return random_actions(self.spaces.action, count, self.generator, mask)

    def add_exploration_noise(
        self, actions: Tensor, amount: float, mask: Tensor | None = None
    ) -> Tensor:
        """Add Gaussian noise of standard deviation `amount` (Box), or take a random action with that probability."""
        if self.spaces.action.kind is not ActionKind.CONTINUOUS:
            return self.replace_at_random(actions, amount, mask)
        noise = torch.empty_like(actions).normal_(generator=self.generator)
        # Clipped before and after: noise on an action beyond a bound would be lost on the way back to the bound.
        return executed(self.spaces.action, executed(self.spaces.action, actions) + amount * noise)

    def replace_at_random(
        self, actions: Tensor, probability: float, mask: Tensor | None = None
    ) -> Tensor:
        """Replace each action by a random valid one with this probability."""
        is_random = (
            torch.rand(len(actions), generator=self.generator, device=self.device) < probability
        )
        is_random = is_random.view(-1, *[1] * (actions.dim() - 1))
        return torch.where(is_random, self.random_actions(len(actions), mask), actions)

    def state_dict(self) -> dict[str, Any]:
        """Everything `act` and `update` depend on."""
        return {
            "spaces": self.spaces.state_dict(),
            "members": {
                name: member.state_dict() for name, member in self.stateful_members().items()
            },
            "generator": self.generator.get_state(),
            "global_step": self.global_step,
            "progress": self.progress,
            "counters": self._saved_counters(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        members, saved = self.stateful_members(), state["members"]
        for name in saved.keys() - members.keys():
            raise ValueError(
                f"saved member '{name}' is not in a new {type(self).__name__}: create it in __init__"
            )
        for name, member in members.items():
            member.load_state_dict(saved[name])
        self.generator.set_state(state["generator"].cpu())
        self.global_step = int(state["global_step"])
        self.progress = float(state["progress"])
        self.counters |= {name: int(count) for name, count in state["counters"].items()}

    def _saved_counters(self) -> dict[str, int]:
        for name, count in self.counters.items():
            if not isinstance(count, (int, np.integer)):
                raise ConfigError(
                    f"self.counters['{name}'] of {type(self).__name__} is {count!r:.100}, not an int: keep it in a"
                    " buffer of an nn.Module"
                )
        return {name: int(count) for name, count in self.counters.items()}

    def _find_members(self) -> Iterator[tuple[str, Stateful]]:
        seen = {id(self), id(self.generator)}
        for name, value in vars(self).items():
            yield from self._members_in(name, value, seen)

    def _members_in(
        self, name: str, value: Any, seen: set[int], *, refuse_loose: bool = True
    ) -> Iterator[tuple[str, Stateful]]:
        if id(value) in seen or isinstance(value, STATELESS):
            return
        if callable(getattr(value, "state_dict", None)) and callable(
            getattr(value, "load_state_dict", None)
        ):
            seen.add(id(value))
            yield name, value
        elif isinstance(value, UNSAVED_TYPES):
            if not refuse_loose:
                return
            raise ConfigError(
                f"attribute '{name}' of {type(self).__name__} is a {type(value).__name__} that no checkpoint would"
                " hold: make it a buffer or parameter of an nn.Module, draw from self.generator, or compute it where"
                " it is used"
            )
        elif isinstance(value, (list, tuple, deque, dict)):
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                yield from self._members_in(f"{name}.{key}", item, seen, refuse_loose=refuse_loose)
        elif hasattr(value, "__dict__") and name.count(".") < MAX_DEPTH:
            seen.add(id(value))
            for key, item in vars(
                value
            ).items():  # its arrays may be constants, such as the bounds of a space
                yield from self._members_in(f"{name}.{key}", item, seen, refuse_loose=False)


def _check_signature(act: Any, owner: str) -> None:
    try:
        inspect.signature(act).bind(None, None, None, explore=True, mask=None)
    except TypeError:
        raise TypeError(
            f"act of {owner} must take (self, obs, state=None, *, explore, mask=None) and return ActResult(actions)"
        ) from None
