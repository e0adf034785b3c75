"""How often comparisons of equal algorithms call them different, and how often they find a difference.

    python benchmarks/coverage.py                    # several minutes of one core; writes docs/statistics.md

Each cell simulates the scores of two algorithms with equal means and counts the rejections at 5 %. The permutation
tests run through the functions that `compare_means` and `sequential_test` call, many data sets at once. For contrast
the same scores go through the percentile bootstrap of the difference of means and through Welch's t-test.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pages import write_block

from rl_training.studies.statistics.kernel import (
    Statistic,
    p_values,
    rejects,
    statistic,
    upper_tail,
)
from rl_training.studies.statistics.samples import TaskRuns
from rl_training.studies.statistics.sequential import draw_labelings, spent

Array = npt.NDArray[np.float64]
Sampler = Callable[[np.random.Generator, tuple[int, int]], Array]

ALPHA = 0.05
SEEDS, TASKS, NUM_LOOKS = (3, 5, 10, 20), (1, 5), 4
BATCH = 100
"""Data sets that share their random labelings: few, since sharing makes their decisions depend on each other."""
SPREAD_RATIO = 3.0
PAGE = Path(__file__).parents[1] / "docs" / "statistics.md"
METHODS = (
    "percentile bootstrap",
    "Welch's t",
    "plain permutation",
    "`compare_means`",
    "`sequential_test`, 4 looks",
)
SHIFTS = (0.0, 0.5, 1.0, 1.5, 2.0)


def _mixture(generator: np.random.Generator, shape: tuple[int, int]) -> Array:
    return generator.normal(size=shape) + 5.0 * (generator.random(shape) < 0.2)


def _zero_inflated(generator: np.random.Generator, shape: tuple[int, int]) -> Array:
    return generator.lognormal(size=shape) * (generator.random(shape) < 0.6)


SAMPLERS: dict[str, Sampler] = {
    "normal": lambda generator, shape: generator.normal(size=shape),
    "lognormal": lambda generator, shape: generator.lognormal(size=shape),
    "80/20 mixture": _mixture,
    "zero-inflated": _zero_inflated,
    "tied": lambda generator, shape: np.round(generator.normal(size=shape)),
    "unequal spread": lambda generator, shape: generator.normal(size=shape),
}
"""Scores of runs. `unequal spread` is normal, with three times the standard deviation in A."""


def sample(
    name: str, generator: np.random.Generator, rows: int, num_a: int, num_b: int, shift: float = 0.0
) -> TaskRuns:
    """Runs of two algorithms on one task; A's mean is higher by `shift`."""
    scores = SAMPLERS[name](generator, (rows, num_a + num_b))
    if name == "unequal spread":
        scores[:, :num_a] *= SPREAD_RATIO
    scores[:, :num_a] += shift
    return TaskRuns(scores, num_a)


def rejections(
    name: str,
    generator: np.random.Generator,
    *,
    seeds: int,
    tasks: int = 1,
    num_looks: int = 1,
    shift: float = 0.0,
    repetitions: int = 1000,
    kind: Statistic = "welch",
    num_permutations: int = 1000,
) -> Array:
    """Fraction of data sets [num_looks] for which equality is rejected by each look of `seeds` new runs an arm."""
    alphas = np.array(spent(ALPHA, num_looks))
    counts = np.zeros(num_looks)
    for start in range(0, repetitions, BATCH):
        rows = min(BATCH, repetitions - start)
        looks = [
            {str(task): sample(name, generator, rows, seeds, seeds, shift) for task in range(tasks)}
            for _ in range(num_looks)
        ]
        labelled = draw_labelings(looks, num_permutations, generator)
        rejected = rejects(p_values(labelled, alphas.tolist(), kind), alphas)
        counts += np.logical_or.accumulate(rejected, axis=1).sum(axis=0)
    return counts / repetitions


def contrast(
    name: str, generator: np.random.Generator, seeds: int, tasks: int, repetitions: int
) -> tuple[float, float]:
    """Fraction rejected by the percentile bootstrap of the difference of means, and by Welch's t-test."""
    counts = np.zeros(2)
    for start in range(0, repetitions, BATCH):
        rows = min(BATCH, repetitions - start)
        look = {str(task): sample(name, generator, rows, seeds, seeds) for task in range(tasks)}
        resampled: Array = np.zeros((rows, 1000))
        for runs in look.values():
            for arm, sign in ((runs.scores[:, :seeds], 1), (runs.scores[:, seeds:], -1)):
                resampled += (
                    sign * arm @ generator.multinomial(seeds, np.full(seeds, 1 / seeds), 1000).T
                )
        low, high = np.quantile(resampled, [ALPHA / 2, 1 - ALPHA / 2], axis=1)
        deviates = np.abs(statistic(look, "welch")[:, 0])
        counts += [((low > 0) | (high < 0)).sum(), (2 * upper_tail(deviates) <= ALPHA).sum()]
    return counts[0] / repetitions, counts[1] / repetitions


def rates(
    name: str, generator: np.random.Generator, seeds: int, tasks: int, repetitions: int
) -> list[float]:
    """False alarms of all methods in one cell of the grid."""
    shape = {"seeds": seeds, "tasks": tasks, "repetitions": repetitions}
    return [
        *contrast(name, generator, **shape),
        rejections(name, generator, **shape, kind="mean")[-1],
        rejections(name, generator, **shape)[-1],
        rejections(name, generator, **shape, num_looks=NUM_LOOKS)[-1],
    ]


def false_alarm_lines(generator: np.random.Generator, repetitions: int) -> list[str]:
    """Markdown: one row for each distribution and number of tasks, with the four numbers of seeds in each cell."""
    error = math.sqrt(ALPHA * (1 - ALPHA) / repetitions)
    lines = [
        f"False alarms in percent at {' / '.join(map(str, SEEDS))} seeds an arm (four looks: as many at each look);"
        f" {repetitions:,} repetitions, three Monte Carlo errors are {300 * error:.2f}. Bold: above 5 % by more.",
        "",
        f"| scores | tasks | {' | '.join(METHODS)} |",
        f"|---|---|{'---|' * len(METHODS)}",
    ]
    for name in SAMPLERS:
        for tasks in TASKS:
            cells = [rates(name, generator, seeds, tasks, repetitions) for seeds in SEEDS]
            columns = [
                " / ".join(_percent(rate, ALPHA + 3 * error) for rate in column)
                for column in zip(*cells, strict=True)
            ]
            lines.append(f"| {name} | {tasks} | {' | '.join(columns)} |")
            print(lines[-1], flush=True)
    return lines


def _percent(rate: float, limit: float) -> str:
    return f"**{100 * rate:.1f}**" if rate > limit else f"{100 * rate:.1f}"


def power_lines(generator: np.random.Generator, repetitions: int) -> list[str]:
    """Markdown: how often four looks of 5 + 5 runs decide, and with how many runs on average."""
    lines = [
        f"Decisions of four looks of 5 + 5 runs with normal scores, {repetitions:,} repetitions:",
        "",
        "| true difference | by look 1 | 2 | 3 | 4 | runs an arm, on average | plain statistic by look 4 | its runs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for shift in SHIFTS:
        shape = {"seeds": 5, "num_looks": NUM_LOOKS, "shift": shift, "repetitions": repetitions}
        guarded, plain = (
            rejections("normal", generator, **shape, kind=kind) for kind in ("welch", "mean")
        )
        decided = " | ".join(f"{100 * rate:.1f} %" for rate in guarded)
        lines.append(
            f"| {shift:g} sd | {decided} | {mean_runs(guarded, 5):.1f} | {100 * plain[-1]:.1f} % |"
            f" {mean_runs(plain, 5):.1f} |"
        )
    return lines


def mean_runs(decided: Array, seeds: int) -> float:
    """Runs an arm until the decision or the last look, on average."""
    return float(seeds * (1 + (1 - decided[:-1]).sum()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=20_000)
    repetitions = parser.parse_args().repetitions
    start = time.process_time()
    generator = np.random.default_rng(0)
    write_block(PAGE, "power", power_lines(generator, repetitions))
    write_block(PAGE, "false alarms", false_alarm_lines(generator, repetitions))
    print(f"{time.process_time() - start:.0f} s of processor time")


if __name__ == "__main__":
    main()
