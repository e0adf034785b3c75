"""Which algorithm and settings fit a data set, from what the checks found."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rl_training.data.dataset_fields import flat_rows
from rl_training.data.dataset_findings import BehaviourFit, Finding, Level
from rl_training.data.offline_dataset import TransitionDataset

SURE_HAND = 0.8
"""From this determinism on, the data looks like the work of one policy that knows what it wants."""
RANDOM_HAND = 0.1
"""Below this the actions hardly depend on the observation."""
SMALL = 10_000


def advise(
    dataset: TransitionDataset,
    behaviour: BehaviourFit | None,
    findings: tuple[Finding, ...],
) -> Iterator[str]:
    """Sentences of advice, the most important first."""
    if any(finding.level is Level.ERROR for finding in findings):
        yield "Mend the errors first: what is learned from this data would be wrong."
    if behaviour is not None:
        is_continuous = dataset.actions.dtype.kind == "f"
        yield _algorithm(behaviour, is_continuous=is_continuous)
    names = {finding.name for finding in findings}
    if "reward_sparse" in names:
        yield "Rewards are sparse: iql with expectile 0.9 and beta 10, and a gamma near 1."
    if _scales_differ(dataset):
        yield "Observation columns differ in scale by more than 100 times: set normalize_obs to true."
    if len(dataset) < SMALL:
        yield f"{len(dataset):,} transitions are few: expect overfitting, and judge by several seeds."


def _algorithm(behaviour: BehaviourFit, *, is_continuous: bool) -> str:
    rivals = "td3_bc or iql" if is_continuous else "cql"
    if behaviour.determinism < RANDOM_HAND:
        choice = (
            "td3_bc with a larger bc_alpha, or iql with expectile 0.9"
            if is_continuous
            else "cql with a small cql_alpha"
        )
        return f"The actions look random, so imitating them (bc) is no use: {choice}."
    if behaviour.determinism >= SURE_HAND:
        return f"The data looks like the work of one policy: bc equals it at the least cost; to pass it, {rivals}."
    choice = "iql with expectile 0.7 to 0.9, or td3_bc" if is_continuous else "cql"
    return f"The data is mixed: {choice} can combine its better parts; bc only averages them."


def _scales_differ(dataset: TransitionDataset) -> bool:
    if dataset.obs.dtype.kind != "f":
        return False
    rows = np.linspace(0, len(dataset) - 1, min(len(dataset), 5000)).astype(np.int64)
    flat = flat_rows(dataset.obs[rows])
    deviations = flat[np.isfinite(flat).all(1)].astype(np.float64)
    if len(deviations) < 2:
        return False
    scales = deviations.std(0)
    scales = scales[scales > 0]
    return len(scales) > 1 and bool(scales.max() > 100.0 * scales.min())
