"""Which algorithm and settings fit a data set, from what the checks found."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rl_training.data.behaviour_fit import BehaviourFit
from rl_training.data.dataset_fields import flat_rows, spread_rows
from rl_training.data.findings import Finding, Level
from rl_training.data.offline_dataset import TransitionDataset

SURE_HAND = 0.8
"""From this determinism on, the data looks like the work of one policy that knows what it wants."""
RANDOM_HAND = 0.1
"""Below this the actions hardly depend on the observation."""
SMALL = 10_000


def advise(dataset: TransitionDataset, behaviour: BehaviourFit | None, findings: tuple[Finding, ...]) -> Iterator[str]:
    """Sentences of advice, the most important first."""
    if any(finding.level is Level.ERROR for finding in findings):
        yield "Mend the errors first: what is learned from this data would be wrong."
    if behaviour is not None:
        yield _algorithm(behaviour.determinism, is_continuous=dataset.actions.dtype.kind == "f")
    if any(finding.name == "reward_sparse" for finding in findings):
        yield "Rewards are sparse: iql with expectile 0.9 and beta 10, and a gamma near 1."
    if _scales_differ(dataset):
        yield "Observation columns differ in scale by more than 100 times: set normalize_obs to true."
    if len(dataset) < SMALL:
        yield f"{len(dataset):,} transitions are few: expect overfitting, and judge by several seeds."


def _algorithm(determinism: float, *, is_continuous: bool) -> str:
    if determinism < RANDOM_HAND:
        choice = "cql with a small cql_alpha"
        if is_continuous:
            choice = "td3_bc with a larger bc_alpha, or iql with expectile 0.9"
        return f"The actions look random, so imitating them (bc) is no use: {choice}."
    if determinism >= SURE_HAND:
        rivals = "td3_bc or iql" if is_continuous else "cql"
        return f"The data looks like the work of one policy: bc equals it at the least cost; to pass it, {rivals}."
    careful = "iql with expectile 0.7 to 0.9, or td3_bc" if is_continuous else "cql"
    return f"The data is mixed: {careful} can combine its better parts; bc only averages them."


def _scales_differ(dataset: TransitionDataset) -> bool:
    if dataset.obs.dtype.kind != "f":
        return False
    flat = flat_rows(dataset.obs[spread_rows(len(dataset), 5000)]).astype(np.float64)
    finite = flat[np.isfinite(flat).all(1)]
    scales = finite.std(0) if len(finite) else np.zeros(1)
    scales = scales[scales > 0]
    return len(scales) > 1 and bool(scales.max() > 100.0 * scales.min())
