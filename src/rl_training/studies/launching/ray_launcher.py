"""Starts the runs of a study on the nodes of a Ray cluster (Ray Core); each is the same process as on one machine."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError, RLTrainingError, install_extra
from rl_training.experiment.checkpoint_folder import last_metadata
from rl_training.files import removed_if_empty, translate_write_errors
from rl_training.studies.launching.launchers import (
    ClusterOptions,
    Exit,
    describe_exit,
    give_order,
    start_worker,
)
from rl_training.studies.launching.orders import Order
from rl_training.studies.plan import PlannedRun

SECONDS_TO_REACH = 5.0
SECONDS_TO_PROBE = 120.0
SECONDS_BETWEEN_LOOKS = 2.0
SECONDS_BETWEEN_POLLS = 0.1


def train_on_node(text: str, folder: str) -> int:
    """The Ray task: train one run in a worker process of this node; returns its exit code."""
    with contextlib.suppress(OSError):
        os.chdir(folder)
    process = start_worker()
    try:
        give_order(process, text)
        # Polled: a blocking wait would hold back the task's cancellation.
        while (code := process.poll()) is None:
            time.sleep(SECONDS_BETWEEN_POLLS)
        return code
    finally:
        if process.poll() is None:
            process.kill()


def probe_node(folder: str, token: str, with_kind: bool) -> dict[str, Any]:
    """The Ray task that looks at a node: whether it shares the folder, and the machine that exact bits depend on."""
    own = Path(folder) / token
    is_shared = (own / "driver").is_file()
    if is_shared:
        (own / uuid.uuid4().hex).touch()
    kind: Mapping[str, str] = {}
    if with_kind:
        import torch

        from rl_training.runtime.execution import machine_facts

        kind = machine_facts(torch.device("cpu"))
    return {"host": socket.gethostname(), "is_shared": is_shared, "kind": dict(kind)}


ENDS = {
    "TaskUnschedulableError": "its node was gone before it started",
    "NodeDiedError": "its node was lost",
    "WorkerCrashedError": "its Ray worker was killed",
}
"""The end of a task in words, by the name of Ray's error."""


@dataclass
class RayHandle:
    """A Ray task that trains a run."""

    ray: Any
    task: Any
    node: str | None
    gone: set[str | None]
    """Nodes that turned out to be gone, though the cluster still listed them."""
    is_over: bool = False

    def poll(self) -> Exit | None:
        """How it ended; None while it has not."""
        exceptions = self.ray.exceptions
        try:
            ready, _ = self.ray.wait([self.task], timeout=0)
            if not ready:
                return None
            self.is_over = True
            code = self.ray.get(self.task)
            return Exit(code, describe_exit(code))
        except exceptions.RayTaskError as error:
            return Exit(1, f"its Ray task failed: {str(error).strip().splitlines()[-1]}")
        except exceptions.RayError as error:
            self.is_over = True
            was_started = not isinstance(error, exceptions.TaskUnschedulableError)
            if not was_started or isinstance(error, exceptions.NodeDiedError):
                self.gone.add(self.node)
            name = type(error).__name__
            return Exit(None, ENDS.get(name, f"{name} of Ray"), was_started)

    def kill(self) -> None:
        """Cancel the task, as far as Ray reaches it."""
        with contextlib.suppress(self.ray.exceptions.RayError, ValueError):
            self.ray.cancel(self.task, force=True)


@dataclass
class RayLauncher:
    """Starts runs as Ray tasks, each on the node with the most room."""

    options: ClusterOptions
    output_dir: Path
    jobs: int | None = None
    threads_per_run: int = 1
    may_queue: bool = True
    _handles: list[RayHandle] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Join or start the cluster, and check that all nodes share the folder."""
        self._ray = import_ray()
        self._is_ours = connect(self._ray, self.options.address)
        self._kinds: dict[str, Mapping[str, str]] = {}
        self._gone: set[str | None] = set()
        self._next_look, self._alive = 0.0, list[dict[str, Any]]()
        try:
            self._probe()
        except BaseException:
            self.close()
            raise

    @property
    def cpus_per_run(self) -> float:
        """Processors reserved for a run."""
        return (
            self.threads_per_run if self.options.cpus_per_run is None else self.options.cpus_per_run
        )

    def capacity(self) -> int:
        """Runs for which the cluster has room, at most `jobs`; nodes may come and go."""
        room = max(1, sum(self._room().values()))
        return min(self.jobs or room, room)

    def can_start(self, run: PlannedRun) -> bool:
        """Whether a node is there on which the run may be trained."""
        return not self.options.like_nodes or bool(self._places(run))

    def start(self, order: Order) -> RayHandle | None:
        """Submit a run to the node with the most free slots.

        Ray itself would go on sending runs to a node that it has not noticed to be lost.
        """
        places = self._places(order.run)
        for handle in self._handles:
            if handle.node in places and not handle.is_over:
                places[handle.node] -= 1
        if self.options.like_nodes and not places:
            return None
        node = max(places, key=lambda name: places[name], default=None)  # None: Ray chooses
        task = self._submit(
            train_on_node,
            (order.text, str(Path.cwd())),
            node,
            num_cpus=self.cpus_per_run,
            num_gpus=self.options.gpus_per_run,
            name=order.run.run_dir.name,
        )
        handle = RayHandle(self._ray, task, node, self._gone)
        self._handles = [*(known for known in self._handles if not known.is_over), handle]
        return handle

    def _submit(
        self,
        function: Callable[..., Any],
        arguments: Iterable[Any],
        node: str | None,
        **options: Any,
    ) -> Any:
        """A task on a node; None: on any."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if node is not None:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=False)
        remote = self._ray.remote(max_calls=1, max_retries=0)(function)
        return remote.options(**options).remote(*arguments)

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        if self._is_ours:
            self._ray.shutdown()

    def _nodes(self) -> list[dict[str, Any]]:
        """The nodes that are alive, asked for every other second."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + SECONDS_BETWEEN_LOOKS
            self._alive = [node for node in self._ray.nodes() if node["Alive"]]
        return self._alive

    def _room(self) -> dict[str, int]:
        """How many runs fit on each node, of those on which any fits."""
        room = {}
        for node in self._nodes():
            resources, counts = node["Resources"], []
            if self.cpus_per_run:
                counts.append(resources.get("CPU", 0) / self.cpus_per_run)
            if self.options.gpus_per_run:
                counts.append(resources.get("GPU", 0) / self.options.gpus_per_run)
            slots = int(min(counts, default=1))
            if slots > 0 and node["NodeID"] not in self._gone:
                room[node["NodeID"]] = slots
        return room

    def _places(self, run: PlannedRun) -> dict[str, int]:
        """The nodes on which a run may be trained, with the runs that fit: those on which it stays exact, if asked."""
        if not self.options.like_nodes:
            return self._room()
        if self._room().keys() - self._kinds.keys():
            self._probe()
        room = self._room()
        saved = last_metadata(run.run_dir).get("machine")  # of the last checkpoint
        return {
            name: room[name]
            for name, kind in self._kinds.items()
            if name in room and (kind == saved or not isinstance(saved, dict))
        }

    def _probe(self) -> None:
        """Look at every node; a `ConfigError` names one that does not share the folder."""
        with shared_token(self.output_dir) as token:
            arguments = str(self.output_dir.absolute()), token.name, self.options.like_nodes
            names = [node["NodeID"] for node in self._nodes()]
            tasks = [self._submit(probe_node, arguments, name, num_cpus=0) for name in names]
            found = {name: self._answer(task) for name, task in zip(names, tasks, strict=True)}
            answers = {name: answer for name, answer in found.items() if answer is not None}
            self._gone |= found.keys() - answers.keys()
            # Each node that saw the folder has put a file into it.
            num_seen = len(list(token.iterdir())) - 1
        apart = [answer["host"] for answer in answers.values() if not answer["is_shared"]]
        if apart or num_seen < len(answers):
            which = (
                f"node {', '.join(sorted(apart))}" if apart else f"{len(answers) - num_seen} nodes"
            )
            raise ConfigError(
                f"'{self.output_dir}' is not the same folder on {which} of the cluster: a run that moves to another"
                " node needs its checkpoints; use a folder that all nodes share"
            )
        self._kinds |= {name: answer["kind"] for name, answer in answers.items()}

    def _answer(self, task: Any) -> dict[str, Any] | None:
        """The answer of a node; None if it was lost since it was listed."""
        exceptions = self._ray.exceptions
        try:
            answer: dict[str, Any] = self._ray.get(task, timeout=SECONDS_TO_PROBE)
        except exceptions.RayTaskError as error:
            reason = str(error).strip().splitlines()[-1]
            raise RLTrainingError(
                f"a node of the Ray cluster cannot run this package: {reason}"
            ) from None
        except exceptions.GetTimeoutError:
            raise RLTrainingError(
                f"a node of the Ray cluster did not answer within {SECONDS_TO_PROBE:.0f} seconds: see its logs"
            ) from None
        except exceptions.RayError:
            return None
        return answer


def import_ray() -> Any:
    """Ray, imported quietly; a `ConfigError` names our extra if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise ConfigError(f"--backend ray needs Ray: {install_extra('ray')}") from None
    return ray


def connect(ray: Any, address: str) -> bool:
    """Join the cluster at `address`, or start one for `local`; returns whether this process has to leave it again."""
    if ray.is_initialized():
        return False
    _check_reachable(address)
    try:
        ray.init(address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(f"there is no Ray cluster at --address {address}: {reason}") from None
    return True


def _check_reachable(address: str) -> None:
    if address in ("auto", "local"):
        return
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or "/" in host:
        raise ConfigError(f"bad value '{address}' for --address: use auto, local or HOST:PORT")
    try:
        socket.create_connection((host, int(port)), SECONDS_TO_REACH).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"there is no Ray cluster at --address {address}: {error}") from None


@contextlib.contextmanager
def shared_token(folder: Path) -> Iterator[Path]:
    """A folder in `folder` with a file of this process, for other nodes to find; removed after the block."""
    token = folder / f".shared-{uuid.uuid4().hex}"
    with removed_if_empty(folder):
        with translate_write_errors(token):
            token.mkdir(parents=True)
            (token / "driver").touch()
        try:
            yield token
        finally:
            shutil.rmtree(token, ignore_errors=True)
