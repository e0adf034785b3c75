"""Checks of callbacks before a run starts, and the restoring of their states."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import small_config

from rl_training import PPO
from rl_training.errors import CheckpointError, ConfigError, RLTrainingError
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.runtime.callbacks import Callback, CallbackList
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.workflows import resume_training


class Valid:
    """A callback without base class and state; logs its events."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def on_collect_end(self, trainer, result) -> None:
        self.log.append("on_collect_end")

    def on_train_end(self, trainer, result) -> None:
        self.log.append("on_train_end")


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
    (
        NoEvents(),
        r"callback 1 \(NoEvents\) has no event: define at least one of on_train_start, on_collect_end",
    ),
    (print, r"callback 1 \(builtin_function_or_method\) has no event"),
    (Valid, r"callback 1 \(Valid\) is a class: pass an instance, such as Valid\(\)"),
    (
        Misspelt(),
        r"unknown event 'on_evel_end' of callback 1 \(Misspelt\): did you mean 'on_eval_end'\?",
    ),
    (CamelCase(), r"unknown event 'onEvalEnd' .*did you mean 'on_eval_end'\?"),
    (
        TooFew(),
        r"on_eval_end of callback 1 \(TooFew\) cannot be called as on_eval_end\(trainer, metrics\): too many",
    ),
    (
        TooMany(),
        r"cannot be called as on_train_start\(trainer\): missing a required argument: 'more'",
    ),
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
    """A callback that cannot work is refused before a run folder is created."""

    @pytest.mark.parametrize(
        ("callback", "message"), REFUSED, ids=lambda value: "" if isinstance(value, str) else None
    )
    def test_before_a_folder_is_created(
        self, callback: object, message: str, tmp_path: Path
    ) -> None:
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
            DefaultExperimentManager().resume(
                result.run_dir, total_timesteps=160, callbacks=[NoEvents()]
            )
        for steps in (None, 160):
            with pytest.raises(ConfigError, match="has no event"):
                resume_training(result.run_dir, total_timesteps=steps, callbacks=[NoEvents()])
        assert (result.run_dir / "metadata.json").read_bytes() == before

    def test_one_callback_instead_of_a_list(self, tmp_path: Path) -> None:
        for start in (train_ppo, lambda config, callbacks: PPO(config).learn(callbacks=callbacks)):
            with pytest.raises(
                ConfigError,
                match=r"callbacks must be a list, not one Valid: write callbacks=\[...\]",
            ):
                start(small_config("ppo", tmp_path), callbacks=Valid())

    def test_a_callback_list_is_accepted_as_its_callbacks(self, tmp_path: Path) -> None:
        inner = Valid()
        train_ppo(small_config("ppo", tmp_path), callbacks=CallbackList([inner]))
        assert inner.log.count("on_train_end") == 1

    def test_methods_that_are_no_events_are_allowed(self) -> None:
        class Window(Valid):
            on_screen = True

            def on_click(self, x: int) -> None: ...

            def only_log(self) -> None: ...

            @property
            def on_logs(self) -> None:
                raise RuntimeError("not open")

        CallbackList([Window()])

    def test_a_state_that_exists_only_after_on_train_start_is_checked_then(
        self, tmp_path: Path
    ) -> None:
        class Late(OnlySaves):
            def on_train_start(self, trainer) -> None:
                self.seen = Path()

            def state_dict(self) -> dict:
                return {"seen": self.seen}

            def load_state_dict(self, state) -> None: ...

        steps = Valid()
        with pytest.raises(
            RLTrainingError,
            match=r"the state of callback 2 \(Late\) cannot be saved: .*/seen.* type \w*Path",
        ):
            train_ppo(small_config("ppo", tmp_path), callbacks=[steps, Late()])
        assert steps.log.count("on_collect_end") == 0  # refused before the first environment step


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
    """States in a checkpoint."""

    def load(self, saved: list, fresh: list) -> CallbackList:
        callbacks = CallbackList(fresh)
        callbacks.load_state_dict(CallbackList(saved).state_dict())
        return callbacks

    def test_are_restored_by_index_and_class(self) -> None:
        fresh = [Keeps(), Keeps(), Valid(), KeepsToo()]
        callbacks = self.load([Keeps(0), Keeps(2), Valid(), KeepsToo(3)], fresh)
        assert [fresh[0].value, fresh[1].value, fresh[3].value] == [0, 2, 3]
        assert callbacks.unclaimed == []

    def test_are_restored_by_class_in_a_changed_list(self) -> None:
        fresh = [Valid(), KeepsToo(), Keeps()]
        callbacks = self.load([Keeps(1), KeepsToo(2)], fresh)
        assert (fresh[1].value, fresh[2].value) == (2, 1)
        assert callbacks.unclaimed == []

    def test_without_a_callback_are_reported(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.load([Keeps(1), KeepsToo(2)], [Keeps()]).unclaimed == ["KeepsToo"]
        manager = DefaultExperimentManager()
        first = manager.setup(small_config("ppo", tmp_path), callbacks=[Keeps(3)]).train()
        manager.resume(first.run_dir, total_timesteps=160).train()
        assert "state of a callback 'Keeps' that this run does not have" in capsys.readouterr().err

    def test_that_cannot_be_loaded_are_errors_that_name_the_callback(self) -> None:
        with pytest.raises(
            CheckpointError, match=r"callback 1 \(Keeps\) cannot load its state .*KeyError: 'value'"
        ):
            CallbackList([Keeps()]).load_state_dict({"0:Keeps": {"count": 1}})
