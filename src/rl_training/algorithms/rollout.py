"""What update rules that learn from one rollout at a time share: an actor-critic, its advantages and its scales."""

from __future__ import annotations

from typing import TypeVar

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from rl_training.algorithms.base import Algorithm, Resources
from rl_training.algorithms.config import Fraction, HiddenSizes, OnPolicyConfig
from rl_training.algorithms.optim import Adam
from rl_training.algorithms.returns import explained_variance, gae
from rl_training.models.actor_critic import ActorCritic
from rl_training.models.mlp import Activation
from rl_training.models.normalizer import RewardNormalizer
from rl_training.replay.transitions import Transitions
from rl_training.spaces.spec import Spaces


class OnPolicyActorCriticConfig(OnPolicyConfig):
    """What such algorithms have in common."""

    hidden_sizes: HiddenSizes = (64, 64)
    """Width of each hidden layer, of the policy and of the value function."""
    activation: Activation = "tanh"
    """What stands between the layers."""
    gae_lambda: Fraction = 0.95
    """Weight of longer returns in the advantage: 0 is one step, 1 is the whole episode."""
    ent_coef: NonNegativeFloat = 0.0
    """Weight of the entropy bonus."""
    vf_coef: NonNegativeFloat = 0.5
    """Weight of the value loss."""
    max_grad_norm: PositiveFloat | None = 0.5
    """Maximum gradient norm; null disables clipping."""
    normalize_advantage: bool = True
    """Scale the advantages of each minibatch to mean 0 and deviation 1."""
    normalize_obs: bool = False
    """Scale observations by their running mean and deviation, kept inside the policy."""
    normalize_reward: bool = False
    """Scale rewards by the running deviation of the discounted return."""
    log_std_init: float = 0.0
    """Logarithm of the initial standard deviation of continuous actions."""
    adam_eps: NonNegativeFloat = 1e-5
    """Adam's epsilon."""


OnPolicyActorCriticConfigT = TypeVar("OnPolicyActorCriticConfigT", bound=OnPolicyActorCriticConfig)


class OnPolicyActorCritic(Algorithm[OnPolicyActorCriticConfigT]):
    """Acts by a policy with a value function beside it; learns from one rollout at a time, then forgets it."""

    def __init__(self, config: OnPolicyActorCriticConfigT, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self.policy = ActorCritic(
            spaces, self.layers, normalize_obs=config.normalize_obs, log_std_init=config.log_std_init
        ).to(self.device)
        self.optimizer = Adam(self.policy.parameters(), config.learning_rate, eps=config.adam_eps)
        self.reward_normalizer = RewardNormalizer(resources.num_envs, config.gamma).to(self.device)

    @classmethod
    def check_spaces(cls, spaces: Spaces) -> None:
        """The policy acts in every supported space."""

    @torch.no_grad()
    def act(self, obs: Tensor, *, explore: bool) -> Tensor:
        """Draw from the policy, or take its mode."""
        outputs, _ = self.policy(obs)
        return self.policy.head.sample(outputs, self.generator) if explore else self.policy.head.mode(outputs)

    def scaled_rewards(self, batch: Transitions) -> Tensor:
        """The rewards of a rollout [T, N], scaled if they are to be."""
        return self.reward_normalizer(batch.rewards, batch.dones) if self.config.normalize_reward else batch.rewards

    @torch.no_grad()
    def prepare(self, batch: Transitions) -> tuple[list[Tensor], Tensor]:
        """Flat samples (obs, actions, log-probs, advantages, returns) and the value function's fit."""
        rewards = self.scaled_rewards(batch)
        flat_obs, flat_actions = batch.obs.flatten(0, 1), batch.actions.flatten(0, 1)
        outputs, flat_values = self.policy(flat_obs)
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
        """Values of the states reached: the next row's, but of `next_obs` at endings and in the last row."""
        needs_own = batch.truncated.clone()
        needs_own[-1] = True
        next_values = torch.cat([values[1:], values[-1:]])
        next_values[needs_own] = self.policy(batch.next_obs[needs_own])[1]
        return next_values
