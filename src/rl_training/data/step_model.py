"""A linear guess of each next observation, and by how much the recorded one misses it."""

from __future__ import annotations

import numpy as np

from rl_training.data.dataset_fields import flat_rows, spread_rows
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.transitions import Array

NUM_ROWS = 20_000
MAX_NUMBERS = 4_000_000
"""Wide observations are fitted on fewer rows."""
MAX_WIDTH = 512
"""Wider observations are guessed to move as they do on average."""
TRIM = 0.2
"""Share of rows left out of the fit because they miss it most: they may be the very jumps that are sought."""


class StepModel:
    """Fitted on a sample; misses are measured in units of a typical one of the same column."""

    def __init__(self, dataset: TransitionDataset, rows: Array) -> None:
        self._dataset = dataset
        obs = flat_rows(dataset.obs[rows])
        self._moving = np.ptp(obs, axis=0) > 0
        self._spread = obs[:, self._moving].std(0, dtype=np.float64)
        inputs, steps = self._inputs(rows), self._steps(rows)
        score = np.zeros(len(rows))
        for _ in range(3):
            kept = score <= np.quantile(score, 1.0 - TRIM)
            self._weights = solve_ridge(inputs[kept], steps[kept], 1e-6)
            size = np.abs(steps - inputs @ self._weights)
            self._scale = 2.5 * np.median(size, axis=0) + 1e-3 * self._spread
            score = np.median(size / self._scale, axis=1)

    def misses(self, rows: Array | slice) -> Array:
        """The miss of each row in each column that moves, [rows, columns]; 3 is a large one."""
        with np.errstate(invalid="ignore"):
            misses: Array = np.abs(self._steps(rows) - self._inputs(rows) @ self._weights) / self._scale
        return misses

    def leaps(self, rows: Array | slice) -> Array:
        """How far each row goes, as a share of the column's standard deviation, [rows, columns that move]."""
        leaps: Array = np.abs(self._steps(rows)) / self._spread
        return leaps

    def _steps(self, rows: Array | slice) -> Array:
        after, before = flat_rows(self._dataset.next_obs[rows]), flat_rows(self._dataset.obs[rows])
        steps: Array = after[:, self._moving].astype(np.float64) - before[:, self._moving]
        return steps

    def _inputs(self, rows: Array | slice) -> Array:
        obs, actions = flat_rows(self._dataset.obs[rows]), flat_rows(self._dataset.actions[rows])
        ones = np.ones((len(obs), 1))
        return ones if obs.shape[1] > MAX_WIDTH else np.hstack([ones, obs, actions])


def fit_steps(dataset: TransitionDataset) -> StepModel | None:
    """Of observations in floats of which some column moves, if there are enough rows."""
    if dataset.obs.dtype.kind != "f":
        return None
    rows = spread_rows(len(dataset), min(NUM_ROWS, max(100, MAX_NUMBERS // dataset.obs[0].size)))
    rows = rows[~dataset.dones[rows]]
    for array in (dataset.obs, dataset.actions, dataset.next_obs):
        rows = rows[np.isfinite(flat_rows(array[rows])).all(1)]
    if len(rows) < 20 or not np.ptp(flat_rows(dataset.obs[rows]), axis=0).any():
        return None
    return StepModel(dataset, rows)


def solve_ridge(inputs: Array, targets: Array, penalty: float) -> Array:
    """Weights of a linear regression, [inputs, targets]; the penalty is the same whatever the scale of a column."""
    size = np.maximum(np.sqrt((inputs.astype(np.float64) ** 2).mean(0)), 1e-12)
    scaled = inputs / size
    gram = scaled.T @ scaled + penalty * len(inputs) * np.eye(inputs.shape[1])
    weights: Array = np.linalg.solve(gram, scaled.T @ targets) / size[:, None]
    return weights
