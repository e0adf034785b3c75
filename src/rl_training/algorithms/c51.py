"""C51 (Bellemare et al. 2017): DQN that learns a categorical distribution of each action's return on fixed atoms."""

from __future__ import annotations

import torch
from pydantic import Field, model_validator
from torch import Tensor

from rl_training.algorithms.dqn import DQNAlgorithm, DQNConfig
from rl_training.algorithms.replay import Batch
from rl_training.models.critics import QNetwork, of_actions
from rl_training.models.mlp import MLPSpec
from rl_training.spaces.spec import Spaces

MAX_RETURN = 1e9


class C51Config(DQNConfig):
    """Settings of C51."""

    num_atoms: int = Field(51, ge=2)
    """Atoms of the return distribution, evenly spaced from `v_min` to `v_max`."""
    v_min: float = -10.0
    """Return of the first atom; choose both bounds around the discounted returns of the environment."""
    v_max: float = 10.0
    """Return of the last atom."""

    @model_validator(mode="after")
    def _support_is_not_empty(self) -> C51Config:
        if not self.v_min < self.v_max:
            raise ValueError(
                f"v_min {self.v_min} is not below v_max {self.v_max}: exchange or change them"
            )
        largest = max(abs(self.v_min), abs(self.v_max))
        if largest > MAX_RETURN or (self.v_max - self.v_min) / self.num_atoms < largest * 1e-6:
            raise ValueError(
                f"float32 cannot hold {self.num_atoms} atoms from v_min {self.v_min} to v_max {self.v_max}: choose"
                " bounds around the discounted returns of the environment"
            )
        return self


class CategoricalQNetwork(QNetwork):
    """Distribution of the return of every discrete action over the atoms of `support` [atoms]."""

    support: Tensor

    def __init__(
        self, spaces: Spaces, mlp_spec: MLPSpec, support: Tensor, *, dueling: bool = False
    ) -> None:
        super().__init__(spaces, mlp_spec, dueling=dueling, action_outputs=len(support))
        self.register_buffer("support", support)

    def forward(self, obs: Tensor) -> Tensor:
        """The Q-value of each action, [B, num_actions]: the mean of its distribution."""
        return (self.distribution(obs).softmax(-1) * self.support).sum(-1)

    def distribution(self, obs: Tensor) -> Tensor:
        """Logits of each action's return distribution, [B, num_actions, atoms]."""
        return self._combined(
            self.network(self.features(obs)).unflatten(-1, (-1, len(self.support)))
        )


class C51Algorithm(DQNAlgorithm):
    """Learns the return distribution of each discrete action by cross entropy and acts by its mean."""

    config: C51Config
    network: CategoricalQNetwork
    target_network: CategoricalQNetwork

    def _make_network(self) -> CategoricalQNetwork:
        config = self.config
        support = torch.linspace(config.v_min, config.v_max, config.num_atoms)
        return CategoricalQNetwork(self.spaces, self.mlp_spec, support, dueling=config.dueling).to(
            self.device
        )

    def _losses(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        log_probs = of_actions(self.network.distribution(batch.obs), batch.actions).log_softmax(
            -1
        )  # [B, atoms]
        targets = self._targets(batch)
        losses = -(targets * log_probs).sum(-1)  # C51 algorithm 1, last line
        values = (log_probs.exp() * self.network.support).sum(-1)
        if batch.importance_weights is None:
            return losses, values, None
        # Priorities are the Kullback-Leibler divergence, which the loss exceeds by the targets' entropy (Rainbow).
        divergences = losses.detach() + torch.special.xlogy(targets, targets).sum(-1)
        return losses, values, divergences.clamp(min=0.0)

    @torch.no_grad()
    def _targets(self, batch: Batch) -> Tensor:
        """Target distribution [B, atoms] after the action of the largest mean."""
        next_probs = self.target_network.distribution(batch.next_obs).softmax(
            -1
        )  # [B, num_actions, atoms]
        support = self.target_network.support
        next_values = (
            self.network(batch.next_obs) if self.config.double else (next_probs * support).sum(-1)
        )
        probs = of_actions(next_probs, self.best_next(batch, next_values))
        returns = batch.targets(support.unsqueeze(-1)).T  # [B, atoms]
        return project(returns, probs, support)


def project(returns: Tensor, probs: Tensor, support: Tensor) -> Tensor:
    """Project a distribution with atoms `returns` [B, N] and `probs` [B, N] onto `support` [M] (C51 eq. 7).

    Each atom's probability is split between its two neighbours on the support, by its distance to each.
    """
    last = len(support) - 1
    spacing = (support[-1] - support[0]) / last
    positions = ((returns - support[0]) / spacing).clamp(
        0.0, last
    )  # C51 algorithm 1: b, in units of the spacing
    distances = (
        positions.unsqueeze(-1) - torch.arange(len(support), device=support.device)
    ).abs()  # [B, N, M]
    return (probs.unsqueeze(-1) * (1.0 - distances).clamp(min=0.0)).sum(1)
