"""The end of a run, and resuming a run that has ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import small_config

from rl_training.evaluation.evaluator import Evaluator
from rl_training.experiment.checkpoint_folder import CheckpointFolder
from rl_training.experiment.logs import read_metrics
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import run_training
from rl_training.runtime.trainer import TrainerState, TrainResult
from rl_training.runtime.workflows import resume_training


def status_of(run_dir: Path) -> tuple[str, str | None]:
    metadata = json.loads((run_dir / "metadata.json").read_text())
    return metadata["status"], metadata["stop_reason"]


class SetStop(Callback):
    """Sets `should_stop` without a reason."""

    def on_update_end(self, trainer: TrainerState, result: Any) -> None:
        trainer.should_stop = True


def test_a_stop_without_a_reason_is_a_stop(tmp_path: Path) -> None:
    result = run_training(small_config("ppo", tmp_path), callbacks=[SetStop()])
    assert result.metrics["global_step"] == 16
    assert status_of(result.run_dir) == (
        "stopped",
        "a callback set should_stop without giving a reason",
    )
    assert result.stop_reason == "a callback set should_stop without giving a reason"


class FailAtEnd(Callback):
    def on_train_end(self, trainer: TrainerState, result: TrainResult) -> None:
        raise ValueError("no report today")


@pytest.mark.parametrize("eval_interval", [16, 48])
def test_a_run_that_failed_in_on_train_end_reports_the_same_once_resumed(
    tmp_path: Path, eval_interval: int
) -> None:
    config = small_config(
        "ppo", tmp_path, total_timesteps=64, algo_kwargs={"eval_interval": eval_interval}
    )
    whole = run_training(config, run_suffix="whole")
    with pytest.raises(Exception, match="no report today"):
        run_training(config, run_suffix="failed", callbacks=[FailAtEnd()])
    (run_dir,) = tmp_path.glob("*failed")
    assert resume_training(run_dir).metrics == whole.metrics
    assert {"eval_return_mean", "policy_loss"} <= whole.metrics.keys()


@pytest.mark.parametrize(
    ("algo", "total", "num_envs", "settings", "last", "told"),
    [
        ("ppo", 100, 2, {"num_steps": 64, "minibatch_size": 32}, 128, "num_steps 64 x num_envs 2"),
        ("ppo", 120, 2, {"num_steps": 64, "minibatch_size": 32}, 128, None),
        ("dqn", 17, 4, {}, 20, "num_envs 4: lower num_envs"),
        ("dqn", 40, 4, {}, 40, None),
        ("iql", 17, 4, {}, 17, None),
        ("iql", 17, 4, {"online": {"after_updates": 12}}, 20, "num_envs 4"),
    ],
)
def test_a_run_that_ends_late_says_so_and_its_progress_has_the_true_end(
    algo: str,
    total: int,
    num_envs: int,
    settings: dict[str, Any],
    last: int,
    told: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = small_config(
        algo, tmp_path, total_timesteps=total, num_envs=num_envs, algo_kwargs=settings
    )
    assert run_training(config).metrics["global_step"] == last
    said = capsys.readouterr().err
    assert f"step {last}/{last}" in said
    assert (f"WARNING: the run ends at step {last} instead of total_timesteps {total}" in said) == (
        told is not None
    )
    assert (told or "") in said


def test_the_last_step_has_one_line_with_losses_and_evaluation(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "log_interval": 16,
        "checkpoint_interval": 16,
        "algo_kwargs": {"eval_interval": 48},
    }
    short = run_training(
        small_config("ppo", tmp_path, total_timesteps=64, **values), run_suffix="short"
    )
    lines = list(read_metrics(short.run_dir / "metrics.jsonl"))
    assert [line["global_step"] for line in lines] == [16, 32, 48, 64]
    assert {"eval_return_mean", "policy_loss"} <= lines[-1].keys()

    whole = run_training(
        small_config("ppo", tmp_path, total_timesteps=96, **values), run_suffix="whole"
    )
    resume_training(short.run_dir, total_timesteps=96)
    texts = [(run_dir / "metrics.jsonl").read_text() for run_dir in (whole.run_dir, short.run_dir)]
    assert texts[0] == texts[1]


def test_the_best_of_a_fork_is_one_of_its_own_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summarize_all = Evaluator.summarize
    scores = iter([9.0, 1.0, 2.0, 0.0, 2.0, 1.0])

    def summarize(evaluator: Evaluator, *episodes: Any) -> dict[str, float]:
        return {**summarize_all(evaluator, *episodes), "eval_return_mean": next(scores)}

    monkeypatch.setattr(Evaluator, "summarize", summarize)
    config = small_config(
        "ppo",
        tmp_path,
        total_timesteps=64,
        checkpoint_interval=16,
        keep="all",
        algo_kwargs={"eval_interval": 16},
    )
    run_dir = run_training(config).run_dir
    assert CheckpointFolder(run_dir / "checkpoints").best == ("step_000000000016", 9.0)
    fork = resume_training(
        run_dir / "checkpoints" / "step_000000000032", output_dir=tmp_path / "forks"
    )
    assert CheckpointFolder(fork.run_dir / "checkpoints").best == ("step_000000000048", 2.0)
    assert fork.metrics["best_eval_return_mean"] == 2.0


def test_a_resume_reports_lost_lines_of_metrics_and_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small_config(
        "ppo", tmp_path, total_timesteps=64, log_interval=16, algo_kwargs={"eval_interval": 16}
    )
    run_dir = run_training(config).run_dir
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        path = run_dir / name
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    capsys.readouterr()
    resume_training(run_dir, total_timesteps=96)
    said = capsys.readouterr().err
    assert said.count("shorter than at the checkpoint: metrics.jsonl (") == 1
    assert "and evaluations.jsonl (" in said
    assert [line["global_step"] for line in read_metrics(run_dir / "metrics.jsonl")] == [
        16,
        32,
        80,
        96,
    ]
