"""A linear model of the dynamics, to find steps that it predicts badly."""

from __future__ import annotations

import numpy as np

from rl_training.data.dataset_fields import evenly_spaced_rows, flat_rows, row_blocks
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.replay.transitions import Array

NUM_ROWS = 20_000
MAX_NUMBERS = 4_000_000
"""Maximum size of the fit's observations; wide ones use fewer rows."""
MAX_WIDTH = 512
"""Wider observations are predicted to move by their mean step."""
TRIM = 0.2
"""Fraction of rows with the largest residuals left out of the fit: they may be the jumps to find."""


def fit_linear_dynamics(dataset: TransitionDataset) -> tuple[Array, Array]:
    """Residual and length of each step, [n] each; all 0 for constant or non-float observations.

    The residual is the prediction error relative to the column's typical error, as the median over columns, so that an
    impact in a few columns does not count; 3 is large. The length is in standard deviations of each column; two thirds
    of the columns move at least this far.
    """
    residuals, step_lengths = np.zeros(len(dataset)), np.zeros(len(dataset))
    rows = evenly_spaced_rows(len(dataset), min(NUM_ROWS, max(100, MAX_NUMBERS // dataset.obs[0].size)))
    rows = rows[~dataset.dones[rows]]
    for array in (dataset.obs, dataset.actions, dataset.next_obs):
        rows = rows[np.isfinite(flat_rows(array[rows])).all(1)]
    moving = np.ptp(flat_rows(dataset.obs[rows]), axis=0) > 0 if len(rows) >= 20 else np.zeros(1)
    if dataset.obs.dtype.kind != "f" or not moving.any():
        return residuals, step_lengths
    std = flat_rows(dataset.obs[rows])[:, moving].std(0, dtype=np.float64)
    weights, scale = _fit(*_inputs_and_steps(dataset, rows, moving), std)
    third = len(std) // 3
    for block in row_blocks(dataset.obs, dataset.next_obs):
        inputs, steps = _inputs_and_steps(dataset, block, moving)
        with np.errstate(invalid="ignore"):
            residuals[block] = np.median(np.abs(steps - inputs @ weights) / scale, axis=1)
            step_lengths[block] = np.partition(np.abs(steps) / std, third, axis=1)[:, third]
    return residuals, step_lengths


def solve_ridge(inputs: Array, targets: Array, penalty: float) -> Array:
    """Weights of a ridge regression, [inputs, targets]; the penalty does not depend on the scale of a column."""
    size = np.maximum(np.sqrt((inputs.astype(np.float64) ** 2).mean(0)), 1e-12)
    scaled = inputs / size
    gram = scaled.T @ scaled + penalty * len(inputs) * np.eye(inputs.shape[1])
    weights: Array = np.linalg.solve(gram, scaled.T @ targets) / size[:, None]
    return weights


def _fit(inputs: Array, steps: Array, std: Array) -> tuple[Array, Array]:
    """Weights of a trimmed regression of the steps, and the typical error of each column."""
    score = np.zeros(len(inputs))
    for _ in range(3):
        kept = score <= np.quantile(score, 1.0 - TRIM)
        weights = solve_ridge(inputs[kept], steps[kept], 1e-6)
        errors = np.abs(steps - inputs @ weights)
        scale = 2.5 * np.median(errors, axis=0) + 1e-3 * std
        score = np.median(errors / scale, axis=1)
    return weights, scale


def _inputs_and_steps(dataset: TransitionDataset, rows: Array | slice, moving: Array) -> tuple[Array, Array]:
    """Regression inputs (bias, obs, actions), and the change of each moving column."""
    obs, next_obs, actions = (flat_rows(part[rows]) for part in (dataset.obs, dataset.next_obs, dataset.actions))
    ones = np.ones((len(obs), 1))
    inputs = ones if obs.shape[1] > MAX_WIDTH else np.hstack([ones, obs, actions])
    return inputs, next_obs[:, moving].astype(np.float64) - obs[:, moving]
