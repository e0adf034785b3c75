"""One run of the MuJoCo study by Stable-Baselines3, in an environment of its own: prints its curve as JSON."""

from __future__ import annotations

import json
import sys

import gymnasium as gym
import numpy as np
import stable_baselines3 as sb3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import NormalActionNoise

EVERY = 5000
ENVS = {"halfcheetah": "HalfCheetah-v5", "hopper": "Hopper-v5"}


class Curve(BaseCallback):
    """Ten deterministic episodes at every point."""

    def __init__(self, env_id: str, seed: int) -> None:
        super().__init__()
        self.points: list[list[float]] = []
        self._env, self._seed = Monitor(gym.make(env_id)), seed + 1000

    def _on_step(self) -> bool:
        if self.num_timesteps % EVERY == 0:
            self._env.reset(seed=self._seed)
            mean, _ = evaluate_policy(self.model, self._env, n_eval_episodes=10)
            self.points.append([self.num_timesteps, round(float(mean), 1)])
        return True


def main() -> None:
    preset, seed = sys.argv[1], int(sys.argv[2])
    algo, env = preset.split("/")
    torch.set_num_threads(1)
    model: sb3.SAC | sb3.TD3
    if algo == "sac":
        model = sb3.SAC(
            "MlpPolicy", gym.make(ENVS[env]), seed=seed, learning_starts=5000, device="cpu"
        )
    else:
        made = gym.make(ENVS[env])
        size = made.action_space.shape
        model = sb3.TD3(
            "MlpPolicy",
            made,
            seed=seed,
            learning_rate=3e-4,
            learning_starts=5000,
            policy_kwargs={"net_arch": [256, 256]},
            action_noise=NormalActionNoise(np.zeros(size), np.full(size, 0.1)),
            device="cpu",
        )
    curve = Curve(ENVS[env], seed)
    model.learn(50_000, callback=curve)
    print(json.dumps(curve.points))


if __name__ == "__main__":
    main()
