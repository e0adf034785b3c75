"""The examples run as they are written, with fewer steps, and show what they say."""

from __future__ import annotations

import ast
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import warm
from conftest import TESTS

EXAMPLES = TESTS.parent / "examples"
NOTEBOOK = EXAMPLES / "notebook.ipynb"
SCRIPTS = sorted(path for path in EXAMPLES.glob("*.py") if not path.stem.endswith("_reference"))
NUMBER = r"(-?[\d.]+)"


def start(name: str, folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start an example in an empty working directory beside the folder of its runs."""
    place = folder / "here"
    place.mkdir(exist_ok=True)
    command = [str(EXAMPLES / f"{name}.py"), "--output-dir", str(folder / "runs"), *words]
    return warm.start(command, place, warm.SCRIPT, workers=True, COLUMNS="80")


def run(name: str, folder: Path, *words: str) -> str:
    """What an example prints; it must succeed, and write into the folder of its runs only."""
    process = start(name, folder, *words)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert list((folder / "here").iterdir()) == []
    return out


def row(out: str, name: str) -> list[float]:
    """The numbers in the line that begins with a name."""
    (line,) = re.findall(rf"^\s*{re.escape(name)}\b(.*)$", out, re.MULTILINE)
    return [float(number) for number in re.findall(NUMBER, line)]


def test_an_environment_of_ones_own_is_checked_and_learned(tmp_path: Path) -> None:
    out = run("custom_environment", tmp_path, "--total-timesteps", "8000")
    assert "ok resume: exact" in out
    worst_rule = min(row(out, f"fill up to {level}")[0] for level in (4, 8, 12))
    assert row(out, "ppo")[0] > worst_rule
    assert row(out, "dqn")[0] > worst_rule


def test_a_network_of_ones_own_is_saved_and_loaded(tmp_path: Path) -> None:
    out = run("custom_network", tmp_path, "--total-timesteps", "1024")
    found = re.search(rf"return {NUMBER} before saving, {NUMBER} after loading", out)
    assert found
    assert found[1] == found[2]


def test_an_algorithm_of_ones_own_passes_the_checks_and_trains_beside_its_parent(
    tmp_path: Path,
) -> None:
    out = run("own_algorithm", tmp_path, "--total-timesteps", "1500")
    assert "check_algorithm: " in out
    assert len(row(out, "DQN")) == len(row(out, "Munchausen")) == 3
    assert len(list((tmp_path / "runs").glob("munchausen_dqn__*"))) == 3


def test_callbacks_print_stop_and_write_twice(tmp_path: Path) -> None:
    for count in (1, 2):
        out = run("callbacks", tmp_path, "--total-timesteps", "4096")
        assert re.search(r"^step [\d,]+: a training episode of \d+ steps$", out, re.MULTILINE)
        assert out.count("stopped: ") in (1, 2)
        assert len(list((tmp_path / "runs").glob("*/mine.csv"))) == count
    lines = [path.read_text().splitlines() for path in (tmp_path / "runs").glob("*/mine.csv")]
    steps = [[int(line.split(",")[0]) for line in each[1:]] for each in lines]
    assert (
        steps[0] == steps[1] == sorted(set(steps[0]))
    )  # the header once, no step twice, also across the two stops


def test_offline_training_goes_on_online(tmp_path: Path) -> None:
    out = run("offline_from_file", tmp_path, "--total-timesteps", "1000")
    assert "10,000 transitions" in out
    assert "errors: 0" in out
    names = ("data", "bc", "td3_bc", "fine-tuned")
    assert all(-2000.0 < row(out, name)[0] < 0.0 for name in names)
    assert row(out, "td3_bc") != row(out, "fine-tuned")


def test_a_study_is_compared_and_continued(tmp_path: Path) -> None:
    first = run("study_and_comparison", tmp_path, "--total-timesteps", "600", "--seeds", "2")
    again = run("study_and_comparison", tmp_path, "--total-timesteps", "600", "--seeds", "2")
    verdict = first[first.index("learning_rate=0.001  ") :]
    assert again.endswith(verdict)
    assert "not distinguishable" in verdict  # two seeds each cannot decide
    assert "started" not in again
    assert Path(verdict.rpartition("report: ")[2].strip()).is_file()


def test_memory_finds_the_door(tmp_path: Path) -> None:
    out = run("masks_and_memory", tmp_path, "--total-timesteps", "5000")
    without, remembering = (int(share) for share in re.findall(r"(\d+)%", out))
    assert remembering >= 80
    assert without <= 65  # two doors are open: half of the guesses are right


def test_control_c_ends_an_example(tmp_path: Path) -> None:
    process = start("masks_and_memory", tmp_path, "--total-timesteps", "1000000")
    deadline = time.monotonic() + 120
    while not list((tmp_path / "runs").glob("*/metrics.jsonl")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert err.splitlines()[-1] == "stopped"
    assert list((tmp_path / "runs").glob("*/checkpoints/last"))


def test_every_script_has_a_test_and_a_line_in_the_table() -> None:
    tested = set(re.findall(r'run\("(\w+)"', Path(__file__).read_text()))
    assert {path.stem for path in SCRIPTS} == tested
    table = (EXAMPLES / "README.md").read_text()
    assert [path.name for path in (*SCRIPTS, NOTEBOOK) if f"({path.name})" not in table] == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_opens_with_its_command_and_stays_short(path: Path) -> None:
    text = path.read_text()
    description = ast.get_docstring(ast.parse(text)) or ""
    assert f"\npython examples/{path.name}\n" in f"{description}\n"
    assert len(text.splitlines()) <= 100


class TestNotebook:
    """The notebook is stored without outputs, and runs from its first cell to its last."""

    def read(self) -> Any:
        nbformat = pytest.importorskip("nbformat")
        notebook = nbformat.read(NOTEBOOK, as_version=4)
        nbformat.validate(notebook)
        return notebook

    def test_it_is_stored_without_outputs(self) -> None:
        for cell in self.read().cells:
            assert not cell.get("outputs")
            assert cell.get("execution_count") is None

    def test_it_runs(self, tmp_path: Path) -> None:
        for name in ("nbclient", "ipykernel", "matplotlib", "pygame"):
            pytest.importorskip(name)
        from nbclient import NotebookClient

        notebook = self.read()
        cells = {cell.id: cell for cell in notebook.cells}
        setup = cells["setup"]
        assert "TOTAL_TIMESTEPS = 30_000" in setup.source
        setup.source = setup.source.replace("30_000", "2_048")
        NotebookClient(
            notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
        ).execute()
        text = {
            name: "".join(output.get("text", "") for output in cell.get("outputs", ()))
            for name, cell in cells.items()
        }
        assert re.search(r"^[\d.]+ ± [\d.]+$", text["evaluate"], re.MULTILINE)
        assert "the same scores: True" in text["load"]
        assert "equal actions: 100.0%" in text["export"]
        for name in ("curve", "episode"):
            assert any("image/png" in output.get("data", {}) for output in cells[name].outputs)
        assert list(tmp_path.iterdir()) == []
