"""The contract of an algorithm: act on observations, learn from a batch, save and restore all of its state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from rl_training.algorithms.config import AlgorithmConfig
from rl_training.algorithms.optim import Adam
from rl_training.models.mlp import Layers
from rl_training.replay.transitions import Transitions
from rl_training.spaces.actions import ActionKind
from rl_training.spaces.spec import Spaces

ConfigT = TypeVar("ConfigT", bound=AlgorithmConfig)


class Stateful(Protocol):
    """Anything whose state can be saved and restored."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes."""

    def load_state_dict(self, state: dict[str, Any], /) -> Any:
        """Restore what `state_dict` returned."""


@dataclass(frozen=True)
class UpdateResult:
    """What one `update` did: metrics as detached tensors, and how many gradient steps it took."""

    metrics: dict[str, Tensor]
    gradient_steps: int = 1
    errors: Tensor | None = None
    """How far off each transition of the batch was, where the batch was drawn unevenly."""

    @property
    def num_gradient_steps(self) -> int:
        """The same as `gradient_steps`."""
        return self.gradient_steps


@dataclass(frozen=True)
class Resources:
    """What a run hands to its algorithm."""

    device: torch.device
    generator: torch.Generator
    """Source of every random number the algorithm draws, weights included."""
    num_envs: int = 1
    compile: bool = False
    """Whether to turn each update into one compiled graph."""


class Algorithm(ABC, Generic[ConfigT]):
    """One update rule with its networks and optimizers."""

    def __init__(self, config: ConfigT, spaces: Spaces, resources: Resources) -> None:
        self.config = config
        self.spaces = spaces
        self.device = resources.device
        self.generator = resources.generator
        self.layers = Layers(config.hidden_sizes, config.activation, self.generator)
        self.global_step = 0
        self.progress = 0.0
        self.counters: dict[str, int] = {}

    @classmethod
    @abstractmethod
    def check_spaces(cls, spaces: Spaces) -> None:
        """Raise an `EnvError` if the algorithm cannot act in these spaces."""

    @abstractmethod
    def act(self, obs: Tensor, *, explore: bool) -> Tensor:
        """Model actions [B, ...] for observations [B, ...]; without `explore` no random number is drawn."""

    @abstractmethod
    def update(self, batch: Transitions) -> UpdateResult:
        """Learn from a batch."""

    def parts(self) -> dict[str, Stateful]:
        """The objects that change: unless written anew, every attribute that is a network or an optimizer, by name."""
        return parts_of(self)

    @cached_property
    def optimizers(self) -> list[Adam]:
        """The optimizers among the parts."""
        return [part for part in self.parts().values() if isinstance(part, Adam)]

    def fit_observations(self, obs: Tensor) -> None:
        """Be shown a part of the data's observations, before the first update; by default nothing is learned of it."""

    def advance(self, global_step: int, progress: float) -> None:
        """Be told where the run is: the step, and the share of the run that is done (for schedules)."""
        self.global_step = global_step
        self.progress = progress

    def random_actions(self, count: int) -> Tensor:
        """Actions drawn uniformly from the action space, for warm-up."""
        action = self.spaces.action
        if action.kind is ActionKind.CONTINUOUS:
            shape = (count, *action.model_shape)
            actions = torch.empty(shape, device=self.device).uniform_(-1.0, 1.0, generator=self.generator)
            if action.is_bounded:
                return actions
            center, half_width = (torch.from_numpy(part).to(actions) for part in action.random_range)
            return center + half_width * actions
        columns = [torch.randint(n, (count,), generator=self.generator, device=self.device) for n in action.choices]
        return columns[0] if action.kind is ActionKind.DISCRETE else torch.stack(columns, -1)

    def add_exploration_noise(self, actions: Tensor, amount: float) -> Tensor:
        """Add Gaussian noise of standard deviation `amount` (Box), or take a random action with that probability."""
        if self.spaces.action.kind is not ActionKind.CONTINUOUS:
            return self.replace_at_random(actions, amount)
        noise = torch.empty_like(actions).normal_(generator=self.generator)
        # Added to the action that would be executed: beyond a bound, noise would be lost in the way back to it.
        return self.spaces.action.executed(self.spaces.action.executed(actions) + amount * noise)

    def replace_at_random(self, actions: Tensor, probability: float) -> Tensor:
        """Replace each action by a random one with this probability."""
        is_random = torch.rand(len(actions), generator=self.generator, device=self.device) < probability
        is_random = is_random.view(-1, *[1] * (actions.dim() - 1))
        return torch.where(is_random, self.random_actions(len(actions)), actions)

    def state_dict(self) -> dict[str, Any]:
        """Everything `act` and `update` depend on."""
        return {
            "spaces": self.spaces.state_dict(),
            "parts": {name: part.state_dict() for name, part in self.parts().items()},
            "generator": self.generator.get_state(),
            "global_step": self.global_step,
            "progress": self.progress,
            "counters": dict(self.counters),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name, part in self.parts().items():
            part.load_state_dict(state["parts"][name])
        self.generator.set_state(state["generator"].cpu())
        self.global_step = int(state["global_step"])
        self.progress = float(state["progress"])
        self.counters |= {name: int(count) for name, count in state["counters"].items()}


def parts_of(owner: object) -> dict[str, Stateful]:
    """The attributes that are networks or optimizers, in the order in which they were made."""
    return {name: value for name, value in vars(owner).items() if isinstance(value, (nn.Module, Adam))}
