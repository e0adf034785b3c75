"""Probability of improvement, interquartile mean, profile and all pairs: SciPy, worked numbers, and coverage."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from coverage_tools import generator
from scipy import stats

from rl_training.studies.statistics import (
    Estimate,
    compare_means,
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
    step_down,
)
from rl_training.studies.statistics.permutation import connected


def improvement(a: Any, b: Any, **options: Any) -> Estimate:
    """The probability of improvement on one task."""
    return probability_of_improvement({"task": a}, {"task": b}, generator(), **options)


def check_coverage(hits: int, repetitions: int) -> None:
    """At least 95 %, up to three Monte Carlo errors."""
    assert hits / repetitions >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / repetitions)


@pytest.mark.parametrize("decimals", [9, 0])
def test_the_probability_of_improvement_is_that_of_mann_and_whitney_with_ties(
    decimals: int,
) -> None:
    rng = generator(1)
    tasks_a, tasks_b = (
        {str(task): rng.normal(mean, 2, count).round(decimals) for task in range(3)}
        for mean, count in ((0.5, 7), (0, 5))
    )
    expected = []
    for a, b in zip(tasks_a.values(), tasks_b.values(), strict=True):
        expected.append(stats.mannwhitneyu(a, b).statistic / 35)
        estimate = improvement(a, b)
        assert (estimate.value, estimate.num_runs) == (pytest.approx(expected[-1]), 12)
    together = probability_of_improvement(tasks_a, tasks_b, rng)
    assert together.value == pytest.approx(np.mean(expected))


def test_one_half_is_outside_exactly_if_the_test_of_ranks_rejects() -> None:
    rng = generator(2)
    rejected = 0
    for _ in range(40):
        a, b = rng.normal(rng.choice([0, 1.5]), 1, 5), rng.normal(0, 1, 6)
        low, high = improvement(a, b).interval
        is_rejected = stats.mannwhitneyu(a, b, method="exact").pvalue <= 0.05
        assert is_rejected == (not low <= 0.5 <= high)
        rejected += is_rejected
    assert 4 < rejected < 36


def test_complete_separation_leaves_an_interval() -> None:
    three = improvement([7, 8, 9], [1, 2, 3])
    assert three.value == three.interval[1] == 1.0
    assert three.interval[0] == 0.5  # three against three can decide nothing
    low, high = [1, 2, 3, 4, 5], [6, 7, 8, 9, 10]
    five = improvement(high, low)
    assert 0.5 < five.interval[0] < 0.8
    assert improvement(low, high).interval == pytest.approx((0.0, 1 - five.interval[0]))
    equal = improvement([5, 5, 5], [5, 5, 5])
    assert (equal.value, equal.interval) == (0.5, (0.5, 0.5))


def test_fewer_than_three_runs_leave_the_probability_open() -> None:
    for a, b in (([5], [4]), ([5], [5]), ([7, 8], [1, 2]), ([7, 8], list(range(7)))):
        assert improvement(a, b).interval == improvement(b, a).interval == (0.0, 1.0)
    many = [{str(task): [start] for task in range(8)} for start in (1.0, 0.0)]
    assert probability_of_improvement(*many, generator()).interval == (0.0, 1.0)
    two_tasks = [{"x": [start, start + 1], "y": [start, start + 1]} for start in (5.0, 0.0)]
    assert probability_of_improvement(*two_tasks, generator()).interval[0] > 0.3


@pytest.mark.parametrize(("shift", "spread"), [(0.0, 1.0), (0.0, 3.0), (1.0, 1.0), (2.0, 1.0)])
@pytest.mark.parametrize("seeds", [5, 10])
def test_the_interval_contains_the_probability_of_improvement(
    seeds: int, shift: float, spread: float
) -> None:
    rng, hits = generator(3), 0
    truth = stats.norm.cdf(shift / math.hypot(1, spread))
    for _ in range(400):
        a, b = rng.normal(shift, spread, seeds), rng.normal(0, 1, seeds)
        low, high = improvement(a, b, max_labelings=500).interval
        hits += low <= truth <= high
    check_coverage(hits, 400)


@pytest.mark.parametrize("count", [8, 9, 11, 16])
def test_the_interquartile_mean_is_the_trimmed_mean(count: int) -> None:
    scores = generator(count).lognormal(size=count)
    estimate = interquartile_mean({"one": scores[:3], "two": scores[3:]}, generator())
    assert estimate.value == pytest.approx(stats.trim_mean(scores, 0.25))
    assert estimate.interval[0] < estimate.value < estimate.interval[1]
    assert estimate.num_runs == count
    scaled = interquartile_mean(
        {"one": 100 * scores[:3] + 5, "two": 100 * scores[3:] + 5}, generator()
    )
    assert scaled.interval == pytest.approx([100 * end + 5 for end in estimate.interval])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("offset", "unit"), [(1e15, 4.0), (0.0, 1e-300), (0.0, 1e306)])
def test_neither_offset_nor_unit_matters_to_the_interquartile_mean(
    offset: float, unit: float
) -> None:
    scores = np.array([1.0, 5.0, 7.0, 8.0, 11.0, 12.0, 17.0, 40.0])
    plain = interquartile_mean({"task": scores}, generator())
    moved = interquartile_mean({"task": scores * unit + offset}, generator())
    assert moved.value - offset == pytest.approx(plain.value * unit, rel=1e-9, abs=0)
    ends = [end * unit for end in plain.interval]
    assert [end - offset for end in moved.interval] == pytest.approx(ends, rel=0.02, abs=0)


def test_the_interquartile_mean_needs_eight_runs() -> None:
    with pytest.raises(ValueError, match="at least 8 runs over all tasks, and there are 7"):
        interquartile_mean({"one": [1.0] * 3, "two": [2.0] * 4}, generator())
    assert interquartile_mean({"task": [3.0] * 8}, generator()).interval == (3.0, 3.0)
    one_run_each = {str(task): [float(task)] for task in range(8)}
    assert interquartile_mean(one_run_each, generator()).value == 3.5


@pytest.mark.parametrize(("count", "tasks"), [(10, 1), (20, 1), (5, 5)])
def test_the_interval_contains_the_interquartile_mean(count: int, tasks: int) -> None:
    rng, hits = generator(4), 0
    for _ in range(400):
        scores = {str(task): rng.normal(size=count) for task in range(tasks)}
        low, high = interquartile_mean(scores, rng, num_resamples=400).interval
        hits += low <= 0 <= high
    check_coverage(hits, 400)


def test_the_profile_is_the_fraction_above_each_threshold() -> None:
    profile = performance_profile({"one": [1, 2, 3, 4], "two": [3, 5]}, [0, 2, 3, 9], generator())
    assert profile.fractions == pytest.approx((1.0, (0.5 + 1) / 2, (0.25 + 0.5) / 2, 0.0))
    assert all(0 <= low <= high <= 1 for low, high in zip(profile.low, profile.high, strict=True))
    assert profile.num_runs == 6
    with pytest.raises(ValueError, match="thresholds"):
        performance_profile({"one": [1.0]}, [], generator())


def test_the_band_has_the_width_of_kolmogorovs_table() -> None:
    for count, width in ((5, 0.563), (10, 0.409), (20, 0.294)):
        profile = performance_profile({"task": np.arange(count)}, [-1.0], generator())
        assert profile.fractions == (1.0,)
        assert 1 - profile.low[0] == pytest.approx(width, abs=0.012)


@pytest.mark.parametrize("tasks", [1, 3])
def test_the_band_contains_the_whole_profile(tasks: int) -> None:
    rng, hits, levels = generator(5), 0, np.linspace(-3, 3, 61)
    truth = np.mean([stats.norm.sf(levels, loc=task) for task in range(tasks)], axis=0)
    for _ in range(400):
        scores = {str(task): rng.normal(task, 1, 5) for task in range(tasks)}
        profile = performance_profile(scores, levels.tolist(), rng, num_samples=500)
        hits += bool(((profile.low <= truth) & (truth <= profile.high)).all())
    check_coverage(hits, 400)


def test_two_algorithms_have_the_p_value_of_their_comparison() -> None:
    rng = generator(6)
    a, b = {"task": rng.normal(1, 1, 6)}, {"task": rng.normal(0, 1, 6)}
    adjusted = step_down({"a": a, "b": b}, rng, num_permutations=20_000)
    assert list(adjusted) == [("a", "b")]
    assert adjusted["a", "b"] == pytest.approx(compare_means(a, b, rng).p_value, abs=0.01)


def test_an_algorithm_far_away_does_not_hide_the_difference_of_two_others() -> None:
    rng = generator(7)
    arms = {
        name: {"task": rng.normal(mean, 1, 8)}
        for name, mean in (("a", 0.0), ("b", 0.0), ("c", 90.0), ("d", 93.0))
    }
    adjusted = step_down(arms, rng, num_permutations=2000)
    assert all(adjusted[one] < 0.01 for one in itertools.product("ab", "cd"))
    assert adjusted["c", "d"] < 0.05
    assert adjusted["a", "b"] > 0.05


def test_groups_are_what_pairs_connect() -> None:
    assert connected([("a", "b"), ("c", "d"), ("b", "e")]) == [["a", "b", "e"], ["c", "d"]]
    assert connected([("a", "b"), ("c", "d"), ("b", "c")]) == [["a", "b", "c", "d"]]


@pytest.mark.parametrize("shifts", [(0, 0, 0, 0), (0, 0, 0, 30), (0, 0, 30, 30)])
def test_any_false_alarm_among_all_pairs_is_as_rare_as_one(shifts: tuple[float, ...]) -> None:
    rng, alarms = generator(8), 0
    for _ in range(300):
        arms = {str(index): {"task": rng.normal(shift, 1, 5)} for index, shift in enumerate(shifts)}
        adjusted = step_down(arms, rng, num_permutations=199)
        alarms += any(
            p <= 0.05 and shifts[int(a)] == shifts[int(b)] for (a, b), p in adjusted.items()
        )
    check_coverage(300 - alarms, 300)


@pytest.mark.parametrize(
    ("arms", "part"),
    [
        ({"a": {"x": [1.0]}}, "1 algorithm: a comparison needs at least two"),
        ({"a": {"x": [1.0]}, "b": {"y": [1.0]}}, "task 'x' has runs of some algorithms only"),
        ({"a": {"x": [1.0]}, "b": {"x": [math.nan]}}, "algorithm 'b' on task 'x' has a score of"),
    ],
)
def test_all_pairs_need_two_algorithms_on_the_same_tasks(arms: Any, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        step_down(arms, generator())


def test_equal_scores_of_a_pair_have_the_largest_p_value() -> None:
    assert step_down({"a": {"x": [1.0, 1.0]}, "b": {"x": [1.0, 1.0]}}, generator())["a", "b"] == 1.0
