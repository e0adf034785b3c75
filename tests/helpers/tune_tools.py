"""What tests of tunings share: an environment whose return is a setting, a small request, and a launcher in process."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import optuna
from gymnasium.spaces import Box, Discrete

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.studies.launching.launchers import Exit, LocalLauncher
from rl_training.studies.launching.orders import Order
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
    "algo": "ppo",
    "env_id": PAID,
    "total_timesteps": 64,
    "eval_episodes": 1,
    "num_threads": 1,
    "device": "cpu",
    "compile": False,
    "checkpoint_interval": 32,
    "algo_kwargs": PPO,
    "env_kwargs": {"pay": 1.0},
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


class InlineLauncher(LocalLauncher):
    """Trains each run in this process when it is started; dies before run number `dies_at`."""

    def __init__(self, dies_at: int = -1) -> None:
        super().__init__(jobs=1)
        self.dies_at, self.started = dies_at, []

    def prepare(self, count: int) -> None:
        """Start no processes."""

    def start(self, order: Order) -> Any:
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
            return SimpleNamespace(where="", poll=lambda: Exit(2, "exit code 2"))
        return SimpleNamespace(where="", poll=lambda: Exit(0, "exit code 0"))


def open_journal(path: Path) -> optuna.Study:
    """The journal of a tuning, as plain Optuna reads it."""
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(path / "journal.log"))
    )
    return optuna.load_study(study_name=path.name, storage=storage)


def outcome(path: Path) -> dict[str, Any]:
    """Everything that two equal tunings share: trials, stages and the best configuration."""
    study = open_journal(path)
    names = ("number", "state", "value", "params", "intermediate_values", "user_attrs")
    trials = [[getattr(trial, name) for name in names] for trial in study.trials]
    return {"trials": trials, "stages": study.user_attrs, "best": (path / "best.yaml").read_text()}
