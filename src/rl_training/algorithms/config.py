"""Settings that algorithms share, by the loop that trains them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from rl_training.algorithms.tune import Tune
from rl_training.models.mlp import Activation
from rl_training.plugins.user_code import name_of_class
from rl_training.replay.sequences import Sampling
from rl_training.validation import FrozenConfig

Fraction = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
HiddenSizes = tuple[PositiveInt, ...]


class Schedule(FrozenConfig):
    """A value that changes from `start` to `end` over training."""

    spelling: ClassVar[str | None] = "{kind: linear|cosine, start: …, end: …}"
    kind: Literal["linear", "cosine"]
    """Interpolation: `linear` or `cosine`."""
    start: NonNegativeFloat
    """Value at the first step."""
    end: NonNegativeFloat = 0.0
    """Value at the last step."""

    def at(self, progress: float) -> float:
        """Value when `progress` (0 to 1) of training is done."""
        fraction = progress if self.kind == "linear" else 0.5 * (1.0 - math.cos(math.pi * progress))
        return self.start + (self.end - self.start) * fraction


Scheduled = PositiveFloat | Schedule


def value_at(setting: float | Schedule, progress: float) -> float:
    """Value of a number or a schedule when `progress` of training is done."""
    return setting.at(progress) if isinstance(setting, Schedule) else setting


class EarlyStoppingConfig(FrozenConfig):
    """Early stopping: when to end a run before its last step."""

    metric: str = "eval_return_mean"
    """Evaluation metric to watch."""
    mode: Literal["max", "min"] = "max"
    """Whether larger (`max`) or smaller (`min`) is better."""
    patience: PositiveInt = 5
    """Evaluations without improvement after which the run stops."""
    min_delta: NonNegativeFloat = 0.0
    """The metric must beat its best by more than this."""
    min_steps: NonNegativeInt = 0
    """Earliest step to stop at."""
    target_value: float | None = None
    """Stop as soon as the metric reaches this value; null: no target."""


class AlgorithmConfig(FrozenConfig):
    """Settings of every algorithm."""

    learning_rate: Scheduled = 3e-4
    """Learning rate of the optimizer: a number or a schedule."""
    gamma: Fraction = 0.99
    """Discount factor."""
    hidden_sizes: HiddenSizes = (256, 256)
    """Width of each hidden layer; may be empty where a CNN reads an image."""
    activation: Activation = "relu"
    """Activation of the hidden layers: relu, tanh, silu, gelu or elu."""
    layer_norm: bool = False
    """Layer normalization (Ba et al. 2016) of each hidden layer before its activation."""
    adam_beta1: Decay = 0.9
    """Decay rate of Adam's mean of gradients."""
    adam_beta2: Decay = 0.999
    """Decay rate of Adam's mean of squared gradients."""
    adam_eps: NonNegativeFloat = 1e-8
    """Adam's epsilon."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay (AdamW) of the networks; entropy temperatures and Lagrange multipliers have none."""
    network: str | None = None
    """Your own network between observations and hidden layers: path/to/file.py:ClassName or module:ClassName (in Python
    also the class itself); null: none, and a CNN for images."""
    eval_interval: PositiveInt | None = None
    """Steps between evaluations; null: a tenth of the run."""
    early_stopping: EarlyStoppingConfig | None = None
    """Early stopping; null: none."""

    @model_validator(mode="after")
    def _has_a_layer_to_normalize(self) -> AlgorithmConfig:
        if self.layer_norm and not any(self.network_sizes().values()):
            raise ValueError(
                "layer_norm normalizes hidden layers, but hidden_sizes is empty: set one of them"
            )
        return self

    def network_sizes(self) -> dict[str, HiddenSizes]:
        """Hidden sizes by config key, the policy's first."""
        return {"hidden_sizes": self.hidden_sizes}

    @field_validator("network", mode="before")
    @classmethod
    def _is_named(cls, value: Any) -> Any:
        if value is not None and not isinstance(value, (type, str)):
            raise ValueError(
                "give the class itself, or its name: path/to/file.py:ClassName or module:ClassName"
            )
        return name_of_class(value) if isinstance(value, type) else value

    def sampling(self) -> Sampling:
        """How batches are drawn from a replay buffer or a dataset: `batch_size` transitions, sequences or episodes."""
        return Sampling()

    def samples_per_update(self) -> int:
        """Transitions per gradient step, by which the number of threads is chosen."""
        return 256

    def gradient_steps_in(self, total_timesteps: int, num_envs: int) -> int | None:
        """Estimated gradient steps of a run; None: unknown, and `compile: auto` does not compile."""
        return None

    def last_step(self, total_timesteps: int, num_envs: int) -> int:
        """The step at which a run of `total_timesteps` ends: the last collection is completed."""
        return total_timesteps

    def search_spaces(self, total_timesteps: int, num_envs: int) -> dict[str, Tune]:
        """Search spaces by field that depend on the length of the run; they replace those of the fields."""
        return {}

    def has_schedules(self) -> bool:
        """Whether any setting follows a schedule."""
        return any(isinstance(value, Schedule) for value in vars(self).values())


class ActorCriticConfig(AlgorithmConfig):
    """Settings of algorithms with an actor and critics; the value functions of PPO, A2C and IQL count as critics."""

    actor_hidden_sizes: HiddenSizes | None = None
    """Width of each hidden layer of the actor; null: `hidden_sizes`."""
    critic_hidden_sizes: HiddenSizes | None = None
    """Width of each hidden layer of the critics; null: `hidden_sizes`."""
    actor_learning_rate: Scheduled | None = None
    """Learning rate of the actor and of an entropy temperature: a number or a schedule; null: `learning_rate`."""
    critic_learning_rate: Scheduled | None = None
    """Learning rate of the critics: a number or a schedule; null: `learning_rate`."""

    def network_sizes(self) -> dict[str, HiddenSizes]:
        """Hidden sizes by config key, the actor's first."""
        found = {}
        for key in ("actor_hidden_sizes", "critic_hidden_sizes"):
            used = "hidden_sizes" if getattr(self, key) is None else key
            found[used] = getattr(self, used)
        return found

    def has_one_size(self) -> bool:
        """Whether the actor and the critics have the same hidden layers."""
        return len(set(self.network_sizes().values())) == 1

    def has_one_learning_rate(self) -> bool:
        """Whether the actor and the critics have the same learning rate."""
        rates = (self.actor_learning_rate, self.critic_learning_rate)
        actor, critic = (self.learning_rate if rate is None else rate for rate in rates)
        return actor == critic


class OnPolicyConfig(AlgorithmConfig):
    """Settings of the on-policy loop."""

    num_steps: PositiveInt = 2048
    """Steps of each environment per rollout."""

    def last_step(self, total_timesteps: int, num_envs: int) -> int:
        """The end of the rollout in which the run ends."""
        return _completed(total_timesteps, self.num_steps * num_envs)


HINDSIGHT: Literal["her"] = "her"
REPLAY_KEYS = {
    "uniform": (),
    "prioritized": ("alpha", "beta"),
    HINDSIGHT: ("strategy", "goals_per_step"),
}


class ReplayConfig(FrozenConfig):
    """How stored transitions are sampled."""

    kind: Literal["uniform", "prioritized", "her"] = "uniform"
    """`uniform`; `prioritized` by TD error (Schaul et al. 2016); `her`: uniform with relabelled goals (Andrychowicz et
    al. 2017)."""
    alpha: Fraction = 0.6
    """`prioritized`: exponent of the absolute TD error; 0 is uniform."""
    beta: Scheduled = Schedule(kind="linear", start=0.4, end=1.0)
    """`prioritized`: exponent of the importance weights; 1 corrects fully."""
    strategy: Literal["future", "final", "episode"] = "future"
    """`her`: relabel with a goal achieved later in the episode, at its end, or anywhere in it."""
    goals_per_step: PositiveInt = 4
    """`her`: relabelled transitions per original one (4: 80 % of a batch)."""

    @model_validator(mode="after")
    def _has_keys_of_its_kind(self) -> ReplayConfig:
        for key in sorted(self.model_fields_set - {"kind"}):
            if key not in REPLAY_KEYS[self.kind]:
                owner = next(kind for kind, keys in REPLAY_KEYS.items() if key in keys)
                raise ValueError(
                    f"{key} is for kind '{owner}' and not used by kind '{self.kind}': remove it"
                )
        return self


class OffPolicyConfig(AlgorithmConfig):
    """Settings of the off-policy loop and its replay buffer."""

    buffer_capacity: PositiveInt = 1_000_000
    """Capacity of the replay buffer, in transitions."""
    batch_size: PositiveInt = 256
    """Transitions per gradient step."""
    learning_starts: NonNegativeInt = 100
    """Environment steps with random actions (with `init_from`: of that policy) before the first update."""
    train_frequency: PositiveInt = 1
    """Train every this many environment steps, over all environments."""
    gradient_steps: PositiveInt = 1
    """Updates each time training runs."""
    n_step: PositiveInt = 1
    """Number of rewards in the n-step return before bootstrapping."""
    normalize_obs: bool = False
    """Normalize observations by the running mean and standard deviation of those collected, kept inside the policy."""
    normalize_reward: bool = False
    """Divide sampled rewards by the running standard deviation of the discounted return of the training episodes, and
    clip them to ±10; with n_step, the sum of n rewards as a whole."""
    replay: ReplayConfig = ReplayConfig()
    """How stored transitions are sampled: `kind: uniform`, `prioritized` or `her`, each with its own keys."""

    @model_validator(mode="after")
    def _has_room_for_relabelled_goals(self) -> OffPolicyConfig:
        if self.replay.kind == HINDSIGHT and self.batch_size <= (
            relabelled := self.replay.goals_per_step
        ):
            raise ValueError(
                f"batch_size {self.batch_size} is too small for replay.goals_per_step {relabelled}: raise it"
            )
        return self

    def samples_per_update(self) -> int:
        """The batch."""
        return self.batch_size

    def gradient_steps_in(self, total_timesteps: int, num_envs: int) -> int:
        """Environment steps times updates per step."""
        return total_timesteps * self.gradient_steps // self.train_frequency

    def last_step(self, total_timesteps: int, num_envs: int) -> int:
        """Every environment takes the last step."""
        return _completed(total_timesteps, num_envs)

    def has_schedules(self) -> bool:
        """Also the exponent of the importance weights."""
        is_beta_scheduled = self.replay.kind == "prioritized" and isinstance(
            self.replay.beta, Schedule
        )
        return is_beta_scheduled or super().has_schedules()


DATASET_KEYS = {
    "npz": ("dataset_path",),
    "pt": ("dataset_path",),
    "minari": ("dataset_id", "dataset_download"),
    "random": ("dataset_seed",),
}
"""Keys of each kind of dataset that other kinds refuse; a file or Minari dataset needs the first."""


class OfflineConfig(AlgorithmConfig):
    """Settings of the offline loop and its dataset."""

    dataset_kind: Literal["random", "npz", "pt", "minari"] | None = None
    """Source of the transitions: an npz or pt file, a Minari dataset or random actions. Training requires it."""
    dataset_path: Path | None = None
    """File to read, for the kinds npz and pt."""
    dataset_size: PositiveInt = 10_000
    """Steps of random actions, for the kind random."""
    dataset_seed: NonNegativeInt | None = None
    """Seed of the environment and the actions, for the kind random; null: derived from the run's seed."""
    dataset_id: str | None = None
    """Name of the dataset, for the kind minari."""
    dataset_download: bool = False
    """Download the dataset if it is not on this machine, for the kind minari."""
    dataset_check: Literal["error", "warn"] = "error"
    """On errors in the dataset: `error` stops; `warn` warns, clips actions to their bounds and trains."""
    reward_scale: float = 1.0
    """Factor of the rewards."""
    reward_shift: float = 0.0
    """Added to the scaled rewards."""
    reward_clip_min: float | None = None
    """Lower bound of the rewards, after scale and shift."""
    reward_clip_max: float | None = None
    """Upper bound of the rewards, after scale and shift."""
    normalize_obs: bool = False
    """Normalize observations by the mean and standard deviation of the dataset."""
    batch_size: PositiveInt = 256
    """Transitions per gradient step."""

    @property
    def reward_transform(self) -> dict[str, Any]:
        """Scale, shift and clip bounds, by name."""
        return {
            name: getattr(self, f"reward_{name}")
            for name in ("scale", "shift", "clip_min", "clip_max")
        }

    @model_validator(mode="after")
    def _dataset_can_be_found(self) -> OfflineConfig:
        kind = self.dataset_kind
        used = DATASET_KEYS.get(kind or "", ())
        if kind not in (None, "random") and getattr(self, used[0]) is None:
            raise ValueError(f"dataset_kind '{kind}' needs {used[0]}")
        for name in dict.fromkeys(key for keys in DATASET_KEYS.values() for key in keys):
            value = getattr(self, name)
            if name in used or value == type(self).model_fields[name].default:
                continue
            kinds = [known for known, keys in DATASET_KEYS.items() if name in keys]
            if kind is None:
                raise ValueError(
                    f"{name} is '{value}', but dataset_kind is not set: set it to {' or '.join(kinds)}"
                )
            right = "pt" if str(value).endswith(".pt") else kinds[0]
            refused = f"{name} is '{value}', but dataset_kind '{kind}' does not read it"
            raise ValueError(f"{refused}: set algo_kwargs.dataset_kind={right}")
        low, high = self.reward_clip_min, self.reward_clip_max
        if low is not None and high is not None and low > high:
            raise ValueError(
                f"reward_clip_min {low} lies above reward_clip_max {high}: exchange them"
            )
        return self

    def samples_per_update(self) -> int:
        """The batch."""
        return self.batch_size

    def gradient_steps_in(self, total_timesteps: int, num_envs: int) -> int:
        """Offline, a step is an update."""
        return total_timesteps


class OnlineStageConfig(FrozenConfig):
    """Online fine-tuning after training on a dataset."""

    after_updates: PositiveInt
    """Offline updates before the first environment step; the rest of total_timesteps are environment steps."""
    offline_ratio: Fraction = 0.5
    """Fraction of each batch that is sampled from the dataset."""
    buffer_capacity: PositiveInt = 1_000_000
    """Capacity of the replay buffer of new transitions."""
    learning_starts: NonNegativeInt = 1000
    """Environment steps with the offline policy before the first online update."""
    train_frequency: PositiveInt = 1
    """Train every this many environment steps, over all environments."""
    gradient_steps: PositiveInt = 1
    """Updates each time training runs."""
    exploration: Fraction = 0.1
    """Standard deviation of the noise on Box actions in [-1, 1], or probability of a random Discrete action."""


class OfflineToOnlineConfig(OfflineConfig):
    """Settings of offline algorithms that support online fine-tuning."""

    online: OnlineStageConfig | None = None
    """Online fine-tuning after the offline updates; null: none."""

    def gradient_steps_in(self, total_timesteps: int, num_envs: int) -> int:
        """Offline updates, plus environment steps times updates per step."""
        if self.online is None:
            return total_timesteps
        offline = min(total_timesteps, self.online.after_updates)
        return (
            offline
            + (total_timesteps - offline)
            * self.online.gradient_steps
            // self.online.train_frequency
        )

    def last_step(self, total_timesteps: int, num_envs: int) -> int:
        """Online, every environment takes the last step."""
        if self.online is None or total_timesteps <= self.online.after_updates:
            return total_timesteps
        return self.online.after_updates + _completed(
            total_timesteps - self.online.after_updates, num_envs
        )


def _completed(steps: int, size: int) -> int:
    """`steps`, rounded up to a multiple of `size`."""
    return -(-steps // size) * size
