"""Two simple models fitted to a dataset: how well observations predict its actions, and its next observations."""

from __future__ import annotations

from dataclasses import dataclass

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
NUM_FIT_ROWS = 10_000
NUM_TEST_ROWS = 1_000
MAX_BEHAVIOUR_NUMBERS = 20_000_000
"""Maximum size of the fit's observations; wide ones use fewer rows."""
NUM_FEATURES = 256
NUM_NEIGHBOURS = 10


def fit_linear_dynamics(dataset: TransitionDataset) -> tuple[Array, Array]:
    """Residual and length of each step, [n] each; all 0 for constant or non-float observations.

    The residual is the prediction error relative to the column's typical error, as the median over columns, so that an
    impact in a few columns does not count; 3 is large. The length is in standard deviations of each column; two thirds
    of the columns move at least this far.
    """
    residuals, step_lengths = np.zeros(len(dataset)), np.zeros(len(dataset))
    rows = evenly_spaced_rows(
        len(dataset), min(NUM_ROWS, max(100, MAX_NUMBERS // dataset.obs[0].size))
    )
    rows = rows[~dataset.dones[rows]]
    rows = _finite_rows(rows, dataset.obs, dataset.actions, dataset.next_obs)
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


def _finite_rows(rows: Array, *arrays: Array) -> Array:
    for array in arrays:
        rows = rows[np.isfinite(flat_rows(array[rows])).all(1)]
    return rows


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


def _inputs_and_steps(
    dataset: TransitionDataset, rows: Array | slice, moving: Array
) -> tuple[Array, Array]:
    """Regression inputs (bias, obs, actions), and the change of each moving column."""
    obs, next_obs, actions = (
        flat_rows(part[rows]) for part in (dataset.obs, dataset.next_obs, dataset.actions)
    )
    ones = np.ones((len(obs), 1))
    inputs = ones if obs.shape[1] > MAX_WIDTH else np.hstack([ones, obs, actions])
    return inputs, next_obs[:, moving].astype(np.float64) - obs[:, moving]


@dataclass(frozen=True)
class BehaviourFit:
    """How well a simple model predicts the actions of held-out episodes from their observations."""

    measure: str
    """`r2` for continuous actions, `accuracy` for discrete ones."""
    value: float
    baseline: float
    """Score of a constant prediction."""

    @property
    def determinism(self) -> float:
        """Score rescaled from the baseline (0) to a perfect prediction (1)."""
        margin = 1.0 - self.baseline
        if margin <= 0.01:
            return 1.0
        return float(np.clip((self.value - self.baseline) / margin, 0.0, 1.0))


def fit_behaviour(dataset: TransitionDataset) -> BehaviourFit | None:
    """Predict actions of held-out episodes by random features and by nearest neighbours; keep the better score."""
    fit_rows, test_rows = _split_rows(dataset)
    if len(fit_rows) < 50 or len(test_rows) < 20:
        return None
    features = _standardize(dataset.obs[np.concatenate([fit_rows, test_rows])])
    fit_x, test_x = features[: len(fit_rows)], features[len(fit_rows) :]
    fit_a, test_a = flat_rows(dataset.actions[fit_rows]), flat_rows(dataset.actions[test_rows])
    if dataset.actions.dtype.kind == "f":
        total = ((test_a - test_a.mean(0)) ** 2).sum()
        residual = min(
            ((prediction - test_a) ** 2).sum() for prediction in _predictions(fit_x, fit_a, test_x)
        )
        return BehaviourFit("r2", float(max(0.0, 1.0 - residual / total)) if total else 1.0, 0.0)
    accuracies, baselines = [], []
    for fit_column, truth in zip(fit_a.T, test_a.T, strict=True):
        options, codes = np.unique(fit_column, return_inverse=True)
        predictions = _predictions(fit_x, np.eye(len(options), dtype=np.float32)[codes], test_x)
        accuracies.append(
            max((options[scores.argmax(1)] == truth).mean() for scores in predictions)
        )
        baselines.append((options[np.argmax(np.bincount(codes))] == truth).mean())
    return BehaviourFit("accuracy", float(np.mean(accuracies)), float(np.mean(baselines)))


def _split_rows(dataset: TransitionDataset) -> list[Array]:
    """Fit rows and test rows, from different episodes because consecutive steps are correlated."""
    rng = np.random.default_rng(0)
    episodes = dataset.episodes()
    numbers = np.repeat(rng.permutation(len(episodes)), episodes[:, 1] - episodes[:, 0])
    is_test = numbers % 5 == 0
    if len(episodes) < 5:
        is_test = np.arange(len(dataset)) >= int(0.8 * len(dataset))
    most = max(200, MAX_BEHAVIOUR_NUMBERS // dataset.obs[0].size)
    parts = []
    for is_wanted, count in ((~is_test, NUM_FIT_ROWS), (is_test, NUM_TEST_ROWS)):
        rows = np.flatnonzero(is_wanted)
        rows = rng.choice(rows, min(len(rows), count, most), replace=False)
        parts.append(_finite_rows(rows, dataset.obs, dataset.actions))
    return parts


def _standardize(obs: Array) -> Array:
    """Flatten to mean 0 and standard deviation 1; wide observations are randomly projected to fewer columns."""
    flat = flat_rows(obs).astype(np.float32)
    if flat.shape[1] > NUM_FEATURES:
        projection = np.random.default_rng(0).normal(size=(flat.shape[1], NUM_FEATURES))
        flat = flat @ projection.astype(np.float32)
    standard: Array = (flat - flat.mean(0)) / np.maximum(flat.std(0), 1e-6)
    return standard


def _predictions(fit_x: Array, fit_y: Array, test_x: Array) -> tuple[Array, Array]:
    """Ridge regression on linear and random tanh features, and the mean of the nearest neighbours."""
    rng = np.random.default_rng(0)
    width = fit_x.shape[1]
    weights = rng.normal(size=(width, NUM_FEATURES)).astype(np.float32) / np.sqrt(width)
    biases = rng.uniform(-2, 2, NUM_FEATURES).astype(np.float32)
    inputs = [
        np.hstack([np.ones_like(x[:, :1]), x, np.tanh(x @ weights + biases)])
        for x in (fit_x, test_x)
    ]
    nearest = []
    for start in range(0, len(test_x), 100):
        distances = (fit_x**2).sum(1) - 2.0 * test_x[start : start + 100] @ fit_x.T
        nearest.append(np.argpartition(distances, NUM_NEIGHBOURS - 1, axis=1)[:, :NUM_NEIGHBOURS])
    return inputs[1] @ solve_ridge(inputs[0], fit_y, 1e-4), fit_y[np.concatenate(nearest)].mean(1)
