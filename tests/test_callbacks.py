"""The events, their order, and what a callback may be and do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import small_config

from rl_training import PPO
from rl_training.errors import CheckpointError, ConfigError, RLTrainingError
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.runtime.callbacks import EVENTS, Callback, CallbackList
from rl_training.runtime.dqn_trainer import train_dqn
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.sac_trainer import train_sac
from rl_training.runtime.trainer import TrainerState
from rl_training.runtime.workflows import resume_training

TRAINERS = {"ppo": train_ppo, "dqn": train_dqn, "sac": train_sac}


class Recorder(Callback):
    """Notes every event."""

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
    assert set(recorder.events) == {"train_start", "collect_end", "update_end", "eval_end", "log", "train_end"}
    assert recorder.events.index("collect_end") < recorder.events.index("update_end")
    assert recorder.log[-1][2] == 128


def test_manager_and_api_pass_callbacks_on(tmp_path: Path) -> None:
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
@pytest.mark.parametrize(("event", "reason"), [("collect", "enough collected"), ("update", "enough learned")])
def test_a_requested_stop_ends_saves_and_is_remembered(algo: str, event: str, reason: str, tmp_path: Path) -> None:
    result = TRAINERS[algo](small_config(algo, tmp_path, total_timesteps=2000), callbacks=[Stopper(event)])
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
    """A callback without our base class."""

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
    """A callback is any object with any of the events."""

    @pytest.mark.parametrize("algo", ["ppo", "dqn", "iql"])
    def test_with_all_events_and_no_base_class_trains_and_resumes(self, algo: str, tmp_path: Path) -> None:
        first = Plain()
        result = DefaultExperimentManager().setup(small_config(algo, tmp_path), callbacks=[first]).train()
        assert set(EVENTS) == {name for name, _ in first.log}
        again = Plain()
        DefaultExperimentManager().resume(result.run_dir, total_timesteps=160, callbacks=[again]).train()
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

    def test_every_line_of_metrics_is_told(self, tmp_path: Path) -> None:
        lines: list[dict] = []
        callback = type("Lines", (), {"on_log": lambda self, trainer, metrics: lines.append(metrics)})()
        result = train_ppo(small_config("ppo", tmp_path), callbacks=[callback])
        written = (result.run_dir / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in written] == lines

    def test_offline_the_dataset_is_what_was_collected(self, tmp_path: Path) -> None:
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


class NoEvents:
    pass


class Misspelt:
    def on_eval_end(self, trainer, metrics) -> None: ...

    def on_evel_end(self, trainer, metrics) -> None: ...


class CamelCase:
    def onEvalEnd(self, trainer, metrics) -> None: ...  # noqa: N802


class TooFew:
    def on_eval_end(self, trainer) -> None: ...


class TooMany:
    def on_train_start(self, trainer, more) -> None: ...


class NotCallable:
    on_train_start = 3


class Async:
    async def on_update_end(self, trainer, result) -> None: ...


class Yields:
    def on_update_end(self, trainer, result):
        yield


class OnlySaves:
    def on_update_end(self, trainer, result) -> None: ...

    def state_dict(self) -> dict:
        return {}


class Unsavable(OnlySaves):
    def state_dict(self):
        return {"seen": {"paths": [Path()]}}

    def load_state_dict(self, state) -> None: ...


class NoDict(Unsavable):
    def state_dict(self):
        return None


REFUSED = [
    (NoEvents(), r"callback 1 \(NoEvents\) has no event: define at least one of on_train_start, on_collect_end"),
    (print, r"callback 1 \(builtin_function_or_method\) has no event"),
    (Plain, r"callback 1 \(Plain\) is a class: pass an instance, such as Plain\(\)"),
    (Misspelt(), r"unknown event 'on_evel_end' of callback 1 \(Misspelt\): did you mean 'on_eval_end'\?"),
    (CamelCase(), r"unknown event 'onEvalEnd' .*did you mean 'on_eval_end'\?"),
    (TooFew(), r"on_eval_end of callback 1 \(TooFew\) cannot be called as on_eval_end\(trainer, metrics\): too many"),
    (TooMany(), r"cannot be called as on_train_start\(trainer\): missing a required argument: 'more'"),
    (NotCallable(), r"on_train_start of callback 1 \(NotCallable\) is 3, not a method: define it"),
    (Async(), r"on_update_end of callback 1 \(Async\) is async"),
    (Yields(), r"on_update_end of callback 1 \(Yields\) is async or a generator"),
    (OnlySaves(), r"has state_dict but no load_state_dict"),
    (
        Unsavable(),
        r"the state of callback 1 \(Unsavable\) cannot be saved: the state at '/seen/paths/0' has type \w*Path",
    ),
    (NoDict(), r"state_dict of callback 1 \(NoDict\) returned NoneType: return a dict"),
]


class TestRefused:
    """What cannot work is refused before a folder is made."""

    @pytest.mark.parametrize(("callback", "message"), REFUSED, ids=lambda value: "" if isinstance(value, str) else None)
    def test_before_anything_is_made(self, callback: object, message: str, tmp_path: Path) -> None:
        config = small_config("ppo", tmp_path)
        for start in (
            lambda: train_ppo(config, callbacks=[callback]),
            lambda: PPO(config).learn(callbacks=[callback]),
            lambda: DefaultExperimentManager().setup(config, callbacks=[callback]),
        ):
            with pytest.raises(ConfigError, match=message):
                start()
        assert not list(tmp_path.iterdir())

    def test_on_resume_too(self, tmp_path: Path) -> None:
        result = train_ppo(small_config("ppo", tmp_path))
        before = (result.run_dir / "metadata.json").read_bytes()
        with pytest.raises(ConfigError, match="has no event"):
            DefaultExperimentManager().resume(result.run_dir, total_timesteps=160, callbacks=[NoEvents()])
        for steps in (None, 160):
            with pytest.raises(ConfigError, match="has no event"):
                resume_training(result.run_dir, total_timesteps=steps, callbacks=[NoEvents()])
        assert (result.run_dir / "metadata.json").read_bytes() == before

    def test_one_callback_instead_of_a_list(self, tmp_path: Path) -> None:
        for start in (train_ppo, lambda config, callbacks: PPO(config).learn(callbacks=callbacks)):
            with pytest.raises(ConfigError, match=r"callbacks must be a list, not one Plain: write callbacks=\[...\]"):
                start(small_config("ppo", tmp_path), callbacks=Plain())

    def test_a_callback_list_is_taken_as_its_callbacks(self, tmp_path: Path) -> None:
        inner = Plain()
        train_ppo(small_config("ppo", tmp_path), callbacks=CallbackList([inner]))
        assert inner.count("on_train_end") == 1

    def test_methods_of_its_own_are_allowed(self) -> None:
        class Window(Plain):
            on_screen = True

            def on_click(self, x: int) -> None: ...

            def only_log(self) -> None: ...

            @property
            def on_logs(self) -> None:
                raise RuntimeError("not open")

        CallbackList([Window()])

    def test_state_that_needs_the_start_is_tried_after_it(self, tmp_path: Path) -> None:
        class Late(OnlySaves):
            def on_train_start(self, trainer) -> None:
                self.seen = Path()

            def state_dict(self) -> dict:
                return {"seen": self.seen}

            def load_state_dict(self, state) -> None: ...

        steps = Plain()
        with pytest.raises(
            RLTrainingError, match=r"the state of callback 2 \(Late\) cannot be saved: .*/seen.* type \w*Path"
        ):
            train_ppo(small_config("ppo", tmp_path), callbacks=[steps, Late()])
        assert steps.count("on_collect_end") == 0  # no work was lost


class Keeps(Callback):
    def __init__(self, value: int = 0) -> None:
        self.value = value

    def state_dict(self) -> dict:
        return {"value": self.value} if self.value else {}

    def load_state_dict(self, state: dict) -> None:
        self.value = state["value"]


class KeepsToo(Keeps):
    pass


class TestStates:
    def load(self, saved: list, fresh: list) -> CallbackList:
        callbacks = CallbackList(fresh)
        callbacks.load_state_dict(CallbackList(saved).state_dict())
        return callbacks

    def test_each_gets_its_own_back(self) -> None:
        fresh = [Keeps(), Keeps(), Plain(), KeepsToo()]
        callbacks = self.load([Keeps(0), Keeps(2), Plain(), KeepsToo(3)], fresh)
        assert [fresh[0].value, fresh[1].value, fresh[3].value] == [0, 2, 3]
        assert callbacks.unclaimed == []

    def test_the_list_may_change(self) -> None:
        fresh = [Plain(), KeepsToo(), Keeps()]
        callbacks = self.load([Keeps(1), KeepsToo(2)], fresh)
        assert (fresh[1].value, fresh[2].value) == (2, 1)
        assert callbacks.unclaimed == []

    def test_a_state_that_nobody_takes_is_told(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.load([Keeps(1), KeepsToo(2)], [Keeps()]).unclaimed == ["KeepsToo"]
        manager = DefaultExperimentManager()
        first = manager.setup(small_config("ppo", tmp_path), callbacks=[Keeps(3)]).train()
        manager.resume(first.run_dir, total_timesteps=160).train()
        assert "state of a callback 'Keeps' that this run does not have" in capsys.readouterr().err

    def test_a_state_that_is_not_understood_is_named(self) -> None:
        with pytest.raises(CheckpointError, match=r"callback 1 \(Keeps\) cannot load its state .*KeyError: 'value'"):
            CallbackList([Keeps()]).load_state_dict({"0:Keeps": {"count": 1}})


class Journal(Plain):
    """Keeps its journal through a resume; may ask for a stop after a number of gradient steps."""

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
def test_a_stopped_and_resumed_run_tells_what_the_whole_run_tells(algo: str, stop_at: int, tmp_path: Path) -> None:
    manager = DefaultExperimentManager()
    whole, resumed = Journal(), Journal()
    manager.setup(small_config(algo, tmp_path / "whole", total_timesteps=64), callbacks=[whole]).train()
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
        assert "eval_return_mean" in result.metrics  # the closing evaluation was not abandoned

    @pytest.mark.parametrize("reason", ["", " ", None, 3])
    def test_a_reason_is_some_words(self, reason: object) -> None:
        with pytest.raises(ConfigError, match="request_stop"):
            TrainerState(None, Path()).request_stop(reason)
