"""What 2,000 runs on 500 nodes cost by the model of campaign.py: `python benchmarks/campaign.py model`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from campaign import Campaign, Report, simulate

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
NUM_SEEDS = 5
LARGE = Campaign(
    num_nodes=500,
    slots_per_node=2,
    num_runs=2000,
    work_seconds=6 * HOUR,
    startup_seconds=30.0,
    checkpoint_every_seconds=15 * MINUTE,
    checkpoint_seconds=2.0,
    scheduling_seconds=1.0,
    repair_seconds=30 * MINUTE,
)
HEADER = (
    "fails",
    "repair",
    "noticed",
    "saved",
    "order",
    "makespan h",
    "useful",
    "utilised",
    "lost h",
    "attempts",
    "failures",
)
"""`fails`: mean time between failures of a node; `saved`: training between two checkpoints."""


def large_campaigns() -> Iterator[Campaign]:
    """The campaigns of the table: lost nodes, hangs (nothing to repair), another order, other checkpoint intervals."""
    yield LARGE
    for failure, detection in itertools.product((30 * DAY, 3 * DAY), (1.0, MINUTE, 10 * MINUTE)):
        yield replace(LARGE, node_failure_seconds=failure, detection_seconds=detection)
    fragile = replace(LARGE, node_failure_seconds=3 * DAY)
    for detection in (1.0, MINUTE, 10 * MINUTE):
        yield replace(fragile, repair_seconds=0.0, detection_seconds=detection)
    for failure in (30 * DAY, 3 * DAY):
        yield replace(
            LARGE, node_failure_seconds=failure, detection_seconds=MINUTE, most_left_first=True
        )
    for every in (5 * MINUTE, HOUR, LARGE.work_seconds):
        yield replace(
            fragile, detection_seconds=MINUTE, most_left_first=True, checkpoint_every_seconds=every
        )


def table_row(campaign: Campaign, seed: int = 0) -> tuple[str, ...]:
    """A row of the table: means over seeds; of the makespan, the range too."""
    generators = np.random.default_rng(seed).spawn(NUM_SEEDS)
    reports = [simulate(campaign, generator=generator) for generator in generators]
    hours = [report.makespan_seconds / HOUR for report in reports]

    def mean(read: Callable[[Report], float]) -> float:
        return float(np.mean([read(report) for report in reports]))

    return (
        format_seconds(campaign.node_failure_seconds),
        format_seconds(campaign.repair_seconds),
        format_seconds(campaign.detection_seconds),
        format_seconds(campaign.checkpoint_every_seconds),
        "most left" if campaign.most_left_first else "plan",
        f"{np.mean(hours):.2f} ({min(hours):.2f} to {max(hours):.2f})",
        f"{mean(lambda report: report.useful_fraction):.2%}",
        f"{mean(lambda report: report.utilisation):.1%}",
        f"{mean(lambda report: report.busy.lost) / HOUR:.1f}",
        f"{mean(lambda report: report.num_attempts):,.1f}",
        f"{mean(lambda report: report.num_failures):.1f}",
    )


def format_seconds(seconds: float) -> str:
    """Seconds in the largest unit that they reach."""
    if math.isinf(seconds):
        return "never"
    units = {"d": DAY, "h": HOUR, "min": MINUTE}
    name = next((name for name, unit in units.items() if seconds >= unit), "s")
    return f"{seconds / units.get(name, 1.0):g} {name}"


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows with aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print(
            "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def print_model() -> None:
    """Print the table for 500 nodes."""
    work = format_seconds(LARGE.work_seconds)
    print(
        f"{LARGE.num_runs:,} runs of {work} on {LARGE.num_nodes} nodes of {LARGE.slots_per_node} slots"
    )
    costs = LARGE.startup_seconds, LARGE.checkpoint_seconds, LARGE.scheduling_seconds
    print("start-up {:g} s, checkpoint {:g} s, driver {:g} s".format(*costs))
    print(f"means of {NUM_SEEDS} seeds; of the makespan, the range too\n")
    print_table([HEADER, *map(table_row, large_campaigns())])
