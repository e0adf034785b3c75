"""The success rate of an evaluation: over all of its episodes, if any of them reports success or failure."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import small_config
from toy_envs import CountingEnv

from rl_training.runtime.controls import EarlyStoppingCallback, EarlyStoppingConfig
from rl_training.runtime.run import run_training
from rl_training.runtime.workflows import evaluate_checkpoint


class RareSuccessEnv(CountingEnv):
    """One episode in `every` succeeds, by the seed; `reports`: which episodes have the key in their last info."""

    def __init__(self, every: int = 5, reports: str = "successes") -> None:
        super().__init__(lengths=(2,))
        self.every, self.reports, self.succeeds = every, reports, False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        obs, info = super().reset(seed=seed)
        self.succeeds = bool(self.np_random.random() < 1 / self.every)
        return obs, info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        obs, _, terminated, truncated, _ = super().step(action)
        is_reported = {
            "all": True,
            "successes": self.succeeds,
            "failures": not self.succeeds,
            "none": False,
        }[self.reports]
        info = {"is_success": self.succeeds} if is_reported and (terminated or truncated) else {}
        return obs, float(self.succeeds), terminated, truncated, info


@pytest.mark.parametrize("reports", ["all", "successes", "failures", "none"])
def test_an_episode_without_a_report_counts_as_a_failure(reports: str, tmp_path: Path) -> None:
    env_kwargs = {"reports": reports}
    config = small_config(
        "ppo", tmp_path, env_id="test_success_rate:RareSuccessEnv", env_kwargs=env_kwargs
    )
    metrics = evaluate_checkpoint(
        run_training(config.replace(total_timesteps=16)).run_dir, num_episodes=40
    )
    successes = 20 * metrics["eval_return_mean"]  # two steps of reward 1 for each
    assert 0 < successes < 20
    num_reports = {"all": 40, "successes": successes, "failures": 40 - successes, "none": None}[
        reports
    ]
    rate = {"all": successes / 40, "successes": successes / 40, "failures": 0.0, "none": None}[
        reports
    ]
    assert metrics.get("eval_success_reports") == num_reports
    assert metrics.get("eval_success_rate") == rate


def test_early_stopping_counts_an_evaluation_without_a_report_as_one_without_success() -> None:
    stopping = EarlyStoppingCallback(EarlyStoppingConfig(metric="eval_success_rate", patience=2))
    trainer: Any = SimpleNamespace(global_step=1, request_stop=lambda reason: None)
    for metrics in (
        {"eval_success_rate": 0.5},
        {"eval_return_mean": 0.0},
        {"eval_return_mean": 0.0},
    ):
        stopping.on_eval_end(trainer, metrics)
    assert stopping.stop_reason == "eval_success_rate has not improved on 0.5 for 2 evaluations"
