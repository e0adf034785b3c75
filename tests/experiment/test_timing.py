"""Times of a run: `timing.jsonl` beside `metrics.jsonl`, also after a resume, and the learning rate in each line."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import small_config
from run_tools import StopAt

from rl_training.experiment.logs import PHASES, TIMES, TimingFile, read_metrics
from rl_training.runtime.run import run_training
from rl_training.runtime.workflows import resume_training
from rl_training.studies.groups import RunRecord

RUN: dict[str, Any] = {"total_timesteps": 128, "log_interval": 16, "checkpoint_interval": 32}
LOOPS = ["ppo", "dqn", "iql"]
"""One algorithm of each loop."""


def lines_of(run_dir: Path, name: str = "timing.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / name).read_text().splitlines()]


def steps_of(lines: list[dict[str, Any]]) -> list[int]:
    return [line["global_step"] for line in lines]


def stopped_run(tmp_path: Path, algo: str = "ppo") -> Path:
    """A run that stopped at step 80; its last line was written after its last checkpoint."""
    config = small_config(algo, tmp_path, **RUN, algo_kwargs={"eval_interval": 64})
    return run_training(config, callbacks=[StopAt(80, "update")], run_suffix="stopped").run_dir


@pytest.mark.parametrize("algo", LOOPS)
def test_each_line_of_metrics_has_its_times(tmp_path: Path, algo: str) -> None:
    run_dir = run_training(
        small_config(algo, tmp_path, **RUN, algo_kwargs={"eval_interval": 64})
    ).run_dir
    lines = lines_of(run_dir)
    assert steps_of(lines) == steps_of(lines_of(run_dir, "metrics.jsonl"))
    assert all([*line] == ["global_step", *TIMES] for line in lines)
    for one, other in itertools.pairwise(lines):
        assert all(one[name] <= other[name] for name in ("wall_time", *PHASES))
        steps, seconds = (
            other["global_step"] - one["global_step"],
            other["wall_time"] - one["wall_time"],
        )
        if steps:
            assert other["steps_per_second"] == pytest.approx(steps / seconds, rel=0.01)
    last = lines[-1]
    assert sum(last[name] for name in PHASES) <= last["wall_time"] + 1e-5
    used = {name for name in PHASES if last[name] > 0}
    assert used == {*PHASES} - ({"collect_seconds"} if algo == "iql" else set())


@pytest.mark.parametrize("algo", LOOPS)
def test_a_resumed_run_has_the_same_metrics_and_its_wall_time_continues(
    tmp_path: Path, algo: str
) -> None:
    config = small_config(algo, tmp_path, **RUN, algo_kwargs={"eval_interval": 64})
    whole = run_training(config, run_suffix="whole").run_dir
    run_dir = stopped_run(tmp_path, algo)
    before = lines_of(run_dir)
    assert resume_training(run_dir).run_dir == run_dir
    assert (run_dir / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    lines = lines_of(run_dir)
    assert steps_of(lines) == steps_of(lines_of(run_dir, "metrics.jsonl"))
    num_kept = sum(one == other for one, other in zip(before, lines, strict=False))
    assert 0 < num_kept < len(lines)
    assert lines[:num_kept] == before[:num_kept]
    for one, other in itertools.pairwise(lines):
        assert all(one[name] <= other[name] for name in ("wall_time", *PHASES))
    assert all(line["steps_per_second"] is None or line["steps_per_second"] > 0 for line in lines)


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"\xff\xfe\n" * 20,
        b"[" * 5000 + b"\n",
        b'{"global_step": 16, "wall_time": 1e999}\n',
        b"{}\n" * 3,
    ],
    ids=["absent", "empty", "not text", "nested", "infinite", "without steps"],
)
def test_a_run_without_its_times_resumes_in_silence(
    tmp_path: Path, content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = stopped_run(tmp_path)
    told = capsys.readouterr()
    path = run_dir / "timing.jsonl"
    path.unlink() if content is None else path.write_bytes(content)
    resume_training(run_dir)
    said = capsys.readouterr()
    assert "timing" not in told.err + said.err + said.out
    lines = lines_of(run_dir)
    assert steps_of(lines) == steps_of(lines_of(run_dir, "metrics.jsonl"))
    known = [line["wall_time"] for line in lines if line["wall_time"] is not None]
    assert 0 < len(known) < len(lines)
    assert known == sorted(known)


def test_times_are_kept_up_to_the_first_damaged_line(tmp_path: Path) -> None:
    run_dir = stopped_run(tmp_path)
    texts = (run_dir / "timing.jsonl").read_text().splitlines(keepends=True)
    (run_dir / "timing.jsonl").write_text("".join([*texts[:2], "{\n", *texts[3:]]))
    resume_training(run_dir)
    lines = lines_of(run_dir)
    assert lines[:2] == [json.loads(text) for text in texts[:2]]
    assert (lines[2]["global_step"], lines[2]["wall_time"]) == (48, None)
    assert lines[-1]["wall_time"] >= lines[1]["wall_time"]


def test_a_fork_begins_its_own_times(tmp_path: Path) -> None:
    run_dir = stopped_run(tmp_path)
    fork = resume_training(run_dir, output_dir=tmp_path / "fork").run_dir
    assert steps_of(lines_of(fork)) == steps_of(lines_of(fork, "metrics.jsonl"))
    assert min(steps_of(lines_of(fork))) > 64


def test_the_rate_after_a_resume_counts_from_the_checkpoint(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"global_step": 10}\n')
    timing = TimingFile(tmp_path / "timing.jsonl", metrics, first_step=14)
    timing.write({"global_step": 14})
    timing.write({"global_step": 15})
    timing.close()
    first, second, third = lines_of(tmp_path)
    assert first == {"global_step": 10, **dict.fromkeys(TIMES)}
    assert second["steps_per_second"] is None  # no step since the resume
    assert third["steps_per_second"] > 0


@pytest.mark.parametrize(("algo", "steps_before"), [("ppo", 16), ("dqn", 0), ("iql", 1)])
def test_the_learning_rate_is_that_of_the_last_update(
    tmp_path: Path, algo: str, steps_before: int
) -> None:
    """PPO's updates use the progress at the start of their rollout, and an offline update that before its step."""
    schedule = {"kind": "linear", "start": 1e-2, "end": 0.0}
    config = small_config(algo, tmp_path, **RUN, algo_kwargs={"learning_rate": schedule})
    lines = list(read_metrics(run_training(config).run_dir / "metrics.jsonl"))
    expected = [1e-2 * (1 - (line["global_step"] - steps_before) / 128) for line in lines]
    assert [line["learning_rate"] for line in lines] == pytest.approx(expected)
    fixed = small_config(algo, tmp_path, **RUN, algo_kwargs={"learning_rate": 0.003})
    lines = list(read_metrics(run_training(fixed).run_dir / "metrics.jsonl"))
    assert {line["learning_rate"] for line in lines} == {0.003}


def test_records_join_times_with_metrics(tmp_path: Path) -> None:
    run_dir = run_training(small_config("ppo", tmp_path, **RUN)).run_dir
    record, lines = RunRecord(run_dir), lines_of(run_dir)
    assert record.curve("wall_time") == (steps_of(lines), [line["wall_time"] for line in lines])
    rated = [line for line in lines if line["steps_per_second"] is not None]
    assert record.curve("steps_per_second") == (
        steps_of(rated),
        [line["steps_per_second"] for line in rated],
    )
    (run_dir / "timing.jsonl").write_text(
        "{}\n" + json.dumps({"global_step": 1, "wall_time": 3.0}) + "\n"
    )
    assert RunRecord(run_dir).curve("wall_time") == ([], [])
    assert len(RunRecord(run_dir).metrics) == len(lines)
