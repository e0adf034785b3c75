"""The learning curves of the documentation, benchmarks/curves.py: every algorithm has them, drawn and in words."""

from __future__ import annotations

import importlib
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from conftest import TESTS

from rl_training.experiment.registry import BUILT_IN_CLASSES

FOLDER = TESTS.parent / "benchmarks"
LARGEST_PICTURE = 60_000
ALGOS = sorted(BUILT_IN_CLASSES.values())


@pytest.fixture
def curves(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("curves")


def test_every_algorithm_has_curves(curves: Any) -> None:
    assert curves.algorithms() == ALGOS


@pytest.mark.parametrize("algo", ALGOS)
def test_both_sides_are_measured_at_the_same_number_of_points(curves: Any, algo: str) -> None:
    for panel in curves.panels(algo):
        assert len(panel.ours) >= 3
        assert len(panel.others) >= 3
        runs = [*panel.ours.values(), *panel.others.values()]
        assert len({len(run) for run in runs}) == 1
        for run in runs:
            steps, returns = zip(*run, strict=True)
            assert list(steps) == sorted(set(steps))
            assert steps[-1] == pytest.approx(runs[0][-1][0], rel=0.01)
            assert all(math.isfinite(value) for value in returns)


@pytest.mark.parametrize("algo", sorted({*ALGOS} - {"ppo", "sac", "td3"}))
def test_runs_have_the_length_of_their_task(curves: Any, algo: str) -> None:
    (panel,) = curves.panels(algo)
    assert {run[-1][0] for run in panel.ours.values()} == {curves.TASKS[algo].total}


@pytest.mark.parametrize("algo", ALGOS)
def test_a_picture_is_small_names_both_sides_and_has_the_same_bytes_each_time(
    curves: Any, algo: str, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    curves.draw(algo, first)
    curves.draw(algo, second)
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_size < LARGEST_PICTURE
    text = " ".join(ElementTree.parse(first).getroot().itertext())
    for panel in curves.panels(algo):
        assert panel.env in text
        assert f"{panel.name}, {len(panel.ours)} seeds" in text
        assert f"{panel.peer}, {len(panel.others)} seeds" in text


@pytest.mark.parametrize("algo", ALGOS)
def test_the_figures_of_a_caption_equal_the_data(curves: Any, algo: str) -> None:
    caption = curves.caption(algo)
    said = re.findall(r"(-?[\d.]+) ± ([\d.]+) \((\d+) seeds\)", caption)
    verdicts = re.findall(r" is (ahead|behind) by|: (equal)", caption)
    panels = curves.panels(algo)
    assert len(said) == 2 * len(panels)
    for index, panel in enumerate(panels):
        sides = [
            np.array([run[-1][1] for run in side.values()]) for side in (panel.ours, panel.others)
        ]
        for scores, (mean, deviation, count) in zip(
            sides, said[2 * index : 2 * index + 2], strict=True
        ):
            assert float(mean) == pytest.approx(scores.mean(), abs=0.051)
            assert float(deviation) == pytest.approx(scores.std(ddof=1), abs=0.051)
            assert int(count) == len(scores)
        ahead = sides[0].mean() - sides[1].mean()
        expected = "equal" if abs(ahead) < 0.05 else "ahead" if ahead > 0 else "behind"
        assert "".join(verdicts[index]) == expected


@pytest.mark.parametrize("algo", ALGOS)
def test_the_page_has_the_picture_and_the_caption(curves: Any, algo: str) -> None:
    page = FOLDER.parent / "docs" / "algorithms" / f"{algo}.md"
    text = page.read_text()
    assert curves.caption(algo) in text
    assert f"](../images/curves/{algo}.svg)" in text
    drawn = " ".join(
        ElementTree.parse(page.parent / f"../images/curves/{algo}.svg").getroot().itertext()
    )
    for panel in curves.panels(algo):
        assert f"{panel.name}, {len(panel.ours)} seeds" in drawn


def test_a_caption_says_that_we_are_behind_and_by_how_much(curves: Any) -> None:
    facts = (
        "CartPole-v1",
        "environment steps",
        "dqn/cartpole",
        ("double=false",),
        None,
        "",
        20,
        "Peer 1.0",
    )
    ours = {"0": [[100, 10.0]], "1": [[100, 14.0]]}
    panel = curves.Panel(*facts, ours, {"0": [[100, 20.0]], "1": [[100, 26.0]]})
    # variances 8 and 18, two seeds each: the error is the root of 4 + 9
    assert curves.verdict(panel) == (
        "after 100 environment steps rl_training has 12.0 ± 2.8 (2 seeds) and Peer 1.0 has 23.0 ± 4.2 (2 seeds):"
        " rl_training is behind by 11.0, more than the standard error of the difference, 3.6"
    )


def test_importing_it_imports_neither_torch_nor_matplotlib() -> None:
    code = "import sys, curves; curves.caption('ppo'); print('torch' in sys.modules, 'matplotlib' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=FOLDER, capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == ["False", "False"]
