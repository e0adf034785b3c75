"""TD3+BC (Fujimoto & Gu 2021): a deterministic actor-critic that is held to the actions of the data."""

from __future__ import annotations

from pydantic import NonNegativeFloat
from torch import Tensor

from rl_training.algorithms.config import OfflineToOnlineConfig
from rl_training.algorithms.td3 import TD3BaseAlgorithm, TD3BaseConfig
from rl_training.spaces.spec import Spaces, require_bounded_box


class TD3BCConfig(TD3BaseConfig, OfflineToOnlineConfig):
    """Settings of TD3+BC."""

    bc_alpha: NonNegativeFloat = 2.5
    """How much the critic's opinion counts beside imitation: 0 is behaviour cloning."""
    normalize_obs: bool = True
    """Scale observations by the mean and the deviation of those in the data."""


class TD3BCAlgorithm(TD3BaseAlgorithm[TD3BCConfig]):
    """TD3's gradient step on a fixed set of transitions, with another loss of the actor."""

    actor_metrics = (*TD3BaseAlgorithm.actor_metrics, "imitation_loss")

    @classmethod
    def check_spaces(cls, spaces: Spaces) -> None:
        """TD3+BC squashes its actions into the bounds, so it needs some."""
        require_bounded_box(spaces, "td3_bc", "bc or cql")

    def _actor_loss(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        own_actions = self.actor.mode(obs)
        values = self.critic.first(obs, own_actions)
        imitation_loss = (own_actions - actions).square().mean()
        scale = self.config.bc_alpha / values.abs().mean().detach().clamp(min=1e-8)  # TD3+BC eq. 5
        return imitation_loss - scale * values.mean(), imitation_loss  # TD3+BC eq. 3
