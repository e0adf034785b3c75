"""Settings that algorithms share, by the loop that runs them."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from rl_training.models.mlp import Activation
from rl_training.validation import FrozenConfig

PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
HiddenSizes = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]


class Schedule(FrozenConfig):
    """A value that moves from `start` to `end` over the run."""

    kind: Literal["linear", "cosine"]
    """The shape of the way."""
    start: NonNegativeFloat
    """The value at the first step."""
    end: NonNegativeFloat = 0.0
    """The value at the last step."""

    def at(self, progress: float) -> float:
        """The value when `progress` (0 to 1) of the run is done."""
        share = progress if self.kind == "linear" else 0.5 * (1.0 - math.cos(math.pi * progress))
        return self.start + (self.end - self.start) * share


Scheduled = PositiveFloat | Schedule


def value_at(setting: float | Schedule, progress: float) -> float:
    """The value of a number or a schedule when `progress` of the run is done."""
    return setting.at(progress) if isinstance(setting, Schedule) else setting


class EarlyStoppingConfig(FrozenConfig):
    """When to end a run before its last step."""

    metric: str = "eval_return_mean"
    """The evaluation metric to watch."""
    mode: Literal["max", "min"] = "max"
    """Whether more or less of it is better."""
    patience: PositiveInt = 5
    """Evaluations without improvement after which the run ends."""
    min_delta: NonNegativeFloat = 0.0
    """What counts as an improvement."""
    min_steps: Annotated[int, Field(ge=0)] = 0
    """Never stop before this step."""
    target_value: float | None = None
    """End the run as soon as the metric reaches this value."""


class AlgorithmConfig(FrozenConfig):
    """What every algorithm has."""

    learning_rate: Scheduled = 3e-4
    """Step size of the optimizer: a number or a schedule."""
    gamma: Fraction = 0.99
    """How much a reward one step later is worth."""
    hidden_sizes: HiddenSizes = (256, 256)
    """Width of each hidden layer."""
    activation: Activation = "relu"
    """What stands between the layers."""
    eval_interval: PositiveInt | None = None
    """Steps between evaluations (by default a tenth of the run)."""
    early_stopping: EarlyStoppingConfig | None = None
    """When to end the run early."""

    def samples_per_update(self) -> int:
        """Transitions that one gradient step reads."""
        return 256

    def gradient_steps_in(self, total_timesteps: int, num_envs: int) -> int:
        """About how many gradient steps a run of that length takes."""
        return total_timesteps


class OnPolicyConfig(AlgorithmConfig):
    """What the on-policy loop reads."""

    num_steps: PositiveInt = 2048
    """Steps each environment takes between two updates."""


class OffPolicyConfig(AlgorithmConfig):
    """What the off-policy loop and its replay buffer read."""

    buffer_capacity: PositiveInt = 1_000_000
    """Transitions kept for replay."""
    batch_size: PositiveInt = 256
    """Transitions in one update."""
    learning_starts: Annotated[int, Field(ge=0)] = 100
    """Steps of random actions before the first update."""
    train_frequency: PositiveInt = 1
    """Environment steps (over all environments) between two rounds of updates."""
    gradient_steps: PositiveInt = 1
    """Updates in one round."""
    n_step: PositiveInt = 1
    """Rewards summed before the value of the state reached is used."""

    def samples_per_update(self) -> int:
        """The batch."""
        return self.batch_size

    def gradient_steps_in(self, total_timesteps: int, num_envs: int) -> int:
        """The ratio of updates to steps, times the steps."""
        return total_timesteps * self.gradient_steps // self.train_frequency
