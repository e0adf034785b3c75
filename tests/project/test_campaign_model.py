"""The model of a campaign of runs on a cluster, benchmarks/campaign.py, against cases worked by hand."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from conftest import TESTS


def _load() -> ModuleType:
    path = TESTS.parent / "benchmarks" / "campaign.py"
    spec = importlib.util.spec_from_file_location("campaign_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


model: Any = _load()
SMALL = model.Campaign(
    num_nodes=1,
    slots_per_node=1,
    num_runs=1,
    work_seconds=100.0,
    startup_seconds=5.0,
    checkpoint_every_seconds=30.0,
    checkpoint_seconds=1.0,
)
WHOLE = 5 + 100 + 4
"""Seconds of an undisturbed run: start-up, training, checkpoints at 30, 60, 90 and 100."""
RANDOM = replace(
    SMALL,
    num_nodes=20,
    slots_per_node=2,
    num_runs=100,
    node_failure_seconds=500.0,
    repair_seconds=40.0,
)


def _simulate_random(campaign: Any = RANDOM, seed: int = 0) -> Any:
    return model.simulate(campaign, generator=np.random.default_rng(seed))


@pytest.mark.parametrize(("num_runs", "num_rounds"), [(1, 1), (6, 1), (7, 2), (18, 3)])
def test_without_failures_runs_take_whole_rounds(num_runs: int, num_rounds: int) -> None:
    report = model.simulate(replace(SMALL, num_nodes=3, slots_per_node=2, num_runs=num_runs))
    assert report.makespan_seconds == pytest.approx(num_rounds * WHOLE)
    assert report.busy == model.Seconds(num_runs * 100.0, 0.0, num_runs * 5.0, num_runs * 4.0)
    assert report.num_attempts == num_runs
    assert report.useful_fraction == pytest.approx(100 / WHOLE)
    assert report.utilisation == pytest.approx(num_runs / (6 * num_rounds))


def test_the_driver_takes_its_delay_after_each_run() -> None:
    report = model.simulate(replace(SMALL, num_runs=3, scheduling_seconds=2.0))
    assert report.makespan_seconds == pytest.approx(3 * (WHOLE + 2))


def test_a_run_of_whole_intervals_saves_once_at_its_end() -> None:
    assert model.simulate(replace(SMALL, work_seconds=90.0)).makespan_seconds == pytest.approx(
        5 + 90 + 3
    )
    assert (
        model.simulate(
            replace(SMALL, work_seconds=0.9, checkpoint_every_seconds=0.3)
        ).busy.checkpoints
        == 3
    )


def test_a_killed_process_resumes_from_its_last_checkpoint() -> None:
    # Killed at 77: started at 5, saved 30 by 36, 60 by 67, then 10 seconds of training are lost. Noticed at 80, resumed
    # at 81 with 40 seconds left: 5 + 40 + 2 checkpoints; the driver sees the end at 129.
    campaign = replace(SMALL, detection_seconds=3.0, scheduling_seconds=1.0)
    report = model.simulate(campaign, [model.Failure(77.0, 0, slot=0)])
    assert report.makespan_seconds == pytest.approx(129)
    assert report.busy == model.Seconds(100.0, 10.0, 10.0, 4.0)
    assert (report.num_attempts, report.num_failures) == (2, 1)


@pytest.mark.parametrize(
    ("seconds", "lost", "makespan"),
    [
        (2.0, 0.0, 2 + WHOLE),  # starting up
        (20.0, 15.0, 20 + WHOLE),  # before the first checkpoint
        (35.5, 30.0, 35.5 + WHOLE),  # while it is written
        (36.0, 0.0, 36 + 5 + 70 + 3),  # when it is complete
        (108.5, 10.0, 108.5 + 5 + 10 + 1),  # while the last one is written
    ],
)
def test_what_is_lost_depends_on_the_moment(seconds: float, lost: float, makespan: float) -> None:
    report = model.simulate(SMALL, [model.Failure(seconds, 0, slot=0)])
    assert report.busy.lost == pytest.approx(lost)
    assert report.makespan_seconds == pytest.approx(makespan)


def test_a_process_that_saves_before_it_ends_loses_nothing() -> None:
    # Ends at 77 with 70 seconds of training; resumed with 30 left, of which one interval remains.
    report = model.simulate(SMALL, [model.Failure(77.0, 0, slot=0, is_saved=True)])
    assert report.busy.lost == 0
    assert report.makespan_seconds == pytest.approx(77 + 5 + 30 + 1)


def test_the_runs_of_a_lost_node_wait_for_a_slot_of_another() -> None:
    # Runs 0 and 1 start on nodes 0 and 1. Node 0 is lost at 77 with 60 seconds saved; node 1 resumes run 0 at 109 with
    # 40 seconds left (5 + 40 + 2), and then trains run 2 alone.
    report = model.simulate(replace(SMALL, num_nodes=2, num_runs=3), [model.Failure(77.0, 0)])
    assert report.makespan_seconds == pytest.approx(WHOLE + 47 + WHOLE)
    assert report.num_attempts == 4


def test_a_repaired_node_takes_runs_again_once_its_loss_was_noticed() -> None:
    campaign = replace(SMALL, repair_seconds=10.0)
    assert model.simulate(campaign, [model.Failure(77.0, 0)]).makespan_seconds == pytest.approx(
        77 + 10 + 47
    )
    slow = replace(campaign, detection_seconds=60.0)
    assert model.simulate(slow, [model.Failure(77.0, 0)]).makespan_seconds == pytest.approx(
        77 + 60 + 47
    )


def test_a_run_that_finds_no_slot_waits_on_its_lost_node_until_that_is_evicted() -> None:
    # Node 0 is lost at 77. Run 0 is sent back to it until 177; node 1 is free from 109 on, for run 2 if there is one.
    campaign = replace(SMALL, num_nodes=2, num_runs=2, eviction_seconds=100.0)
    assert model.simulate(campaign, [model.Failure(77.0, 0)]).makespan_seconds == pytest.approx(
        177 + 47
    )
    longer = model.simulate(replace(campaign, num_runs=3), [model.Failure(77.0, 0)])
    assert longer.makespan_seconds == pytest.approx(WHOLE + WHOLE + 47)


def test_a_run_that_finds_another_slot_does_not_wait_for_the_eviction() -> None:
    campaign = replace(SMALL, num_nodes=3, num_runs=2, eviction_seconds=100.0)
    assert model.simulate(campaign, [model.Failure(77.0, 0)]).makespan_seconds == pytest.approx(
        77 + 47
    )


def test_a_failure_of_a_lost_node_changes_nothing() -> None:
    campaign = replace(SMALL, repair_seconds=10.0)
    report = model.simulate(campaign, [model.Failure(77.0, 0), model.Failure(80.0, 0)])
    assert report.num_failures == 1
    assert report.makespan_seconds == pytest.approx(77 + 10 + 47)


def test_runs_with_most_work_left_go_first_if_asked() -> None:
    # The process of run 0 is killed at 77. In the order of the plan it resumes at once, and run 2 starts at 109; else
    # run 2 starts at 77, and run 0 resumes at 109.
    campaign = replace(SMALL, num_nodes=2, num_runs=3)
    failures = [model.Failure(77.0, 0, slot=0)]
    assert model.simulate(campaign, failures).makespan_seconds == pytest.approx(WHOLE + WHOLE)
    most_left = replace(campaign, most_left_first=True)
    assert model.simulate(most_left, failures).makespan_seconds == pytest.approx(77 + WHOLE)


def test_a_campaign_without_a_node_left_is_an_error() -> None:
    with pytest.raises(ValueError, match="no node is left for 1 runs"):
        model.simulate(SMALL, [model.Failure(50.0, 0)])


@pytest.mark.parametrize("detection", [0.0, 1.0, 100.0])
def test_useful_work_is_the_work_of_all_runs(detection: float) -> None:
    report = _simulate_random(replace(RANDOM, detection_seconds=detection, scheduling_seconds=0.5))
    assert report.num_failures > 5
    assert report.busy.useful == pytest.approx(100 * 100)
    assert report.busy.startup <= 5 * report.num_attempts
    assert report.busy.total <= 40 * report.makespan_seconds


def test_more_frequent_checkpoints_lose_less_work() -> None:
    intervals = (100.0, 50.0, 20.0, 5.0)
    lost = [
        np.mean(
            [
                _simulate_random(replace(RANDOM, checkpoint_every_seconds=every), seed).busy.lost
                for seed in range(5)
            ]
        )
        for every in intervals
    ]
    assert lost == sorted(lost, reverse=True)
    assert lost[0] > 4 * lost[-1] > 0


def test_rarer_failures_and_faster_notice_shorten_a_campaign() -> None:
    makespans = [
        np.mean([_simulate_random(campaign, seed).makespan_seconds for seed in range(5)])
        for campaign in (
            replace(RANDOM, node_failure_seconds=np.inf),
            replace(RANDOM, node_failure_seconds=5000.0),
            RANDOM,
            replace(RANDOM, detection_seconds=200.0),
        )
    ]
    assert makespans == sorted(makespans)
    assert makespans[0] == pytest.approx(3 * WHOLE)


def test_a_generator_decides_everything() -> None:
    assert _simulate_random(seed=1) == _simulate_random(seed=1)
    assert _simulate_random(seed=1) != _simulate_random(seed=2)


def test_failures_come_at_the_given_rate() -> None:
    campaign = replace(
        SMALL, num_nodes=200, num_runs=200, work_seconds=1000.0, node_failure_seconds=2000.0
    )
    report = _simulate_random(replace(campaign, repair_seconds=0.0, checkpoint_every_seconds=10.0))
    expected = 200 * report.makespan_seconds / 2000
    assert report.num_failures == pytest.approx(expected, abs=4 * expected**0.5)
