"""Base of PPO and A2C: policy and value function, advantages, reward and observation normalization."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, model_validator
from torch import Tensor

from rl_training.algorithms.base import ActResult, Algorithm, Resources
from rl_training.algorithms.config import ActorCriticConfig, Fraction, HiddenSizes, OnPolicyConfig
from rl_training.algorithms.optim import Adam, JointAdam
from rl_training.models.actor_critic import ActorCritic
from rl_training.models.memory import MemoryKind, MemorySpec, RecurrentActorCritic
from rl_training.models.mlp import Activation
from rl_training.models.normalizer import RewardNormalizer
from rl_training.replay.transitions import StepField, StepFields, Transitions
from rl_training.spaces.spec import Spaces
from rl_training.validation import FrozenConfig


class Samples(NamedTuple):
    """Input of a gradient step: transitions [B, ...] of a rollout or, with memory, sequences [S, L, ...] of it."""

    obs: Tensor
    actions: Tensor
    log_probs: Tensor
    """Log-probabilities of the actions under the policy that collected them."""
    advantages: Tensor
    returns: Tensor
    masks: Tensor | None = None
    """Valid actions, [..., num_options], if there are masks."""
    states: Tensor | None = None
    """With memory: the state before each sequence, [S, state_size]."""
    starts: Tensor | None = None
    """With memory: where, within a sequence, another episode begins, [S, L]."""

    def rows(self, index: Tensor | slice) -> Samples:
        """The transitions or sequences at an index, or in a slice."""
        return Samples(*(None if field is None else field[index] for field in self))  # type: ignore[arg-type]


class MemoryConfig(FrozenConfig):
    """Recurrent memory of a policy and of its value function."""

    kind: MemoryKind = "lstm"
    """`lstm` or `gru`."""
    size: PositiveInt = 64
    """Length of the hidden vector."""
    sequence_length: PositiveInt = 32
    """Steps over which gradients flow back; at most `num_steps`, which must be a multiple of it."""

    def length_in(self, num_steps: int) -> int:
        """Length of the sequences of a rollout."""
        return min(self.sequence_length, num_steps)


class OnPolicyActorCriticConfig(ActorCriticConfig, OnPolicyConfig):
    """Settings that PPO and A2C share."""

    hidden_sizes: HiddenSizes = (64, 64)
    """Width of each hidden layer, of the policy and of the value function."""
    activation: Activation = "tanh"
    """Activation of the hidden layers: relu, tanh, silu, gelu or elu."""
    gae_lambda: Fraction = 0.95
    """GAE lambda: 0 is the one-step TD error, 1 the rollout's bootstrapped return minus V(s)."""
    ent_coef: NonNegativeFloat = 0.0
    """Weight of the entropy bonus."""
    vf_coef: NonNegativeFloat = 0.5
    """Weight of the value loss."""
    max_grad_norm: PositiveFloat | None = 0.5
    """Maximum gradient norm; null disables clipping."""
    normalize_advantage: bool = True
    """Normalize the advantages of each minibatch to mean 0 and standard deviation 1."""
    normalize_obs: bool = False
    """Normalize observations by their running mean and standard deviation, kept inside the policy."""
    normalize_reward: bool = False
    """Divide rewards by the running standard deviation of the discounted return."""
    log_std_init: float = 0.0
    """Logarithm of the initial standard deviation of continuous actions."""
    adam_eps: NonNegativeFloat = 1e-5
    """Adam's epsilon."""
    memory: MemoryConfig | None = None
    """Recurrent memory of the policy and of the value function: `{kind: lstm, size: 64}`; null: none."""

    @model_validator(mode="after")
    def _rollouts_are_whole_sequences(self) -> OnPolicyActorCriticConfig:
        if self.memory is not None and self.num_steps % self.memory.length_in(self.num_steps):
            raise ValueError(
                f"num_steps {self.num_steps} is not a multiple of memory.sequence_length"
                f" {self.memory.sequence_length}: change one of them"
            )
        return self

    def is_stacked(self) -> bool:
        """Whether policy and value function are one batched network: both have the same layers and learning rate."""
        return self.has_one_size() and self.has_one_learning_rate()


OnPolicyActorCriticConfigT = TypeVar("OnPolicyActorCriticConfigT", bound=OnPolicyActorCriticConfig)


class OnPolicyActorCritic(Algorithm[OnPolicyActorCriticConfigT]):
    """Samples from a policy and learns from one rollout [T, N] at a time."""

    obeys_masks = True
    policy: ActorCritic

    def __init__(
        self, config: OnPolicyActorCriticConfigT, spaces: Spaces, resources: Resources
    ) -> None:
        super().__init__(config, spaces, resources)
        specs = self.actor_spec, None if config.is_stacked() else self.critic_spec
        options: dict[str, Any] = {
            "normalize_obs": config.normalize_obs,
            "log_std_init": config.log_std_init,
        }
        if config.memory is None:
            self.policy = ActorCritic(spaces, *specs, **options).to(self.device)
        else:
            memory = MemorySpec(config.memory.kind, config.memory.size)
            self.policy = RecurrentActorCritic(spaces, *specs, memory=memory, **options).to(
                self.device
            )
        self.memory = self.policy if isinstance(self.policy, RecurrentActorCritic) else None
        """The policy, if it has memory."""
        self.optimizer = self._make_policy_optimizer()
        self.reward_normalizer = RewardNormalizer(resources.num_envs, config.gamma).to(self.device)

    def _make_policy_optimizer(self) -> Adam | JointAdam:
        config = self.config
        if config.has_one_learning_rate():
            return self.make_optimizer(self.policy.parameters(), config.actor_learning_rate)
        policy, value = self.policy.parameters_by_role()
        rates = config.actor_learning_rate, config.critic_learning_rate
        return JointAdam(
            self.make_optimizer(policy, rates[0]), self.make_optimizer(value, rates[1])
        )

    @torch.no_grad()
    def act(
        self, obs: Tensor, state: Tensor | None = None, *, explore: bool, mask: Tensor | None = None
    ) -> ActResult:
        """Sample from the policy, or without `explore` take its deterministic action."""
        head, memory = self.policy.head, self.memory
        if memory is None:
            next_state, remembered = None, {}
            outputs, values = self.policy(obs, mask)
        else:
            state = memory.initial_state(len(obs)) if state is None else state
            outputs, values, next_state = memory.step(obs, state, mask)
            remembered = {"states": state}
        if not explore:
            return ActResult(head.mode(outputs), next_state)
        fields = {"outputs": outputs, "values": values, **remembered}
        return ActResult(head.sample(outputs, self.generator), next_state, fields)

    def initial_state(self, count: int) -> Tensor | None:
        """With memory: its state at the start of an episode."""
        return None if self.memory is None else self.memory.initial_state(count)

    def step_fields(self) -> StepFields:
        """The policy's raw outputs and the value, of which `prepare` makes samples; with memory, the state before."""
        fields = {"outputs": StepField((self.policy.head.num_outputs,)), "values": StepField()}
        return (
            fields
            if self.memory is None
            else {**fields, "states": StepField((self.memory.state_size,))}
        )

    @torch.no_grad()
    def prepare(self, batch: Transitions) -> tuple[Samples, Tensor]:
        """The samples of a rollout, and the explained variance of its returns."""
        config, values = self.config, batch.extras["values"]
        rewards = (
            self.reward_normalizer(batch.rewards, batch.dones)
            if config.normalize_reward
            else batch.rewards
        )
        factors = {"gamma": config.gamma, "gae_lambda": config.gae_lambda}
        next_values = self._next_values(batch, values)
        advantages = gae(rewards, values, next_values, batch.terminated, batch.truncated, **factors)
        returns = advantages + values
        length = None if config.memory is None else config.memory.length_in(len(rewards))
        obs, actions, outputs = (
            cut(field, length) for field in (batch.obs, batch.actions, batch.extras["outputs"])
        )
        log_probs, _ = self.policy.head.log_prob_and_entropy(outputs, actions)
        masks = None if batch.masks is None else cut(batch.masks, length)
        samples = Samples(
            obs, actions, log_probs, cut(advantages, length), cut(returns, length), masks
        )
        explained = explained_variance(values.flatten(), returns.flatten())
        if length is None:
            return samples, explained
        states, starts = (
            batch.extras["states"][::length].flatten(0, 1),
            episode_starts(batch.dones, length),
        )
        return samples._replace(states=states, starts=starts), explained

    def _next_values(self, batch: Transitions, values: Tensor) -> Tensor:
        """V of the next states: the next row's values, but V(next_obs) at truncations and in the last row."""
        rows = batch.truncated.clone()
        rows[-1] = True
        next_values = torch.cat([values[1:], values[-1:]])
        if self.memory is None:
            next_values[rows] = self.policy(batch.next_obs[rows])[1]
        else:
            states = batch.extras["states"][rows]
            next_values[rows] = self.memory.next_values(
                batch.obs[rows], states, batch.next_obs[rows]
            )
        return next_values


def cut(field: Tensor, length: int | None) -> Tensor:
    """Cut a rollout [T, N, ...] into sequences of `length` steps, [T / length * N, length, ...]; None: into steps."""
    if length is None:
        return field.flatten(0, 1)
    return field.reshape(-1, length, *field.shape[1:]).transpose(1, 2).flatten(0, 1)


def episode_starts(dones: Tensor, length: int) -> Tensor:
    """Where, within sequences [S, length] of a rollout with flags [T, N], a step begins another episode.

    The first step of a sequence never counts: the state stored with it is right already.
    """
    starts = torch.zeros_like(cut(dones, length))
    starts[:, 1:] = cut(dones, length)[:, :-1]
    return starts


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Generalized advantage estimates [T, N] (GAE eq. 16).

    `next_values[t]` is V of the next state of step t; at a truncation, of the final observation. Only `terminated`
    sets the bootstrap to zero; either end of an episode ends the sum over later steps.
    """
    deltas = rewards + gamma * next_values * (~terminated) - values
    decay = gamma * gae_lambda * (~(terminated | truncated))
    advantages = torch.empty_like(deltas)
    running = torch.zeros_like(deltas[0])
    for t in range(len(deltas) - 1, -1, -1):
        running = torch.addcmul(deltas[t], decay[t], running, out=advantages[t])
    return advantages


def explained_variance(predictions: Tensor, targets: Tensor) -> Tensor:
    """1 - Var(targets - predictions) / Var(targets): 1 is a perfect fit, 0 no better than a constant."""
    return 1.0 - (targets - predictions).var(correction=0) / (targets.var(correction=0) + 1e-8)
