"""A Ray cluster on this machine, and what can happen to it in the trials of campaign_trials.py."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NUM_NODES = 2
REPLACEMENT_SECONDS = 5.0
"""From the loss of a node until another one is added."""
WORKER_MODULE = re.compile(rb"rl_training\.studies\.\S*worker")


@dataclass
class TrialCluster:
    """A Ray cluster on this machine."""

    cluster: Any
    nodes: list[Any]
    seconds_per_node: float
    """Time to add a node."""
    held: list[int] = field(default_factory=list)
    """Suspended processes, to be killed after the trial."""

    @classmethod
    def start(cls) -> TrialCluster:
        """A head without slots, and nodes with one slot each."""
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        begin = time.monotonic()
        nodes = [cluster.add_node(num_cpus=1) for _ in range(NUM_NODES)]
        return cls(cluster, nodes, (time.monotonic() - begin) / NUM_NODES)

    def close(self) -> None:
        """End the cluster and what was suspended on it."""
        for pid in self.held:
            send(pid, signal.SIGKILL)
        self.cluster.shutdown()

    def trainers(self, node: int) -> list[int]:
        """The processes that train runs on a node: descendants of its raylet."""
        raylet = self.nodes[node].all_processes["raylet"][0].process.pid
        return [pid for pid in descendants(raylet) if WORKER_MODULE.search(command_of(pid))]


def kill_process(cluster: TrialCluster) -> None:
    """Kill the process that trains a run on node 0."""
    for pid in cluster.trainers(0):
        send(pid, signal.SIGKILL)


def hang_process(cluster: TrialCluster) -> None:
    """Suspend the process that trains a run on node 0."""
    for pid in cluster.trainers(0):
        send(pid, signal.SIGSTOP)
        cluster.held.append(pid)


def lose_node(cluster: TrialCluster) -> None:
    """Lose node 0 as if its power were cut: its training process, which would save as an orphan, ends with it."""
    trainers = cluster.trainers(0)
    for pid in trainers:
        send(pid, signal.SIGSTOP)
    cluster.cluster.remove_node(cluster.nodes[0], allow_graceful=False)
    for pid in trainers:
        send(pid, signal.SIGKILL)


def replace_node(cluster: TrialCluster) -> None:
    """Lose node 0, and add another one some seconds later."""
    lose_node(cluster)
    time.sleep(REPLACEMENT_SECONDS)
    cluster.cluster.add_node(num_cpus=1)


def kill_raylet(cluster: TrialCluster) -> None:
    """Kill Ray's own process on node 0; the training process notices that its parent is gone, and saves."""
    process = cluster.nodes[0].all_processes["raylet"][0].process
    process.kill()
    process.wait()  # a raylet that is a zombie keeps its workers


def descendants(pid: int) -> list[int]:
    """The children of a process, their children, and so on."""
    children: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            children += map(int, path.read_text().split())
    return [found for child in children for found in (child, *descendants(child))]


def command_of(pid: int) -> bytes:
    """The command line of a process; empty if it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process, unless it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
