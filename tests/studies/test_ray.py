"""Studies on a real Ray cluster of three nodes on this machine: workers, nodes, raylets and drivers are killed."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import HELPERS, TRY_ALL
from run_tools import contents
from study_tools import (
    BASE,
    SETTINGS,
    assert_replaces_a_suspended_worker,
    assert_same_study,
    live_workers,
    start,
    train_alone,
    write_study,
)
from warm import finish, wait_until

from rl_training.cli import main
from rl_training.studies.catalog import read_run
from rl_training.studies.launching.study import Study

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc"),
]


class RayCluster:
    """A cluster in a process of its own: a head that trains nothing, and nodes with a processor each."""

    def __init__(self, home: Path) -> None:
        (home / ".ray").mkdir()
        (home / ".ray" / "auth_token").write_text("0123456789abcdef" * 4)
        self.variables = {"HOME": str(home), "RAY_TMPDIR": str(home), "RAY_AUTH_MODE": "token"}
        self._process = subprocess.Popen(
            [sys.executable, str(HELPERS / "ray_cluster.py")],
            env={**os.environ, **self.variables, "RAY_USAGE_STATS_ENABLED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        self.address: str = json.loads(self._process.stdout.readline())

    def tell(self, *words: str) -> Any:
        """Give a command to the cluster's process; returns its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End the cluster."""
        self._process.communicate(timeout=60)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    home = Path(tempfile.mkdtemp(prefix="rl", dir="/tmp"))  # a short path: sockets are made in it
    cluster = RayCluster(home)
    cluster.tell("add")
    cluster.tell("add")
    yield cluster
    cluster.close()
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The runs of the small study, each trained by itself."""
    folder = tmp_path_factory.mktemp("alone")
    return train_alone(Study.from_file(write_study(folder, seeds="0,1")).runs(), folder / "runs")


def run_on(
    cluster: RayCluster, path: Path, *words: str, **environment: str
) -> subprocess.Popen[str]:
    """Start `study run` on the cluster."""
    command = ["study", "run", str(path), "--backend", "ray", "--address", cluster.address, *words]
    return start(command, path.parent, **cluster.variables, **environment)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def raylet_of(pid: int) -> str:
    """The raylet whose task trains in process `pid`: its child is the Ray worker that started the process."""
    return str(parent_of(parent_of(pid)))


def finished_runs(study: Study) -> dict[Path, dict[str, bytes]]:
    """The contents of the finished runs."""
    folders = [run.run_dir for run in study.runs() if run.run_dir.is_dir()]
    return {folder: contents(folder) for folder in folders if read_run(folder).state == "finished"}


def kill_worker(cluster: RayCluster, pid: int, driver: Any) -> None:
    os.kill(pid, signal.SIGKILL)


def kill_ray_worker(cluster: RayCluster, pid: int, driver: Any) -> None:
    os.kill(parent_of(pid), signal.SIGKILL)


def remove_node(cluster: RayCluster, pid: int, driver: Any) -> None:
    cluster.tell("remove", raylet_of(pid))
    cluster.tell("add")


def kill_raylet(cluster: RayCluster, pid: int, driver: Any) -> None:
    cluster.tell("kill", raylet_of(pid))
    cluster.tell("add")


def kill_driver(cluster: RayCluster, pid: int, driver: Any) -> None:
    driver.kill()
    finish(driver)


KILLS = [[kill_worker, kill_raylet], [kill_ray_worker, remove_node, kill_driver]]
LONG = pytest.mark.skipif(not TRY_ALL, reason="takes half a minute: RL_TRAINING_TEST_ALL=1 runs it")


@pytest.mark.parametrize("kills", [[], *KILLS] if TRY_ALL else KILLS[:1], ids=len)
def test_whatever_dies_the_study_ends_as_if_nothing_had(
    kills: list[Any], cluster: RayCluster, tmp_path: Path, alone: dict[str, Path]
) -> None:
    """Takes more than ten seconds: a real cluster, whose processes are killed and replaced."""
    path = write_study(tmp_path, seeds="0,1")
    study = Study.from_file(path)
    driver = run_on(cluster, path)
    untouched: dict[Path, dict[str, bytes]] = {}
    for kill in kills:
        pid = wait_until(lambda: list(live_workers(study).values()), driver)[0]
        untouched |= finished_runs(study)
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            kill(cluster, pid, driver)
        if kill is kill_driver:
            driver = run_on(cluster, path)
    code, out, error = finish(driver)
    assert code == 0, error
    assert "4 of 4 runs finished" in out
    assert {folder: contents(folder) for folder in untouched} == untouched
    assert_same_study(study, alone)


@LONG
def test_a_suspended_worker_is_replaced_and_wakes_up_without_a_trace(
    cluster: RayCluster, tmp_path: Path, alone: dict[str, Path]
) -> None:
    path = write_study(tmp_path, seeds="0")
    driver = run_on(cluster, path, RL_TRAINING_STALE_SECONDS="2")
    assert_replaces_a_suspended_worker(driver, Study.from_file(path), alone)


@LONG
def test_on_a_node_of_another_kind_a_run_is_approximate_unless_it_is_kept_among_like_ones(
    cluster: RayCluster, tmp_path: Path
) -> None:
    path = write_study(
        tmp_path, vary=SETTINGS[:1], seeds="0", base={**BASE, "total_timesteps": 20_000}
    )
    study = Study.from_file(path)
    driver = start(["study", "run", str(path), "--jobs", "1"], tmp_path)
    wait_until(
        lambda: live_workers(study) and read_run(study.runs()[0].run_dir).has_checkpoint, driver
    )
    driver.send_signal(signal.SIGINT)
    assert finish(driver)[0] == 130
    cluster.tell("clear")
    cluster.tell("add", json.dumps({"ATEN_CPU_CAPABILITY": "default"}))
    try:
        code, out, error = finish(run_on(cluster, path, "--like-nodes"))
        assert code == 1, error
        assert (
            "given up: seed 0: no node of the cluster is like the one that trained it so far" in out
        )
        code, out, error = finish(run_on(cluster, path))
        assert code == 0, error
        assert "finished at step 20,000" in error
        assert "(approximate)" in error
        assert "approximate, not bit-exact: seed 0" in out
    finally:
        cluster.tell("clear")
        cluster.tell("add")
        cluster.tell("add")


def test_a_folder_that_a_node_does_not_share_is_named(cluster: RayCluster, tmp_path: Path) -> None:
    path = write_study(tmp_path)
    (tmp_path / "runs").mkdir()
    executable = shutil.which("unshare")
    join = f"{sys.executable} -m ray.scripts.scripts start --address={cluster.address} --num-cpus=1 --block"
    hide = f"mount -t tmpfs none {tmp_path / 'runs'} && exec {join}"
    if (
        executable is None
        or subprocess.run([executable, "-m", "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("mount namespaces cannot be made here")
    before = set(
        cluster.tell("nodes")["answer"]
    )  # one that a test before has killed may still be among them
    node = subprocess.Popen(
        [executable, "-m", "sh", "-c", hide],
        env={**os.environ, **cluster.variables},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: set(cluster.tell("nodes")["answer"]) - before)
        code, _, error = finish(run_on(cluster, path))
        assert code == 2, error
        assert "is not the same folder on" in error
        assert list((tmp_path / "runs").iterdir()) == []
    finally:
        os.killpg(node.pid, signal.SIGTERM)
        node.wait()


class TestBadInput:
    def refuse(self, capsys: pytest.CaptureFixture[str], *words: str) -> str:
        assert (
            main(["train", "ppo", "CartPole-v1", "--seeds", "0..1", "--backend", "ray", *words])
            == 2
        )
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert error.startswith("error: ")
        assert not Path("runs").exists()
        return error

    @pytest.fixture(autouse=True)
    def _elsewhere(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

    def test_nobody_answers(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "no Ray cluster at --address 127.0.0.1:1" in self.refuse(
            capsys, "--address", "127.0.0.1:1"
        )

    @pytest.mark.parametrize("address", ["nonsense", "ray://host:10001", "host:port", ":"])
    def test_what_is_no_address(self, address: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert f"bad value '{address}' for --address" in self.refuse(capsys, "--address", address)

    def test_ray_is_not_installed(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "ray", None)
        assert 'needs Ray: pip install "rl-training[ray]"' in self.refuse(capsys)
