"""Real trials on a local Ray cluster against the model of campaign.py: `python benchmarks/campaign.py trials`.

Each trial is a study of CartPole runs on a fresh cluster of a head without slots and two nodes with one slot each. The
model's costs are calibrated on one undisturbed trial; each further trial is predicted before it begins. The makespan is
from the first start of a run until the driver reports the last one finished. A prediction is a range where Ray's choice
of a node decides whether a run is sent to a lost node once more; the ratio is to the nearest value of the range.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
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

from campaign import Campaign, Failure, simulate
from campaign_faults import (
    NUM_NODES,
    REPLACEMENT_SECONDS,
    TrialCluster,
    hang_process,
    kill_process,
    kill_raylet,
    lose_node,
    replace_node,
)
from campaign_table import print_table

TOTAL_STEPS, CHECKPOINT_STEPS, FREQUENT_CHECKPOINT_STEPS = 60_000, 10_000, 1_500
SECONDS_OF_A_TRIAL = 240.0
EVICTION_SECONDS = 0.0
"""Until Ray, with its default health checks, knows that a raylet is gone; 0 if the launcher avoids lost nodes."""
STALE_SECONDS = 4.0
"""Staleness limit of a heartbeat in the trial of a hang."""
SECONDS_TO_SEE_A_NODE = 1.0
"""On average: the driver asks Ray for its nodes every other second."""
WITHIN = 0.2
HEADER: tuple[str, ...] = (
    "trial",
    "runs",
    "disturbed at",
    "predicted s",
    "measured s",
    "ratio",
    "replayed",
    "attempts",
)
"""`replayed`: the ratio with the costs of the trial's own undisturbed runs, on a machine whose speed changes."""
EVENT = re.compile(r"(.+ )?seed \d+: ")
"""Begin of a line in which the driver reports what happened to a run."""


@dataclass(frozen=True)
class Prediction:
    """A range of makespans, and the number of attempts."""

    low: float
    high: float
    num_attempts: int

    def __str__(self) -> str:
        return f"{self.low:.1f}" + (f" to {self.high:.1f}" if self.high - self.low > 0.05 else "")

    def ratio(self, seconds: float) -> float:
        """Measured to predicted seconds; 1 within the range."""
        return seconds / min(max(seconds, self.low), self.high)


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

    def predict(self, costs: Campaign, seconds_per_node: float) -> Prediction:
        """The model's answer."""
        campaign = replace(costs, num_runs=self.num_runs, detection_seconds=self.detection_seconds)
        if self.is_replaced:
            repair = REPLACEMENT_SECONDS + seconds_per_node + SECONDS_TO_SEE_A_NODE
            campaign = replace(campaign, repair_seconds=repair)
        failures = [] if self.failure is None else [self.failure]
        reports = [
            simulate(replace(campaign, eviction_seconds=lag), failures)
            for lag in (0.0, EVICTION_SECONDS)
        ]
        seconds = sorted(report.makespan_seconds for report in reports)
        return Prediction(seconds[0], seconds[1], reports[0].num_attempts)


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
        return max(self.times("finished").values()) - next(
            seconds for seconds, line in self.lines if is_start(line)
        )

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
            raise RuntimeError(
                f"a study ended with exit code {code}:\n"
                + "\n".join(line for _, line in self.lines)
            )
        self._output.seek(0)
        return list(json.load(self._output)["runs"])

    def close(self) -> None:
        """End it, if it has not ended."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._output.close()


def measure(
    folder: Path,
    num_runs: int,
    trial: Trial | None = None,
    intervals: Sequence[int] = (CHECKPOINT_STEPS,),
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
    events = [
        (moment, line) for moment, line in driver.lines if EVENT.match(line)
    ]  # Ray prints too
    return Measured(folder, events, runs, cluster.seconds_per_node)


@dataclass(frozen=True)
class RunCost:
    """What an undisturbed run took."""

    startup_seconds: float
    owned_seconds: float
    """Training and checkpoints."""
    delay_seconds: float
    """From its end until the driver reported it."""
    num_checkpoints: int


def run_costs(measured: Measured) -> list[RunCost]:
    """The costs of all runs that were trained by one process."""
    started, finished = measured.times("started"), measured.times("finished")
    costs = []
    for run in measured.runs:
        folder, label = (
            measured.folder / run["run_dir"],
            f"{run['setting']} seed {run['seed']}".strip(),
        )
        interval = int(run["setting"].rpartition("=")[2] or CHECKPOINT_STEPS)
        if run["attempt"] == 1:
            owned = (folder / "owner" / "1.ended.json").stat().st_mtime
            seconds = json.loads((folder / "metadata.json").read_text())["seconds"]
            delay = finished[label] - owned - seconds
            costs.append(
                RunCost(owned - started[label], seconds, delay, math.ceil(TOTAL_STEPS / interval))
            )
    return costs


def calibrate(costs: Sequence[RunCost], checkpoint_seconds: float | None = None) -> Campaign:
    """The model's costs from undisturbed runs; that of a checkpoint is given, or follows from two intervals."""
    if checkpoint_seconds is None:
        line = statistics.linear_regression(
            [cost.num_checkpoints for cost in costs], [cost.owned_seconds for cost in costs]
        )
        checkpoint_seconds = max(0.0, line.slope)
    work = statistics.median(
        cost.owned_seconds - cost.num_checkpoints * checkpoint_seconds for cost in costs
    )
    return Campaign(
        num_nodes=NUM_NODES,
        slots_per_node=1,
        num_runs=len(costs),
        work_seconds=work,
        # The lower median: a start on a lost node is not one.
        startup_seconds=statistics.median_low(cost.startup_seconds for cost in costs),
        checkpoint_every_seconds=work * CHECKPOINT_STEPS / TOTAL_STEPS,
        checkpoint_seconds=checkpoint_seconds,
        scheduling_seconds=statistics.median(cost.delay_seconds for cost in costs),
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
        first = measure(
            folder / "calibration", 2, intervals=(CHECKPOINT_STEPS, FREQUENT_CHECKPOINT_STEPS)
        )
        costs = calibrate(run_costs(first))
        print_costs(costs)
        rows = [HEADER]
        for number, trial in enumerate(TRIALS):
            rows.append(
                trial_row(
                    trial.schedule(costs), costs, first.seconds_per_node, folder / str(number)
                )
            )
    print()
    print_table(rows)


def trial_row(
    trial: Trial, costs: Campaign, seconds_per_node: float, folder: Path
) -> tuple[str, ...]:
    """Predict and measure a trial; returns its row of the table."""
    predicted = trial.predict(costs, seconds_per_node)
    print(f"{trial.name}: {predicted} s predicted", flush=True)
    when = "-" if trial.failure is None else f"{trial.failure.seconds:.1f}"
    cells = trial.name, str(trial.num_runs), when, str(predicted)
    try:
        measured = measure(folder, trial.num_runs, trial)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(error, flush=True)
        return *cells, "failed", "-", "-", "-"
    for moment, line in measured.lines:
        print(f"    {moment - measured.lines[0][0]:6.2f}  {line}", flush=True)
    seconds = measured.makespan_seconds
    ratio = predicted.ratio(seconds)
    replayed = trial.predict(
        calibrate(run_costs(measured), costs.checkpoint_seconds), seconds_per_node
    ).ratio(seconds)
    note = "" if abs(ratio - 1) <= WITHIN else " (off)"
    attempts = f"{measured.num_attempts} of {predicted.num_attempts}"
    return *cells, f"{seconds:.1f}", f"{ratio:.2f}{note}", f"{replayed:.2f}", attempts


def print_costs(costs: Campaign) -> None:
    """Print what was calibrated."""
    texts = {
        "start-up": costs.startup_seconds,
        "training": costs.work_seconds,
        "checkpoint": costs.checkpoint_seconds,
        "driver": costs.scheduling_seconds,
    }
    print(
        "calibrated:",
        ", ".join(f"{name} {seconds:.2f} s" for name, seconds in texts.items()),
        flush=True,
    )
