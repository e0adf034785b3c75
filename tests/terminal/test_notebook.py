"""Progress in a notebook: one text that is replaced in place."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
from conftest import small_config

import rl_training
from rl_training import PPO
from rl_training.terminal.progress import NotebookView, make_view
from rl_training.terminal.streams import quieted

CELL = """
from rl_training import PPO
agent = PPO("Acrobot-v1", total_timesteps=1_000, num_steps=10, minibatch_size=10, log_interval=10, eval_interval=100,
            hidden_sizes=[8], eval_episodes=1, env_kwargs={"max_episode_steps": 20}, output_dir="runs")
result = agent.learn()
"""


class Output:
    """A cell's outputs: what `display` showed, and how often each was replaced."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.num_updates = 0

    def display(self, content: dict[str, str], *, raw: bool, display_id: bool) -> Output:
        assert raw
        assert display_id
        self.texts.append(content["text/plain"])
        return self

    def update(self, content: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.num_updates += 1
        self.texts[-1] = content["text/plain"]


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Output:
    """An IPython whose shell has a kernel, as in a notebook."""
    output = Output()
    shell = types.ModuleType("IPython")
    shell.get_ipython = lambda: types.SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    shown = types.ModuleType("IPython.display")
    shown.display = output.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    return output


def test_a_run_has_one_output_and_few_lines(
    cell: Output, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = PPO(small_config("ppo", tmp_path, log_interval=16, algo_kwargs={"eval_interval": 16}))
    result = agent.learn()
    assert len(cell.texts) == 1
    assert cell.num_updates > 0
    assert cell.texts[0].startswith("██████████████████████████████  100%  128/128")
    assert f"eval {result.metrics['eval_return_mean']:.1f}" in cell.texts[0]
    assert capsys.readouterr().err.count("\n") == 1  # the run's folder and device


def test_nothing_is_shown_without_progress(cell: Output, tmp_path: Path) -> None:
    PPO(small_config("ppo", tmp_path), progress=False).learn()
    assert cell.texts == []


def test_a_plain_interpreter_is_no_notebook(cell: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(make_view(), NotebookView)
    with quieted():
        assert not isinstance(make_view(), NotebookView)
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: None)
    assert not isinstance(make_view(), NotebookView)
    monkeypatch.setattr(
        sys.modules["IPython"], "get_ipython", lambda: types.SimpleNamespace()
    )  # a terminal
    assert not isinstance(make_view(), NotebookView)


def test_a_real_kernel_shows_one_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ipykernel")
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    monkeypatch.setenv(
        "PYTHONPATH", ":".join([str(Path(rl_training.__file__).parents[1]), *sys.path])
    )
    notebook: Any = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = notebook.cells[0].outputs
    bars = [output.data["text/plain"] for output in outputs if output.output_type == "display_data"]
    lines = "".join(output.text for output in outputs if output.output_type == "stream")
    assert len(bars) == 1
    assert "100%  1,000/1,000" in bars[0]
    assert lines.count("\n") <= 3, lines
