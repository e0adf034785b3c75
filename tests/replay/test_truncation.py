"""A time limit is not an ending: values must look past it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import HELPERS, TRY_ALL

from rl_training import TrainConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import run_training
from rl_training.runtime.trainer import TrainerState, TrainResult

GAMMA = 0.9
FOREVER = 1 / (1 - GAMMA)
FIVE_STEPS = sum(GAMMA**k for k in range(5))

SETTINGS = {
    "ppo": {"num_steps": 64, "minibatch_size": 64, "learning_rate": 1e-2, "hidden_sizes": [16]},
    "dqn": {
        "learning_rate": 5e-3,
        "train_frequency": 1,
        "target_update_interval": 50,
        "hidden_sizes": [16],
    },
    "sac": {
        "learning_rate": 5e-3,
        "alpha": 1e-4,
        "tau": 0.05,
        "hidden_sizes": [16],
        "batch_size": 64,
    },
}
STEPS = {"ppo": 8000, "dqn": 4000, "sac": 3000}


class Keep(Callback):
    def on_train_end(self, trainer: TrainerState, result: TrainResult) -> None:
        self.algorithm = trainer.algorithm

    def value(self, obs: float) -> float:
        """What the trained algorithm expects from here on."""
        batch, algorithm = torch.tensor([[obs]]), self.algorithm
        with torch.no_grad():
            if hasattr(algorithm, "policy"):
                return algorithm.policy(batch)[1].item()
            if hasattr(algorithm, "network"):
                return algorithm.network(batch).max().item()
            return algorithm.critic(batch, algorithm.act(batch, explore=False).actions).min().item()


def learned_value(
    algo: str, ending: str, output_dir: Path, obs: float, num_envs: int = 1, **extra: object
) -> float:
    keep = Keep()
    config = TrainConfig(
        algo=algo,
        env_id=f"{HELPERS / 'toy_envs.py'}:ConstantRewardEnv",
        env_kwargs={"ending": ending, "continuous": algo == "sac"},
        total_timesteps=STEPS[algo],
        num_envs=num_envs,
        output_dir=output_dir,
        eval_episodes=1,
        num_threads=1,
        compile=False,
        algo_kwargs={"gamma": GAMMA, **SETTINGS[algo], **extra},
    )
    run_training(config, callbacks=[keep])
    return keep.value(obs)


@pytest.mark.parametrize("algo", ["ppo", "dqn", "sac"] if TRY_ALL else ["ppo", "dqn"])
def test_a_truncated_world_is_worth_its_endless_sum(algo: str, tmp_path: Path) -> None:
    assert learned_value(algo, "truncate", tmp_path, obs=1.0) == pytest.approx(FOREVER, rel=0.05)


@pytest.mark.parametrize("algo", ["ppo", "dqn", "sac"] if TRY_ALL else ["ppo"])
def test_a_terminating_world_is_worth_its_finite_sum(algo: str, tmp_path: Path) -> None:
    assert learned_value(algo, "terminate", tmp_path, obs=0.0) == pytest.approx(
        FIVE_STEPS, rel=0.08
    )


def test_n_step_returns_bootstrap_through_truncation_too(tmp_path: Path) -> None:
    assert learned_value(
        "dqn", "truncate", tmp_path, obs=1.0, num_envs=3, n_step=3
    ) == pytest.approx(FOREVER, rel=0.05)
