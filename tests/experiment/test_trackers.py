"""Trackers: Weights & Biases and MLflow get the lines of metrics.jsonl, also over resumes, and never disturb a run."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import warm
from conftest import TESTS, small_config
from run_tools import StopAt

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.loggers import MlflowSettings
from rl_training.experiment.logs import read_metrics
from rl_training.experiment.tracking import tracking
from rl_training.experiment.tracking.tracker import Outcome, Row
from rl_training.experiment.tracking.wandb_tracker import _records
from rl_training.plugins import gate
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import run_training
from rl_training.runtime.trainer import TrainerState
from rl_training.runtime.workflows import resume_training
from rl_training.studies.launching.study import Study


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        importlib.util.find_spec(name) is None, reason=f"{name} is not installed"
    )


NEEDS_WANDB, NEEDS_MLFLOW = needs("wandb"), needs("mlflow")
OFFLINE = {"wandb": {"mode": "offline"}}
RUN: dict[str, Any] = {"total_timesteps": 128, "log_interval": 16, "checkpoint_interval": 64}
FREQUENT = {"train_frequency": 2, "gradient_steps": 1}
Rows = list[tuple[int, dict[str, float]]]


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server of the user's, and no retries."""
    for name in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setattr(gate, "_servers", set())


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of MLflow: making its tables takes seconds."""
    from mlflow.tracking import MlflowClient

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def store(tmp_path: Path, empty_store: Path) -> Path:
    """The database that runs in `tmp_path` use by default."""
    return Path(shutil.copy(empty_store, tmp_path / "mlflow.db"))


def mlflow_runs(store: Path) -> list[Any]:
    """The tracked runs, oldest first."""
    client = mlflow_client(store)
    experiment = client.get_experiment_by_name("rl-training")
    if experiment is None:
        return []
    return list(
        client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])
    )


def mlflow_client(store: Path) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=f"sqlite:///{store}")


def mlflow_rows(store: Path, run: Any) -> Rows:
    """Every value that the database has, by step; one that it has twice fails."""
    rows: dict[int, dict[str, float]] = {}
    for name in run.data.metrics:
        for metric in mlflow_client(store).get_metric_history(run.info.run_id, name):
            assert name not in rows.setdefault(metric.step, {}), (
                f"{name} twice at step {metric.step}"
            )
            rows[metric.step][name] = metric.value
    return sorted(rows.items())


def wandb_records(run_dir: Path, kind: str) -> list[Any]:
    """Records of one kind in wandb's files of a run, oldest first."""
    from wandb.proto.wandb_internal_pb2 import Record

    files = sorted(
        (run_dir / "wandb").glob("offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime
    )
    records = [Record.FromString(data) for path in files for data in _records(path.read_bytes())]
    return [getattr(record, kind) for record in records if record.WhichOneof("record_type") == kind]


def wandb_rows(run_dir: Path) -> Rows:
    rows: Rows = []
    for history in wandb_records(run_dir, "history"):
        values = {
            item.key or ".".join(item.nested_key): json.loads(item.value_json)
            for item in history.item
        }
        rows.append(
            (history.step.num, {name: value for name, value in values.items() if name[0] != "_"})
        )
    return rows


def file_rows(run_dir: Path) -> Rows:
    lines = read_metrics(run_dir / "metrics.jsonl")
    found = [{name: value for name, value in line.items() if value is not None} for line in lines]
    return [(line["global_step"], line) for line in found]


def assert_tracked(rows: Rows, run_dir: Path) -> None:
    """The tracker has each line once; it may have more, as the last line of a process that was interrupted."""
    assert max(Counter(step for step, _ in rows).values()) == 1
    tracked = dict(rows)
    for step, line in file_rows(run_dir):
        assert {name: tracked[step][name] for name in line} == line


def metadata(run_dir: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((run_dir / "metadata.json").read_text())
    return values


class At(Callback):
    """Does something when a line of a step is logged."""

    def __init__(self, step: int, action: Any) -> None:
        self.step, self.action = step, action

    def on_log(self, trainer: TrainerState, metrics: Any) -> None:
        if trainer.global_step == self.step:
            self.action()


class InterruptWithin(Callback):
    """A signal between a step and its update."""

    def __init__(self, step: int) -> None:
        self.step, self.is_sent = step, False

    def on_collect_end(self, trainer: TrainerState, result: Any) -> None:
        if trainer.global_step == self.step and not self.is_sent:
            self.is_sent = True
            signal.raise_signal(signal.SIGTERM)


class CrashError(Exception):
    pass


def crash() -> None:
    raise CrashError


class TestConfiguration:
    def test_none_leaves_the_metrics_alone(self, tmp_path: Path) -> None:
        run_dir = run_training(small_config("ppo", tmp_path, loggers=[])).run_dir
        assert not (run_dir / "tensorboard").exists()
        assert (run_dir / "metrics.jsonl").exists()

    @pytest.mark.parametrize(
        ("given", "kept"),
        [
            (["wandb", "mlflow"], ("wandb", "mlflow")),
            ([{"wandb": None}, {"mlflow": {}}], ("wandb", "mlflow")),
            (
                [{"wandb": {"project": "p", "mode": "offline", "group": None}}],
                ({"wandb": {"project": "p", "mode": "offline"}},),
            ),
            ([MlflowSettings(experiment="e")], ({"mlflow": {"experiment": "e"}},)),
        ],
    )
    def test_one_form_is_kept_and_read_again(self, given: Any, kept: Any) -> None:
        config = TrainConfig(algo="ppo", env_id="CartPole-v1", loggers=given)
        assert config.loggers == kept
        assert config.replace(seed=3).loggers == kept
        assert TrainConfig(**json.loads(config.model_dump_json())) == config

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ("wandb", "should be a list, such as"),
            (
                ["wanddb"],
                "unknown logger 'wanddb' in 'loggers' of the configuration: did you mean 'wandb'?",
            ),
            (["comet"], "known: mlflow, tensorboard, wandb"),
            (
                [{"wandb": {"projct": "p"}}],
                "unknown key 'projct' for logger wandb: did you mean 'project'?",
            ),
            ([{"wandb": {"mode": "of"}}], "bad value 'of' for 'mode' of logger wandb"),
            ([{"wandb": "p"}], "bad value 'p' for logger wandb: should be a mapping"),
            ([{"wandb": {}, "mlflow": {}}], "one name with its settings"),
            (["wandb", OFFLINE], "has 'wandb' twice"),
            ([{"tensorboard": {"dir": "x"}}], "unknown key 'dir' for logger tensorboard"),
            ([{"mlflow": {"tracking_uri": "https://me:secret@host"}}], "holds a password"),
        ],
    )
    def test_a_mistake_is_named(self, given: Any, words: str) -> None:
        with pytest.raises(ConfigError) as caught:
            TrainConfig(algo="ppo", env_id="CartPole-v1", loggers=given)
        assert words in str(caught.value)

    @pytest.mark.parametrize("name", ["wandb", "mlflow"])
    def test_a_missing_extra_is_named_before_anything_is_created(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(
            ConfigError, match=rf'logger {name} needs {name}: pip install "rl-training\[{name}\]"'
        ):
            run_training(small_config("ppo", tmp_path / "runs", loggers=[name]))
        assert not (tmp_path / "runs").exists()


@NEEDS_WANDB
@NEEDS_MLFLOW
class TestTrackedRuns:
    def test_the_trackers_have_the_lines_the_settings_and_the_end(
        self, tmp_path: Path, store: Path
    ) -> None:
        config = small_config("ppo", tmp_path, **RUN, tags=("first", "try"))
        plain = run_training(config, run_suffix="plain").run_dir
        run_dir = run_training(
            config.replace(loggers=[OFFLINE, "mlflow"]), run_suffix="tracked"
        ).run_dir
        assert (run_dir / "metrics.jsonl").read_bytes() == (plain / "metrics.jsonl").read_bytes()
        (run,) = mlflow_runs(store)
        assert mlflow_rows(store, run) == wandb_rows(run_dir) == file_rows(run_dir)
        assert run.info.status == "FINISHED"
        assert run.info.run_name == run_dir.name
        assert run.data.params["seed"] == "1"
        assert run.data.params["algo_kwargs.clip_coef"] == "0.2"
        assert run.data.tags["tags"] == "first, try"
        assert run.data.tags["versions.torch"] == metadata(run_dir)["versions"]["torch"]
        assert [record.exit_code for record in wandb_records(run_dir, "exit")] == [0]
        first = wandb_records(run_dir, "run")[0]
        assert (first.run_id, first.project, first.display_name) == (
            metadata(run_dir)["tracking"]["wandb"],
            "rl-training",
            run_dir.name,
        )
        assert list(first.tags) == ["first", "try"]

    def test_a_crashed_run_goes_on_as_the_same_tracked_run(
        self, tmp_path: Path, store: Path
    ) -> None:
        config = small_config("ppo", tmp_path, **RUN, loggers=["mlflow", OFFLINE])
        with pytest.raises(CrashError):
            run_training(config, run_suffix="crashed", callbacks=[At(112, crash)])
        (run_dir,) = tmp_path.glob("*crashed")
        ids = metadata(run_dir)["tracking"]
        (run,) = mlflow_runs(store)
        assert (run.info.status, run.data.tags["stop_reason"]) == ("FAILED", "CrashError: ")
        assert len(file_rows(run_dir)) > len([row for row in file_rows(run_dir) if row[0] <= 64])
        resume_training(run_dir, total_timesteps=160)
        assert metadata(run_dir)["tracking"] == ids
        (run,) = mlflow_runs(store)
        assert run.info.status == "FINISHED"
        assert run.data.tags["changed.total_timesteps"] == "160"
        assert_tracked(mlflow_rows(store, run), run_dir)
        assert_tracked(wandb_rows(run_dir), run_dir)
        assert {record.run_id for record in wandb_records(run_dir, "run")} == {ids["wandb"]}

    def test_two_lines_of_one_step_are_joined(self, tmp_path: Path, store: Path) -> None:
        class Stop:
            def on_log(self, trainer: TrainerState, metrics: Any) -> None:
                if trainer.global_step == 80:
                    trainer.request_stop("enough")

        config = small_config(
            "ppo", tmp_path, **RUN, loggers=["mlflow", OFFLINE], algo_kwargs={"eval_interval": 64}
        )
        run_dir = run_training(config, callbacks=[Stop()]).run_dir
        *before, (first_step, first), (second_step, second) = file_rows(run_dir)
        assert first_step == second_step == 80
        assert "eval_return_mean" in second.keys() - first.keys()
        joined = [*before, (80, {**second, **first})]
        (run,) = mlflow_runs(store)
        assert run.data.tags["stop_reason"] == "enough"
        assert mlflow_rows(store, run) == wandb_rows(run_dir) == joined
        resume_training(run_dir)
        (run,) = mlflow_runs(store)
        assert_tracked(mlflow_rows(store, run), run_dir)
        assert_tracked(wandb_rows(run_dir), run_dir)

    def test_an_interrupted_run_is_killed_for_the_trackers_until_it_is_resumed(
        self, tmp_path: Path, store: Path
    ) -> None:
        config = small_config(
            "dqn", tmp_path, **RUN, loggers=["mlflow", OFFLINE], algo_kwargs=FREQUENT
        )
        run_dir = run_training(config, callbacks=[InterruptWithin(80)]).run_dir
        closing = file_rows(run_dir)[-1]
        (run,) = mlflow_runs(store)
        assert (run.info.status, run.data.tags["status"]) == ("KILLED", "interrupted")
        assert run.data.tags["stop_reason"] == "interrupted by SIGTERM"
        warm.wait_until(
            lambda: wandb_records(run_dir, "exit")
        )  # written by a process of wandb's own
        assert [record.exit_code for record in wandb_records(run_dir, "exit")] == [255]
        resume_training(run_dir)
        (run,) = mlflow_runs(store)
        assert run.info.status == "FINISHED"
        assert mlflow_rows(store, run) == wandb_rows(run_dir) == file_rows(run_dir)
        assert dict(file_rows(run_dir))[80]["gradient_steps"] > closing[1]["gradient_steps"]
        assert [record.exit_code for record in wandb_records(run_dir, "exit")] == [255, 0]


@NEEDS_MLFLOW
class TestContinuing:
    def test_repeated_lines_that_differ_begin_another_tracked_run(
        self, tmp_path: Path, store: Path
    ) -> None:
        config = small_config("ppo", tmp_path, **RUN, loggers=["mlflow"])
        with pytest.raises(CrashError):
            run_training(config, callbacks=[At(112, crash)])
        (run_dir,) = tmp_path.glob("ppo*")
        (before,) = mlflow_runs(store)
        tracked_before = mlflow_rows(store, before)
        resume_training(run_dir, changes={"algo_kwargs": {"learning_rate": 0.01}})
        old, new = mlflow_runs(store)
        assert mlflow_rows(store, old) == tracked_before
        assert mlflow_rows(store, new) == file_rows(run_dir)
        assert new.data.tags["mlflow.parentRunId"] == old.info.run_id
        assert new.data.tags["rl_training.id"] == metadata(run_dir)["tracking"]["mlflow"]

    def test_a_run_that_a_callback_ended_within_a_step_is_extended_as_the_same_tracked_run(
        self, tmp_path: Path, store: Path
    ) -> None:
        config = small_config("dqn", tmp_path, **RUN, loggers=["mlflow"], algo_kwargs=FREQUENT)
        run_dir = run_training(config, callbacks=[StopAt(80, "collect")]).run_dir
        closing = file_rows(run_dir)[-1]
        resume_training(run_dir)
        (run,) = mlflow_runs(store)
        rows = dict(mlflow_rows(store, run))
        assert rows.pop(80) == closing[1] != dict(file_rows(run_dir))[80]
        assert rows == {step: line for step, line in file_rows(run_dir) if step != 80}

    def test_a_tracker_that_is_added_on_resume_gets_all_lines_and_the_run_stays_exact(
        self, tmp_path: Path, store: Path
    ) -> None:
        config = small_config("ppo", tmp_path, **RUN)
        whole = run_training(config, run_suffix="whole").run_dir
        run_dir = run_training(
            config, run_suffix="stopped", callbacks=[StopAt(80, "update")]
        ).run_dir
        assert "tracking" not in metadata(run_dir)
        resume_training(run_dir, changes={"loggers": ["mlflow"]})
        assert metadata(run_dir)["exactness"] == "exact"
        assert (run_dir / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
        (run,) = mlflow_runs(store)
        assert mlflow_rows(store, run) == file_rows(run_dir)

    def test_a_fork_is_another_tracked_run_that_names_its_parent(
        self, tmp_path: Path, store: Path
    ) -> None:
        uri = f"sqlite:///{store}"
        config = small_config(
            "ppo", tmp_path, **RUN, loggers=[{"mlflow": {"tracking_uri": uri, "name": "mine"}}]
        )
        parent_dir = run_training(config, callbacks=[StopAt(80, "update")]).run_dir
        fork_dir = resume_training(parent_dir, output_dir=tmp_path / "forks").run_dir
        parent, fork = mlflow_runs(store)
        assert parent.data.tags["status"] == "stopped"
        assert fork.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert fork.data.tags["parent_run"] == parent_dir.name
        assert fork.info.run_name == "mine"
        assert mlflow_rows(store, fork) == file_rows(fork_dir)

    def test_a_checkpoint_does_not_choose_where_data_is_sent(
        self, tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        uri = f"sqlite:///{store}"
        loggers = [{"mlflow": {"tracking_uri": uri}}]
        run_dir = run_training(
            small_config("ppo", tmp_path, **RUN, loggers=loggers), callbacks=[StopAt(80, "update")]
        ).run_dir
        gate._servers.clear()  # as in another process
        with pytest.raises(ConfigError, match="a checkpoint does not choose where data is sent"):
            resume_training(run_dir)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        resume_training(run_dir, total_timesteps=96)
        monkeypatch.delenv("MLFLOW_TRACKING_URI")
        gate._servers.clear()
        resume_training(run_dir, total_timesteps=128, changes={"loggers": loggers})
        (run,) = mlflow_runs(store)
        assert_tracked(mlflow_rows(store, run), run_dir)

    def test_runs_of_a_study_are_grouped_by_its_name(self, tmp_path: Path, store: Path) -> None:
        uri = f"sqlite:///{store}"
        base = small_config("ppo", tmp_path, **RUN, loggers=[{"mlflow": {"tracking_uri": uri}}])
        Study(base, seeds=[0, 1], name="pair", output_dir=tmp_path / "studies").run(jobs=2)
        runs = mlflow_runs(store)
        assert [run.data.tags["group"] for run in runs] == ["pair", "pair"]
        assert {run.data.params["seed"] for run in runs} == {"0", "1"}
        for run in runs:
            run_dir = Path(run.data.tags["folder"])
            assert mlflow_rows(store, run) == file_rows(run_dir)


class FailingTracker:
    """Raises at one of its calls."""

    last_step, place = -1, ""

    def __init__(self, event: str) -> None:
        self.event = event
        self._reach("start")

    def log(self, rows: Sequence[Row]) -> None:
        self._reach("log")

    def finish(self, outcome: Outcome) -> None:
        self._reach("finish")

    def _reach(self, event: str) -> None:
        if event == self.event:
            raise OSError("No space left on device")


@pytest.fixture(scope="module")
def plain_metrics(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """`metrics.jsonl` of a run without trackers."""
    run_dir = run_training(small_config("ppo", tmp_path_factory.mktemp("plain"), **RUN)).run_dir
    return (run_dir / "metrics.jsonl").read_bytes()


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    return lambda: [
        line for line in capsys.readouterr().err.splitlines() if "goes on without it" in line
    ]


class TestFailures:
    @NEEDS_MLFLOW
    @pytest.mark.parametrize("event", ["start", "log", "finish"])
    def test_a_tracker_that_raises_is_reported_once_and_changes_nothing(
        self,
        event: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        plain_metrics: bytes,
        told: Any,
    ) -> None:
        monkeypatch.setitem(
            tracking.TRACKERS, MlflowSettings, lambda settings, run: FailingTracker(event)
        )
        run_dir = run_training(small_config("ppo", tmp_path, **RUN, loggers=["mlflow"])).run_dir
        assert (run_dir / "metrics.jsonl").read_bytes() == plain_metrics
        assert metadata(run_dir)["status"] == "finished"
        message = "mlflow failed, and the run goes on without it: OSError: No space left on device"
        assert told() == [message]
        assert (run_dir / "run.log").read_text().count(message) == 1

    @NEEDS_MLFLOW
    @pytest.mark.parametrize(
        "uri", ["http://127.0.0.1:9", "sqlite:////nowhere/at/all.db", "no-such-scheme://x"]
    )
    def test_an_unreachable_store_changes_nothing(
        self, uri: str, tmp_path: Path, plain_metrics: bytes, told: Any
    ) -> None:
        loggers = [{"mlflow": {"tracking_uri": uri}}]
        run_dir = run_training(small_config("ppo", tmp_path, **RUN, loggers=loggers)).run_dir
        assert (run_dir / "metrics.jsonl").read_bytes() == plain_metrics
        assert len(told()) == 1

    @NEEDS_MLFLOW
    def test_a_store_that_breaks_in_the_middle_is_completed_by_a_resume(
        self, tmp_path: Path, store: Path, told: Any
    ) -> None:
        aside = tmp_path / "aside.db"
        config = small_config("ppo", tmp_path, **RUN, loggers=["mlflow"])

        def wait_and_break() -> None:
            deadline = time.monotonic() + 60
            while not any("global_step" in run.data.metrics for run in mlflow_runs(store)):
                assert time.monotonic() < deadline, "the tracker has not logged anything"
                time.sleep(0.05)
            shutil.copy(store, aside)
            store.write_bytes(b"damaged" * 1000)

        run_dir = run_training(config, callbacks=[At(48, wait_and_break)]).run_dir
        assert len(told()) == 1
        shutil.copy(aside, store)
        resume_training(run_dir, total_timesteps=160)
        (run,) = mlflow_runs(store)
        assert run.info.status == "FINISHED"
        assert_tracked(mlflow_rows(store, run), run_dir)

    @NEEDS_WANDB
    def test_without_a_login_wandb_is_reported_and_asks_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain_metrics: bytes, told: Any
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("NETRC", str(tmp_path / "none"))
        monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
        run_dir = run_training(small_config("ppo", tmp_path, **RUN, loggers=["wandb"])).run_dir
        assert (run_dir / "metrics.jsonl").read_bytes() == plain_metrics
        assert len(told()) == 1


def test_the_example_of_the_documentation_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (TESTS.parent / "docs" / "tracking.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "tracking.md", "exec"), {})
    (run_dir,) = (tmp_path / "runs").iterdir()
    scored = [
        (step, line["eval_return_mean"])
        for step, line in file_rows(run_dir)
        if "eval_return_mean" in line
    ]
    written = [line.split(",") for line in (tmp_path / "scores.csv").read_text().splitlines()]
    assert [(int(step), float(score)) for _, step, score in written] == scored
