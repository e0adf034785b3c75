"""Deep Q-learning (Mnih et al. 2015), with double, dueling, n-step and prioritized replay as options."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat, PositiveInt, model_validator
from torch import Tensor

from rl_training.algorithms.base import ActResult, Resources, UpdateResult
from rl_training.algorithms.config import Fraction, HiddenSizes, OffPolicyConfig, Scheduled
from rl_training.algorithms.optim import descend, polyak
from rl_training.algorithms.replay import Batch, ReplayAlgorithm
from rl_training.models.actions import masked
from rl_training.models.critics import QNetwork
from rl_training.replay.transitions import Transitions
from rl_training.spaces.actions import ActionKind
from rl_training.spaces.spec import Spaces


class DQNConfig(OffPolicyConfig):
    """Settings of DQN."""

    learning_rate: Scheduled = 1e-4
    """Learning rate of the optimizer: a number or a schedule."""
    hidden_sizes: HiddenSizes = (64, 64)
    """Width of each hidden layer."""
    batch_size: PositiveInt = 32
    """Transitions per gradient step."""
    train_frequency: PositiveInt = 4
    """Train every this many environment steps, over all environments."""
    target_update_interval: PositiveInt = 10_000
    """Environment steps between two copies of the online network into the target network."""
    epsilon_start: Fraction = 1.0
    """Epsilon, the probability of a random action, at the first step."""
    epsilon_end: Fraction = 0.05
    """Epsilon after `exploration_fraction` of training."""
    exploration_fraction: Fraction = 0.1
    """Fraction of training over which epsilon falls linearly."""
    double: bool = False
    """Double DQN: the online network selects the next action, the target network evaluates it."""
    dueling: bool = False
    """Dueling network: separate outputs for the state value and the advantages."""
    prioritized: bool = False
    """Short for `replay: {kind: prioritized}`."""
    max_grad_norm: PositiveFloat | None = 10.0
    """Maximum gradient norm; null disables clipping."""

    @model_validator(mode="before")
    @classmethod
    def _prioritized_is_a_kind_of_replay(cls, values: dict[str, Any]) -> dict[str, Any]:
        if values.get("prioritized") is not True:
            return values
        replay = values.get("replay", {})
        if not isinstance(replay, dict) or replay.get("kind", "prioritized") != "prioritized":
            raise ValueError(
                "prioritized: true and another kind of replay exclude each other: remove one of them"
            )
        return {**values, "replay": {**replay, "kind": "prioritized"}}

    def has_schedules(self) -> bool:
        """Also epsilon."""
        return self.exploration_fraction > 0 or super().has_schedules()


class DQNAlgorithm(ReplayAlgorithm[DQNConfig]):
    """Learns Q-values of discrete actions and acts epsilon-greedily."""

    obeys_masks = True
    action_kinds = (ActionKind.DISCRETE,)

    def __init__(self, config: DQNConfig, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self.network, self.target_network = self._make_network(), self._make_network()
        self.target_network.requires_grad_(False).load_state_dict(self.network.state_dict())
        self.optimizer = self.make_optimizer(self.network.parameters())
        self.counters["target_copies"] = 0

    def epsilon(self) -> float:
        """Probability of a random action at this point of training."""
        config = self.config
        is_over = self.starts_trained or not config.exploration_fraction
        fraction = 1.0 if is_over else self.progress / config.exploration_fraction
        return config.epsilon_start + min(fraction, 1.0) * (
            config.epsilon_end - config.epsilon_start
        )

    @torch.no_grad()
    def act(
        self, obs: Tensor, state: Tensor | None = None, *, explore: bool, mask: Tensor | None = None
    ) -> ActResult:
        """The valid action of the largest Q-value, or with probability epsilon a random valid one."""
        if not explore:
            return ActResult(self._greedy(obs, mask))
        is_random = (
            torch.rand(len(obs), generator=self.generator, device=self.device) < self.epsilon()
        )
        actions = self.random_actions(len(obs), mask)
        if not is_random.all():
            actions = torch.where(is_random, actions, self._greedy(obs, mask))
        return ActResult(actions)

    def update(self, batch: Transitions) -> UpdateResult:
        """Take one gradient step; copy the online network into the target network when its interval has passed."""
        copies_due = self.global_step // self.config.target_update_interval
        if copies_due > self.counters["target_copies"]:
            polyak(self.network, self.target_network, tau=1.0)
            self.counters["target_copies"] = copies_due
        return super().update(batch)

    def gradient_step(self, batch: Batch) -> UpdateResult:
        """One step on the TD loss."""
        losses, values, td_errors = self._losses(batch)
        loss = batch.mean(losses)
        grad_norm = descend(loss, self.optimizer, self.config.max_grad_norm)
        return UpdateResult(
            {"critic_loss": loss, "q_mean": values.mean(), "grad_norm": grad_norm},
            td_errors=td_errors,
        )

    def _greedy(self, obs: Tensor, mask: Tensor | None) -> Tensor:
        return masked(self.network(self.preprocess(obs)), mask).argmax(-1)

    def _make_network(self) -> QNetwork:
        return QNetwork(self.spaces, self.mlp_spec, dueling=self.config.dueling).to(self.device)

    def _losses(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        """Loss, Q-value and, with prioritized replay, TD error of each transition, [B]."""
        values = self.network(batch.obs).gather(1, batch.actions.unsqueeze(1)).squeeze(1)
        targets = self._targets(batch)
        return (
            F.smooth_l1_loss(values, targets, reduction="none"),
            values,
            batch.td_errors(values, targets),
        )

    @torch.no_grad()
    def _targets(self, batch: Batch) -> Tensor:
        next_values = self.target_network(batch.next_obs)
        if not self.config.double:
            return batch.targets(masked(next_values, batch.next_masks).amax(1))
        best = self.best_next(batch, self.network(batch.next_obs))  # Double DQN, eq. 4
        return batch.targets(next_values.gather(1, best.unsqueeze(1)).squeeze(1))

    def best_next(self, batch: Batch, values: Tensor) -> Tensor:
        """The valid next action [B] of the largest value in [B, num_actions]."""
        return masked(values, batch.next_masks).argmax(1)
