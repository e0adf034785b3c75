"""What tests of tunings share: an environment whose return is a setting, a small request, and a launcher in process."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import optuna
from gymnasium.spaces import Box, Discrete

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.studies.launching.launchers import Exit
from rl_training.studies.launching.orders import Order
from rl_training.studies.plan import PlannedRun
from rl_training.studies.tuning.search_space import parse_asked
from rl_training.studies.tuning.tune_plan import TunePlan, TuneSettings, plan_tuning

PAID = f"{Path(__file__)}:PaidEnv"
PPO = {
    "num_steps": 8,
    "minibatch_size": 8,
    "update_epochs": 1,
    "hidden_sizes": [4],
    "eval_interval": 8,
}
BASE = {
    **{
        "algo": "ppo",
        "env_id": PAID,
        "total_timesteps": 64,
        "eval_episodes": 1,
        "num_threads": 1,
        "device": "cpu",
    },
    **{"compile": False, "checkpoint_interval": 32, "algo_kwargs": PPO, "env_kwargs": {"pay": 1.0}},
}
SMALL = {"trials": 4, "batch": 2, "finalists": 1, "race_seeds": 1, "final_seeds": 2}


class PaidEnv(gym.Env):
    """Two steps of reward `pay`, with a little of the environment's own noise; above `nan_above` it is NaN."""

    def __init__(self, pay: float = 1.0, nan_above: float = 1e9, seconds: float = 0.0) -> None:
        self.observation_space, self.action_space = Box(-1, 1, (1,), np.float32), Discrete(2)
        self.pay, self.nan_above, self.seconds, self.time = pay, nan_above, seconds, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        time.sleep(self.seconds)
        self.time += 1
        reward = np.nan if self.pay > self.nan_above else self.pay + 0.01 * self.np_random.random()
        return np.zeros(1, np.float32), float(reward), self.time >= 2, False, {}


def request(
    *tuned: str, name: str = "small", base: dict[str, Any] | None = None, **settings: Any
) -> TunePlan:
    """A small tuning of `pay`, or of other keys."""
    asked = parse_asked(tuned or ["env_kwargs.pay=0.5..2.0"])
    return plan_tuning(name, {**BASE, **(base or {})}, asked, TuneSettings(**{**SMALL, **settings}))


class Death(BaseException):
    """The end of a process, wherever it is."""


class InlineLauncher:
    """Trains each run in this process when it is started; dies before run number `dies_at`."""

    threads_per_run, may_queue = 1, False

    def __init__(self, dies_at: int = -1) -> None:
        self.dies_at, self.started = dies_at, []

    def capacity(self) -> int:
        return 1

    def can_start(self, run: PlannedRun) -> bool:
        return True

    def start(self, order: Order) -> InlineHandle:
        if len(self.started) == self.dies_at:
            raise Death
        self.started.append(order.run.run_dir.name)
        values = json.loads(order.text)
        try:
            config = TrainConfig(**values["config"])
            DefaultExperimentManager().resume_or_start(
                config, run_suffix=values["suffix"], fall_back=True
            ).train()
        except Exception:  # recorded in the run folder
            return InlineHandle(2)
        return InlineHandle(0)

    def close(self) -> None:
        pass


class InlineHandle:
    """A run that is over."""

    where = ""

    def __init__(self, code: int) -> None:
        self.code = code

    def poll(self) -> Exit:
        return Exit(self.code, f"exit code {self.code}")

    def kill(self) -> None:
        pass


def open_journal(path: Path) -> optuna.Study:
    """The journal of a tuning, as plain Optuna reads it."""
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(path / "journal.log"))
    )
    return optuna.load_study(study_name=path.name, storage=storage)


def outcome(path: Path) -> dict[str, Any]:
    """Everything that two equal tunings share: trials, stages and the best configuration."""
    study = open_journal(path)
    trials = [
        (
            trial.number,
            trial.state.name,
            trial.value,
            trial.params,
            trial.intermediate_values,
            trial.user_attrs,
        )
        for trial in study.trials
    ]
    return {"trials": trials, "stages": study.user_attrs, "best": (path / "best.yaml").read_text()}
