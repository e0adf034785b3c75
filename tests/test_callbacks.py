"""The five events, their order, and what a callback may do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import small_config

from rl_training import PPO
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.runtime.callbacks import Callback, CallbackList
from rl_training.runtime.dqn_trainer import train_dqn
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.sac_trainer import train_sac
from rl_training.runtime.trainer import TrainerState

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
    assert set(recorder.events) == {"train_start", "collect_end", "update_end", "eval_end", "train_end"}
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
