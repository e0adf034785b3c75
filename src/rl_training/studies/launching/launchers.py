"""How worker processes are started, to train runs or to check settings: here, or elsewhere through the same methods."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rl_training.errors import ConfigError
from rl_training.processors import usable_processors
from rl_training.studies.launching.orders import Order, worker_values
from rl_training.studies.plan import PlannedRun
from rl_training.terminal.streams import tell

MOST_PREPARED = 8
TAIL_BYTES = 4096


def start_worker(output: int | None = None) -> subprocess.Popen[bytes]:
    """Start a worker process, which loads its libraries and waits for an order on its standard input.

    It prints to the log that its order names, and until then to standard error, or to `output`.
    """
    words = [sys.executable, "-m", "rl_training.studies.launching.worker"]
    return subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=output or 2, start_new_session=True
    )


def give_order(process: subprocess.Popen[bytes], text: str) -> None:
    """Tell a worker process what to do; nothing: it ends."""
    assert process.stdin is not None
    # A process that is already gone is noticed by its exit code.
    with contextlib.suppress(OSError), process.stdin:
        process.stdin.write(text.encode())


@dataclass(frozen=True)
class Exit:
    """How a worker process ended."""

    code: int | None
    """Exit code, negative for a signal; None if it is not known: its node is lost, for example."""
    text: str
    """The end in words."""
    was_started: bool = True
    """Whether there was a process at all: its node may have been gone already."""


@dataclass(frozen=True)
class ClusterOptions:
    """Where Ray finds its cluster, and what each run takes of it."""

    address: str = "local"
    cpus_per_run: float | None = None
    """None: as many as the run has threads."""
    gpus_per_run: float = 0.0
    like_nodes: bool = False
    """Keep each run among nodes of the same kind of processor and the same versions."""


class Handle(Protocol):
    """A run that was started."""

    def poll(self) -> Exit | None:
        """How it ended; None while it has not."""

    def kill(self) -> None:
        """End its process at once, as far as it can be reached."""


class Launcher(Protocol):
    """Starts runs."""

    threads_per_run: int
    """PyTorch threads of each run."""
    may_queue: bool
    """Whether a run that was started may have to wait for its process."""

    def capacity(self) -> int:
        """How many runs may be started now, those that run included."""

    def can_start(self, run: PlannedRun) -> bool:
        """Whether there is a place where this run may be trained."""

    def start(self, order: Order) -> Handle | None:
        """Start a run; None if there is no place for it any more."""

    def close(self) -> None:
        """Release what the launcher holds."""


def last_words(log: Path) -> str:
    """The last line of a worker's output, without `error: `; empty if there is none."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
        lines = file.read().decode("utf-8", errors="replace").strip().splitlines()
        return lines[-1].strip().removeprefix("error: ") if lines else ""
    return ""


def describe_exit(code: int) -> str:
    """An exit code in words."""
    with contextlib.suppress(ValueError):
        if code < 0:
            return f"its process was killed by {signal.Signals(-code).name}"
    return f"its process ended with exit code {code}"


class LocalLauncher:
    """Starts runs as processes of this machine.

    Each is in a session of its own: Ctrl-C at the terminal reaches the driver alone, which asks all runs to stop.
    """

    def __init__(self, jobs: int | None = None) -> None:
        """Start at most `jobs` runs at once (default: as many as there are processors for their threads)."""
        self.threads_per_run, self.may_queue = 1, False
        self._jobs = jobs
        self._waiting: list[subprocess.Popen[bytes]] = []

    def prepare(self, count: int) -> None:
        """Start up to `count` processes that load their libraries and wait for an order."""
        self._waiting += [start_worker() for _ in range(min(count, self.capacity(), MOST_PREPARED))]

    def capacity(self) -> int:
        """The number of jobs."""
        return self._jobs or max(1, usable_processors() // self.threads_per_run)

    def can_start(self, run: PlannedRun) -> bool:
        """Whether there is a place where this run may be trained: here."""
        return True

    def start(self, order: Order) -> LocalHandle:
        """Start a run in a new process, or in one that waits."""
        process = self._waiting.pop(0) if self._waiting else start_worker()
        give_order(process, order.text)
        return LocalHandle(process)

    def close(self) -> None:
        """End the processes that still wait for an order."""
        for process in self._waiting:
            give_order(process, "")
        for process in self._waiting:
            process.wait()
        self._waiting.clear()


@dataclass(frozen=True)
class LocalHandle:
    """A process of this machine."""

    process: subprocess.Popen[bytes]

    def poll(self) -> Exit | None:
        """How it ended; None while it has not."""
        code = self.process.poll()
        return None if code is None else Exit(code, describe_exit(code))

    def kill(self) -> None:
        """Kill it."""
        self.process.kill()
        # One that is stuck in the kernel is fenced off by the next attempt.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)


@dataclass(frozen=True)
class SettingNeeds:
    """What each run of a setting needs."""

    setting: str
    num_threads: int
    memory_bytes: int
    """Estimate, without the environments and a dataset."""


class SettingsCheck:
    """A check that runs in a process of its own while the caller prepares other things."""

    def __init__(
        self,
        runs: Sequence[PlannedRun],
        plugins: Sequence[str],
        callbacks: Sequence[str],
        *,
        question: tuple[str, str] | None = None,
    ) -> None:
        """Start the check of one run of each setting.

        `question` names a function of the package and the text that it is given with each checked configuration.
        """
        self._runs = list({run.setting: run for run in runs}.values())
        self._process = start_worker(subprocess.PIPE)
        configs = [worker_values(run.config) for run in self._runs]
        order = {"check": configs, "question": question, "plugins": plugins, "callbacks": callbacks}
        self._order = json.dumps(order)

    def answers(self) -> list[dict[str, Any]]:
        """What the worker says of each setting: its needs, or its `error`."""
        try:
            give_order(self._process, self._order)
            assert self._process.stdout is not None
            answers = [json.loads(line) for line in self._process.stdout]
            self._process.stdout.close()
            code = self._process.wait()
        except BaseException:  # Ctrl-C, for example: nobody reads what the worker would say
            self._process.kill()
            self._process.wait()
            raise
        if len(answers) < len(self._runs):
            run = self._runs[len(answers)]
            where = f"setting {run.setting}" if run.setting else "the settings"
            raise ConfigError(
                f"checking {where} did not end: {describe_exit(code)}, without an error of its own"
            )
        return answers

    def wait(self) -> list[SettingNeeds]:
        """The needs of each setting; a `ConfigError` names the first setting that could not start."""
        answers = list(zip(self._runs, self.answers(), strict=True))
        errors = {
            run.setting: answer["error"].splitlines()[0]
            for run, answer in answers
            if "error" in answer
        }
        if errors:
            setting, error = next(iter(errors.items()))
            is_common = len(errors) == len(answers) > 1 and len({*errors.values()}) == 1
            if not setting or is_common:
                raise ConfigError(error)
            more = f" ({len(errors) - 1} more of {len(answers)} settings wrong)"
            raise ConfigError(f"setting {setting}: {error}{more if len(errors) > 1 else ''}")
        settings: dict[str, list[str]] = {}
        for run, answer in answers:
            for warning in answer["warnings"]:
                settings.setdefault(warning, []).append(run.setting)
        for warning, names in settings.items():
            where = "" if len(names) == len(answers) else f" (settings {', '.join(names)})"
            tell(f"{warning}{where}")
        return [
            SettingNeeds(run.setting, answer["num_threads"], answer["memory_bytes"])
            for run, answer in answers
        ]
