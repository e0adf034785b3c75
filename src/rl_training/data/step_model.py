"""A linear guess of each next observation, and by how much the recorded one misses it."""

from __future__ import annotations

import numpy as np

from rl_training.data.dataset_fields import flat_rows
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.transitions import Array

NUM_ROWS = 20_000
MAX_NUMBERS = 4_000_000
"""Wide observations are fitted on fewer rows."""
MAX_WIDTH = 512
"""Wider observations are guessed to stay as they are."""
TRIM = 0.2
"""Share of rows left out of the fit because they miss it most: they may be the very jumps that are sought."""


class StepModel:
    """Fitted on a sample; misses are measured in units of a typical one of the same column."""

    def __init__(self, dataset: TransitionDataset) -> None:
        self._dataset = dataset
        count = min(len(dataset), NUM_ROWS, max(100, MAX_NUMBERS // dataset.obs[0].size))
        rows = np.linspace(0, len(dataset) - 1, count).astype(np.int64)
        rows = rows[~dataset.dones[rows]]
        for array in (dataset.obs, dataset.actions, dataset.next_obs):
            rows = rows[np.isfinite(self._flat(array, rows)).all(1)]
        self._weights: Array | None = None
        self._scale = self._spread = np.zeros(dataset.obs[0].size)
        if len(rows) >= 20:
            self._fit(rows)

    @property
    def is_usable(self) -> bool:
        """Whether any column moves, and there were enough rows to fit."""
        return bool((self._scale > 0).any())

    def misses(self, rows: Array | slice) -> Array:
        """The miss of each row in each column that moves, [rows, columns]; 3 is a large one."""
        moving = self._scale > 0
        with np.errstate(invalid="ignore"):
            misses: Array = np.abs(self._residuals(rows)[:, moving]) / self._scale[moving]
        return misses

    def leaps(self, rows: Array | slice) -> Array:
        """How far each row goes, as a share of the column's standard deviation, [rows, columns that move]."""
        moving = self._scale > 0
        leaps: Array = np.abs(self._steps(rows)[:, moving]) / self._spread[moving]
        return leaps

    def _fit(self, rows: Array) -> None:
        kept = rows
        inputs = self._inputs(rows)
        self._spread = self._flat(self._dataset.obs, rows).std(0)
        for _ in range(3):
            if self._dataset.obs[0].size <= MAX_WIDTH:
                self._weights = _least_squares(self._inputs(kept), self._steps(kept))
            size = np.abs(self._steps(rows) - (0.0 if self._weights is None else inputs @ self._weights))
            typical = np.median(size, axis=0)
            self._scale = np.where(self._spread > 0, 2.5 * typical + 1e-3 * self._spread, 0.0)
            if not self.is_usable:
                return
            score = np.median(size[:, self._scale > 0] / self._scale[self._scale > 0], axis=1)
            kept = rows[score <= np.quantile(score, 1.0 - TRIM)]

    def _residuals(self, rows: Array | slice) -> Array:
        steps = self._steps(rows)
        return steps if self._weights is None else steps - self._inputs(rows) @ self._weights

    def _steps(self, rows: Array | slice) -> Array:
        return self._flat(self._dataset.next_obs, rows) - self._flat(self._dataset.obs, rows)

    def _inputs(self, rows: Array | slice) -> Array:
        obs, actions = self._flat(self._dataset.obs, rows), self._flat(self._dataset.actions, rows)
        return np.hstack([np.ones((len(obs), 1)), obs, actions])

    def _flat(self, array: Array, rows: Array | slice) -> Array:
        return flat_rows(array[rows]).astype(np.float64)


def _least_squares(inputs: Array, targets: Array) -> Array:
    size = np.maximum(np.sqrt((inputs**2).mean(0)), 1e-12)
    scaled = inputs / size
    gram = scaled.T @ scaled + 1e-6 * len(inputs) * np.eye(inputs.shape[1])
    solution: Array = np.linalg.solve(gram, scaled.T @ targets) / size[:, None]
    return solution
