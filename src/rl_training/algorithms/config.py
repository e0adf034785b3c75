"""Settings that algorithms share, by the loop that runs them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from rl_training.models.mlp import Activation
from rl_training.validation import FrozenConfig

Fraction = Annotated[float, Field(ge=0, le=1)]
HiddenSizes = tuple[PositiveInt, ...]


class Schedule(FrozenConfig):
    """A value that moves from `start` to `end` over the run."""

    spelling: ClassVar[str | None] = "{kind: linear|cosine, start: …, end: …}"
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
    min_steps: NonNegativeInt = 0
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
    """Width of each hidden layer; behind the convolutions that read an image there may be none."""
    activation: Activation = "relu"
    """Activation function of the hidden layers."""
    eval_interval: PositiveInt | None = None
    """Steps between evaluations (by default a tenth of the run)."""
    early_stopping: EarlyStoppingConfig | None = None
    """When to end the run early."""

    def samples_per_update(self) -> int:
        """Transitions that one gradient step reads."""
        return 256

    def gradient_steps_in(self, total_timesteps: int, num_envs: int) -> int | None:
        """About how many gradient steps a run of that length takes; None: unknown, `compile: auto` does not compile."""
        return None

    def has_schedules(self) -> bool:
        """Whether a setting follows a schedule over the run."""
        return any(isinstance(value, Schedule) for value in vars(self).values())


class OnPolicyConfig(AlgorithmConfig):
    """What the on-policy loop reads."""

    num_steps: PositiveInt = 2048
    """Steps each environment takes between two updates."""


HINDSIGHT: Literal["her"] = "her"
REPLAY_KEYS = {"uniform": (), "prioritized": ("alpha", "beta"), HINDSIGHT: ("strategy", "goals_per_step")}


class ReplayConfig(FrozenConfig):
    """How stored transitions are drawn."""

    kind: Literal["uniform", "prioritized", "her"] = "uniform"
    """`uniform`; `prioritized` by TD error (Schaul et al. 2016); `her`: uniform with relabelled goals (Andrychowicz et
    al. 2017)."""
    alpha: Fraction = 0.6
    """Prioritized: how much the last error counts: 0 is uniform, 1 draws in proportion to it."""
    beta: Scheduled = Schedule(kind="linear", start=0.4, end=1.0)
    """Prioritized: how much of the unevenness the weights take back: 1 is all."""
    strategy: Literal["future", "final", "episode"] = "future"
    """Her: where other goals come from: what was achieved later in the episode, at its end, or anywhere in it."""
    goals_per_step: PositiveInt = 4
    """Her: transitions with another goal for each one with its own."""

    @model_validator(mode="after")
    def _has_keys_of_its_kind(self) -> ReplayConfig:
        for key in sorted(self.model_fields_set - {"kind"}):
            if key not in REPLAY_KEYS[self.kind]:
                owner = next(kind for kind, keys in REPLAY_KEYS.items() if key in keys)
                raise ValueError(f"{key} is for kind '{owner}' and means nothing for kind '{self.kind}'")
        return self


class OffPolicyConfig(AlgorithmConfig):
    """What the off-policy loop and its replay buffer read."""

    buffer_capacity: PositiveInt = 1_000_000
    """Transitions kept for replay."""
    batch_size: PositiveInt = 256
    """Transitions in one update."""
    learning_starts: NonNegativeInt = 100
    """Steps of random actions before the first update."""
    train_frequency: PositiveInt = 1
    """Environment steps (over all environments) between two rounds of updates."""
    gradient_steps: PositiveInt = 1
    """Updates in one round."""
    n_step: PositiveInt = 1
    """Rewards summed before the value of the state reached is used."""
    replay: ReplayConfig = ReplayConfig()
    """How stored transitions are drawn: `kind: uniform`, `prioritized` or `her`, each with keys of its own."""

    @model_validator(mode="after")
    def _has_room_for_other_goals(self) -> OffPolicyConfig:
        if self.replay.kind == HINDSIGHT and self.batch_size <= (others := self.replay.goals_per_step):
            raise ValueError(f"batch_size {self.batch_size} is too small for replay.goals_per_step {others}: take more")
        return self

    def samples_per_update(self) -> int:
        """The batch."""
        return self.batch_size

    def gradient_steps_in(self, total_timesteps: int, num_envs: int) -> int:
        """The ratio of updates to steps, times the steps."""
        return total_timesteps * self.gradient_steps // self.train_frequency

    def has_schedules(self) -> bool:
        """Also the importance exponent of prioritized replay."""
        is_beta_scheduled = self.replay.kind == "prioritized" and isinstance(self.replay.beta, Schedule)
        return is_beta_scheduled or super().has_schedules()


KIND_READING = {
    "dataset_path": "npz or pt",
    "dataset_id": "minari",
    "dataset_download": "minari",
    "dataset_seed": "random",
}


class OfflineConfig(AlgorithmConfig):
    """What the offline loop and its data set read."""

    dataset_kind: Literal["random", "npz", "pt", "minari"] | None = None
    """Source of the transitions: an npz or pt file, a Minari dataset or random actions. Training requires it."""
    dataset_path: Path | None = None
    """The file to read, where the kind is npz or pt."""
    dataset_size: PositiveInt = 10_000
    """Steps of random actions to take, where the kind is random."""
    dataset_seed: NonNegativeInt | None = None
    """Seed of the environment and the actions, where the kind is random; null: derived from the run's seed."""
    dataset_id: str | None = None
    """The name of the data set, where the kind is minari."""
    dataset_download: bool = False
    """Fetch the data set if it is not on this machine, where the kind is minari."""
    dataset_check: Literal["error", "warn"] = "error"
    """What to do about errors in the data: stop, or warn, clip actions to their bounds and go on."""
    reward_scale: float = 1.0
    """Factor of every reward."""
    reward_shift: float = 0.0
    """Added to every reward once it is scaled."""
    reward_clip_min: float | None = None
    """Least reward, once scaled and shifted."""
    reward_clip_max: float | None = None
    """Greatest reward, once scaled and shifted."""
    normalize_obs: bool = False
    """Scale observations by the mean and the deviation of those in the data."""
    batch_size: PositiveInt = 256
    """Transitions in one update."""

    @property
    def reward_transform(self) -> dict[str, Any]:
        """Scale, shift, and the two clip bounds, by name."""
        return {name: getattr(self, f"reward_{name}") for name in ("scale", "shift", "clip_min", "clip_max")}

    @model_validator(mode="after")
    def _data_can_be_found(self) -> OfflineConfig:
        needed = {"npz": "dataset_path", "pt": "dataset_path", "minari": "dataset_id"}.get(self.dataset_kind or "")
        if needed and getattr(self, needed) is None:
            raise ValueError(f"dataset_kind '{self.dataset_kind}' needs {needed}")
        read = (needed, {"minari": "dataset_download", "random": "dataset_seed"}.get(self.dataset_kind or ""))
        for name in ("dataset_path", "dataset_id", "dataset_download", "dataset_seed"):
            value = getattr(self, name)
            if name in read or value is None or value is False:
                continue
            if self.dataset_kind is None:
                raise ValueError(f"{name} is '{value}', but dataset_kind is not set: set it to {KIND_READING[name]}")
            kind = "pt" if name == "dataset_path" and str(value).endswith(".pt") else KIND_READING[name].split()[0]
            refused = f"{name} is '{value}', but dataset_kind '{self.dataset_kind}' does not read it"
            raise ValueError(f"{refused}: set algo_kwargs.dataset_kind={kind}")
        low, high = self.reward_clip_min, self.reward_clip_max
        if low is not None and high is not None and low > high:
            raise ValueError(f"reward_clip_min {low} lies above reward_clip_max {high}: exchange them")
        return self

    def samples_per_update(self) -> int:
        """The batch."""
        return self.batch_size

    def gradient_steps_in(self, total_timesteps: int, num_envs: int) -> int:
        """Offline a step is an update."""
        return total_timesteps


class OnlineStageConfig(FrozenConfig):
    """How a run that began on recorded data goes on in the environment."""

    after_updates: PositiveInt
    """Updates on the data before the first step in the environment; what is left of total_timesteps are steps."""
    offline_ratio: Fraction = 0.5
    """Share of each batch that is still drawn from the data."""
    buffer_capacity: PositiveInt = 1_000_000
    """Steps of its own that the agent keeps for replay."""
    learning_starts: NonNegativeInt = 1000
    """Steps taken with the policy learned so far before the first update."""
    train_frequency: PositiveInt = 1
    """Environment steps (over all environments) between two rounds of updates."""
    gradient_steps: PositiveInt = 1
    """Updates in one round."""
    exploration: Fraction = 0.1
    """Deviation of the noise added to Box actions in [-1, 1], or share of random Discrete actions."""


class OfflineToOnlineConfig(OfflineConfig):
    """What an algorithm reads that can go on in the environment."""

    online: OnlineStageConfig | None = None
    """Go on in the environment after a number of updates on the data."""

    def gradient_steps_in(self, total_timesteps: int, num_envs: int) -> int:
        """Offline a step is an update; online their ratio is chosen."""
        if self.online is None:
            return total_timesteps
        offline = min(total_timesteps, self.online.after_updates)
        return offline + (total_timesteps - offline) * self.online.gradient_steps // self.online.train_frequency
