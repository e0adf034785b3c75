"""Behaviour cloning: do what the data does."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm, Resources, Stateful, UpdateResult
from rl_training.algorithms.config import OfflineConfig, value_at
from rl_training.algorithms.optim import Adam, compiled, descend
from rl_training.data.spaces import ActionKind, Spaces, require_bounded_box
from rl_training.data.transitions import Transitions
from rl_training.models.encoders import ObsEncoder
from rl_training.models.policies import PolicyKind, make_imitation_policy

STEP_METRICS = ("actor_loss", "actor_grad_norm")


class BCConfig(OfflineConfig):
    """Settings of behaviour cloning."""

    policy: PolicyKind = "deterministic"
    """What imitates Box actions: one action, by squared error, or a Gaussian, by likelihood."""


class BCAlgorithm(Algorithm[BCConfig]):
    """Learns the data's actions; rewards play no part."""

    def __init__(self, config: BCConfig, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self.encoder = ObsEncoder(spaces.obs, normalize=config.normalize_obs).to(self.device)
        self.actor = make_imitation_policy(
            config.policy,
            spaces.encoded(),
            config.hidden_sizes,
            activation=config.activation,
            generator=self.generator,
        ).to(self.device)
        self.actor_optimizer = Adam(self.actor.parameters())
        self._step = compiled(self._gradient_step, resources.compile)

    @classmethod
    def check_spaces(cls, spaces: Spaces) -> None:
        """Box actions are squashed into their bounds, so they need some."""
        if spaces.action.kind is ActionKind.CONTINUOUS:
            require_bounded_box(spaces, "bc", "bc")

    @torch.no_grad()
    def act(self, obs: Tensor, *, explore: bool) -> Tensor:
        """Draw from the policy, or take its mode."""
        return self.actor.act(self.encoder(obs), self.generator if explore else None)

    def fit_observations(self, obs: Tensor) -> None:
        """Learn the scale of the data's observations."""
        self.encoder.update_statistics(obs)

    def update(self, batch: Transitions) -> UpdateResult:
        """One step towards the actions of the batch."""
        self.actor_optimizer.set_learning_rate(value_at(self.config.learning_rate, self.progress))
        step = self._step(batch.obs, batch.actions)
        return UpdateResult(dict(zip(STEP_METRICS, step.unbind(), strict=True)))

    def parts(self) -> dict[str, Stateful]:
        """The normalizer, the policy and its optimizer."""
        return {"encoder": self.encoder, "actor": self.actor, "actor_optimizer": self.actor_optimizer}

    def _gradient_step(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Functions of tensors alone; returns the metrics of `STEP_METRICS` as one tensor."""
        loss = self.actor.imitation_loss(self.encoder(obs), actions).mean()
        grad_norm = descend(loss, self.actor_optimizer)
        return torch.stack([loss, grad_norm]).detach()
