"""Real trials on a local Ray cluster against the model of campaign.py: `python benchmarks/campaign.py trials`.

Each trial is a study of CartPole runs on a fresh cluster of a head without slots and two nodes with one slot each. The
model's costs are calibrated on one undisturbed trial; each further trial is predicted before it begins. The makespan is
from the first start of a run until the driver reports the last one finished.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from campaign import Campaign, Failure, print_table, simulate

NUM_NODES = 2
TOTAL_STEPS, CHECKPOINT_STEPS, FREQUENT_CHECKPOINT_STEPS = 60_000, 10_000, 1_500
SECONDS_OF_A_TRIAL = 600.0
STALE_SECONDS = 4.0
"""Staleness limit of a heartbeat in the trial of a hang."""
REPLACEMENT_SECONDS = 5.0
SECONDS_TO_SEE_A_NODE = 1.0
"""On average: the driver asks Ray for its nodes every other second."""
WITHIN = 0.2
EVENT = re.compile(r"(.+ )?seed \d+: ")
"""Begin of a line in which the driver reports what happened to a run."""
WORKER_MODULE = b"rl_training.studies.launching.worker"


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
        return [pid for pid in descendants(raylet) if WORKER_MODULE in command_of(pid)]


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


@dataclass(frozen=True)
class Trial:
    """A study, and what happens to it; the model is told the same."""

    name: str
    num_runs: int
    disturb: Callable[[TrialCluster], None] | None = None
    failure: Failure | None = None
    """The disturbance for the model; its time is set by `schedule`."""
    detection_seconds: float = 0.0
    is_replaced: bool = False
    variables: dict[str, str] = field(default_factory=dict)

    def schedule(self, costs: Campaign) -> Trial:
        """The same trial with its disturbance past the middle of the first runs."""
        if self.failure is None:
            return self
        seconds = round(costs.startup_seconds + 0.5 * costs.work_seconds, 1)
        return replace(self, failure=replace(self.failure, seconds=seconds))

    def predict(self, costs: Campaign, seconds_per_node: float) -> tuple[float, int]:
        """Makespan and number of attempts by the model."""
        campaign = replace(costs, num_runs=self.num_runs, detection_seconds=self.detection_seconds)
        if self.is_replaced:
            repair = REPLACEMENT_SECONDS + seconds_per_node + SECONDS_TO_SEE_A_NODE
            campaign = replace(campaign, repair_seconds=repair)
        report = simulate(campaign, [] if self.failure is None else [self.failure])
        return report.makespan_seconds, report.num_attempts


NODE_0, SLOT_0 = Failure(0.0, 0), Failure(0.0, 0, slot=0)
STALE = {"RL_TRAINING_STALE_SECONDS": str(STALE_SECONDS)}
TRIALS = (
    Trial("undisturbed", 5),
    Trial("process killed", 4, kill_process, SLOT_0),
    Trial("node lost", 3, lose_node, NODE_0, 0.5),
    Trial("raylet killed", 3, kill_raylet, replace(NODE_0, is_saved=True), 0.5),
    Trial("node lost and replaced", 4, replace_node, NODE_0, 0.5, is_replaced=True),
    Trial("process hangs", 4, hang_process, SLOT_0, STALE_SECONDS, variables=STALE),
)


@dataclass(frozen=True)
class Measured:
    """What the driver of a study reported."""

    folder: Path
    """Working directory of the driver."""
    lines: list[tuple[float, str]]
    """What it printed, and when."""
    runs: list[dict[str, Any]]
    seconds_per_node: float
    """Time to add a node to the cluster."""

    def times(self, word: str) -> dict[str, float]:
        """When each run was last said to be `word`, by its label."""
        parts = ((seconds, line.partition(": ")) for seconds, line in self.lines)
        return {label: seconds for seconds, (label, _, text) in parts if text.startswith(word)}

    @property
    def makespan_seconds(self) -> float:
        """From the first start to the last end."""
        return max(self.times("finished").values()) - next(seconds for seconds, line in self.lines if is_start(line))

    @property
    def num_attempts(self) -> int:
        """Processes that trained the runs."""
        return sum(run["attempt"] for run in self.runs)


def is_start(line: str) -> bool:
    """Whether the driver says that it started a run."""
    return line.partition(": ")[2].startswith("started")


def write_study(folder: Path, num_runs: int, intervals: Sequence[int]) -> None:
    """Write the study file of a trial; runs are evaluated at their end only."""
    values = {
        "name": "trial",
        "preset": True,
        "base": {
            "algo": "ppo",
            "env_id": "CartPole-v1",
            "total_timesteps": TOTAL_STEPS,
            "eval_episodes": 1,
            "compile": False,
            "algo_kwargs": {"eval_interval": 10 * TOTAL_STEPS},
        },
        "vary": {"checkpoint_interval": list(intervals)},
        "seeds": list(range(num_runs)),
    }
    (folder / "study.yaml").write_text(json.dumps(values))  # JSON is YAML


class StudyDriver:
    """The process that drives the study in a folder; what it prints is kept with its time."""

    def __init__(self, address: str, folder: Path, variables: Mapping[str, str]) -> None:
        words = ["study", "run", "study.yaml", "--backend", "ray", "--address", address, "--json"]
        self.folder, self.lines = folder, list[tuple[float, str]]()
        self._output = (folder / "output").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rl_training", *words],
            cwd=folder,
            env={**os.environ, **variables},
            stdout=self._output,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._has_started = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.lines.append((time.time(), line.strip()))
            if is_start(line):
                self._has_started.set()
        self._has_started.set()  # it ended

    def wait_for_start(self, seconds: float) -> None:
        """Wait until `seconds` after the start of the first run."""
        self._has_started.wait(SECONDS_OF_A_TRIAL)
        begin = next((moment for moment, line in self.lines if is_start(line)), time.time())
        time.sleep(max(0.0, begin + seconds - time.time()))

    def wait(self) -> list[dict[str, Any]]:
        """Wait for the end of the study; returns its runs."""
        code = self._process.wait(SECONDS_OF_A_TRIAL)
        self._reader.join()
        if code:
            raise RuntimeError(f"a study ended with exit code {code}:\n" + "\n".join(line for _, line in self.lines))
        self._output.seek(0)
        return list(json.load(self._output)["runs"])

    def close(self) -> None:
        """End it, if it has not ended."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._output.close()


def measure(
    folder: Path, num_runs: int, trial: Trial | None = None, intervals: Sequence[int] = (CHECKPOINT_STEPS,)
) -> Measured:
    """Train a study on a fresh cluster, and disturb it as `trial` says."""
    folder.mkdir()
    write_study(folder, num_runs, intervals)
    with closing(TrialCluster.start()) as cluster:
        variables = {} if trial is None else trial.variables
        with closing(StudyDriver(cluster.cluster.address, folder, variables)) as driver:
            if trial is not None and trial.disturb is not None and trial.failure is not None:
                driver.wait_for_start(trial.failure.seconds)
                trial.disturb(cluster)
            runs = driver.wait()
    events = [(moment, line) for moment, line in driver.lines if EVENT.match(line)]  # Ray prints too
    return Measured(folder, events, runs, cluster.seconds_per_node)


def calibrate(measured: Measured) -> Campaign:
    """The costs of runs and attempts, from an undisturbed trial with two checkpoint intervals."""
    started, finished = measured.times("started"), measured.times("finished")
    startups, delays, seconds, counts = [], [], [], []
    for run in measured.runs:
        folder = measured.folder / run["run_dir"]
        label = f"{run['setting']} seed {run['seed']}".strip()
        owned = (folder / "owner" / "1.ended.json").stat().st_mtime
        seconds.append(json.loads((folder / "metadata.json").read_text())["seconds"])
        counts.append(TOTAL_STEPS / int(run["setting"].rpartition("=")[2]))
        startups.append(owned - started[label])
        delays.append(finished[label] - owned - seconds[-1])
    cost = max(0.0, statistics.linear_regression(counts, seconds).slope)
    work = statistics.median(second - count * cost for second, count in zip(seconds, counts, strict=True))
    return Campaign(
        num_nodes=NUM_NODES,
        slots_per_node=1,
        num_runs=len(seconds),
        work_seconds=work,
        startup_seconds=statistics.median(startups),
        checkpoint_every_seconds=work * CHECKPOINT_STEPS / TOTAL_STEPS,
        checkpoint_seconds=cost,
        scheduling_seconds=statistics.median(delays),
    )


@contextlib.contextmanager
def ray_home() -> Iterator[Path]:
    """A folder, of a short name, for the files and the token of Ray; it has to exist before Ray is imported."""
    folder = Path(tempfile.mkdtemp(prefix="rc", dir="/tmp"))
    (folder / ".ray").mkdir()
    (folder / ".ray" / "auth_token").write_text("a" * 64)
    os.environ |= {"HOME": str(folder), "RAY_TMPDIR": str(folder), "RAY_AUTH_MODE": "token"}
    os.environ |= {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def print_trials() -> None:
    """Calibrate the model, then predict and measure each trial."""
    with ray_home() as folder:
        calibration = measure(folder / "calibration", 2, intervals=(CHECKPOINT_STEPS, FREQUENT_CHECKPOINT_STEPS))
        costs = calibrate(calibration)
        print_costs(costs)
        rows = [("trial", "runs", "disturbed at", "predicted s", "measured s", "ratio", "attempts")]
        for number, trial in enumerate(TRIALS):
            planned = trial.schedule(costs)
            seconds, num_attempts = planned.predict(costs, calibration.seconds_per_node)
            measured = measure(folder / str(number), trial.num_runs, planned)
            ratio = measured.makespan_seconds / seconds
            rows.append(
                (
                    trial.name,
                    str(trial.num_runs),
                    f"{planned.failure.seconds:.1f}" if planned.failure else "-",
                    f"{seconds:.1f}",
                    f"{measured.makespan_seconds:.1f}",
                    f"{ratio:.2f}{'' if abs(ratio - 1) <= WITHIN else ' (off)'}",
                    f"{measured.num_attempts} of {num_attempts}",
                )
            )
            print(f"{trial.name}: {seconds:.1f} s predicted, {measured.makespan_seconds:.1f} s measured", flush=True)
            for moment, line in measured.lines:
                print(f"    {moment - measured.lines[0][0]:6.2f}  {line}", flush=True)
    print()
    print_table(rows)


def print_costs(costs: Campaign) -> None:
    """Print what was calibrated."""
    texts = {
        "start-up": costs.startup_seconds,
        "training": costs.work_seconds,
        "checkpoint": costs.checkpoint_seconds,
        "driver": costs.scheduling_seconds,
    }
    print("calibrated:", ", ".join(f"{name} {seconds:.2f} s" for name, seconds in texts.items()), flush=True)


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
