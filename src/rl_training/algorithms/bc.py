"""Behaviour cloning: supervised learning of the dataset's actions."""

from __future__ import annotations

from rl_training.algorithms.base import Resources, UpdateResult
from rl_training.algorithms.config import Fraction, OfflineConfig
from rl_training.algorithms.optim import descend
from rl_training.algorithms.replay import Batch, ReplayAlgorithm
from rl_training.models.policies import ImitationPolicy, PolicyKind, make_imitation_policy
from rl_training.spaces.spec import Spaces


class BCConfig(OfflineConfig):
    """Settings of behaviour cloning."""

    gamma: Fraction = 0.99
    """Discount factor; not used."""
    policy: PolicyKind = "deterministic"
    """Policy of Box actions: `deterministic`, trained by squared error, or `gaussian`, by log-likelihood."""


class BCAlgorithm(ReplayAlgorithm[BCConfig]):
    """Imitates the dataset's actions; rewards are not used."""

    actor: ImitationPolicy
    uses_next_obs = False
    uses_rewards = False
    obeys_masks = True
    needs_bounds = True

    def __init__(self, config: BCConfig, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self.actor = make_imitation_policy(config.policy, spaces, self.mlp_spec).to(self.device)
        self.actor_optimizer = self.make_optimizer(self.actor.parameters())

    def gradient_step(self, batch: Batch) -> UpdateResult:
        """One step on the imitation loss."""
        loss = self.actor.imitation_loss(batch.obs, batch.actions, batch.masks).mean()
        return UpdateResult(
            {"actor_loss": loss, "actor_grad_norm": descend(loss, self.actor_optimizer)}
        )
