"""A linear guess of each next observation, and by how much the recorded one misses it."""

from __future__ import annotations

import numpy as np

from rl_training.data.dataset_fields import flat_rows, row_blocks, spread_rows
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.replay.transitions import Array

NUM_ROWS = 20_000
MAX_NUMBERS = 4_000_000
"""Wide observations are fitted on fewer rows."""
MAX_WIDTH = 512
"""Wider observations are guessed to move as they do on average."""
TRIM = 0.2
"""Share of rows left out of the fit because they miss it most: they may be the very jumps that are sought."""


def score_steps(dataset: TransitionDataset) -> tuple[Array, Array]:
    """By how much each step misses what was guessed, and how far it goes; 0 where nothing can be guessed, [n] each.

    Misses are in units of a typical one of the same column, of which the median column counts, since an impact may
    upset a few; 3 is a large one. Two columns of three go as far as said, in standard deviations, or farther.
    """
    misses, leaps = np.zeros(len(dataset)), np.zeros(len(dataset))
    rows = spread_rows(len(dataset), min(NUM_ROWS, max(100, MAX_NUMBERS // dataset.obs[0].size)))
    rows = rows[~dataset.dones[rows]]
    for array in (dataset.obs, dataset.actions, dataset.next_obs):
        rows = rows[np.isfinite(flat_rows(array[rows])).all(1)]
    moving = np.ptp(flat_rows(dataset.obs[rows]), axis=0) > 0 if len(rows) >= 20 else np.zeros(1)
    if dataset.obs.dtype.kind != "f" or not moving.any():
        return misses, leaps
    spread = flat_rows(dataset.obs[rows])[:, moving].std(0, dtype=np.float64)
    inputs, steps = _read(dataset, rows, moving)
    score, third = np.zeros(len(rows)), len(spread) // 3
    for _ in range(3):
        kept = score <= np.quantile(score, 1.0 - TRIM)
        weights = solve_ridge(inputs[kept], steps[kept], 1e-6)
        sizes = np.abs(steps - inputs @ weights)
        scale = 2.5 * np.median(sizes, axis=0) + 1e-3 * spread
        score = np.median(sizes / scale, axis=1)
    for block in row_blocks(dataset.obs, dataset.next_obs):
        inputs, steps = _read(dataset, block, moving)
        with np.errstate(invalid="ignore"):
            misses[block] = np.median(np.abs(steps - inputs @ weights) / scale, axis=1)
            leaps[block] = np.partition(np.abs(steps) / spread, third, axis=1)[:, third]
    return misses, leaps


def _read(dataset: TransitionDataset, rows: Array | slice, moving: Array) -> tuple[Array, Array]:
    """What a step may depend on, and how far it goes in the columns that move."""
    obs, next_obs, actions = (flat_rows(part[rows]) for part in (dataset.obs, dataset.next_obs, dataset.actions))
    ones = np.ones((len(obs), 1))
    inputs = ones if obs.shape[1] > MAX_WIDTH else np.hstack([ones, obs, actions])
    return inputs, next_obs[:, moving].astype(np.float64) - obs[:, moving]


def solve_ridge(inputs: Array, targets: Array, penalty: float) -> Array:
    """Weights of a linear regression, [inputs, targets]; the penalty is the same whatever the scale of a column."""
    size = np.maximum(np.sqrt((inputs.astype(np.float64) ** 2).mean(0)), 1e-12)
    scaled = inputs / size
    gram = scaled.T @ scaled + penalty * len(inputs) * np.eye(inputs.shape[1])
    weights: Array = np.linalg.solve(gram, scaled.T @ targets) / size[:, None]
    return weights
