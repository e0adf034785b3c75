"""Callbacks: events, their order, state on resume, and requests to stop."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import small_config

from rl_training import PPO
from rl_training.errors import ConfigError
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.runtime.callbacks import EVENTS, Callback, CallbackList
from rl_training.runtime.dqn_trainer import train_dqn
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.sac_trainer import train_sac
from rl_training.runtime.trainer import TrainerState

TRAINERS = {"ppo": train_ppo, "dqn": train_dqn, "sac": train_sac}


class Recorder(Callback):
    """Logs every event."""

    def __init__(self, log: list | None = None, name: str = "") -> None:
        self.log = [] if log is None else log
        self.name = name

    def on_train_start(self, trainer) -> None:
        self._note("train_start", trainer)

    def on_collect_end(self, trainer, result) -> None:
        assert result.steps > 0
        self._note("collect_end", trainer)

    def on_update_end(self, trainer, result) -> None:
        assert result.metrics
        self._note("update_end", trainer)

    def on_eval_end(self, trainer, metrics) -> None:
        assert "eval_return_mean" in metrics
        self._note("eval_end", trainer)

    def on_log(self, trainer, metrics) -> None:
        assert metrics["global_step"] == trainer.global_step
        self._note("log", trainer)

    def on_train_end(self, trainer, result) -> None:
        assert result.checkpoint_path.is_dir()
        self._note("train_end", trainer)

    def _note(self, event: str, trainer: TrainerState) -> None:
        assert isinstance(trainer, TrainerState)
        self.log.append((event, self.name, trainer.global_step))

    @property
    def events(self) -> list[str]:
        return [event for event, *_ in self.log]


@pytest.mark.parametrize("algo", list(TRAINERS))
def test_every_event_arrives_through_the_trainer_function(algo: str, tmp_path: Path) -> None:
    recorder = Recorder()
    TRAINERS[algo](small_config(algo, tmp_path), callbacks=[recorder])
    assert recorder.events[0] == "train_start"
    assert recorder.events[-1] == "train_end"
    assert set(recorder.events) == {
        "train_start",
        "collect_end",
        "update_end",
        "eval_end",
        "log",
        "train_end",
    }
    assert recorder.events.index("collect_end") < recorder.events.index("update_end")
    assert recorder.log[-1][2] == 128


def test_manager_and_api_pass_callbacks_to_the_run(tmp_path: Path) -> None:
    for name in ("manager", "api"):
        recorder = Recorder()
        config = small_config("ppo", tmp_path / name)
        if name == "manager":
            DefaultExperimentManager().setup(config, callbacks=[recorder]).train()
        else:
            PPO(config).learn(callbacks=[recorder])
        assert recorder.events[0] == "train_start"
        assert recorder.events[-1] == "train_end"


def test_several_callbacks_are_called_in_order() -> None:
    log: list = []
    callbacks = CallbackList([Recorder(log, "first"), Recorder(log, "second")])
    callbacks.on_train_start(TrainerState(None, Path()))
    assert [name for _, name, _ in log] == ["first", "second"]


class Stopper(Callback):
    def __init__(self, event: str) -> None:
        self.event = event

    def on_collect_end(self, trainer, result) -> None:
        if self.event == "collect":
            trainer.request_stop("enough collected")
            trainer.request_stop("a later reason")

    def on_update_end(self, trainer, result) -> None:
        if self.event == "update":
            trainer.request_stop("enough learned")


@pytest.mark.parametrize("algo", list(TRAINERS))
@pytest.mark.parametrize(
    ("event", "reason"), [("collect", "enough collected"), ("update", "enough learned")]
)
def test_a_requested_stop_ends_the_run_saves_it_and_is_recorded(
    algo: str, event: str, reason: str, tmp_path: Path
) -> None:
    result = TRAINERS[algo](
        small_config(algo, tmp_path, total_timesteps=2000), callbacks=[Stopper(event)]
    )
    assert result.stop_reason == reason
    assert 0 < result.metrics["global_step"] < 2000
    metadata = json.loads((result.run_dir / "metadata.json").read_text())
    assert (metadata["status"], metadata["stop_reason"]) == ("stopped", reason)
    assert result.checkpoint_path.is_dir()


def test_an_exception_in_a_callback_is_not_swallowed(tmp_path: Path) -> None:
    class Faulty(Callback):
        def on_update_end(self, trainer, result) -> None:
            raise KeyError("my own mistake")

    with pytest.raises(KeyError, match="my own mistake"):
        train_ppo(small_config("ppo", tmp_path), callbacks=[Faulty()])


def test_a_callbacks_own_state_survives_a_resume(tmp_path: Path) -> None:
    class Counter(Callback):
        count = 0

        def on_update_end(self, trainer, result) -> None:
            self.count += 1
            if trainer.global_step == 64 and self.count == 4:
                trainer.request_stop("half")

        def state_dict(self) -> dict:
            return {"count": self.count}

        def load_state_dict(self, state: dict) -> None:
            self.count = state["count"]

    manager = DefaultExperimentManager()
    first = manager.setup(small_config("ppo", tmp_path), callbacks=[Counter()]).train()
    second = Counter()
    manager.resume(first.run_dir, callbacks=[second]).train()
    assert second.count == 128 // 16


class Plain:
    """A callback without base class."""

    def __init__(self) -> None:
        self.log: list[tuple[str, int]] = []

    def on_train_start(self, trainer) -> None:
        self.log.append(("on_train_start", trainer.global_step))

    def on_collect_end(self, trainer, result) -> None:
        self.log.append(("on_collect_end", result.num_env_steps))

    def on_update_end(self, trainer, result) -> None:
        self.log.append(("on_update_end", result.num_gradient_steps))

    def on_eval_end(self, trainer, metrics) -> None:
        self.log.append(("on_eval_end", trainer.global_step))

    def on_log(self, trainer, metrics) -> None:
        self.log.append(("on_log", metrics["global_step"]))

    def on_train_end(self, trainer, result) -> None:
        self.log.append(("on_train_end", trainer.global_step))

    def count(self, event: str) -> int:
        return sum(name == event for name, _ in self.log)


class TestAnyObject:
    """A callback is any object with at least one event."""

    @pytest.mark.parametrize("algo", ["ppo", "dqn", "iql"])
    def test_with_all_events_and_no_base_class_trains_and_resumes(
        self, algo: str, tmp_path: Path
    ) -> None:
        first = Plain()
        result = (
            DefaultExperimentManager()
            .setup(small_config(algo, tmp_path), callbacks=[first])
            .train()
        )
        assert set(EVENTS) == {name for name, _ in first.log}
        again = Plain()
        DefaultExperimentManager().resume(
            result.run_dir, total_timesteps=160, callbacks=[again]
        ).train()
        assert again.log[0] == ("on_train_start", 128)
        assert again.count("on_train_start") == again.count("on_train_end") == 1
        assert (again.count("on_collect_end") == 0) == (algo == "iql")

    def test_one_event_is_enough(self, tmp_path: Path) -> None:
        calls: dict[str, list] = {event: [] for event in EVENTS}

        def make_callback(event: str) -> object:
            return type("One", (), {event: lambda self, *values: calls[event].append(values)})()

        config = small_config("ppo", tmp_path, total_timesteps=32)
        train_ppo(config, callbacks=[make_callback(event) for event in EVENTS])
        for event, arguments in EVENTS.items():
            assert calls[event]
            assert all(len(values) == len(arguments) for values in calls[event])
            assert all(values[0].config == config for values in calls[event])

    def test_on_log_receives_every_line_of_metrics(self, tmp_path: Path) -> None:
        lines: list[dict] = []
        callback = type(
            "Lines", (), {"on_log": lambda self, trainer, metrics: lines.append(metrics)}
        )()
        result = train_ppo(small_config("ppo", tmp_path), callbacks=[callback])
        written = (result.run_dir / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in written] == lines

    def test_offline_on_collect_end_is_called_once_for_the_dataset(self, tmp_path: Path) -> None:
        callback = Plain()
        DefaultExperimentManager().setup(small_config("bc", tmp_path), callbacks=[callback]).train()
        collected = [entry for entry in callback.log if entry[0] == "on_collect_end"]
        assert collected == [("on_collect_end", 300)]
        assert callback.log[:2] == [("on_train_start", 0), ("on_collect_end", 300)]

    def test_its_state_is_saved_if_it_has_one(self, tmp_path: Path) -> None:
        class Counter:
            count = 0

            def on_update_end(self, trainer, result) -> None:
                self.count += 1

            def state_dict(self) -> dict:
                return {"count": self.count}

            def load_state_dict(self, state: dict) -> None:
                self.count = state["count"]

        manager = DefaultExperimentManager()
        first = manager.setup(small_config("ppo", tmp_path), callbacks=[Counter()]).train()
        second = Counter()
        manager.resume(first.run_dir, total_timesteps=160, callbacks=[second]).train()
        assert second.count == 160 // 16

    def test_metrics_are_the_callbacks_own_copy(self, tmp_path: Path) -> None:
        class Spoiler:
            def on_eval_end(self, trainer, metrics) -> None:
                metrics.clear()

            on_log = on_eval_end

        result = train_ppo(small_config("ppo", tmp_path), callbacks=[Spoiler()])
        assert "eval_return_mean" in result.metrics
        assert "eval_return_mean" in (result.run_dir / "metrics.jsonl").read_text()


class Journal(Plain):
    """Saves its log in checkpoints; may request a stop after a number of gradient steps."""

    def __init__(self, stop_at: int | None = None) -> None:
        super().__init__()
        self.stop_at = stop_at

    def on_train_start(self, trainer) -> None: ...

    def on_train_end(self, trainer, result) -> None: ...

    def on_update_end(self, trainer, result) -> None:
        super().on_update_end(trainer, result)
        if trainer.update_count == self.stop_at:
            trainer.request_stop("half")

    def state_dict(self) -> dict:
        return {"log": self.log}

    def load_state_dict(self, state: dict) -> None:
        self.log = [tuple(entry) for entry in state["log"]]


@pytest.mark.parametrize(("algo", "stop_at"), [("ppo", 4), ("dqn", 7), ("iql", 13)])
def test_a_resumed_run_calls_the_same_events_as_an_unbroken_run(
    algo: str, stop_at: int, tmp_path: Path
) -> None:
    manager = DefaultExperimentManager()
    whole, resumed = Journal(), Journal()
    manager.setup(
        small_config(algo, tmp_path / "whole", total_timesteps=64), callbacks=[whole]
    ).train()
    config = small_config(algo, tmp_path / "stopped", total_timesteps=64)
    first = manager.setup(config, callbacks=[Journal(stop_at)]).train()
    assert first.metrics["global_step"] < 64
    manager.resume(first.run_dir, callbacks=[resumed]).train()
    assert resumed.log == whole.log


class TestRequestStop:
    def test_the_first_reason_stays(self) -> None:
        state = TrainerState(None, Path())
        state.request_stop("first")
        state.request_stop("second")
        assert (state.should_stop, state.stop_reason) == (True, "first")

    def test_a_reason_after_a_bare_stop_is_kept(self) -> None:
        state = TrainerState(None, Path(), should_stop=True)
        state.request_stop("why")
        assert state.stop_reason == "why"

    def test_a_reason_that_reads_like_a_signal_is_a_reason(self, tmp_path: Path) -> None:
        class Stop:
            def on_update_end(self, trainer, result) -> None:
                trainer.request_stop("interrupted by a visitor")

        result = train_ppo(small_config("ppo", tmp_path), callbacks=[Stop()])
        assert result.stop_reason == "interrupted by a visitor"
        assert "eval_return_mean" in result.metrics  # the closing evaluation ran

    @pytest.mark.parametrize("reason", ["", " ", None, 3])
    def test_a_reason_must_be_a_text(self, reason: object) -> None:
        with pytest.raises(ConfigError, match="request_stop"):
            TrainerState(None, Path()).request_stop(reason)
