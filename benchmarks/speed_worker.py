"""One turn of benchmarks/speed.py: train one contender on one case and print its steps per second as JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import warnings
from typing import Any

# case: algorithm, environment, number of environments, steps in all, steps of warm-up
CASES: dict[str, tuple[str, str, int, int, int]] = {
    "ppo_cartpole": ("ppo", "CartPole-v1", 8, 25_600, 5_120),
    "ppo_halfcheetah": ("ppo", "HalfCheetah-v5", 8, 16_384, 4_096),
    "a2c_cartpole": ("a2c", "CartPole-v1", 8, 40_000, 8_000),
    "dqn_cartpole": ("dqn", "CartPole-v1", 1, 11_240, 3_048),
    "sac_halfcheetah": ("sac", "HalfCheetah-v5", 1, 1_600, 400),
    "td3_halfcheetah": ("td3", "HalfCheetah-v5", 1, 2_000, 400),
    "ppo_pong": ("ppo", "ALE/Pong-v5", 8, 8_192, 2_048),
    "dqn_pong": ("dqn", "ALE/Pong-v5", 1, 5_000, 1_500),
}


class Stopwatch:
    """Starts when the warm-up is over, stops at the last step."""

    def __init__(self, warm_up: int) -> None:
        self.warm_up = warm_up
        self.created = time.perf_counter()
        self.first: tuple[int, float] | None = None
        self.last: tuple[int, float] = (0, 0.0)

    def tick(self, step: int) -> None:
        now = time.perf_counter()
        if step >= self.warm_up:
            self.first = self.first or (step, now)
            self.last = (step, now)

    def result(self) -> dict[str, float]:
        assert self.first is not None
        (step, start), (end_step, end) = self.first, self.last
        return {
            "steps_per_second": (end_step - step) / (end - start),
            "warm_up_seconds": start - self.created,
        }


def settings(case: str) -> dict[str, Any]:
    return {
        "ppo_cartpole": {"num_steps": 32, "minibatch_size": 256, "update_epochs": 20, "learning_rate": 1e-3},
        "ppo_halfcheetah": {"num_steps": 256, "minibatch_size": 64, "update_epochs": 10, "learning_rate": 3e-4},
        "a2c_cartpole": {"learning_rate": 7e-4},
        "dqn_cartpole": {
            "learning_rate": 2.3e-3, "batch_size": 64, "buffer_capacity": 100_000, "learning_starts": 1000,
            "target_update_interval": 10, "train_frequency": 256, "gradient_steps": 128, "hidden_sizes": [256, 256],
        },
        "sac_halfcheetah": {"learning_starts": 100},
        "td3_halfcheetah": {"learning_starts": 100, "learning_rate": 1e-3},
        "ppo_pong": {
            "num_steps": 128, "minibatch_size": 256, "update_epochs": 4, "learning_rate": 2.5e-4, "ent_coef": 0.01,
            "hidden_sizes": [],
        },
        "dqn_pong": {
            "learning_rate": 1e-4, "batch_size": 32, "buffer_capacity": 100_000, "learning_starts": 1000,
            "target_update_interval": 1000, "train_frequency": 4, "gradient_steps": 1, "hidden_sizes": [],
        },
    }[case]  # fmt: skip


def run_ours(case: str, threads: int, compiled: bool) -> dict[str, float]:
    from rl_training import TrainConfig
    from rl_training.runtime.callbacks import Callback
    from rl_training.runtime.run import run_training

    algo, env_id, num_envs, steps, warm_up = CASES[case]
    watch = Stopwatch(warm_up)

    class Ticks(Callback):
        """A round is over when the next one has been collected."""

        def on_collect_end(self, trainer: Any, result: Any) -> None:
            watch.tick(trainer.global_step - result.steps)

    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            algo=algo, env_id=env_id, num_envs=num_envs, total_timesteps=steps, output_dir=folder, eval_episodes=1,
            num_threads=threads, compile=compiled, checkpoint_interval=10**9,
            algo_kwargs={**settings(case), "eval_interval": 10**9},
            env_kwargs={"wrappers": {"atari": {}}} if env_id.startswith("ALE/") else {},
        )  # fmt: skip
        run_training(config, callbacks=[Ticks()])
    return watch.result()


def run_peer(library: str, case: str, threads: int) -> dict[str, float]:
    warnings.filterwarnings("ignore")
    if threads == 1:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    if library == "sb3":
        import stable_baselines3 as peer
        import torch

        torch.set_num_threads(threads)
    else:
        import sbx as peer

    algo, env_id, num_envs, steps, warm_up = CASES[case]
    watch = Stopwatch(warm_up)

    class Ticks(BaseCallback):
        def _on_rollout_start(self) -> None:
            watch.tick(self.num_timesteps)

        def _on_step(self) -> bool:
            return True

    own = settings(case)
    common = {"learning_rate": own.get("learning_rate", 3e-4), "verbose": 0}
    if algo == "ppo":
        arguments = {
            "n_steps": own["num_steps"],
            "batch_size": own["minibatch_size"],
            "n_epochs": own["update_epochs"],
        }
        arguments["ent_coef"] = own.get("ent_coef", 0.0)
    elif algo == "dqn":
        arguments = {
            "batch_size": own["batch_size"], "buffer_size": own["buffer_capacity"],
            "learning_starts": own["learning_starts"], "target_update_interval": own["target_update_interval"],
            "train_freq": own["train_frequency"], "gradient_steps": own["gradient_steps"],
            "policy_kwargs": {"net_arch": own["hidden_sizes"]},
        }  # fmt: skip
    elif algo == "a2c":
        arguments = {"n_steps": 5}
    else:
        arguments = {"learning_starts": 100, "policy_kwargs": {"net_arch": [256, 256]}}
    if library == "sb3":
        common["device"] = "cpu"
    if env_id.startswith("ALE/"):
        policy, envs = "CnnPolicy", peer_games(env_id, num_envs)
    else:
        policy, envs = "MlpPolicy", make_vec_env(env_id, num_envs, seed=0)
    model = getattr(peer, algo.upper())(policy, envs, **common, **arguments)
    model.learn(steps, callback=Ticks())
    return watch.result()


def peer_games(env_id: str, num_envs: int) -> Any:
    import ale_py  # noqa: F401  (registers the games)
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    return VecFrameStack(make_atari_env(env_id, num_envs, seed=0, env_kwargs={"frameskip": 1}), 4)


if __name__ == "__main__":
    contender, case_name, thread_count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if contender.startswith("ours"):
        outcome = run_ours(case_name, thread_count, compiled=contender == "ours_compiled")
    else:
        outcome = run_peer(contender, case_name, thread_count)
    print(json.dumps(outcome))
