"""`evaluations.jsonl`: the episodes of each evaluation, the same in a resumed run as in an uninterrupted one."""

from __future__ import annotations

import json
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest
from conftest import small_config
from run_tools import StopAt

from rl_training.errors import CheckpointError
from rl_training.experiment.logs import read_metrics
from rl_training.runtime.run import run_training
from rl_training.runtime.run_utils import RunSeeds
from rl_training.runtime.workflows import resume_training

CHANGES: dict[str, Any] = {
    "total_timesteps": 192,
    "checkpoint_interval": 64,
    "eval_episodes": 3,
    "algo_kwargs": {"eval_interval": 64},
}


def evaluations(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "evaluations.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    return run_training(small_config("ppo", tmp_path_factory.mktemp("whole"), **CHANGES)).run_dir


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def test_a_line_has_the_episodes_of_one_evaluation(whole: Path) -> None:
    lines = evaluations(whole)
    logged = [line for line in read_metrics(whole / "metrics.jsonl") if "eval_return_mean" in line]
    assert (
        [line["global_step"] for line in lines]
        == [line["global_step"] for line in logged]
        == [64, 128, 192]
    )
    for line, metrics in zip(lines, logged, strict=True):
        assert list(line) == ["global_step", "seeds", "returns", "lengths"]
        assert line["seeds"] == RunSeeds.from_seed(1).eval_seeds(3)
        assert statistics.fmean(line["returns"]) == pytest.approx(metrics["eval_return_mean"])
        assert line["lengths"] == line["returns"], "a step of CartPole is worth 1"


def test_it_has_successes_where_episodes_report_them(tmp_path: Path) -> None:
    result = run_training(small_config("her", tmp_path, total_timesteps=40, eval_episodes=2))
    line = evaluations(result.run_dir)[-1]
    assert statistics.fmean(line["successes"]) == result.metrics["eval_success_rate"]


@pytest.mark.parametrize(
    ("event", "step"), [("collect", 50), ("update", 77), ("eval", 64), ("eval", 192)]
)
def test_a_resumed_run_has_the_same_lines(
    event: str, step: int, whole: Path, tmp_path: Path
) -> None:
    stopped = run_training(
        small_config("ppo", tmp_path / "parts", **CHANGES), callbacks=[StopAt(step, event)]
    )
    before = (stopped.run_dir / "evaluations.jsonl").read_text()
    resume_training(stopped.run_dir)
    assert before, "the stopped run had been evaluated"
    assert evaluations(stopped.run_dir) == evaluations(whole)


def test_an_earlier_checkpoint_takes_the_later_lines_away(whole: Path, copy: Path) -> None:
    resume_training(copy / "checkpoints" / "step_000000000128", rewind=True)
    assert evaluations(copy) == evaluations(whole)


def test_a_new_folder_has_the_new_lines_only(copy: Path, tmp_path: Path) -> None:
    second = resume_training(copy, total_timesteps=208, output_dir=tmp_path / "b")
    assert [line["global_step"] for line in evaluations(second.run_dir)] == [208]


def test_a_link_in_its_place_is_refused(copy: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (copy / "evaluations.jsonl").unlink()
    (copy / "evaluations.jsonl").symlink_to(tmp_path / "mine")
    with pytest.raises(CheckpointError, match="is a link"):
        resume_training(copy, total_timesteps=256)
    assert (tmp_path / "mine").read_text() == "mine"
