"""Base of PPO and A2C: policy and value function, advantages, reward and observation normalization."""

from __future__ import annotations

from typing import Annotated, TypeVar

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from rl_training.algorithms.actor_critic import ActorCriticConfig
from rl_training.algorithms.base import ActResult, Algorithm, Resources
from rl_training.algorithms.config import Fraction, HiddenSizes, OnPolicyConfig
from rl_training.algorithms.optim import Adam, JointAdam
from rl_training.algorithms.returns import explained_variance, gae
from rl_training.algorithms.tune import Tune
from rl_training.models.actor_critic import ActorCritic
from rl_training.models.mlp import Activation
from rl_training.models.normalizer import RewardNormalizer
from rl_training.replay.transitions import Transitions
from rl_training.spaces.spec import Spaces


class OnPolicyActorCriticConfig(ActorCriticConfig, OnPolicyConfig):
    """Settings that PPO and A2C share."""

    hidden_sizes: HiddenSizes = (64, 64)
    """Width of each hidden layer, of the policy and of the value function."""
    activation: Activation = "tanh"
    """Activation of the hidden layers: relu, tanh, silu, gelu or elu."""
    gae_lambda: Annotated[Fraction, Tune(choices=(0.8, 0.9, 0.92, 0.95, 0.98, 0.99, 1.0))] = 0.95
    """GAE lambda: 0 is the one-step TD error, 1 the rollout's bootstrapped return minus V(s)."""
    ent_coef: Annotated[NonNegativeFloat, Tune(choices=(0.0, 1e-4, 1e-3, 3e-3, 0.01, 0.03))] = 0.0
    """Weight of the entropy bonus."""
    vf_coef: Annotated[NonNegativeFloat, Tune(0.2, 1.0, by_name=True)] = 0.5
    """Weight of the value loss."""
    max_grad_norm: Annotated[PositiveFloat | None, Tune(0.3, 5.0, log=True, by_name=True)] = 0.5
    """Maximum gradient norm; null disables clipping."""
    normalize_advantage: Annotated[bool, Tune(choices=(False, True), by_name=True)] = True
    """Normalize the advantages of each minibatch to mean 0 and standard deviation 1."""
    normalize_obs: Annotated[bool, Tune(choices=(False, True), by_name=True)] = False
    """Normalize observations by their running mean and standard deviation, kept inside the policy."""
    normalize_reward: Annotated[bool, Tune(choices=(False, True), by_name=True)] = False
    """Divide rewards by the running standard deviation of the discounted return."""
    log_std_init: Annotated[float, Tune(-3.0, 1.0, by_name=True)] = 0.0
    """Logarithm of the initial standard deviation of continuous actions."""
    adam_eps: NonNegativeFloat = 1e-5
    """Adam's epsilon."""

    def is_stacked(self) -> bool:
        """Whether policy and value function are one batched network: both have the same layers and learning rate."""
        return self.has_one_size() and self.has_one_learning_rate()


OnPolicyActorCriticConfigT = TypeVar("OnPolicyActorCriticConfigT", bound=OnPolicyActorCriticConfig)


class OnPolicyActorCritic(Algorithm[OnPolicyActorCriticConfigT]):
    """Samples from a policy and learns from one rollout [T, N] at a time."""

    def __init__(self, config: OnPolicyActorCriticConfigT, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self.policy = ActorCritic(
            spaces,
            self.actor_spec,
            None if config.is_stacked() else self.critic_spec,
            normalize_obs=config.normalize_obs,
            log_std_init=config.log_std_init,
        ).to(self.device)
        self.optimizer = self._make_policy_optimizer()
        self.reward_normalizer = RewardNormalizer(resources.num_envs, config.gamma).to(self.device)

    def _make_policy_optimizer(self) -> Adam | JointAdam:
        config = self.config
        if config.has_one_learning_rate():
            return self.make_optimizer(self.policy.parameters(), config.actor_learning_rate)
        policy, value = self.policy.parameters_by_role()
        rates = config.actor_learning_rate, config.critic_learning_rate
        return JointAdam(self.make_optimizer(policy, rates[0]), self.make_optimizer(value, rates[1]))

    @classmethod
    def check_spaces(cls, spaces: Spaces) -> None:
        """Every supported action space."""

    @torch.no_grad()
    def act(self, obs: Tensor, state: Tensor | None = None, *, explore: bool, mask: Tensor | None = None) -> ActResult:
        """Sample from the policy, or without `explore` take its deterministic action."""
        outputs, _ = self.policy(obs, mask)
        head = self.policy.head
        return ActResult(head.sample(outputs, self.generator) if explore else head.mode(outputs))

    def normalized_rewards(self, batch: Transitions) -> Tensor:
        """The rewards of a rollout [T, N], normalized with `normalize_reward`."""
        return self.reward_normalizer(batch.rewards, batch.dones) if self.config.normalize_reward else batch.rewards

    @torch.no_grad()
    def prepare(self, batch: Transitions) -> tuple[list[Tensor], Tensor]:
        """Flat samples (obs, actions, log-probabilities, advantages, returns) and the explained variance."""
        rewards = self.normalized_rewards(batch)
        flat_obs, flat_actions = batch.obs.flatten(0, 1), batch.actions.flatten(0, 1)
        flat_masks = None if batch.masks is None else batch.masks.flatten(0, 1)
        outputs, flat_values = self.policy(flat_obs, flat_masks)
        log_probs, _ = self.policy.head.log_prob_and_entropy(outputs, flat_actions)
        values = flat_values.view_as(rewards)
        advantages = gae(
            rewards,
            values,
            self._next_values(batch, values),
            batch.terminated,
            batch.truncated,
            gamma=self.config.gamma,
            gae_lambda=self.config.gae_lambda,
        )
        returns = (advantages + values).flatten()
        samples = [flat_obs, flat_actions, log_probs, advantages.flatten(), returns]
        return samples, explained_variance(flat_values, returns)

    def _next_values(self, batch: Transitions, values: Tensor) -> Tensor:
        """V of the next states: the next row's values, but V(next_obs) at truncations and in the last row."""
        needs_next_obs = batch.truncated.clone()
        needs_next_obs[-1] = True
        next_values = torch.cat([values[1:], values[-1:]])
        next_values[needs_next_obs] = self.policy(batch.next_obs[needs_next_obs])[1]
        return next_values
