"""A training process that can kill itself at a chosen instant; its one argument is a JSON object.

`config` begins a run with the suffix `suffix`, or `resume` names the run folder to go on with. `kill` is a kind of
instant and a count: `["update", 3]` is the third step of an optimizer. `file` and `half` count operations on files:
before the n-th one, or in the middle of writing the n-th file. `signal` is what to send (SIGKILL), `to_group` sends
it to the whole process group, as a terminal does, and `times` is how often.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.algorithms.optim import Adam
from rl_training.cli import main
from rl_training.envs.factory import load_code
from rl_training.envs.parallel.vector import PooledTrainingEnv
from rl_training.evaluation import evaluator
from rl_training.experiment.yaml_text import dump_yaml
from rl_training.replay import transitions

FILE_OPERATIONS = ("fsync", "link", "mkdir", "rename", "replace", "rmdir", "truncate", "unlink")


class EndlessEnv(gym.Env[Any, Any]):
    """A step of it never ends; a file tells that it has begun."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        Path(f"endless{os.getpid()}").touch()
        while True:
            time.sleep(60)


class Trap:
    """Sends the signal at the n-th call."""

    def __init__(self, count: int, number: int, to_group: bool, times: int) -> None:
        self.calls_left, self.number, self.to_group, self.times = count, number, to_group, times

    @property
    def is_next(self) -> bool:
        return self.calls_left == 1

    def __call__(self) -> None:
        self.calls_left -= 1
        if self.calls_left == 0:
            for _ in range(self.times):
                (os.killpg if self.to_group else os.kill)(
                    0 if self.to_group else os.getpid(), self.number
                )
                time.sleep(0.01)

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def trapped(*args: Any, **kwargs: Any) -> Any:
            self()
            return function(*args, **kwargs)

        return trapped


def set_trap(kind: str, trap: Trap, run_dir: str | None) -> None:
    """Put the trap where the instants of a kind are, in a run that is resumed from `run_dir` or new."""
    if kind == "collect":
        PooledTrainingEnv.step = trap.before(PooledTrainingEnv.step)  # type: ignore[method-assign]
    elif kind == "update":
        Adam.step = trap.before(Adam.step)  # type: ignore[method-assign]
    elif (
        kind == "worker"
    ):  # the process of a worker has just been asked for, and cannot ignore signals yet
        start = BaseProcess.start

        def start_and_send(process: BaseProcess) -> None:
            start(process)
            trap()

        BaseProcess.start = start_and_send  # type: ignore[method-assign]
    elif kind == "eval":
        evaluator.act_on = trap.before(evaluator.act_on)
    elif kind == "file":
        for name in FILE_OPERATIONS:
            setattr(os, name, trap.before(getattr(os, name)))
    elif kind == "half":
        os.fsync = _half_written(trap, os.fsync, run_dir)
    else:
        raise ValueError(f"unknown kind of instant: {kind}")


def _half_written(
    trap: Trap, fsync: Callable[[int], None], run_dir: str | None
) -> Callable[[int], None]:
    """A sync before which, when the trap springs, the second half of what is new in the file is not written yet."""
    synced = (
        {path.resolve(): path.stat().st_size for path in Path(run_dir).glob("*.jsonl")}
        if run_dir
        else {}
    )

    def trapped(descriptor: int) -> None:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            if trap.is_next:
                os.truncate(path, (min(synced.get(path, 0), status.st_size) + status.st_size) // 2)
            trap()
            if path.suffix == ".jsonl":  # the only files that grow after a sync
                synced[path] = status.st_size
        fsync(descriptor)

    return trapped


def run(order: dict[str, Any]) -> int:
    """Train as ordered, through the command line."""
    transitions.SEGMENT_BYTES = order.get("segment_bytes", transitions.SEGMENT_BYTES)
    load_code(str(Path(__file__).parent / "toy_envs.py"))
    if order.get("kill"):
        kind, count = order["kill"]
        number = signal.Signals[order.get("signal", "SIGKILL")]
        trap = Trap(count, number, order.get("to_group", False), order.get("times", 1))
        set_trap(kind, trap, order.get("resume"))
    if order.get("resume"):
        return main(["resume", "--checkpoint", order["resume"]])
    path = Path(order["config"]["output_dir"]) / f"{order['suffix']}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dump_yaml(order["config"]))
    return main(["train", "--config", str(path), "--run-suffix", order["suffix"]])


def sweep(order: dict[str, Any], first: int, every: int) -> int:
    """Kill a run before its n-th operation on a file and bring it to its end, for every n there is.

    Each life is a fork of this process, which has imported everything and trained nothing.
    """
    for count in range(first, 10_000, every):
        suffix = f"life{count}"
        code = _fork({**order, "suffix": suffix, "kill": ["file", count]})
        if code == 0:
            return 0
        assert code == -signal.SIGKILL, f"life {count} ended with {code}"
        for pointer in Path(order["config"]["output_dir"]).glob(f"*__{suffix}/checkpoints/last"):
            run_dir = pointer.parent.parent
            if json.loads((run_dir / "metadata.json").read_text())["status"] == "running":
                code = _fork({**order, "resume": str(run_dir)})
                assert code == 0, f"life {count} could not be resumed: {code}"
    raise AssertionError("the run never ended")


def _fork(order: dict[str, Any]) -> int:
    child = os.fork()
    if child == 0:
        try:
            os._exit(run(order))
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main_of_order() -> int:
    """Carry out the order that is the program's argument."""
    given = json.loads(sys.argv[1])
    return sweep(given, *given["sweep"]) if "sweep" in given else run(given)
