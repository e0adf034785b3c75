"""Early stopping, intervals and the progress of schedules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import small_config

from rl_training.errors import ConfigError
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.runtime.controls import EarlyStoppingCallback, EarlyStoppingConfig, Interval
from rl_training.runtime.run import run_training
from rl_training.runtime.session import TrainingProgress
from rl_training.runtime.trainer import TrainerState
from rl_training.runtime.workflows import resume_training


def feed(
    callback: EarlyStoppingCallback, scores: list[float], first_step: int = 10
) -> tuple[int | None, str | None]:
    """Evaluate every ten steps; returns the step at which a stop was requested, and the reason."""
    state = TrainerState(None, Path())  # type: ignore[arg-type]
    for index, score in enumerate(scores):
        state.global_step = first_step + 10 * index
        callback.on_eval_end(state, {callback.config.metric: score})
        if state.should_stop:
            return state.global_step, state.stop_reason
    return None, None


def test_it_stops_after_patience_evaluations_without_improvement() -> None:
    step, reason = feed(EarlyStoppingCallback(EarlyStoppingConfig(patience=2)), [1, 3, 2, 3, 9])
    assert step == 40
    assert reason == "eval_return_mean has not improved on 3 for 2 evaluations"


def test_an_improvement_must_exceed_min_delta() -> None:
    small_gains = [1.0, 1.4, 1.8]
    assert feed(EarlyStoppingCallback(EarlyStoppingConfig(patience=2)), small_gains) == (None, None)
    assert (
        feed(EarlyStoppingCallback(EarlyStoppingConfig(patience=1, min_delta=0.5)), small_gains)[0]
        == 20
    )


def test_mode_min_minimizes_the_metric() -> None:
    config = EarlyStoppingConfig(
        metric="eval_length_mean", mode="min", patience=1, target_value=2.0
    )
    assert (
        feed(EarlyStoppingCallback(config), [5, 4, 3, 2])[1]
        == "eval_length_mean 2 reached the target 2"
    )
    assert feed(EarlyStoppingCallback(config), [5, 6])[0] == 20


def test_it_never_stops_before_min_steps() -> None:
    config = EarlyStoppingConfig(patience=1, min_steps=40, target_value=100.0)
    assert feed(EarlyStoppingCallback(config), [500, 1, 1, 500])[0] == 40


def test_its_count_is_restored() -> None:
    first = EarlyStoppingCallback(EarlyStoppingConfig(patience=3))
    feed(first, [5, 4, 4])
    second = EarlyStoppingCallback(EarlyStoppingConfig(patience=3))
    second.load_state_dict(first.state_dict())
    assert feed(second, [4])[0] == 10


def test_an_unknown_metric_is_named() -> None:
    callback = EarlyStoppingCallback(EarlyStoppingConfig(metric="eval_retrun_mean"))
    with pytest.raises(ConfigError, match="did you mean 'eval_return_mean'"):
        callback.on_eval_end(TrainerState(None, Path()), {"eval_return_mean": 1.0})  # type: ignore[arg-type]


@pytest.mark.parametrize("algo", ["ppo", "dqn", "sac"])
def test_early_stopping_in_the_configuration_stops_the_run(algo: str, tmp_path: Path) -> None:
    controls = {"eval_interval": 64, "early_stopping": {"target_value": -1e6, "min_steps": 100}}
    result = run_training(small_config(algo, tmp_path, total_timesteps=1000, algo_kwargs=controls))
    assert result.metrics["global_step"] == 128
    assert "reached the target" in result.stop_reason
    metadata = json.loads((result.run_dir / "metadata.json").read_text())
    assert (metadata["status"], metadata["stop_reason"]) == ("stopped", result.stop_reason)
    assert (
        load_checkpoint(result.run_dir).trainer_state["session"]["stop_reason"]
        == result.stop_reason
    )


def test_an_early_stopped_run_can_be_extended(tmp_path: Path) -> None:
    controls = {"eval_interval": 64, "early_stopping": {"target_value": -1e6}}
    first = run_training(small_config("ppo", tmp_path, total_timesteps=256, algo_kwargs=controls))
    assert first.metrics["global_step"] == 64
    assert resume_training(first.run_dir, total_timesteps=320).metrics["global_step"] == 128


def test_an_interval_counts_crossings_however_large_the_steps_are() -> None:
    by_one, by_seven = Interval(10), Interval(10)
    assert [step for step in range(1, 41) if by_one.is_due(step)] == [10, 20, 30, 40]
    assert [step for step in range(7, 50, 7) if by_seven.is_due(step)] == [14, 21, 35, 42]


def test_an_interval_continues_from_its_saved_step() -> None:
    before, after, finer = Interval(10), Interval(10), Interval(5)
    before.is_due(25)
    after.load_state_dict(before.state_dict())
    finer.load_state_dict(before.state_dict())
    assert not after.is_due(29)
    assert after.is_due(30)
    assert finer.is_due(25)


def test_progress_never_jumps_when_a_run_is_extended() -> None:
    training_progress = TrainingProgress(100)
    assert [training_progress.progress(step) for step in (0, 25, 100, 120)] == [0.0, 0.25, 1.0, 1.0]
    longer = training_progress.extended(50, 150)
    assert [longer.progress(step) for step in (50, 100, 150)] == [0.5, 0.75, 1.0]
    assert training_progress.extended(50, 100) is training_progress
    assert TrainingProgress(100).extended(100, 200).progress(150) == 1.0
