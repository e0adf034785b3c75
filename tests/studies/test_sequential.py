"""The group-sequential test: cases worked by hand, reproducibility, false alarms, power, repeated intervals."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from conftest import TRY_ALL
from coverage_tools import ERROR, REPETITIONS, cells, coverage, generator
from scipy import integrate, stats

from rl_training.studies.statistics import compare_means, sequential_test
from rl_training.studies.statistics.kernel import (
    information,
    newly_crossed,
    normal_stages,
    stage_p_values,
)
from rl_training.studies.statistics.samples import TaskRuns

Block = tuple[dict[str, Any], dict[str, Any]]
NUM_COMPARISONS = 12 if TRY_ALL else 6
LARGE = (("normal", 10, 1), ("lognormal", 3, 5), ("unequal spread", 5, 5))
"""Simulations with more runs than most that are made by default."""


def drawn_blocks(
    seed: int, shift: float, sizes: list[tuple[int, int]], tasks: int = 1
) -> list[Block]:
    rng = generator(seed)
    return [
        (
            {str(task): rng.normal(shift, 1, num_a) for task in range(tasks)},
            {str(task): rng.normal(0, 1, num_b) for task in range(tasks)},
        )
        for num_a, num_b in sizes
    ]


def compared(blocks: list[Block], num_looks: int, seed: int = 0, count: int = 1000) -> Any:
    return sequential_test(blocks, num_looks, generator(seed), num_permutations=count)


def test_labelings_cross_the_boundary_as_worked_by_hand() -> None:
    # 20 labelings, 10 % at each of two looks: two may cross at each. Column 0 is the observed one.
    first = np.array([[3.0, 9.0, 8.0, 7.0, *np.linspace(0.1, 2.9, 16)]])
    second = np.array([[5.0, 9.9, 9.9, 6.0, 5.5, *np.linspace(0.1, 2.9, 15)]])
    crossed = np.zeros((1, 20), dtype=bool)
    assert stage_p_values(first, crossed)[0] == pytest.approx(4 / 20)  # 9, 8, 7 and itself
    crossed |= newly_crossed(first, crossed, 0.1)  # 9 and 8
    # Crossed: 2. Further out: 6, 5.5 and itself; the 9.9 of those that crossed are not counted again.
    assert stage_p_values(second, crossed)[0] == pytest.approx(5 / 20)
    crossed |= newly_crossed(second, crossed, 0.2)  # 6 and 5.5
    assert np.flatnonzero(crossed).tolist() == [1, 2, 3, 4]


def test_ties_at_the_boundary_are_kept_and_their_error_is_carried_over() -> None:
    first = np.array([[1.0, 9.0, 8.0, 8.0, *np.linspace(0.1, 0.9, 16)]])
    second = np.array([[4.0, 0.0, 7.0, 6.0, 5.0, *np.linspace(0.1, 0.9, 15)]])
    crossed = np.zeros((1, 20), dtype=bool)
    # Two are allowed, and two labelings share the second place: only 9 crosses.
    crossed |= newly_crossed(first, crossed, 0.1)
    assert np.flatnonzero(crossed).tolist() == [1]
    crossed |= newly_crossed(second, crossed, 0.2)  # three are left: 7, 6, 5
    assert np.flatnonzero(crossed).tolist() == [1, 2, 3, 4]


def test_a_single_look_is_the_test_of_means() -> None:
    for seed in range(5):
        (block,) = drawn_blocks(seed, 1.5, [(5, 5)])
        one, other = sequential_test([block], 1, generator()), compare_means(*block, generator())
        assert one.p_value == pytest.approx(other.p_value)
        assert one.interval == pytest.approx(other.interval)
        assert one.difference == pytest.approx(other.difference)
        assert one.alpha_spent == 0.05
        assert (one.decided_at == 1) == (other.p_value <= 0.05)


def test_the_first_looks_are_the_same_however_many_blocks_follow() -> None:
    blocks = drawn_blocks(3, 1.0, [(5, 5), (5, 4), (3, 6), (5, 5)], tasks=2)
    results = [compared(blocks[:looks], 4, 7) for looks in (1, 2, 3, 4)]
    assert results[2] == compared(blocks[:3], 4, 7)
    assert [result.look for result in results] == [1, 2, 3, 4]
    spent = [result.alpha_spent for result in results]
    assert spent == pytest.approx([0.0125, 0.025, 0.0375, 0.05])
    decided = {(one.decided_at, one.p_value) for one in results if one.decided_at}
    assert len(decided) == 1


@pytest.mark.parametrize("tasks", [1, 2])
def test_zero_is_outside_of_the_interval_exactly_if_decided(tasks: int) -> None:
    decided = 0
    for seed in range(NUM_COMPARISONS):
        blocks = drawn_blocks(seed, (0.0, 1.0, 2.0)[seed % 3], [(5, 5)] * 3, tasks)
        result = compared(blocks, 3, seed)
        is_decided = result.decided_at is not None
        assert is_decided == (not result.interval[0] <= 0 <= result.interval[1])
        assert is_decided == (result.p_value <= 0.05)
        decided += is_decided
    assert NUM_COMPARISONS / 4 <= decided <= 10 / 12 * NUM_COMPARISONS


def test_intervals_of_later_looks_lie_within_those_of_earlier_ones() -> None:
    blocks = drawn_blocks(5, 1.0, [(5, 5)] * 4)
    intervals = [compared(blocks[:looks], 4).interval for looks in (1, 2, 3, 4)]
    for (low, high), (next_low, next_high) in itertools.pairwise(intervals):
        assert low - 1e-6 <= next_low <= next_high <= high + 1e-6


def test_three_against_three_waits_for_the_second_look() -> None:
    far = ({"task": [101.0, 102.0, 103.0]}, {"task": [1.0, 2.0, 3.0]})
    first = compared([far], 4)
    assert (first.decided_at, first.p_value, first.interval) == (None, 0.1, (-math.inf, math.inf))
    assert compared([far, far], 4).decided_at == 2


def test_swapping_the_algorithms_swaps_the_result() -> None:
    blocks = drawn_blocks(11, 0.9, [(5, 5), (5, 5)])
    one = compared(blocks, 2, count=5_000)
    other = compared([(b, a) for a, b in blocks], 2, 1, count=5_000)
    assert other.difference == pytest.approx(-one.difference)
    assert other.p_value == pytest.approx(one.p_value, abs=0.01)
    assert other.interval == pytest.approx((-one.interval[1], -one.interval[0]), abs=0.1)


def test_the_guard_solves_the_integrals_of_the_normal_test() -> None:
    runs = [{"task": TaskRuns(np.zeros((1, 2 * count)), count)} for count in (5, 10)]
    first, second = normal_stages(tuple(map(information, runs)), (0.025, 0.05))
    assert first.p_values(np.array([0.0, 1.96, 2.2414])) == pytest.approx(
        [1.0, 0.05, 0.025], abs=1e-5
    )
    boundary = stats.norm.isf(0.0125)
    # P(crossed at look 1) + P(not crossed, |Z2| >= 2.1), Z2 = (Z1 + increment) / sqrt(2).
    outside = integrate.quad(
        lambda z: (
            stats.norm.pdf(z)
            * (stats.norm.sf(2.1 * math.sqrt(2) - z) + stats.norm.cdf(-2.1 * math.sqrt(2) - z))
        ),
        -boundary,
        boundary,
    )[0]
    assert second.p_values(np.array([2.1]))[0] == pytest.approx(0.025 + outside, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "seeds", "tasks"), cells([3, 5, 10] if TRY_ALL else [5], num_looks=4, large=LARGE)
)
def test_four_looks_call_equal_algorithms_different_in_five_percent_at_most(
    name: str, seeds: int, tasks: int
) -> None:
    size = {"seeds": seeds, "tasks": tasks, "num_looks": 4}
    drawn = {"repetitions": REPETITIONS, "num_permutations": 400}
    rates = coverage.rejections(name, generator(3), **size, **drawn)
    for look, rate in enumerate(rates, 1):
        allowed = 0.05 * look / 4
        assert rate <= allowed + 3 * math.sqrt(allowed * (1 - allowed) / REPETITIONS)


@pytest.mark.parametrize(
    ("shift", "power", "runs"), [(0.0, 0.05, None), (1.0, 0.82, 15), (1.5, 0.99, 10.7)]
)
def test_four_looks_of_five_runs_decide_as_often_as_they_should(
    shift: float, power: float, runs: float | None
) -> None:
    size = {"seeds": 5, "num_looks": 4, "repetitions": REPETITIONS}
    decided, guarded = (
        coverage.rejections("normal", generator(1), **size, shift=shift, kind=kind)
        for kind in ("mean", "welch")
    )
    error = math.sqrt(power * (1 - power) / REPETITIONS)
    assert abs(decided[-1] - power) <= 3 * max(error, ERROR / 2)
    if runs:
        assert coverage.mean_runs(decided, 5) == pytest.approx(runs, abs=0.7)
    assert power - 0.05 <= guarded[-1] <= decided[-1] + 3 * ERROR


ONE: Block = ({"x": [1]}, {"x": [1]})


@pytest.mark.parametrize(
    ("blocks", "num_looks", "part"),
    [
        ([ONE], 0, "num_looks is 0: plan at least one look"),
        ([], 4, "0 blocks of runs for 4 planned looks"),
        ([ONE] * 3, 2, "3 blocks of runs for 2 planned looks"),
        ([ONE, ({"y": [1]}, {"y": [1]})], 2, "task 'y' is new at a later look"),
        ([ONE, ({"x": []}, {})], 2, "a look has no new runs"),
        ([ONE, ({"x": [math.nan]}, {"x": [1]})], 2, "task 'x' has a score of nan"),
        ([({"x": [1]}, {"x": []})], 2, "algorithm B has no runs on task 'x'"),
    ],
)
def test_unusable_blocks_are_refused_with_a_sentence(
    blocks: Any, num_looks: int, part: str
) -> None:
    with pytest.raises(ValueError, match=part):
        compared(blocks, num_looks)


def test_a_later_look_may_add_runs_of_one_algorithm_or_of_some_tasks() -> None:
    (first,) = drawn_blocks(2, 2.0, [(5, 5)], tasks=2)
    result = compared([first, ({"0": [1.5, 2.0, 2.5]}, {})], 2)
    assert result.look == 2
    assert result.interval[0] < result.difference < result.interval[1]
