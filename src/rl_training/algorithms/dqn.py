"""Deep Q-learning (Mnih et al. 2015), with double, dueling and n-step targets as options."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rl_training.algorithms.base import Algorithm, Resources, Stateful, UpdateResult
from rl_training.algorithms.config import (
    Fraction,
    HiddenSizes,
    OffPolicyConfig,
    PositiveFloat,
    PositiveInt,
    Scheduled,
    value_at,
)
from rl_training.algorithms.optim import Adam, compiled, descend
from rl_training.algorithms.returns import polyak
from rl_training.data.spaces import ActionKind, Spaces
from rl_training.data.transitions import Transitions
from rl_training.errors import EnvError
from rl_training.models.q_network import QNetwork


class DQNConfig(OffPolicyConfig):
    """Settings of DQN."""

    learning_rate: Scheduled = 1e-4
    """Step size of the optimizer: a number or a schedule."""
    hidden_sizes: HiddenSizes = (64, 64)
    """Width of each hidden layer."""
    batch_size: PositiveInt = 32
    """Transitions in one update."""
    train_frequency: PositiveInt = 4
    """Environment steps (over all environments) between two rounds of updates."""
    target_update_interval: PositiveInt = 10_000
    """Environment steps between two copies of the network into the target network."""
    epsilon_start: Fraction = 1.0
    """Share of random actions at the first step."""
    epsilon_end: Fraction = 0.05
    """Share of random actions once exploration has ended."""
    exploration_fraction: Fraction = 0.1
    """Share of the run over which epsilon falls."""
    double: bool = False
    """Let the network choose the next action and the target network value it."""
    dueling: bool = False
    """Split the network's output into a state's value and the actions' advantages."""
    max_grad_norm: PositiveFloat | None = 10.0
    """Longest gradient allowed."""


class DQNAlgorithm(Algorithm[DQNConfig]):
    """Learns the value of every discrete action from replayed transitions."""

    def __init__(self, config: DQNConfig, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self.network = self._make_network()
        self.target_network = self._make_network().requires_grad_(False)
        self.target_network.load_state_dict(self.network.state_dict())
        self.optimizer = Adam(self.network.parameters())
        self.counters["target_copies"] = 0
        self._step = compiled(self._gradient_step, resources.compile)

    @classmethod
    def check_spaces(cls, spaces: Spaces) -> None:
        """DQN needs a list of actions to value."""
        if spaces.action.kind is not ActionKind.DISCRETE:
            raise EnvError("dqn needs a Discrete action space; for Box actions use sac or ppo")

    def epsilon(self) -> float:
        """The share of random actions at this point of the run."""
        config = self.config
        done = self.progress / config.exploration_fraction if config.exploration_fraction else 1.0
        return config.epsilon_start + min(done, 1.0) * (config.epsilon_end - config.epsilon_start)

    @torch.no_grad()
    def act(self, obs: Tensor, *, explore: bool) -> Tensor:
        """The best action, or with probability epsilon any action."""
        greedy: Tensor = self.network(obs).argmax(-1)
        if not explore:
            return greedy
        draws = torch.rand(len(obs), generator=self.generator, device=self.device)
        return torch.where(draws < self.epsilon(), self.random_actions(len(obs)), greedy)

    def update(self, batch: Transitions) -> UpdateResult:
        """Take one step towards the targets; copy the target network when its interval has passed."""
        self.optimizer.set_learning_rate(value_at(self.config.learning_rate, self.progress))
        copies_due = self.global_step // self.config.target_update_interval
        if copies_due > self.counters["target_copies"]:
            polyak(self.network.parameters(), self.target_network.parameters(), tau=1.0)
            self.counters["target_copies"] = copies_due
        discounts = batch.bootstrap(self.config.gamma)
        loss, q_mean, grad_norm = self._step(
            batch.obs, batch.actions, batch.rewards, batch.next_obs, discounts
        ).unbind()
        return UpdateResult({"critic_loss": loss, "q_mean": q_mean, "grad_norm": grad_norm})

    def parts(self) -> dict[str, Stateful]:
        """Both networks and the optimizer."""
        return {"network": self.network, "target_network": self.target_network, "optimizer": self.optimizer}

    def _make_network(self) -> QNetwork:
        return QNetwork(
            self.spaces,
            self.config.hidden_sizes,
            activation=self.config.activation,
            dueling=self.config.dueling,
            generator=self.generator,
        ).to(self.device)

    def _gradient_step(
        self, obs: Tensor, actions: Tensor, rewards: Tensor, next_obs: Tensor, discounts: Tensor
    ) -> Tensor:
        targets = self._targets(rewards, next_obs, discounts)
        values = self.network(obs).gather(1, actions.unsqueeze(1)).squeeze(1)
        loss = F.smooth_l1_loss(values, targets)
        grad_norm = descend(loss, self.optimizer, self.config.max_grad_norm)
        return torch.stack([loss, values.mean(), grad_norm]).detach()

    @torch.no_grad()
    def _targets(self, rewards: Tensor, next_obs: Tensor, discounts: Tensor) -> Tensor:
        next_values: Tensor = self.target_network(next_obs)
        if self.config.double:
            best = self.network(next_obs).argmax(1, keepdim=True)  # Double Q-learning, eq. 4
            return rewards + discounts * next_values.gather(1, best).squeeze(1)
        return rewards + discounts * next_values.amax(1)
