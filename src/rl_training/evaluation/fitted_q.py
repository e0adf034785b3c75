"""Estimates a policy's return without an environment: fitted Q evaluation (FQE; Le et al. 2019, algorithm 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.optim import Adam, descend, polyak
from rl_training.algorithms.replay import bootstrap_discounts
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.errors import DatasetError
from rl_training.models.actions import executed
from rl_training.models.critics import EnsembleCritic, QNetwork
from rl_training.models.encoders import make_preprocessor
from rl_training.models.mlp import MLPSpec, frozen_copy
from rl_training.replay.transitions import Array
from rl_training.spaces.actions import ActionKind
from rl_training.spaces.spec import Spaces
from rl_training.terminal.progress import counting
from rl_training.terminal.streams import tell

HELD_OUT = 0.2
MAX_DRIFT = 0.01
"""The estimate has converged if the change left is within this fraction of it."""
MAX_DRIFT_OF_INTERVAL = 0.1
"""It has also converged if the change left is within this fraction of its interval."""
BOOTSTRAP_SAMPLES = 1000
TAU = 0.05
"""Polyak coefficient. The Q-values converge like exp(-TAU * (1 - gamma) * updates): 1 % at 10,000 for gamma 0.99."""


@dataclass(frozen=True)
class OfflineScore:
    """Discounted returns from the first states of held-out episodes."""

    fqe_return_mean: float
    """Estimated discounted return of the policy."""
    fqe_return_low: float
    fqe_return_high: float
    """Bounds of the 95 % bootstrap interval over held-out episodes; excludes the error of the fit."""
    fqe_drift: float
    """Change of the estimate over the last tenth of the updates."""
    fqe_converged: bool
    """Whether the change left, by the drift, is at most 1 % of the estimate or 10 % of its interval."""
    behaviour_return_mean: float
    """Mean discounted return recorded in these episodes, up to their ends."""
    tail_weight: float
    """Mean gamma**length of the held-out episodes (0 if terminated): weight of unrecorded rewards in the estimate."""
    held_out_episodes: int
    gamma: float


class _QFunction(nn.Module):
    """Q(s, a) [B] for Box and Discrete actions."""

    def __init__(self, spaces: Spaces, obs: Tensor, generator: torch.Generator) -> None:
        super().__init__()
        if spaces.action.kind is ActionKind.MULTI_DISCRETE:
            raise DatasetError(
                "fitted Q evaluation does not support MultiDiscrete actions: evaluate in an environment"
            )
        if spaces.obs.image_shapes:
            raise DatasetError(
                "fitted Q evaluation does not support images: evaluate in an environment"
            )
        self._is_discrete = spaces.action.kind is ActionKind.DISCRETE
        encoder = make_preprocessor(spaces.obs, normalize=spaces.obs.num_categories is None)
        assert encoder is not None  # observations are normalized or one-hot encoded
        self.encoder = encoder
        self.encoder.update_statistics(obs)
        mlp_spec = MLPSpec((256, 256), "relu", generator)
        self.network: nn.Module = (
            QNetwork(spaces, mlp_spec)
            if self._is_discrete
            else EnsembleCritic(spaces, mlp_spec, num_members=1)
        )

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        encoded = self.encoder(obs)
        if self._is_discrete:
            values: Tensor = self.network(encoded).gather(1, actions.unsqueeze(1)).squeeze(1)
        else:
            values = self.network(encoded, actions)[0]
        return values


class _Fit:
    """The Q-function of a policy, learned from transitions."""

    def __init__(
        self, algorithm: Algorithm[Any], data: TransitionDataset, learning_rate: float, seed: int
    ) -> None:
        self._algorithm, self._data = algorithm, data
        generator = torch.Generator().manual_seed(seed)
        self._q = _QFunction(algorithm.spaces, torch.from_numpy(data.obs.copy()), generator).to(
            algorithm.device
        )
        self._target = frozen_copy(self._q)
        self._optimizer = Adam(self._q.network.parameters(), learning_rate)

    def update(self, batch_size: int) -> None:
        """One gradient step on the TD error of a batch."""
        batch = self._data.sample(batch_size)
        with torch.no_grad():
            next_actions = self._actions(batch.next_obs, batch.next_masks)
            discounts = bootstrap_discounts(batch, self._algorithm.config.gamma)
            targets = batch.rewards + discounts * self._target(batch.next_obs, next_actions)
        descend(F.mse_loss(self._q(batch.obs, batch.actions), targets), self._optimizer)
        polyak(self._q.network, self._target.network, TAU)

    @torch.no_grad()
    def estimate(self, obs: Tensor, masks: Tensor | None) -> Array:
        """Discounted return of the policy from each observation: Q(s, pi(s)) [B]."""
        estimates: Array = self._q(obs, self._actions(obs, masks)).double().cpu().numpy()
        return estimates

    def _actions(self, obs: Tensor, masks: Tensor | None) -> Tensor:
        """The policy's actions as the environment executes them: the dataset holds no action beyond the bounds."""
        actions = self._algorithm.act(obs, explore=False, mask=masks).actions
        return executed(self._algorithm.spaces.action, actions)


def fitted_q_evaluation(
    algorithm: Algorithm[Any],
    dataset: TransitionDataset,
    *,
    num_updates: int = 10_000,
    batch_size: int = 256,
    learning_rate: float = 3e-4,
    seed: int = 0,
) -> OfflineScore:
    """Fit the deterministic policy's Q-function to most episodes and evaluate it at the first states of the others.

    `dataset` is in model space, with unscaled rewards.
    """
    training, held_out = dataset.split_episodes(HELD_OUT, seed)
    # Rewards in units of their root mean square, so that the fit does not depend on their scale.
    unit = float(np.sqrt(np.square(training.rewards, dtype=np.float64).mean())) or 1.0
    training = training.with_reward_transform(1.0 / unit)
    training = training.with_sampler(rng=np.random.default_rng(seed), device=algorithm.device)
    first_rows = held_out.episodes()[:, 0]
    first_obs = torch.from_numpy(held_out.obs[first_rows]).to(algorithm.device)
    masks = held_out.masks
    first_masks = (
        None if masks is None else torch.from_numpy(masks[first_rows]).to(algorithm.device)
    )
    fit = _Fit(algorithm, training, learning_rate, seed)
    earlier = 0.0
    for update in counting(num_updates, "fitted Q evaluation"):
        if update == num_updates * 9 // 10:
            earlier = unit * float(fit.estimate(first_obs, first_masks).mean())
        fit.update(batch_size)
    estimates = unit * fit.estimate(first_obs, first_masks)
    score = _score(estimates, earlier, held_out, algorithm.config.gamma, seed, num_updates)
    if not score.fqe_converged:
        tell(_describe_drift(score, num_updates))
    return score


def _score(
    estimates: Array,
    earlier: float,
    held_out: TransitionDataset,
    gamma: float,
    seed: int,
    num_updates: int,
) -> OfflineScore:
    """The score from the estimates at the first states, and their mean `earlier` in the fit."""
    starts, stops = held_out.episodes().T
    mean = float(estimates.mean())
    resampled = (
        np.random.default_rng(seed).choice(estimates, (BOOTSTRAP_SAMPLES, len(estimates))).mean(1)
    )
    low, high = (float(bound) for bound in np.quantile(resampled, (0.025, 0.975)))
    drift = mean - earlier
    recorded = np.mean(
        [discounted_return(held_out.rewards[rows], gamma) for rows in map(slice, starts, stops)]
    )
    tail_weight = np.where(held_out.terminated[stops - 1], 0.0, gamma ** (stops - starts)).mean()
    return OfflineScore(
        fqe_return_mean=mean,
        fqe_return_low=low,
        fqe_return_high=high,
        fqe_drift=drift,
        fqe_converged=_change_left(drift, gamma, num_updates)
        <= max(MAX_DRIFT * abs(mean), MAX_DRIFT_OF_INTERVAL * (high - low)),
        behaviour_return_mean=float(recorded),
        tail_weight=float(tail_weight),
        held_out_episodes=len(estimates),
        gamma=gamma,
    )


def _change_left(drift: float, gamma: float, num_updates: int) -> float:
    """How far the estimate has still to go, at least the drift: after few updates a small drift means nothing.

    A distance that shrinks like exp(-rate * updates) is drift / (exp(rate * num_updates / 10) - 1) after a drift over
    the last tenth of them.
    """
    rate = TAU * max(1.0 - gamma, 1e-4)
    return abs(drift) * max(1.0, 1.0 / math.expm1(min(100.0, rate * num_updates / 10)))


def _describe_drift(score: OfflineScore, num_updates: int) -> str:
    # Enough for the Q-values to converge within 1 %, and at least twice as many as were too few.
    wanted = max(2 * num_updates, math.ceil(-math.log(0.01) / (TAU * max(1.0 - score.gamma, 1e-4))))
    return (
        f"fitted Q evaluation has not converged: its estimate {score.fqe_return_mean:.4g} changed by"
        f" {score.fqe_drift:.2g} in the last tenth of {num_updates:,} updates; raise --fqe-updates (num_updates), for"
        f" example to {round(wanted, -3) or wanted}"
    )


def discounted_return(rewards: Any, gamma: float) -> float:
    """The discounted sum of the rewards of one episode."""
    return float(np.sum(rewards * gamma ** np.arange(len(rewards))))
