"""A discrete-event model of a campaign: many runs on a cluster whose nodes fail.

    python benchmarks/campaign.py model     a table for 500 nodes (campaign_table.py)
    python benchmarks/campaign.py trials    the model against real trials on a local Ray cluster (campaign_trials.py)

The driver starts waiting runs in the order of the plan, or those with most work left first. An attempt starts up, then
trains and saves in turns; the last checkpoint is at the end. A lost run waits again once the driver has noticed the
loss, and resumes from its last checkpoint. Left out: the pause of the driver before another attempt of a run that made
no progress, and that it gives up after three of them.
"""

from __future__ import annotations

import heapq
import itertools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

ROUNDING = 1e-9
"""Relative error of sums of seconds: a checkpoint that is complete but for this is complete."""


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """Runs, the cluster that trains them, and what their attempts cost."""

    num_nodes: int
    slots_per_node: int
    num_runs: int
    work_seconds: float
    """Training of one run, without start-up and checkpoints."""
    startup_seconds: float
    """Of each attempt: process, imports, restoring the checkpoint."""
    checkpoint_every_seconds: float
    """Training between two checkpoints; work_seconds: a single one, at the end."""
    checkpoint_seconds: float
    """Cost of one checkpoint."""
    detection_seconds: float = 0.0
    """From a failure until it can be noticed: the staleness limit for a silent hang."""
    scheduling_seconds: float = 0.0
    """From any change on the cluster until the driver has seen it and acted."""
    node_failure_seconds: float = math.inf
    """Mean time between failures of one node, exponentially distributed."""
    repair_seconds: float = math.inf
    """From the failure of a node until it is back."""
    eviction_seconds: float = 0.0
    """From the loss of a node until the cluster stops sending runs to it: one that finds no other slot waits there."""
    most_left_first: bool = False
    """Start the waiting run with the most work left; else the first of the plan."""


@dataclass(frozen=True)
class Failure:
    """A failure at a known time: of a node, or of the process in one of its slots."""

    seconds: float
    node: int
    slot: int | None = None
    """Slot of the node whose process is lost; None: all of them, and the node."""
    is_saved: bool = False
    """Whether the processes save before they end, so that no work is lost."""


@dataclass(frozen=True)
class Seconds:
    """How an attempt, or all of them, spent their time."""

    useful: float = 0.0
    """Training that was saved."""
    lost: float = 0.0
    """Training that was not, and has to be repeated."""
    startup: float = 0.0
    checkpoints: float = 0.0

    @property
    def total(self) -> float:
        """Time of live attempts."""
        return self.useful + self.lost + self.startup + self.checkpoints

    def __add__(self, other: Seconds) -> Seconds:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Seconds(*(mine + its for mine, its in pairs))


@dataclass(frozen=True)
class Report:
    """What a campaign cost."""

    makespan_seconds: float
    """From the first start until the driver has seen the last run finish."""
    busy: Seconds
    """Slot-seconds of live attempts."""
    num_attempts: int
    num_failures: int
    """Failures of nodes and processes, also where no run was trained."""
    num_slots: int

    @property
    def useful_fraction(self) -> float:
        """Useful part of the busy slot-seconds."""
        return self.busy.useful / self.busy.total

    @property
    def utilisation(self) -> float:
        """Busy part of all slot-seconds of the campaign."""
        return self.busy.total / (self.num_slots * self.makespan_seconds)


def whole_attempt(campaign: Campaign, saved: float) -> Seconds:
    """An undisturbed attempt that resumes with `saved` seconds of training done."""
    left = campaign.work_seconds - saved
    num_checkpoints = math.ceil(left / campaign.checkpoint_every_seconds - ROUNDING)
    checkpoints = num_checkpoints * campaign.checkpoint_seconds
    return Seconds(useful=left, startup=campaign.startup_seconds, checkpoints=checkpoints)


def cut_attempt(
    campaign: Campaign, saved: float, seconds: float, is_saved: bool = False
) -> Seconds:
    """The same attempt, lost after `seconds`; with `is_saved` it keeps its work."""
    startup = min(max(seconds, 0.0), campaign.startup_seconds)
    seconds = max(seconds - campaign.startup_seconds, 0.0)
    cycle = campaign.checkpoint_every_seconds + campaign.checkpoint_seconds
    num_checkpoints = math.floor(seconds / cycle + ROUNDING)
    useful = num_checkpoints * campaign.checkpoint_every_seconds
    next_checkpoint = min(campaign.checkpoint_every_seconds, campaign.work_seconds - saved - useful)
    lost = min(max(seconds - num_checkpoints * cycle, 0.0), next_checkpoint)
    checkpoints = seconds - useful - lost
    if is_saved:
        useful, lost = useful + lost, 0.0
    return Seconds(useful, lost, startup, checkpoints)


@dataclass(frozen=True)
class Attempt:
    """A run in a slot."""

    run: int
    begin: float


class Simulation:
    """One campaign in simulated time."""

    def __init__(
        self, campaign: Campaign, failures: Sequence[Failure], generator: np.random.Generator
    ) -> None:
        num_slots = campaign.num_nodes * campaign.slots_per_node
        self.campaign, self._failures, self._generator = campaign, failures, generator
        self._now, self._busy, self._num_attempts, self._num_failures = 0.0, Seconds(), 0, 0
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._order = itertools.count()  # of events at the same time
        self._waiting = [(0.0, run) for run in range(campaign.num_runs)]
        self._saved = [0.0] * campaign.num_runs
        self._num_left = campaign.num_runs
        self._free = [(slot, 0) for slot in range(num_slots)]
        self._attempts: list[Attempt | None] = [None] * num_slots
        self._is_up = [True] * campaign.num_nodes
        self._lives = [0] * campaign.num_nodes
        """How often each node was lost; a slot of an earlier life cannot be released any more."""

    def run(self) -> Report:
        """Simulate until the driver has seen every run finish."""
        for failure in self._failures:
            self._at(failure.seconds, self._fail, failure)
        for node in range(self.campaign.num_nodes):
            self._draw_failure(node)
        self._start_waiting()
        while self._num_left:
            if not self._events:
                raise ValueError(f"no node is left for {self._num_left} runs: set repair_seconds")
            self._now, _, happen, arguments = heapq.heappop(self._events)
            happen(*arguments)
        return Report(
            self._now, self._busy, self._num_attempts, self._num_failures, len(self._attempts)
        )

    def _at(self, seconds: float, happen: Callable[..., None], *arguments: object) -> None:
        heapq.heappush(self._events, (seconds, next(self._order), happen, arguments))

    def _draw_failure(self, node: int) -> None:
        mean = self.campaign.node_failure_seconds
        if math.isfinite(mean):
            self._at(self._now + self._generator.exponential(mean), self._fail_at_random, node)

    def _fail_at_random(self, node: int) -> None:
        self._draw_failure(node)
        self._fail(Failure(self._now, node))

    def _start_waiting(self) -> None:
        while self._waiting and self._has_free_slot():
            self._start(heapq.heappop(self._waiting)[1], heapq.heappop(self._free)[0])

    def _has_free_slot(self) -> bool:
        while self._free and self._free[0][1] != self._lives[self._node(self._free[0][0])]:
            heapq.heappop(self._free)  # its node was lost
        return bool(self._free)

    def _start(self, run: int, slot: int) -> None:
        attempt = self._attempts[slot] = Attempt(run, self._now)
        self._num_attempts += 1
        seconds = whole_attempt(self.campaign, self._saved[run]).total
        self._at(self._now + seconds, self._finish, slot, attempt)

    def _finish(self, slot: int, attempt: Attempt) -> None:
        if self._attempts[slot] is not attempt:
            return  # lost before
        self._attempts[slot] = None
        self._busy += whole_attempt(self.campaign, self._saved[attempt.run])
        self._saved[attempt.run] = self.campaign.work_seconds
        self._at(
            self._now + self.campaign.scheduling_seconds,
            self._see_end,
            slot,
            self._lives[self._node(slot)],
        )

    def _see_end(self, slot: int, life: int) -> None:
        self._num_left -= 1
        self._release(slot, life)

    def _release(self, slot: int, life: int) -> None:
        if life == self._lives[self._node(slot)]:
            heapq.heappush(self._free, (slot, life))
            self._start_waiting()

    def _fail(self, failure: Failure) -> None:
        if not self._is_up[failure.node]:
            return
        self._num_failures += 1
        first = failure.node * self.campaign.slots_per_node
        if failure.slot is None:
            self._fail_node(
                failure.node, range(first, first + self.campaign.slots_per_node), failure.is_saved
            )
        elif self._lose(first + failure.slot, failure.is_saved, evicted=0.0):
            self._at(
                self._time_noticed(), self._release, first + failure.slot, self._lives[failure.node]
            )

    def _fail_node(self, node: int, slots: range, is_saved: bool) -> None:
        was_taken = [
            self._lose(slot, is_saved, self._now + self.campaign.eviction_seconds) for slot in slots
        ]
        self._is_up[node] = False
        self._lives[node] += 1
        back = self._now + self.campaign.repair_seconds
        if math.isinf(back):
            return
        self._at(back, self._repair, node)
        for slot, is_taken in zip(slots, was_taken, strict=True):
            seen = back + self.campaign.scheduling_seconds
            # Until its loss is noticed, a run counts against the room of the cluster.
            seen = max(seen, self._time_noticed()) if is_taken else seen
            self._at(seen, self._release, slot, self._lives[node])

    def _repair(self, node: int) -> None:
        self._is_up[node] = True

    def _lose(self, slot: int, is_saved: bool, evicted: float) -> bool:
        """End the attempt in a slot; returns whether there was one."""
        attempt = self._attempts[slot]
        if attempt is None:
            return False
        self._attempts[slot] = None
        spent = cut_attempt(
            self.campaign, self._saved[attempt.run], self._now - attempt.begin, is_saved
        )
        self._busy += spent
        self._saved[attempt.run] += spent.useful
        self._at(self._time_noticed(), self._queue, attempt.run, evicted)
        return True

    def _queue(self, run: int, evicted: float) -> None:
        """Let a run wait for a slot; if there is none, it is sent back to its lost node until that is `evicted`."""
        if self._now < evicted and not self._has_free_slot():
            self._at(evicted, self._queue, run, evicted)
            return
        heapq.heappush(
            self._waiting, (self._saved[run] if self.campaign.most_left_first else 0.0, run)
        )
        self._start_waiting()

    def _time_noticed(self) -> float:
        """When the driver acts on a failure that happens now."""
        return self._now + self.campaign.detection_seconds + self.campaign.scheduling_seconds

    def _node(self, slot: int) -> int:
        return slot // self.campaign.slots_per_node


def simulate(
    campaign: Campaign,
    failures: Sequence[Failure] = (),
    generator: np.random.Generator | None = None,
) -> Report:
    """The cost of a campaign, with failures at known times, or drawn from `generator`, or both."""
    return Simulation(campaign, failures, generator or np.random.default_rng(0)).run()


def main(words: Sequence[str]) -> None:
    """Run the part that the command line names."""
    if list(words) == ["model"]:
        from campaign_table import print_model

        print_model()
    elif list(words) == ["trials"]:
        from campaign_trials import print_trials

        print_trials()
    else:
        raise SystemExit(f"usage: python {sys.argv[0]} model|trials")


if __name__ == "__main__":
    main(sys.argv[1:])
