"""How well the recorded actions follow from the observations: data of one sure hand, or of many and random ones."""

from __future__ import annotations

import numpy as np

from rl_training.data.dataset_fields import flat_rows
from rl_training.data.dataset_findings import BehaviourFit
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.transitions import Array

NUM_FIT_ROWS = 10_000
NUM_TEST_ROWS = 1_000
MAX_NUMBERS = 20_000_000
"""Images are judged by fewer rows."""
NUM_FEATURES = 256
NUM_NEIGHBOURS = 10


def fit_behaviour(dataset: TransitionDataset) -> BehaviourFit | None:
    """Predict actions of held-out episodes by random features and by nearest neighbours; the better one counts."""
    fit_rows, test_rows = _split_rows(dataset)
    if len(fit_rows) < 50 or len(test_rows) < 20:
        return None
    features = _standardize(dataset.obs[np.concatenate([fit_rows, test_rows])])
    fit_x, test_x = features[: len(fit_rows)], features[len(fit_rows) :]
    fit_a = flat_rows(dataset.actions[fit_rows])
    test_a = flat_rows(dataset.actions[test_rows])
    if dataset.actions.dtype.kind == "f":
        guesses = (_ridge(fit_x, fit_a, test_x), fit_a[_nearest(fit_x, test_x)].mean(1))
        return BehaviourFit("r2", max(_r2(guess, test_a) for guess in guesses), 0.0)
    return _discrete_fit(fit_x, fit_a, test_x, test_a)


def _discrete_fit(fit_x: Array, fit_a: Array, test_x: Array, test_a: Array) -> BehaviourFit:
    """Accuracy, averaged over the components of an action."""
    neighbours = _nearest(fit_x, test_x)
    accuracies, baselines = [], []
    for column in range(fit_a.shape[1]):
        options, codes = np.unique(fit_a[:, column], return_inverse=True)
        one_hot = np.eye(len(options), dtype=np.float32)[codes]
        truth = test_a[:, column]
        guesses = (_ridge(fit_x, one_hot, test_x), one_hot[neighbours].mean(1))
        accuracies.append(max(float((options[guess.argmax(1)] == truth).mean()) for guess in guesses))
        baselines.append(float((truth == options[one_hot.sum(0).argmax()]).mean()))
    return BehaviourFit("accuracy", float(np.mean(accuracies)), float(np.mean(baselines)))


def _split_rows(dataset: TransitionDataset) -> tuple[Array, Array]:
    """Rows to fit and rows to test on, of different episodes, so that neighbours in time do not give them away."""
    rng = np.random.default_rng(0)
    episodes = dataset.episodes()
    is_test = np.zeros(len(dataset), np.bool_)
    if len(episodes) >= 5:
        held_out = np.zeros(len(episodes), np.bool_)
        held_out[rng.permutation(len(episodes))[: -(-len(episodes) // 5)]] = True
        is_test = np.repeat(held_out, episodes[:, 1] - episodes[:, 0])
    else:
        is_test[int(0.8 * len(dataset)) :] = True
    return (
        _finite_sample(dataset, np.flatnonzero(~is_test), NUM_FIT_ROWS, rng),
        _finite_sample(dataset, np.flatnonzero(is_test), NUM_TEST_ROWS, rng),
    )


def _finite_sample(dataset: TransitionDataset, rows: Array, count: int, rng: np.random.Generator) -> Array:
    count = min(len(rows), count, max(200, MAX_NUMBERS // dataset.obs[0].size))
    rows = rng.choice(rows, count, replace=False)
    finite = np.isfinite(flat_rows(dataset.obs[rows])).all(1)
    finite &= np.isfinite(flat_rows(dataset.actions[rows])).all(1)
    return rows[finite]


def _standardize(obs: Array) -> Array:
    """Flat, of mean 0 and deviation 1; images and other wide observations are projected to fewer columns."""
    flat = flat_rows(obs).astype(np.float32)
    if flat.shape[1] > NUM_FEATURES:
        flat = flat @ np.random.default_rng(0).normal(size=(flat.shape[1], NUM_FEATURES)).astype(np.float32)
    standard: Array = (flat - flat.mean(0)) / np.maximum(flat.std(0), 1e-6)
    return standard


def _ridge(fit_x: Array, fit_y: Array, test_x: Array) -> Array:
    """Linear regression on the features and on random bends of them."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(fit_x.shape[1], NUM_FEATURES)).astype(np.float32) / np.sqrt(fit_x.shape[1])
    biases = rng.uniform(-2, 2, NUM_FEATURES).astype(np.float32)

    def expand(x: Array) -> Array:
        return np.hstack([np.ones_like(x[:, :1]), x, np.tanh(x @ weights + biases)])

    inputs = expand(fit_x)
    gram = (inputs.T @ inputs).astype(np.float64) + 1e-4 * len(inputs) * np.eye(inputs.shape[1])
    solution = np.linalg.solve(gram, inputs.T.astype(np.float64) @ fit_y)
    guess: Array = expand(test_x) @ solution
    return guess


def _nearest(fit_x: Array, test_x: Array) -> Array:
    """Rows of the nearest neighbours of each test row, [T, k]."""
    count = min(NUM_NEIGHBOURS, len(fit_x))
    found = []
    for start in range(0, len(test_x), 100):
        distances = (fit_x**2).sum(1) - 2.0 * test_x[start : start + 100] @ fit_x.T
        found.append(np.argpartition(distances, count - 1, axis=1)[:, :count])
    return np.concatenate(found)


def _r2(guess: Array, truth: Array) -> float:
    total = float(((truth - truth.mean(0)) ** 2).sum())
    return 1.0 if total == 0.0 else max(0.0, 1.0 - float(((guess - truth) ** 2).sum()) / total)
