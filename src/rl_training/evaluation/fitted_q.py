"""Judging a policy without an environment: fitted Q evaluation on held-out episodes (Le et al. 2019, algorithm 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.optim import Adam, descend, polyak
from rl_training.algorithms.returns import ensemble_mse
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.errors import DatasetError
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
MAX_DRIFT_OF_INTERVAL = 0.1
"""From which drift on, relative to the estimate and to its interval, the estimate has not converged."""
BOOTSTRAP_SAMPLES = 1000
TARGET_SHARE = 0.05
"""The values settle like exp(-TARGET_SHARE * (1 - gamma) * updates): at gamma 0.99, within 1 % after 10,000."""


@dataclass(frozen=True)
class OfflineScore:
    """Discounted returns from the first states of the held-out episodes."""

    fqe_return_mean: float
    """What the policy is estimated to earn."""
    fqe_return_low: float
    fqe_return_high: float
    """The middle 95 % of the estimate when the held-out episodes are drawn anew; the fit's own error is not in it."""
    fqe_drift: float
    """How much the estimate moved in the last tenth of its updates."""
    fqe_converged: bool
    """Whether that is small: at most a hundredth of the estimate, or a tenth of its interval."""
    behaviour_return_mean: float
    """What the recorded behaviour earned in these episodes, up to where they end."""
    unrecorded_weight: float
    """Share of a steady reward's worth that comes after those ends unless one terminated: only the estimate has it."""
    held_out_episodes: int
    gamma: float


class _Values(nn.Module):
    """The value of an action in a state, [B], for Box and Discrete actions."""

    def __init__(self, spaces: Spaces, obs: Tensor, generator: torch.Generator) -> None:
        super().__init__()
        if spaces.action.kind is ActionKind.MULTI_DISCRETE:
            raise DatasetError("fitted Q evaluation needs Box or Discrete actions")
        self._is_discrete = spaces.action.kind is ActionKind.DISCRETE
        encoder = make_preprocessor(spaces.obs, normalize=spaces.obs.num_categories is None)
        assert encoder is not None  # observations are normalized or one-hot encoded
        self.encoder = encoder
        self.encoder.update_statistics(obs)
        mlp_spec = MLPSpec((256, 256), "relu", generator)
        self.network: nn.Module = (
            QNetwork(spaces, mlp_spec) if self._is_discrete else EnsembleCritic(spaces, mlp_spec, num_members=1)
        )

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        encoded = self.encoder(obs)
        if self._is_discrete:
            values: Tensor = self.network(encoded).gather(1, actions.unsqueeze(1)).squeeze(1)
        else:
            values = self.network(encoded, actions)[0]
        return values


class _Fit:
    """The values of a policy's actions, learned from transitions step by step."""

    def __init__(self, algorithm: Algorithm[Any], data: TransitionDataset, learning_rate: float, seed: int) -> None:
        self._algorithm, self._data = algorithm, data
        generator = torch.Generator().manual_seed(seed)
        self._values = _Values(algorithm.spaces, torch.from_numpy(data.obs.copy()), generator).to(algorithm.device)
        self._target = frozen_copy(self._values)
        self._optimizer = Adam(self._values.network.parameters())
        self._optimizer.set_learning_rate(learning_rate)

    def update(self, batch_size: int) -> None:
        """One step towards the targets of a batch."""
        batch = self._data.sample(batch_size)
        with torch.no_grad():
            next_actions = self._actions(batch.next_obs)
            discounts = batch.bootstrap_discounts(self._algorithm.config.gamma)
            targets = batch.rewards + discounts * self._target(batch.next_obs, next_actions)
        descend(ensemble_mse(self._values(batch.obs, batch.actions)[None], targets), self._optimizer)
        polyak(self._values.network, self._target.network, TARGET_SHARE)

    @torch.no_grad()
    def estimate(self, obs: Tensor) -> Array:
        """What the policy would earn from each observation on."""
        estimates: Array = self._values(obs, self._actions(obs)).double().cpu().numpy()
        return estimates

    def _actions(self, obs: Tensor) -> Tensor:
        """What the environment would execute: no data tells the value of an action beyond its bounds."""
        return self._algorithm.spaces.action.executed(self._algorithm.act(obs, explore=False))


def fitted_q_evaluation(
    algorithm: Algorithm[Any],
    dataset: TransitionDataset,
    *,
    num_updates: int = 10_000,
    batch_size: int = 256,
    learning_rate: float = 3e-4,
    seed: int = 0,
) -> OfflineScore:
    """Learn the deterministic policy's action values from most episodes and read them off at the others' beginnings.

    `dataset` is in model space, with the rewards to judge by.
    """
    gamma = algorithm.config.gamma
    training, held_out = dataset.split_episodes(HELD_OUT, seed)
    # In units of a typical reward, so that the fit goes the same way whatever their scale.
    unit = float(np.sqrt(np.square(training.rewards, dtype=np.float64).mean())) or 1.0
    training = training.with_reward_transform(1.0 / unit)
    training = training.with_sampler(rng=np.random.default_rng(seed), device=algorithm.device)
    starts, stops = held_out.episodes().T
    first_obs = torch.from_numpy(held_out.obs[starts]).to(algorithm.device)
    fit = _Fit(algorithm, training, learning_rate, seed)
    earlier = 0.0
    for update in counting(num_updates, "learning the policy's values"):
        if update == num_updates * 9 // 10:
            earlier = unit * float(fit.estimate(first_obs).mean())
        fit.update(batch_size)
    estimates = unit * fit.estimate(first_obs)
    mean = float(estimates.mean())
    resampled = np.random.default_rng(seed).choice(estimates, (BOOTSTRAP_SAMPLES, len(estimates))).mean(1)
    low, high = (float(bound) for bound in np.quantile(resampled, (0.025, 0.975)))
    earned = np.mean([discounted_return(held_out.rewards[rows], gamma) for rows in map(slice, starts, stops)])
    unrecorded = np.where(held_out.terminated[stops - 1], 0.0, gamma ** (stops - starts)).mean()
    drift = mean - earlier
    converged = abs(drift) <= max(MAX_DRIFT * abs(mean), MAX_DRIFT_OF_INTERVAL * (high - low))
    if not converged:
        tell(_describe_drift(mean, drift, num_updates, gamma))
    return OfflineScore(mean, low, high, drift, converged, float(earned), float(unrecorded), len(estimates), gamma)


def _describe_drift(mean: float, drift: float, num_updates: int, gamma: float) -> str:
    # Enough for the values to settle within 1 %, or twice as many as were too few.
    wanted = max(2 * num_updates, math.ceil(-math.log(0.01) / (TARGET_SHARE * max(1.0 - gamma, 1e-4))))
    return (
        f"fitted Q evaluation has not converged: its estimate {mean:.4g} moved by {drift:.2g} in the last tenth of"
        f" {num_updates:,} updates; raise --fqe-updates (num_updates), for example to {round(wanted, -3) or wanted}"
    )


def discounted_return(rewards: Any, gamma: float) -> float:
    """The sum of rewards, each worth gamma times less than the one before."""
    return float(np.sum(rewards * gamma ** np.arange(len(rewards))))
