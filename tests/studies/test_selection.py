"""Seeds as users write them, and the shares of a plan that the tasks of a job array take."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.errors import ConfigError
from rl_training.studies.variation import (
    MAX_SEEDS,
    Shard,
    format_seeds,
    parse_seeds,
    parse_shard,
    shard_of_array,
)

SLURM = (
    "SLURM_ARRAY_TASK_ID",
    "SLURM_ARRAY_TASK_MIN",
    "SLURM_ARRAY_TASK_MAX",
    "SLURM_ARRAY_TASK_STEP",
)
GRID_ENGINE = ("SGE_TASK_ID", "SGE_TASK_FIRST", "SGE_TASK_LAST", "SGE_TASK_STEPSIZE")


class TestSeeds:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            ("0..4", (0, 1, 2, 3, 4)),
            ("7", (7,)),
            ("3..3", (3,)),
            ("0,3,7", (0, 3, 7)),
            ("7,3,0", (7, 3, 0)),
            ("0..2,10", (0, 1, 2, 10)),
            ("10,0..2,5..6", (10, 0, 1, 2, 5, 6)),
            (" 0 .. 2 , 5 ", (0, 1, 2, 5)),
            (7, (7,)),
            (0, (0,)),
            ([4, 2], (4, 2)),
            ((1, 2), (1, 2)),
            (range(2, 5), (2, 3, 4)),
            (["0..2", 5, "7"], (0, 1, 2, 5, 7)),
            ((seed for seed in (1, 2)), (1, 2)),
            (np.int64(3), (3,)),
            (np.arange(3), (0, 1, 2)),
            ([np.uint8(4), 5], (4, 5)),
            (10**30, (10**30,)),
        ],
    )
    def test_every_form_is_read_in_the_order_it_is_written(
        self, value: Any, expected: tuple[int, ...]
    ) -> None:
        seeds = parse_seeds(value)
        assert seeds == expected
        assert {*map(type, seeds)} == {int}

    @pytest.mark.parametrize(
        "value", ["", " ", ",", "1,", ",1", "..", "0..", "..4", "0...4", "0..4..6", "0-4", "1 2"]
    )
    def test_text_of_another_form_is_refused_and_the_form_named(self, value: str) -> None:
        with pytest.raises(
            ConfigError, match=r"bad value '.*' for seeds: write a range such as 0\.\.4 \(both ends"
        ):
            parse_seeds(value)

    @pytest.mark.parametrize(
        "value",
        [
            *("-1", "-2..3", "0..-3", "1.5", "1e3", "0x10", "1_000", "abc", "4..0", "9" * 5000),
            *(-1, [-1], [3, -1], 1.0, [1.0], 1.5, np.float64(1.0), [np.float32(2)]),
            *(True, False, [True], np.bool_(True), [np.bool_(True)]),
            *(None, [None], {}, {0: 1}, [[1, 2]], object()),
            *(np.array(3), np.array([[1, 2], [3, 4]])),
        ],
    )
    def test_what_is_not_a_seed_is_refused(self, value: Any) -> None:
        with pytest.raises(ConfigError, match=r"(?s)bad value .* for seeds"):
            parse_seeds(value)

    @pytest.mark.parametrize("value", [[], (), range(0), np.arange(0)])
    def test_no_seeds_at_all_are_refused(self, value: Any) -> None:
        with pytest.raises(ConfigError, match="for seeds: there are none"):
            parse_seeds(value)

    @pytest.mark.parametrize(
        ("value", "twice"), [("1,1", "1"), ("0..3,2", "2"), ([5, 5], "5"), ("0..1,1,0", "1")]
    )
    def test_a_seed_given_twice_is_refused_and_named(self, value: Any, twice: str) -> None:
        with pytest.raises(
            ConfigError, match=f"seed {twice} is given twice in seeds .*: remove one"
        ):
            parse_seeds(value)

    def test_the_longest_range_is_accepted_and_longer_ones_are_refused(self) -> None:
        assert len(parse_seeds(f"0..{MAX_SEEDS - 1}")) == MAX_SEEDS
        endless = itertools.count()
        for value in (f"0..{MAX_SEEDS}", f"5..{10**30}", "0..99999,100000..199999", endless):
            with pytest.raises(ConfigError, match="more than 100,000 seeds"):
                parse_seeds(value)
        assert next(endless) <= 2 * MAX_SEEDS, "it would be listed in full"

    @pytest.mark.parametrize(
        ("seeds", "text"),
        [
            ((0, 1, 2), "0..2"),
            ((0, 1), "0..1"),
            ((7,), "7"),
            ((0, 2, 3, 9), "0,2..3,9"),
            ((3, 2, 1), "3,2,1"),
        ],
    )
    def test_consecutive_seeds_are_written_as_a_range(
        self, seeds: tuple[int, ...], text: str
    ) -> None:
        assert format_seeds(seeds) == text

    @settings(deadline=None, database=None, derandomize=True)
    @given(st.sets(st.integers(0, 20) | st.integers(0, 10**20), min_size=1).map(list))
    def test_seeds_that_are_written_are_read_again_in_their_order(self, seeds: list[int]) -> None:
        assert parse_seeds(format_seeds(seeds)) == tuple(seeds)


class TestShards:
    @pytest.mark.parametrize(
        ("text", "shard"),
        [("1/1", Shard(1, 1)), ("1/8", Shard(1, 8)), ("8/8", Shard(8, 8)), (" 2/3 ", Shard(2, 3))],
    )
    def test_a_share_is_read_and_written_as_k_of_n(self, text: str, shard: Shard) -> None:
        assert parse_shard(text) == shard
        assert str(shard) == text.strip()

    @pytest.mark.parametrize(
        "text",
        [
            *("", "1", "1/", "/8", "0/8", "9/8", "1/0"),
            *("-1/8", "1/-8", "a/b", "1/8/2", "1.0/2", "1/9999999999"),
        ],
    )
    def test_another_form_is_refused_with_an_example(self, text: str) -> None:
        with pytest.raises(
            ConfigError, match=f"bad value '{text}' for --shard: write K/N, such as 1/8"
        ):
            parse_shard(text)

    @settings(deadline=None, database=None, derandomize=True)
    @given(st.lists(st.integers(), max_size=50), st.integers(1, 12))
    def test_the_shares_of_a_plan_hold_every_run_once_and_are_of_like_size(
        self, runs: list[int], count: int
    ) -> None:
        shares = [parse_shard(f"{index}/{count}").of(runs) for index in range(1, count + 1)]
        assert sorted(run for share in shares for run in share) == sorted(runs)
        sizes = [len(share) for share in shares]
        assert max(sizes) - min(sizes) <= 1

    def test_a_share_beyond_the_plan_is_empty(self) -> None:
        assert Shard(5, 5).of(["a", "b"]) == []


def array(names: tuple[str, ...], *values: str) -> dict[str, str]:
    """The variables of a task of a job array."""
    return dict(zip(names, values, strict=False))


class TestArrays:
    @pytest.mark.parametrize("names", [SLURM, GRID_ENGINE])
    @pytest.mark.parametrize(
        ("values", "shard"),
        [
            (("0", "0", "9", "1"), Shard(1, 10)),
            (("9", "0", "9", "1"), Shard(10, 10)),
            (("3", "1", "8", "1"), Shard(3, 8)),
            (("5", "1", "9", "2"), Shard(3, 5)),
            (("6", "0", "6", "2"), Shard(4, 4)),
            (("7", "1", "7", "3"), Shard(3, 3)),
            (("4", "4", "4", "1"), Shard(1, 1)),
            (("3", "1", "8"), Shard(3, 8)),
            (("3", "1", "8", "undefined"), Shard(3, 8)),
        ],
    )
    def test_a_task_of_an_array_takes_its_share(
        self, names: tuple[str, ...], values: tuple[str, ...], shard: Shard
    ) -> None:
        assert shard_of_array(array(names, *values)) == shard

    @pytest.mark.parametrize(
        ("variables", "shard"),
        [
            ({}, None),
            (array(GRID_ENGINE, *["undefined"] * 4), None),
            (array(SLURM, ""), None),
            ({"SLURM_JOB_ID": "5"}, None),
            (array(GRID_ENGINE, "undefined") | array(SLURM, "2", "1", "4", "1"), Shard(2, 4)),
        ],
    )
    def test_variables_without_an_array_mean_nothing(
        self, variables: dict[str, str], shard: Shard | None
    ) -> None:
        assert shard_of_array(variables) == shard

    @pytest.mark.parametrize("names", [SLURM, GRID_ENGINE])
    @pytest.mark.parametrize(
        "values", [("9", "1", "8", "1"), ("0", "1", "8", "1"), ("3", "8", "1", "1"), ("3",)]
    )
    def test_a_number_outside_of_its_array_is_refused_and_shard_proposed(
        self, names: tuple[str, ...], values: tuple[str, ...]
    ) -> None:
        with pytest.raises(
            ConfigError, match=f"{names[0]}={values[0]} is not between .*: give --shard K/N instead"
        ):
            shard_of_array(array(names, *values))

    def test_the_variables_of_this_process_are_the_default(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in (*SLURM, *GRID_ENGINE):
            monkeypatch.delenv(name, raising=False)
        assert shard_of_array() is None
        for name, value in array(SLURM, "2", "0", "3", "1").items():
            monkeypatch.setenv(name, value)
        assert shard_of_array() == Shard(3, 4)

    def test_an_array_with_gaps_is_refused(self) -> None:
        task = array(SLURM, "3", "0", "7", "1") | {"SLURM_ARRAY_TASK_COUNT": "3"}
        with pytest.raises(ConfigError, match=r"3 tasks with gaps between 0 and 7.*give --shard"):
            shard_of_array(task)
