"""Behaviour cloning: do what the data does."""

from __future__ import annotations

from rl_training.algorithms.base import Resources
from rl_training.algorithms.config import OfflineConfig
from rl_training.algorithms.optim import Adam, descend
from rl_training.algorithms.replay import Batch, Metrics, ReplayAlgorithm
from rl_training.models.policies import ImitationPolicy, PolicyKind, make_imitation_policy
from rl_training.spaces.actions import ActionKind
from rl_training.spaces.spec import Spaces, require_bounded_box


class BCConfig(OfflineConfig):
    """Settings of behaviour cloning."""

    policy: PolicyKind = "deterministic"
    """What imitates Box actions: one action, by squared error, or a Gaussian, by likelihood."""


class BCAlgorithm(ReplayAlgorithm[BCConfig]):
    """Learns the data's actions; rewards play no part."""

    actor: ImitationPolicy
    uses_next_obs = False

    def __init__(self, config: BCConfig, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self.actor = make_imitation_policy(config.policy, spaces, self.layers).to(self.device)
        self.actor_optimizer = Adam(self.actor.parameters(), config.learning_rate)

    @classmethod
    def check_spaces(cls, spaces: Spaces) -> None:
        """Box actions are squashed into their bounds, so they need some."""
        if spaces.action.kind is ActionKind.CONTINUOUS:
            require_bounded_box(spaces, "bc", "bc")

    def gradient_step(self, batch: Batch) -> Metrics:
        """One step towards the actions of the batch."""
        loss = self.actor.imitation_loss(batch.obs, batch.actions).mean()
        return {"actor_loss": loss, "actor_grad_norm": descend(loss, self.actor_optimizer)}
