"""The permutation test of means: SciPy's p-values, cases worked by hand, invariances, intervals, false alarms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from coverage_tools import ERROR, REPETITIONS, cells, coverage, generator
from scipy import stats

from rl_training.studies.statistics import (
    MeanComparison,
    compare_means,
    interquartile_mean,
    runs_needed,
    sequential_test,
    step_down,
)
from rl_training.studies.statistics import kernel as kernel_module
from rl_training.studies.statistics.kernel import Statistic, normal_deviate


def compared(a: Any, b: Any, **options: Any) -> MeanComparison:
    """The comparison of runs on one task."""
    return compare_means({"task": a}, {"task": b}, generator(), **options)


@pytest.mark.parametrize(
    ("num_a", "num_b", "decimals"),
    [(3, 3, 9), (5, 5, 9), (5, 5, 0), (4, 7, 9), (2, 6, 1), (2, 8, 9), (7, 7, 1)],
)
def test_the_p_value_is_that_of_scipy(num_a: int, num_b: int, decimals: int) -> None:
    rng = generator(num_a)
    for _ in range(3):
        a, b = rng.normal(0.5, 2, num_a).round(decimals), rng.normal(0, 1, num_b).round(decimals)
        ours = compared(a, b, statistic="mean")
        theirs = stats.permutation_test(
            (a, b), lambda x, y: abs(x.mean() - y.mean()), alternative="greater"
        )
        assert ours.is_exact
        assert ours.num_permutations == math.comb(num_a + num_b, num_a)
        assert ours.p_value == pytest.approx(theirs.pvalue, abs=1e-12)
        assert ours.difference == pytest.approx(a.mean() - b.mean())


def test_the_studentized_p_value_is_that_of_scipy_and_never_below_welch() -> None:
    def deviate(x: np.ndarray, y: np.ndarray) -> float:
        test = stats.ttest_ind(x, y, equal_var=False)
        return float(abs(normal_deviate(np.array(test.statistic), np.array(test.df))))

    rng = generator(1)
    for num_a, num_b in ((5, 5), (3, 6), (6, 4)):
        a, b = rng.normal(1.5, 3, num_a), rng.normal(0, 1, num_b)
        permuted = stats.permutation_test(
            (a, b), deviate, alternative="greater", vectorized=False
        ).pvalue
        welch = stats.ttest_ind(a, b, equal_var=False).pvalue
        ours = compared(a, b).p_value
        assert ours == pytest.approx(max(permuted, welch), abs=2e-3)
        assert ours >= permuted - 1e-12


def test_the_normal_deviate_has_the_tail_of_students_t() -> None:
    for degrees in (4.0, 8.0, 38.0):
        for t in (0.5, 1.0, 2.0, 3.0):
            deviate = float(normal_deviate(np.array(-t), np.array(degrees)))
            assert stats.norm.cdf(deviate) == pytest.approx(stats.t.cdf(-t, degrees), abs=1e-3)


def test_four_against_four_worked_by_hand() -> None:
    # A is above B in every run: of 70 labelings only this one and its mirror are as extreme.
    result = compared([5, 6, 7, 8], [1, 2, 3, 4])
    assert result.p_value == result.smallest_p == pytest.approx(2 / 70)
    assert result.difference == 4
    # Shifted by 3, A's lowest equals B's highest minus 2: the scores 2, 3, 4, 5 against 1, 2, 3, 4 tie with others.
    assert 0 < result.interval[0] < 4 < result.interval[1]


def test_three_against_three_can_decide_nothing_at_five_percent() -> None:
    a, b = [101, 102, 103], [1, 2, 3]
    result = compared(a, b)
    assert result.p_value == result.smallest_p == pytest.approx(0.1)
    assert result.interval == (-math.inf, math.inf)
    assert compared(a, b, alpha=0.1).interval[0] > 0


def test_equal_scores_are_no_difference() -> None:
    result = compared([7.1] * 5, [7.1] * 5)
    assert (result.p_value, result.difference, result.interval) == (1.0, 0.0, (0.0, 0.0))
    two_tasks = {"one": [7.1] * 5, "two": [0.3] * 4}
    assert compare_means(two_tasks, two_tasks, generator()).p_value == 1.0
    # Up to rounding.
    assert 0.1 + 0.2 != 0.3
    assert compared([0.1 + 0.2] * 5, [0.3] * 5).p_value == 1.0


def test_arms_without_spread_that_differ_are_decided() -> None:
    result = compared([500.0] * 5, [9.0] * 5)
    assert result.p_value == pytest.approx(2 / 252)
    assert result.interval == pytest.approx((491, 491))


@pytest.mark.parametrize("distance", [1e3, 1e6, 1e9])
@pytest.mark.parametrize("num_a", [4, 5])
def test_arms_that_are_far_apart_have_the_smallest_p_value(num_a: int, distance: float) -> None:
    for seed in range(10):
        a, b = distance + generator(seed).normal(size=num_a), generator(seed + 99).normal(size=5)
        result = compared(a, b)
        assert result.p_value == pytest.approx(result.smallest_p)
        assert 0 < result.interval[0] <= result.difference <= result.interval[1]


def test_one_run_against_forty_can_decide() -> None:
    b = generator(5).normal(size=40)
    result = compared([50.0], b)
    assert result.p_value == result.smallest_p == pytest.approx(1 / 41)
    assert compared([50.0], [0.0]).p_value == 1.0


@pytest.mark.parametrize("tasks", [1, 3])
@pytest.mark.parametrize("kind", ["mean", "welch"])
def test_zero_is_outside_of_the_interval_exactly_if_the_test_rejects(
    kind: Statistic, tasks: int
) -> None:
    rng = generator(8)
    outcomes = []
    for number in range(60):
        shift = rng.choice([0.0, 1.0, 2.0])
        samples = [
            {
                str(task): rng.normal(mean, 1 + task, 5 + task).round(number % 3)
                for task in range(tasks)
            }
            for mean in (shift, 0.0)
        ]
        result = compare_means(
            *samples, rng, statistic=kind, num_permutations=400, max_enumerated=400
        )
        outcomes.append(result.p_value <= 0.05)
        assert outcomes[-1] == (not result.interval[0] <= 0 <= result.interval[1])
        assert result.interval[0] <= result.difference <= result.interval[1]
    assert 5 < sum(outcomes) < 55


def test_swapping_the_algorithms_swaps_the_result() -> None:
    rng = generator(3)
    a, b = rng.lognormal(0.8, 1, 5), rng.normal(1, 2, 6)
    one, swapped = compared(a, b), compared(b, a)
    assert swapped.p_value == pytest.approx(one.p_value)
    assert swapped.interval == pytest.approx((-one.interval[1], -one.interval[0]))


def test_the_scale_of_a_task_does_not_matter_beside_others() -> None:
    rng = generator(4)
    arms = [{"one": rng.normal(mean, 1, 4), "two": rng.normal(mean, 1, 5)} for mean in (1.0, 0.0)]
    scaled = [{"one": arm["one"], "two": arm["two"] * 1e4 - 77} for arm in arms]
    one, other = compare_means(*arms, generator()), compare_means(*scaled, generator())
    assert other.p_value == pytest.approx(one.p_value)
    assert other.difference == pytest.approx(one.difference)
    assert other.interval == pytest.approx(one.interval, rel=1e-4)
    a, b = arms
    gaps = [
        (a[task].mean() - b[task].mean()) / np.concatenate([a[task], b[task]]).std(ddof=1)
        for task in a
    ]
    assert one.difference == pytest.approx(np.mean(gaps))


def test_many_runs_are_compared_with_random_labelings_near_the_exact_p_value() -> None:
    rng = generator(6)
    a, b = rng.normal(0.7, 1, 8), rng.normal(0, 1, 8)
    exact = compared(a, b)
    drawn = compared(a, b, max_enumerated=100, num_permutations=20_000)
    assert (exact.is_exact, drawn.is_exact, drawn.num_permutations) == (True, False, 20_000)
    assert drawn.p_value == pytest.approx(exact.p_value, abs=0.01)
    assert drawn == compared(a, b, max_enumerated=100, num_permutations=20_000)


KNOWN = {"x": [1.0]}


@pytest.mark.parametrize(
    ("a", "b", "part"),
    [
        ({"x": [1.0, math.nan]}, KNOWN, "algorithm A on task 'x' has a score of nan"),
        (KNOWN, {"x": [math.inf]}, "algorithm B on task 'x' has a score of inf"),
        ({"x": []}, KNOWN, "algorithm A has no runs on task 'x'"),
        ({}, KNOWN, "algorithm A has no tasks"),
        ({"x": [1.0], "y": [1.0]}, KNOWN, "task 'y' has runs of A and none of B"),
        (KNOWN, {"x": [1.0], "z": [1.0]}, "task 'z' has runs of B and none of A"),
        ({"x": [[1.0]]}, KNOWN, "one number per run"),
    ],
)
def test_unusable_scores_are_refused_with_a_sentence(a: Any, b: Any, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        compare_means(a, b, generator())


@pytest.mark.parametrize(
    ("option", "part"),
    [
        ({"alpha": 5}, "alpha is 5"),
        ({"statistic": "x"}, "statistic is 'x': choose 'welch' or 'mean'"),
    ],
)
def test_impossible_options_are_refused(option: dict[str, Any], part: str) -> None:
    with pytest.raises(ValueError, match=part):
        compared([1, 2], [1, 2], **option)


@pytest.mark.parametrize(
    ("offset", "unit"), [(0.0, 1.0), (1e15, 4.0), (-1e15, 4.0), (0.0, 1e-300), (0.0, 1e300)]
)
@pytest.mark.filterwarnings("error")
def test_neither_offset_nor_unit_of_the_scores_matters(offset: float, unit: float) -> None:
    a, b = np.array([6.0, 8.0, 9.0, 11.0, 13.0]), np.array([0.0, 1.0, 2.0, 3.0, 7.0])
    plain = compared(a, b)
    arms = {name: {"task": scores * unit + offset} for name, scores in (("a", a), ("b", b))}
    moved = compare_means(arms["a"], arms["b"], generator())
    assert moved.p_value == plain.p_value < 0.05
    assert moved.difference == pytest.approx(plain.difference * unit, rel=1e-9, abs=0)
    ends = tuple(end * unit for end in plain.interval)
    assert moved.interval == pytest.approx(ends, rel=1e-6, abs=0)
    assert step_down(arms, generator())["a", "b"] < 0.05
    blocks = [(arms["a"], arms["b"])] * 2
    assert sequential_test(blocks, 2, generator()).decided_at == 1
    assert runs_needed(arms["a"], arms["b"], 3 * unit) == runs_needed({"task": a}, {"task": b}, 3.0)


@pytest.mark.filterwarnings("error")
def test_scores_too_far_apart_for_doubles_are_refused() -> None:
    a, b = {"far": [1e308, 1.2e308, 1.1e308]}, {"far": [-1e308, -1.2e308, 0.0]}
    part = "on task 'far' reach from -1.2e\\+308 to 1.2e\\+308, which is too far"
    for test in (
        lambda: compare_means(a, b, generator()),
        lambda: step_down({"a": a, "b": b}, generator()),
    ):
        with pytest.raises(ValueError, match=part):
            test()
    near = {"near": [1e308, 1.1e308, 1.2e308, 1.3e308]}
    assert compare_means(near, near, generator()).p_value == 1.0


def test_scores_without_their_task_are_refused() -> None:
    scores, known = [1.0, 2.0, 3.0], {"x": [1.0, 2.0, 3.0]}
    tests: list[Callable[[Any], object]] = [
        lambda scores: compare_means(scores, known, generator()),
        lambda scores: compare_means(known, scores, generator()),
        lambda scores: sequential_test([(known, known), (known, scores)], 2, generator()),
        lambda scores: step_down({"a": scores, "b": known}, generator()),
        lambda scores: interquartile_mean(scores, generator()),
    ]
    for test in tests:
        with pytest.raises(TypeError, match="are a list: give a mapping of tasks to scores"):
            test(scores)
    with pytest.raises(TypeError, match="the algorithms are a list: give a mapping of their names"):
        step_down([known, known], generator())  # type: ignore[arg-type]


def test_the_simulation_takes_the_decisions_of_the_public_function() -> None:
    runs = coverage.sample("lognormal", generator(2), 20, 5, 5, shift=2.0)
    labelled = coverage.draw_labelings([{"task": runs}], 252, generator())
    simulated = kernel_module.p_values(labelled, [0.05])[:, 0]
    public = [compared(row[:5], row[5:]).p_value for row in runs.scores]
    assert simulated == pytest.approx(public)


def false_alarms(name: str, seeds: int, tasks: int, kind: Statistic, num_looks: int = 1) -> float:
    size: dict[str, int] = {"seeds": seeds, "tasks": tasks, "num_looks": num_looks}
    drawn = {"repetitions": REPETITIONS, "num_permutations": 500}
    return float(coverage.rejections(name, generator(), **size, **drawn, kind=kind)[-1])


@pytest.mark.parametrize(
    ("name", "seeds", "tasks"), cells(coverage.SEEDS, large=[("unequal spread", 10, 5)])
)
def test_equal_algorithms_are_called_different_in_five_percent_at_most(
    name: str, seeds: int, tasks: int
) -> None:
    rate = false_alarms(name, seeds, tasks, "welch")
    assert rate <= 0.05 + 3 * ERROR
    if (seeds, tasks) == (3, 1):
        assert rate == 0
    elif name in ("normal", "unequal spread"):
        assert rate >= 0.02


@pytest.mark.parametrize(
    ("name", "seeds", "tasks"),
    cells([5, 10, 20], ["normal", "lognormal", "80/20 mixture"], large=[("lognormal", 10, 5)]),
)
def test_the_plain_test_is_exact_for_equal_distributions(name: str, seeds: int, tasks: int) -> None:
    assert abs(false_alarms(name, seeds, tasks, "mean") - 0.05) <= 3 * ERROR


def test_the_plain_test_fails_where_the_guard_is_needed() -> None:
    assert (
        false_alarms("unequal spread", 5, 1, "mean")
        > false_alarms("unequal spread", 5, 1, "welch") + 0.01
    )


def test_a_signed_boundary_is_noticed_by_the_rate_of_false_alarms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def signed(values: np.ndarray) -> np.ndarray:
        return np.concatenate([np.abs(values[:, :1]), values[:, 1:]], axis=1)

    monkeypatch.setattr(kernel_module, "magnitude", signed)
    for num_looks in (1, 4):
        assert false_alarms("normal", 5, 1, "mean", num_looks=num_looks) > 0.05 + 2 * ERROR


def test_a_one_sided_test_is_noticed_by_its_blindness(monkeypatch: pytest.MonkeyPatch) -> None:
    def power(shift: float) -> float:
        return float(
            coverage.rejections("normal", generator(), seeds=5, shift=shift, repetitions=200)[-1]
        )

    assert abs(power(2.0) - power(-2.0)) < 0.15
    monkeypatch.setattr(kernel_module, "magnitude", lambda values: values)
    assert abs(power(2.0) - power(-2.0)) > 0.5


@pytest.mark.parametrize(
    ("difference", "tasks"), [(0.6, 1), (1.0, 1), (1.5, 1), (2.0, 1), (3.0, 1), (0.5, 5), (0.75, 5)]
)
@pytest.mark.parametrize(
    ("name", "spread_a"), [("normal", 1.0), ("unequal spread", coverage.SPREAD_RATIO)]
)
def test_as_many_runs_as_needed_decide_four_times_of_five(
    name: str, spread_a: float, difference: float, tasks: int
) -> None:
    rng = generator(7)
    pilots = [
        {str(task): rng.normal(0, spread, 4000) for task in range(tasks)}
        for spread in (spread_a, 1.0)
    ]
    shift = difference * math.sqrt((spread_a**2 + 1) / 2)
    runs = runs_needed(*pilots, shift if tasks == 1 else difference)
    assert runs % tasks == 0
    size = {"seeds": runs // tasks, "tasks": tasks}
    drawn = {"repetitions": 500, "num_permutations": 500}
    rate = coverage.rejections(name, rng, **size, **drawn, shift=shift)[-1]
    assert 0.72 <= rate <= 0.9


def test_runs_needed_at_the_limits() -> None:
    scores = {"task": [1.0, 2.0, 3.0]}
    assert runs_needed(scores, scores, 0.0) == runs_needed(scores, scores, 1e-200) == 1_000_000
    assert (
        runs_needed({"task": [1.0] * 3}, {"task": [1.0] * 3}, 2.0) == 4
    )  # 3 against 3 can decide nothing
    assert runs_needed(scores, scores, -0.5) == runs_needed(scores, scores, 0.5)
    assert runs_needed(scores, {"task": [9.0]}, 0.5) == runs_needed(scores, scores, 0.5)
    assert runs_needed(scores, scores, 0.5, power=0.9) > runs_needed(scores, scores, 0.5)
    with pytest.raises(ValueError, match="at least two seeds"):
        runs_needed({"task": [1.0]}, {"task": [2.0]}, 1.0)
    with pytest.raises(ValueError, match="power is 80"):
        runs_needed(scores, scores, 1.0, power=80)
