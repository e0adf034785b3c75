"""What `make demo` and `make test` install, and when they install it again (nothing is run: `make -n`)."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import TESTS

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
STAMPS = {"torch": ".installed-torch", "package": ".installed-package", "dev": ".installed-dev"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copy(TESTS.parent / "Makefile", tmp_path)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1000, 1000))
    (tmp_path / ".venv").mkdir()
    return tmp_path


def stamp(project: Path, time: int, *names: str) -> None:
    for name in names:
        path = project / ".venv" / STAMPS[name]
        path.touch()
        os.utime(path, (time, time))


def installs(project: Path, target: str) -> list[str]:
    """What pip would be told to install."""
    answer = subprocess.run(
        ["make", "-n", target], cwd=project, capture_output=True, text=True, check=True
    )
    lines = [line for line in answer.stdout.splitlines() if "pip install" in line]
    assert all("--quiet" not in line and "-c constraints.txt" in line for line in lines)
    return [line.split()[-1].strip('"') for line in lines]


def test_the_demo_installs_no_tools_of_development(project: Path) -> None:
    assert installs(project, "demo") == ["torch", ".[plot]"]


def test_demo_then_test(project: Path) -> None:
    stamp(project, 2000, "torch", "package")
    assert installs(project, "demo") == []
    assert installs(project, "test") == [".[dev]"]


def test_test_then_demo(project: Path) -> None:
    assert installs(project, "test") == ["torch", ".[dev]"]
    stamp(project, 2000, "torch", "package", "dev")
    assert installs(project, "demo") == installs(project, "test") == []


@pytest.mark.parametrize(
    ("changed", "for_demo", "for_test"),
    [
        ("pyproject.toml", [".[plot]"], [".[dev]"]),
        ("constraints.txt", ["torch", ".[plot]"], ["torch", ".[dev]"]),
    ],
)
def test_a_changed_file_is_installed_again(
    project: Path, changed: str, for_demo: list[str], for_test: list[str]
) -> None:
    stamp(project, 2000, "torch", "package", "dev")
    os.utime(project / changed, (3000, 3000))
    assert (installs(project, "demo"), installs(project, "test")) == (for_demo, for_test)
    stamp(project, 4000, "torch", "package")
    assert (installs(project, "demo"), installs(project, "test")) == ([], [".[dev]"])
