"""Nothing is lost: a run that is killed again and again ends exactly where one ends that never was."""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import warm
from conftest import HELPERS, TRY_ALL, algorithms_for_faults, small_config
from run_tools import assert_same_end
from warm import finish, wait_until

from rl_training.experiment.checkpoint_folder import list_checkpoints, read_pointer
from rl_training.experiment.checkpointing import resolve_checkpoint, verify_checkpoint
from rl_training.experiment.logs import read_metrics
from rl_training.experiment.registry import Loop, get_algorithm_spec
from rl_training.replay import transitions
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import run_training
from rl_training.runtime.run_utils import serialize_train_config
from rl_training.runtime.trainer import TrainerState, TrainResult
from rl_training.runtime.workflows import resume_training

ALGOS = algorithms_for_faults()
NUM_KILLS_FROM_OUTSIDE = 3 if TRY_ALL else 2
KILLS_OF_EACH = 7
STEPS = 256
RUN: dict[str, Any] = {
    "total_timesteps": STEPS,
    "log_interval": 16,
    "checkpoint_interval": 32,
    "eval_episodes": 1,
    "env_kwargs": {"max_episode_steps": 20},
}
ALGO_KWARGS: dict[Loop, dict[str, Any]] = {Loop.OFF_POLICY: {"buffer_capacity": 100}}
SEGMENT_BYTES = 1 << 10
"""So small that a checkpoint of these runs has segments to link."""
Kill = tuple[str, int]


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "SEGMENT_BYTES", SEGMENT_BYTES)


def plan_of(algo: str) -> list[Kill]:
    """Instants of all kinds; which count they have, and which come again, differs between the algorithms."""
    chance = random.Random(algo)
    online = get_algorithm_spec(algo).loop in (Loop.ON_POLICY, Loop.OFF_POLICY)
    kinds: list[Callable[[], Kill]] = [
        lambda: (
            "collect" if online else "update",
            chance.randint(36, 60) if online else chance.randint(4, 12),
        ),
        lambda: ("file", chance.randint(10, 70)),
        lambda: ("eval", chance.randint(1, 25)),
        lambda: ("update", chance.randint(1, 12)),
        lambda: ("half", chance.randint(3, 16)),
    ]
    return [kinds[index % len(kinds)]() for index in range(KILLS_OF_EACH)]


def launch(order: dict[str, Any], folder: Path, **environment: str) -> Any:
    """Start a process that trains, or goes on training."""
    text = json.dumps({"segment_bytes": SEGMENT_BYTES, **order})
    return warm.start([text], folder, "killed_run:main_of_order", **environment)


class Victim:
    """A run that is continued in one process after the other, with a new folder while it has no checkpoint."""

    def __init__(self, algo: str, folder: Path, **changes: Any) -> None:
        own = {"eval_interval": 64, **ALGO_KWARGS.get(get_algorithm_spec(algo).loop, {})}
        settings = {**RUN, **changes, "algo_kwargs": {**own, **changes.get("algo_kwargs", {})}}
        self.config = small_config(algo, folder / "runs", **settings)
        self.folder = folder
        self.lives = 0
        folder.mkdir()

    @property
    def run_dir(self) -> Path:
        (found,) = self.config.output_dir.glob("*__life*")
        return found

    def live(self, kill: Kill | None = None, **environment: str) -> Any:
        self.lives += 1
        order: dict[str, Any] = {"kill": kill}
        if self.has_checkpoint():
            order["resume"] = str(self.run_dir)
        else:
            shutil.rmtree(self.config.output_dir, ignore_errors=True)
            order |= {"config": serialize_train_config(self.config), "suffix": f"life{self.lives}"}
        return launch(order, self.folder, **environment)

    def has_checkpoint(self) -> bool:
        return any(self.config.output_dir.glob("*/checkpoints/last"))

    def is_running(self) -> bool:
        return bool(json.loads((self.run_dir / "metadata.json").read_text())["status"] == "running")

    def has_new_lines(self) -> bool:
        """Whether the process of this life has written events."""
        return len(list((self.run_dir / "tensorboard").glob("events*"))) >= self.lives

    def die(self, kill: Kill, **environment: str) -> None:
        """Live until the kill, which must come."""
        code, _, error = finish(self.live(kill, **environment))
        assert code == -9, f"{kill} did not come in life {self.lives}: exit code {code}: {error}"
        self.check(kill)

    def check(self, kill: Kill) -> None:
        """What must be true of the folder of a run that was killed."""
        for path in self.config.output_dir.glob("*/checkpoints"):
            if (path / "last").exists():
                resolve_checkpoint(path.parent)
            for checkpoint in list_checkpoints(path):
                verify_checkpoint(checkpoint)
        for path in self.config.output_dir.glob("*/metrics.jsonl"):
            steps = [line["global_step"] for line in read_metrics(path)]
            assert steps == sorted(set(steps)), kill
        assert len(self.leftovers()) <= 1, (kill, self.leftovers())

    def leftovers(self) -> list[Path]:
        return [
            *self.config.output_dir.glob("*/.*"),
            *self.config.output_dir.glob("*/checkpoints/.*"),
        ]

    def end(self) -> TrainResult:
        """Live to the end."""
        code, _, error = finish(self.live())
        assert code == 0, error
        assert self.leftovers() == []
        assert json.loads((self.run_dir / "metadata.json").read_text())["status"] == "finished"
        return TrainResult(self.run_dir, resolve_checkpoint(self.run_dir), {})


def assert_same_run(victim: Victim, folder: Path) -> None:
    """The victim, brought to its end, left what a run in one piece leaves."""
    killed = victim.end()
    whole = run_training(victim.config.replace(output_dir=folder))
    assert_same_end(whole, killed)
    assert_same_folders(whole.run_dir, killed.run_dir)


def steps_in(folder: Path) -> list[str]:
    """The checkpoints by step: one that replaced an earlier state of its step has a revision in its name."""
    return sorted(without_revision(path.name) for path in folder.iterdir())


def without_revision(name: str) -> str:
    return re.sub(r"_r[0-9]+$", "", name)


def assert_same_folders(one: Path, other: Path) -> None:
    """Both keep checkpoints of the same steps, and `last` and `best` name the same."""
    assert {path.name for path in one.iterdir()} == {path.name for path in other.iterdir()}
    checkpoints = one / "checkpoints", other / "checkpoints"
    assert steps_in(checkpoints[0]) == steps_in(checkpoints[1])
    for name in ("last", "best"):
        (target, *score), (other_target, *other_score) = (
            read_pointer(folder / name) for folder in checkpoints
        )
        assert (without_revision(target), score) == (without_revision(other_target), other_score)


@pytest.mark.parametrize("algo", ALGOS if TRY_ALL else ["sac", "iql"])
def test_a_run_killed_again_and_again_ends_as_one_that_never_was(algo: str, tmp_path: Path) -> None:
    victim = Victim(algo, tmp_path / "killed")
    for kill in plan_of(algo):
        victim.die(kill)
    assert_same_run(victim, tmp_path / "whole")


def test_a_run_with_memory_and_masks_is_killed_again_and_again(tmp_path: Path) -> None:
    algo_kwargs = {"memory": {"size": 6, "sequence_length": 8}, "normalize_obs": True}
    env_id = "rl_training.envs.toys:HiddenTarget"
    victim = Victim("ppo", tmp_path / "killed", env_id=env_id, num_envs=2, algo_kwargs=algo_kwargs)
    for kill in (("collect", 43), ("update", 9), ("file", 30), ("eval", 6)):
        victim.die(kill)
    assert_same_run(victim, tmp_path / "whole")


def test_a_run_that_goes_online_is_killed_in_both_stages(tmp_path: Path) -> None:
    stage = {
        "after_updates": 96,
        "learning_starts": 16,
        "train_frequency": 4,
        "buffer_capacity": 100,
    }
    victim = Victim("iql", tmp_path / "killed", algo_kwargs={"online": stage})
    for kill in (("update", 70), ("collect", 9), ("file", 40), ("update", 12), ("half", 9)):
        victim.die(kill)
    assert_same_run(victim, tmp_path / "whole")


@pytest.mark.parametrize(
    ("algo", "first", "every", "kwargs", "status"),
    [
        ("ppo", 1, 1 if TRY_ALL else 7, {}, "finished"),
        ("dqn", 12, 5 if TRY_ALL else 9, {"learning_starts": 8, "buffer_capacity": 30}, "finished"),
        (
            "dqn",
            30,
            2 if TRY_ALL else 9,
            {"learning_starts": 8, "early_stopping": {"target_value": 1.0}},
            "stopped",
        ),
    ],
)
def test_no_operation_on_a_file_is_an_instant_at_which_a_kill_loses_something(
    algo: str, first: int, every: int, kwargs: dict[str, Any], status: str, tmp_path: Path
) -> None:
    """Takes more than ten seconds: a run is killed and resumed at one operation after the other."""
    changes = {
        "total_timesteps": 48,
        "log_interval": 16,
        "checkpoint_interval": 16,
        "eval_episodes": 1,
    }
    algo_kwargs = {"eval_interval": 32, **kwargs}
    env_kwargs = {"max_episode_steps": 20}
    config = small_config(
        algo, tmp_path / "killed", algo_kwargs=algo_kwargs, env_kwargs=env_kwargs, **changes
    )
    order = {"config": serialize_train_config(config), "sweep": [first, every]}
    code, _, error = finish(launch(order, tmp_path))
    assert code == 0, error
    whole = run_training(config.replace(output_dir=tmp_path / "whole"))
    ended = [path.parent.parent for path in (tmp_path / "killed").glob("*/checkpoints/last")]
    assert len(ended) > 5
    for run_dir in ended:
        assert_same_end(whole, TrainResult(run_dir, resolve_checkpoint(run_dir), {}))
        assert_same_folders(whole.run_dir, run_dir)
        metadata = json.loads((run_dir / "metadata.json").read_text())
        assert (metadata["status"], metadata["stop_reason"]) == (status, whole.stop_reason)
    print(f"{algo}: survived a kill at each of {len(ended)} operations on files")


def test_killed_from_outside_at_any_moment(tmp_path: Path) -> None:
    """Takes more than ten seconds: thousands of steps, so that a kill meets the run at any of them."""
    chance = random.Random(5)
    victim = Victim(
        "ppo", tmp_path / "killed", total_timesteps=8000, checkpoint_interval=256, log_interval=64
    )
    for _ in range(NUM_KILLS_FROM_OUTSIDE):
        process = victim.live()
        wait_until(
            lambda: victim.has_checkpoint() and victim.is_running() and victim.has_new_lines(),
            process,
        )
        time.sleep(chance.uniform(0.0, 0.5))
        process.kill()
        code, _, error = finish(process)
        assert code == -9, error
        victim.check(("outside", victim.lives))
    assert_same_run(victim, tmp_path / "whole")


def processes_marked(mark: str) -> list[int]:
    """The processes that have `mark` in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (path / "environ").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")
class TestWorkerProcesses:
    def test_they_end_with_a_killed_run_which_then_goes_on(self, tmp_path: Path) -> None:
        mark = f"RL_TRAINING_TEST={uuid.uuid4()}"
        env_kwargs = {"backend": "async", "max_episode_steps": 20}
        temporary = Path(tempfile.mkdtemp())  # a short path: sockets are made in it
        victim = Victim(
            "ppo", tmp_path / "killed", num_envs=2, total_timesteps=256, env_kwargs=env_kwargs
        )
        for kill in [("collect", 60), ("file", 30)]:
            victim.die(kill, RL_TRAINING_TEST=mark.partition("=")[2], TMPDIR=str(temporary))
            wait_until(lambda: not processes_marked(mark))
        assert list(temporary.glob("rl_training*")) == []
        shutil.rmtree(temporary)
        assert_same_run(victim, tmp_path / "whole")

    def test_they_end_even_from_within_a_step_that_never_ends(self, tmp_path: Path) -> None:
        mark = f"RL_TRAINING_TEST={uuid.uuid4()}"
        changes = {
            "env_id": f"{HELPERS / 'killed_run.py'}:EndlessEnv",
            "num_envs": 2,
            "env_kwargs": {"backend": "async"},
        }
        victim = Victim("ppo", tmp_path / "killed", **changes)
        process = victim.live(RL_TRAINING_TEST=mark.partition("=")[2])
        wait_until(lambda: len(list(tmp_path.glob("killed/endless*"))) == 2, process)
        process.kill()
        assert finish(process)[0] == -9
        wait_until(lambda: not processes_marked(mark))


def test_an_extension_is_not_forgotten_if_the_run_fails_before_its_next_checkpoint(
    tmp_path: Path,
) -> None:
    class Fail(Callback):
        def on_collect_end(self, trainer: TrainerState, result: object) -> None:
            raise ZeroDivisionError

    first, second = (
        run_training(small_config("ppo", tmp_path / name, total_timesteps=64)) for name in "ab"
    )
    with pytest.raises(ZeroDivisionError):
        resume_training(first.run_dir, total_timesteps=128, callbacks=[Fail()])
    extended = resume_training(first.run_dir)
    assert extended.metrics["global_step"] == 128
    assert_same_end(resume_training(second.run_dir, total_timesteps=128), extended)
