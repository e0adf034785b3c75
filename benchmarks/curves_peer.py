"""One run of the learning curves by Stable-Baselines3, sb3-contrib or d3rlpy: prints its curve as JSON.

    python benchmarks/curves_peer.py '{"settings": {"algo": "dqn", …}, "eval_seeds": [1, 2], "dataset": null}'

The settings are those of our run, with all defaults. It runs in an environment of its own, without our dependencies.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch

Predict = Callable[[Any], Any]
"""Deterministic actions for a batch of observations."""
POINTS = 10
OFFLINE = ("bc", "td3_bc", "iql", "awac", "cql")


def make_env(env_id: str) -> gymnasium.Env[Any, Any]:
    """The environment of an id, or of `module:Class`."""
    module, _, name = env_id.partition(":")
    return getattr(importlib.import_module(module), name)() if name else gymnasium.make(env_id)


def mean_return(predict: Predict, env_id: str, seeds: list[int]) -> float:
    """Mean return of one episode per seed; the episodes advance together, so that their actions are one batch."""
    envs = [make_env(env_id) for _ in seeds]
    obs = [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)]
    returns, running = np.zeros(len(seeds)), list(range(len(seeds)))
    while running:
        for index, action in zip(
            list(running), predict(stack([obs[index] for index in running])), strict=True
        ):
            obs[index], reward, terminated, truncated, _ = envs[index].step(action)
            returns[index] += float(reward)
            if terminated or truncated:
                running.remove(index)
    return float(returns.mean())


def stack(observations: list[Any]) -> Any:
    if isinstance(observations[0], dict):
        return {key: np.stack([obs[key] for obs in observations]) for key in observations[0]}
    return np.stack(observations)


def make_model(settings: dict[str, Any]) -> Any:
    """The same algorithm of Stable-Baselines3 or sb3-contrib, with our settings in place of its defaults."""
    import sb3_contrib
    import stable_baselines3 as sb3
    from stable_baselines3.common.env_util import make_vec_env

    name = settings["algo"]
    adam = {"eps": settings["adam_eps"], "betas": (settings["adam_beta1"], settings["adam_beta2"])}
    policy: dict[str, Any] = {"net_arch": list(settings["hidden_sizes"]), "optimizer_kwargs": adam}
    common = {key: settings[key] for key in ("learning_rate", "gamma", "seed")} | {"device": "cpu"}
    env = make_vec_env(
        partial(make_env, settings["env_id"]), settings["num_envs"], seed=settings["seed"]
    )
    if name == "a2c":
        own = {key: settings[key] for key in ("gae_lambda", "ent_coef", "vf_coef", "max_grad_norm")}
        own |= {
            "n_steps": settings["num_steps"],
            "normalize_advantage": settings["normalize_advantage"],
        }
        return sb3.A2C("MlpPolicy", env, use_rms_prop=False, policy_kwargs=policy, **own, **common)
    common |= {key: settings[key] for key in ("learning_starts", "batch_size", "gradient_steps")}
    common |= {
        "buffer_size": settings["buffer_capacity"],
        "train_freq": settings["train_frequency"],
    }
    if name in ("dqn", "qrdqn"):
        own = {
            key: settings[key]
            for key in ("target_update_interval", "exploration_fraction", "max_grad_norm")
        }
        own |= {
            "exploration_initial_eps": settings["epsilon_start"],
            "exploration_final_eps": settings["epsilon_end"],
        }
        if name == "dqn":
            return sb3.DQN("MlpPolicy", env, policy_kwargs=policy, **own, **common)
        policy |= {"n_quantiles": settings["num_quantiles"], "optimizer_class": torch.optim.Adam}
        return sb3_contrib.QRDQN("MlpPolicy", env, policy_kwargs=policy, **own, **common)
    if name == "crossq":  # policy_delay: ours has none
        return sb3_contrib.CrossQ("MlpPolicy", env, policy_delay=1, policy_kwargs=policy, **common)
    return make_actor_critic(settings, env, policy, {**common, "tau": settings["tau"]})


def make_actor_critic(
    settings: dict[str, Any], env: Any, policy: dict[str, Any], common: dict[str, Any]
) -> Any:
    """The model of an algorithm with target networks of its critics."""
    import sb3_contrib
    import stable_baselines3 as sb3
    from stable_baselines3.common.noise import NormalActionNoise

    if settings["algo"] == "ddpg":
        size = env.action_space.shape
        noise = NormalActionNoise(np.zeros(size), np.full(size, settings["exploration_noise"]))
        return sb3.DDPG("MlpPolicy", env, action_noise=noise, policy_kwargs=policy, **common)
    if settings["algo"] == "tqc":
        policy |= {"n_quantiles": settings["num_quantiles"], "n_critics": settings["num_critics"]}
        dropped = {"top_quantiles_to_drop_per_net": settings["quantiles_to_drop"]}
        return sb3_contrib.TQC("MlpPolicy", env, policy_kwargs=policy, **dropped, **common)
    assert settings["algo"] == "her"
    replay = settings["replay"]
    goals = {
        "n_sampled_goal": replay["goals_per_step"],
        "goal_selection_strategy": replay["strategy"],
    }
    hindsight = {"replay_buffer_class": sb3.HerReplayBuffer, "replay_buffer_kwargs": goals}
    return sb3.SAC("MultiInputPolicy", env, policy_kwargs=policy, **hindsight, **common)


def online_curve(settings: dict[str, Any], seeds: list[int]) -> list[list[float]]:
    """Environment steps and mean return at every tenth of the run."""
    from stable_baselines3.common.callbacks import BaseCallback

    every, points = settings["total_timesteps"] // POINTS, []

    class Curve(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps // every > len(points):
                predict = lambda obs: self.model.predict(obs, deterministic=True)[0]  # noqa: E731
                points.append(
                    [self.num_timesteps, round(mean_return(predict, settings["env_id"], seeds), 1)]
                )
            return True

    make_model(settings).learn(settings["total_timesteps"], callback=Curve())
    return points


def offline_curve(settings: dict[str, Any], seeds: list[int], file: str) -> list[list[float]]:
    """Updates and mean return at every tenth of the run."""
    from d3rlpy.logging import NoopAdapterFactory
    from offline_worker import load_peer

    name, total = settings["algo"], settings["total_timesteps"]
    algo, dataset = load_peer(
        name, file, settings["env_id"], {**settings, "updates": total, name: settings}
    )
    options = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
    points = []
    for epoch, _ in algo.fitter(dataset, total, total // POINTS, **options):
        score = mean_return(
            lambda obs: algo.predict(obs.astype(np.float32)), settings["env_id"], seeds
        )
        points.append([epoch * (total // POINTS), round(score, 1)])
    return points


def main() -> None:
    torch.set_num_threads(1)
    job = json.loads(sys.argv[1])
    settings, seeds = job["settings"], job["eval_seeds"]
    is_offline = settings["algo"] in OFFLINE
    print(
        json.dumps(
            offline_curve(settings, seeds, job["dataset"])
            if is_offline
            else online_curve(settings, seeds)
        )
    )


if __name__ == "__main__":
    main()
