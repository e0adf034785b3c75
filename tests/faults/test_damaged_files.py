"""Files that a crash, a disk or a transfer has damaged: one named error, or the state as it was, bit-exact."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoint_tools import bit_flips, make_run, truncations
from conftest import algorithms_for_faults
from run_tools import assert_equal, assert_same_end

from rl_training.cli import main
from rl_training.errors import CheckpointError, ConfigError, RLTrainingError
from rl_training.experiment.checkpointing import (
    CheckpointState,
    load_checkpoint,
    resolve_checkpoint,
)
from rl_training.experiment.logs import read_metrics
from rl_training.runtime.trainer import TrainResult
from rl_training.runtime.workflows import load_algorithm, plan_resume, resume_training
from rl_training.views.plotting import plot_learning_curve

ALGOS = algorithms_for_faults()
FLIPS = {"manifest.json": 120, "last": 60, "best": 60}
DAMAGED_PER_ALGORITHM = 500
"""At least so many damaged files are read for every algorithm."""


@pytest.fixture(scope="module", params=ALGOS)
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of each algorithm, never changed."""
    return make_run(request.param, tmp_path_factory.mktemp("original"))


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    """A copy of it whose checkpoints share no files."""
    return Path(shutil.copytree(original, tmp_path / "run"))


def damages(data: bytes, name: str) -> Iterator[bytes]:
    """Many ways in which a file of that name could have been damaged."""
    yield from (cut for cut in truncations(data, min(16, len(data))))
    yield from bit_flips(data, FLIPS.get(name, 60))


def unreadable(data: bytes) -> tuple[bytes, ...]:
    """Texts that no parser reads."""
    return b"", data[: len(data) // 2], b"\xff\xfe", b"[" * 100_000


def put(path: Path, data: bytes) -> None:
    """Replace a file by another of that name; one that is mapped into memory stays as it is."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def assert_same_state(one: CheckpointState, other: CheckpointState) -> None:
    assert_equal(vars(one), vars(other))


def is_refused(
    read: Callable[[], CheckpointState], expected: CheckpointState, named: str, fallback: Path
) -> bool:
    """Whether reading is refused, in the one right way; if it is not, what is read must be what was written."""
    problem: CheckpointError | None = None
    try:
        assert_same_state(read(), expected)
    except CheckpointError as error:
        problem = error
    if problem is not None:
        assert named in str(problem)
        assert problem.fallback == fallback
        assert str(fallback) in str(problem)
    return problem is not None


def test_every_file_of_a_checkpoint_can_be_damaged_without_harm(run: Path) -> None:
    last = resolve_checkpoint(run)
    older = run / "checkpoints" / "step_000000000064"
    expected = load_checkpoint(last)
    count = refused = 0
    names = sorted(path.name for path in last.iterdir())
    assert {
        "manifest.json",
        "algorithm.safetensors",
        "buffer.safetensors",
        "trainer.safetensors",
    } <= set(names)
    for name in names:
        whole = (last / name).read_bytes()
        for damaged in damages(whole, name):
            put(last / name, damaged)
            count += 1
            # Of a manifest nothing but white space is left unsigned.
            is_plain = name == "manifest.json" and _has_same_json(damaged, whole)
            assert is_refused(lambda: load_checkpoint(run), expected, name, older) is not is_plain
            refused += not is_plain
        (last / name).unlink()
        assert is_refused(lambda: load_checkpoint(last), expected, name, older)
        put(last / name, whole)
    for name in ("last", "best"):
        pointer = run / "checkpoints" / name
        meant = load_checkpoint(pointer)
        for damaged in damages(pointer.read_bytes(), name):
            with _replaced(pointer, damaged):
                count += 1
                refused += is_refused(lambda: load_checkpoint(pointer), meant, name, last)  # noqa: B023
    assert count >= DAMAGED_PER_ALGORITHM
    assert refused > 0.9 * count


def _has_same_json(damaged: bytes, whole: bytes) -> bool:
    try:
        return json.loads(damaged) == json.loads(whole)
    except ValueError:
        return False


@contextlib.contextmanager
def _replaced(path: Path, data: bytes) -> Iterator[None]:
    """The file has other content inside the block."""
    before = path.read_bytes()
    put(path, data)
    try:
        yield
    finally:
        put(path, before)


def test_a_policy_is_read_whatever_happened_to_the_replay(run: Path) -> None:
    last = resolve_checkpoint(run)
    for path in [last / "buffer.safetensors", *last.glob("replay_*")]:
        path.write_bytes(b"")
    load_algorithm(run)
    with pytest.raises(CheckpointError, match="is damaged"):
        plan_resume(run)


@pytest.mark.parametrize(
    "command", [["eval"], ["resume", "--total-timesteps", "128"]], ids=["eval", "resume"]
)
def test_the_command_line_names_the_damaged_file(
    run: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    last = resolve_checkpoint(run)
    for name in ("manifest.json", "algorithm.safetensors", "trainer.safetensors"):
        whole = (last / name).read_bytes()
        for damaged in (truncations(whole, 4)[2], bit_flips(whole, 3)[2]):
            with _replaced(last / name, damaged):
                assert main([*command, "--checkpoint", str(run)]) == 2
                lines = capsys.readouterr().err.strip().splitlines()
                assert len(lines) == 1
                assert lines[0].startswith("error: ")
                assert name in lines[0]
                assert "step_000000000064' is intact" in lines[0]


@pytest.mark.parametrize(
    "name", ["manifest.json", "algorithm.safetensors", "trainer.safetensors", "last"]
)
def test_falling_back_ends_where_the_undisturbed_run_ended(
    original: Path, run: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    last = resolve_checkpoint(run)
    path = run / "checkpoints" / "last" if name == "last" else last / name
    path.write_bytes(path.read_bytes()[:-20])
    if name == "last":
        shutil.rmtree(last)
    assert main(["resume", "--checkpoint", str(run)]) == 2
    assert "add --fall-back to resume from that one" in capsys.readouterr().err
    assert main(["resume", "--checkpoint", str(run), "--fall-back"]) == 0
    assert "resuming from the checkpoint of step 64 instead" in capsys.readouterr().err
    assert_same_end(_result(run), _result(original))


def _result(run_dir: Path) -> TrainResult:
    return TrainResult(run_dir, resolve_checkpoint(run_dir), {})


def test_if_nothing_is_whole_nothing_is_promised(run: Path) -> None:
    for path in run.glob("checkpoints/step_*/trainer.safetensors"):
        path.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"trainer\.safetensors") as caught:
        resume_training(run, fall_back=True)
    assert caught.value.fallback is None
    assert "is intact" not in str(caught.value)


def test_a_run_goes_on_without_its_metadata(original: Path, run: Path) -> None:
    path = run / "metadata.json"
    whole = path.read_bytes()
    for damaged in (*unreadable(whole), *bit_flips(whole, 2)):
        path.write_bytes(damaged)
        result = resume_training(run / "checkpoints" / "step_000000000064", rewind=True)
        assert_same_end(result, _result(original))


def test_a_run_whose_configuration_is_damaged_says_so_and_goes_on_without_it(
    original: Path, run: Path
) -> None:
    path, older = run / "config.yaml", run / "checkpoints" / "step_000000000064"
    whole = path.read_bytes()
    for damaged in (*unreadable(whole), whole.replace(b"seed: 1", b"seed: 3")):
        path.write_bytes(damaged)
        with pytest.raises(ConfigError, match=r"config\.yaml', or delete it"):
            resume_training(older, rewind=True)
        path.unlink()
        assert_same_end(resume_training(older, rewind=True), _result(original))
        assert path.read_bytes() == whole


def test_a_run_goes_on_after_its_metrics_were_cut(original: Path, run: Path) -> None:
    path = run / "metrics.jsonl"
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for size in (0, 1, len(lines[0]), len(lines[0]) + 7, len(whole) - 1):
        path.write_bytes(whole[:size])
        resume_training(run / "checkpoints" / "step_000000000064", rewind=True)
        metrics = list(read_metrics(path))
        assert metrics[-1] == json.loads(lines[-1])
        assert all(line in [json.loads(text) for text in lines] for line in metrics)


def test_readers_of_metrics_leave_out_a_line_that_is_still_being_written(run: Path) -> None:
    path = run / "metrics.jsonl"
    whole = path.read_bytes()
    ends = [index + 1 for index, byte in enumerate(whole) if byte == ord("\n")]
    for size in range(0, len(whole), 1 + len(whole) // 200):
        path.write_bytes(whole[:size])
        assert len(list(read_metrics(path))) == sum(end <= size for end in ends)
    plot_learning_curve(run)


def test_readers_of_metrics_name_a_damaged_line(run: Path) -> None:
    path = run / "metrics.jsonl"
    whole = path.read_bytes()
    junk = [
        b"\xff\xff\n",
        b"[" * 100_000 + b"\n",
        b"5\n",
        b'{"global_step": "x"}\n',
        b"null\n",
        b"\n",
    ]
    for line in junk:
        path.write_bytes(whole + line)
        with pytest.raises(RLTrainingError, match=r"line \d+ of .*metrics\.jsonl' is damaged"):
            list(read_metrics(path))
    for index, damaged in enumerate(bit_flips(whole, 60)):
        path.write_bytes(damaged)
        _allow_only_named_errors(lambda: list(read_metrics(path)))
        if index < 6:
            _allow_only_named_errors(lambda: plot_learning_curve(run))
    path.write_bytes(b'{"eval_return_std": 1.0}\n{"eval_return_mean": 1.0}\n')
    with pytest.raises(RLTrainingError, match="together with global_step"):
        plot_learning_curve(run)


def _allow_only_named_errors(read: Callable[[], Any]) -> None:
    with contextlib.suppress(RLTrainingError):
        read()
