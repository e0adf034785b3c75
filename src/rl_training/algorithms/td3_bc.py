"""TD3+BC (Fujimoto & Gu 2021): TD3 with a behaviour-cloning term in the actor's loss."""

from __future__ import annotations

from pydantic import NonNegativeFloat
from torch import Tensor

from rl_training.algorithms.config import OfflineToOnlineConfig
from rl_training.algorithms.td3 import TD3BaseAlgorithm, TD3BaseConfig


class TD3BCConfig(TD3BaseConfig, OfflineToOnlineConfig):
    """Settings of TD3+BC."""

    bc_alpha: NonNegativeFloat = 2.5
    """Weight of the normalized Q term against the BC loss; 0 is behaviour cloning."""
    normalize_obs: bool = True
    """Normalize observations by the mean and standard deviation of the dataset."""


class TD3BCAlgorithm(TD3BaseAlgorithm[TD3BCConfig]):
    """TD3 on a dataset, with another actor loss."""

    def _actor_loss(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        policy_actions = self.actor.mode(obs)
        values = self.critic.first(obs, policy_actions)
        imitation_loss = (policy_actions - actions).square().mean()
        scale = self.config.bc_alpha / values.abs().mean().detach().clamp(min=1e-8)  # TD3+BC eq. 5
        return imitation_loss - scale * values.mean(), {
            "imitation_loss": imitation_loss
        }  # TD3+BC eq. 3
