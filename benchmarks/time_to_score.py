"""Seconds from Enter until a score: this package next to Stable-Baselines3 and SBX, on one machine.

    python benchmarks/time_to_score.py --peer-python PEERS/bin/python                  the short rows
    python benchmarks/time_to_score.py ppo_cartpole sac_pendulum --seeds 5 --peer-python PEERS/bin/python

What is counted is the wall time of a process, from its start to its end: imports, compilation, training, evaluations of
20 episodes and the last checkpoint. A process ends at the first evaluation that reaches the score; one that does not
reach it within the row's steps counts as the longest time of its row. Ours is the command `rl-training train` with
nothing set about threads or compilation; the peers run their own loop with an evaluation callback. The contenders take
turns, and the order alternates between the seeds.

`equal` gives every contender the same settings (those of the RL Zoo where it has the task); `own` gives each its best:
ours its preset, Stable-Baselines3 the same settings as in `equal`. The peers live in an environment of their own
(torch==2.13.0 first, then stable-baselines3==2.9.2 sbx-rl==0.28.0 gymnasium[mujoco] box2d).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "speed.md"
RAW = ROOT / "benchmarks" / "results" / "time_to_score.json"
EVAL_EPISODES = 20
CONTENDERS = {"ours": "ours", "sb3": "SB3 2.9.2", "sbx": "SBX 0.28.0"}


@dataclasses.dataclass(frozen=True)
class Row:
    """A task: what is trained until which score, and with which settings, in our names."""

    algo: str
    env_id: str
    score: float
    steps: int
    eval_every: int
    settings: dict[str, Any]
    num_envs: int = 1

    @property
    def title(self) -> str:
        """Algorithm, environment and score."""
        return f"{self.algo.upper()}, {self.env_id}, {self.score:,.0f}"


CARTPOLE = {
    "num_steps": 32, "minibatch_size": 256, "update_epochs": 20, "gae_lambda": 0.8, "gamma": 0.98, "ent_coef": 0.0,
    "learning_rate": {"kind": "linear", "start": 1e-3, "end": 0.0},
    "clip_coef": {"kind": "linear", "start": 0.2, "end": 0.0},
}  # fmt: skip
DQN = {
    "learning_rate": 2.3e-3, "hidden_sizes": [256, 256], "batch_size": 64, "buffer_capacity": 100_000,
    "learning_starts": 1000, "gamma": 0.99, "target_update_interval": 10, "train_frequency": 256,
    "gradient_steps": 128, "epsilon_end": 0.04, "exploration_fraction": 0.16,
}  # fmt: skip
TD3 = {"hidden_sizes": [400, 300], "gamma": 0.98, "learning_starts": 10_000, "learning_rate": 1e-3}
LUNAR = {
    "num_steps": 1024, "minibatch_size": 64, "update_epochs": 4, "gae_lambda": 0.98, "gamma": 0.999, "ent_coef": 0.01,
    "learning_rate": 3e-4,
}  # fmt: skip
ACROBOT = {
    "num_steps": 256, "minibatch_size": 64, "update_epochs": 4, "gae_lambda": 0.94, "gamma": 0.99, "ent_coef": 0.0,
    "learning_rate": 3e-4, "normalize_obs": True, "normalize_reward": True,
}  # fmt: skip
PENDULUM = {
    "num_steps": 1024, "minibatch_size": 64, "update_epochs": 10, "gae_lambda": 0.95, "gamma": 0.9, "ent_coef": 0.0,
    "learning_rate": 1e-3,
}  # fmt: skip
MUJOCO = {"learning_starts": 10_000, "hidden_sizes": [256, 256]}
HOPPER = {
    "num_steps": 256, "minibatch_size": 64, "update_epochs": 10, "learning_rate": 3e-4, "ent_coef": 0.0,
    "normalize_obs": True, "normalize_reward": True,
}  # fmt: skip
ROWS = {
    "ppo_cartpole": Row("ppo", "CartPole-v1", 475, 100_000, 4_096, CARTPOLE, 8),
    "a2c_cartpole": Row("a2c", "CartPole-v1", 475, 500_000, 10_000, {"ent_coef": 0.0}, 8),
    "dqn_cartpole": Row("dqn", "CartPole-v1", 475, 50_000, 2_560, DQN),
    "ppo_acrobot": Row("ppo", "Acrobot-v1", -100, 300_000, 8_192, ACROBOT, 16),
    "ppo_pendulum": Row("ppo", "Pendulum-v1", -250, 200_000, 8_192, PENDULUM, 4),
    "sac_pendulum": Row("sac", "Pendulum-v1", -200, 20_000, 1_000, {"learning_rate": 1e-3}),
    "td3_pendulum": Row("td3", "Pendulum-v1", -200, 20_000, 1_000, TD3),
    "ppo_lunarlander": Row("ppo", "LunarLander-v3", 200, 1_000_000, 32_768, LUNAR, 16),
    "sac_halfcheetah": Row("sac", "HalfCheetah-v5", 3000, 100_000, 5_000, MUJOCO),
    "td3_halfcheetah": Row(
        "td3", "HalfCheetah-v5", 2000, 100_000, 5_000, {**MUJOCO, "learning_rate": 1e-3}
    ),
    "ppo_hopper": Row("ppo", "Hopper-v5", 2000, 1_000_000, 20_480, HOPPER, 8),
}
SHORT = tuple(ROWS)[:7]


def our_command(row: Row, seed: int, folder: str, kind: str) -> list[str]:
    """`rl-training train` that ends at the score."""
    stop = {"metric": "eval_return_mean", "patience": 10**6, "target_value": row.score}
    values: dict[str, Any] = {"eval_interval": row.eval_every, "early_stopping": stop}
    values |= row.settings if kind == "equal" else {}
    words = [sys.executable, "-m", "rl_training", "train", row.algo, row.env_id]
    words += ["--seed", str(seed), "--eval-episodes", str(EVAL_EPISODES), "--output-dir", folder]
    if kind == "equal":
        words += ["--no-preset", "--num-envs", str(row.num_envs)]
        words += ["--total-timesteps", str(row.steps)]
    return [*words, *(f"algo_kwargs.{key}={json.dumps(value)}" for key, value in values.items())]


def run_ours(row: Row, seed: int, kind: str) -> tuple[float, bool]:
    """Seconds of the process, and whether it reached the score."""
    with tempfile.TemporaryDirectory() as folder:
        command = our_command(row, seed, folder, kind)
        started = time.perf_counter()
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - started
        if answer.returncode:
            raise SystemExit(f"ours failed: {answer.stderr[-3000:]}")
        logs = list(Path(folder).glob("*/evaluations.jsonl"))
        returns = [
            json.loads(line)["returns"] for log in logs for line in log.read_text().splitlines()
        ]
    return seconds, any(statistics.fmean(episodes) >= row.score for episodes in returns)


def run_peer(python: str, library: str, case: str, seed: int) -> tuple[float, bool]:
    """The same for a peer: this file is run by its Python."""
    command = [python, __file__, "--worker", library, case, str(seed)]
    started = time.perf_counter()
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if answer.returncode:
        raise SystemExit(f"{library} failed on {case}: {answer.stderr[-3000:]}")
    return seconds, answer.stdout.splitlines()[-1] == "reached"


def train_peer(library: str, row: Row, seed: int) -> None:
    """Train until an evaluation reaches the score; prints whether it did."""
    import stable_baselines3 as sb3
    from stable_baselines3.common.callbacks import EvalCallback, StopTrainingOnRewardThreshold
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    if library == "sbx":
        import sbx as peer
    else:
        peer = sb3
    envs = make_vec_env(row.env_id, row.num_envs, seed=seed)
    eval_envs = make_vec_env(row.env_id, 1, seed=seed + 10_000)
    if row.settings.get("normalize_obs"):
        envs = VecNormalize(envs, gamma=row.settings.get("gamma", 0.99))
        eval_envs = VecNormalize(eval_envs, training=False, norm_reward=False)
    stop = StopTrainingOnRewardThreshold(row.score)
    callback = EvalCallback(
        eval_envs, callback_on_new_best=stop, n_eval_episodes=EVAL_EPISODES,
        eval_freq=row.eval_every // row.num_envs, verbose=0, warn=False,
    )  # fmt: skip
    model = getattr(peer, row.algo.upper())(
        "MlpPolicy", envs, seed=seed, **peer_arguments(row, library)
    )
    model.learn(row.steps, callback=callback)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
    print("reached" if callback.best_mean_reward >= row.score else "missed")


def peer_arguments(row: Row, library: str) -> dict[str, Any]:
    """The settings of a row in the names of Stable-Baselines3 and SBX."""
    names = {
        "num_steps": "n_steps", "minibatch_size": "batch_size", "update_epochs": "n_epochs",
        "clip_coef": "clip_range", "buffer_capacity": "buffer_size", "train_frequency": "train_freq",
        "epsilon_end": "exploration_final_eps",
    }  # fmt: skip
    arguments: dict[str, Any] = {"device": "cpu"} if library == "sb3" else {}
    for key, value in row.settings.items():
        if key == "hidden_sizes":
            arguments["policy_kwargs"] = {"net_arch": value}
        elif not key.startswith("normalize_"):
            arguments[names.get(key, key)] = schedule(value) if isinstance(value, dict) else value
    return arguments


def schedule(value: dict[str, Any]) -> Any:
    """A linear schedule to zero, as the peers take it: a function of the progress that remains."""
    start = float(value["start"])
    return lambda remaining: remaining * start


def measure(case: str, seeds: int, peer_python: str, kinds: list[str]) -> dict[str, Any]:
    """Seconds of every contender by seed; one that missed the score counts as the longest of the row."""
    row, times = ROWS[case], dict[str, list[tuple[float, bool]]]()
    peers = [name for name in CONTENDERS if name != "ours" and (name, row.algo) != ("sbx", "a2c")]
    for seed in range(1, seeds + 1):
        turns = [*(f"ours {kind}" for kind in kinds), *peers]
        for name in turns if seed % 2 else reversed(turns):
            if name.startswith("ours"):
                result = run_ours(row, seed, name.split()[1])
            else:
                result = run_peer(peer_python, name, case, seed)
            times.setdefault(name, []).append(result)
            note = "" if result[1] else " (missed)"
            print(f"{case} seed {seed}: {name} {result[0]:.1f} s{note}", flush=True)
    longest = max(seconds for results in times.values() for seconds, _ in results)
    return {
        name: {
            "seconds": [round(seconds if done else longest, 2) for seconds, done in results],
            "reached": sum(done for _, done in results),
        }
        for name, results in sorted(times.items())
    }


def write_page(record: dict[str, Any]) -> None:
    from pages import write_block

    lines = [
        "| task and score | ours | SB3 2.9.2 | SBX 0.28.0 | ours, own preset | SB3 to ours | SBX to ours |",
        "|---|---|---|---|---|---|---|",
    ]
    for case, row in ROWS.items():
        found = record["rows"].get(case)
        if found is None:
            continue
        ratios = [ratio(found, peer, "ours equal") for peer in ("sb3", "sbx")]
        cells = [cell(found, name) for name in ("ours equal", "sb3", "sbx", "ours own")]
        lines.append(f"| {row.title} | {' | '.join([*cells, *ratios])} |")
    lines += ["", f"Measured on {record['machine']}."]
    write_block(PAGE, "score", lines)
    print(f"wrote {PAGE.relative_to(ROOT)}")


def cell(found: dict[str, Any], name: str) -> str:
    """Median, smallest and largest seconds, and how many runs reached the score where not all did."""
    if name not in found:
        return "–"
    seconds, reached = found[name]["seconds"], found[name]["reached"]
    missed = "" if reached == len(seconds) else f", {reached} of {len(seconds)} reached it"
    return f"{statistics.median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f}{missed})"


def ratio(found: dict[str, Any], peer: str, ours: str) -> str:
    """Median of the peer's seconds divided by ours."""
    if peer not in found or ours not in found:
        return "–"
    medians = [statistics.median(found[name]["seconds"]) for name in (peer, ours)]
    return f"{medians[0] / medians[1]:.2f}"


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        library, case, seed = sys.argv[2:5]
        train_peer(library, ROWS[case], int(seed))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", default=list(SHORT), help=", ".join(ROWS))
    parser.add_argument("--peer-python", default=os.environ.get("PEER_PYTHON"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--kinds", nargs="+", default=["equal"], choices=["equal", "own"])
    arguments = parser.parse_args()
    if not arguments.peer_python:
        raise SystemExit("name the peers' Python: --peer-python PEERS/bin/python (or PEER_PYTHON)")
    record = json.loads(RAW.read_text()) if RAW.is_file() else {"rows": {}}
    record["machine"] = f"{os.cpu_count()} cores, {platform.machine()}, no accelerator"
    for case in arguments.cases:
        found = measure(case, arguments.seeds, arguments.peer_python, arguments.kinds)
        record["rows"][case] = {**record["rows"].get(case, {}), **found}
        RAW.parent.mkdir(exist_ok=True)
        RAW.write_text(json.dumps(record, indent=1) + "\n")
    write_page(record)


if __name__ == "__main__":
    main()
