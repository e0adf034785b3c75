"""Offline learning from a file of your own: write it, check it, train BC and TD3+BC on it, then fine-tune online.

python examples/offline_from_file.py

The data are of a clumsy controller of a pendulum. BC imitates it; TD3+BC learns from its rewards, too.
"""

import argparse
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training import BC, TD3BC
from rl_training.data import load_transition_dataset
from rl_training.data.dataset_checks import check_dataset

ONLINE_STEPS = 2_000


def clumsy_action(obs: Any, rng: np.random.Generator) -> Any:
    """Swing with the motion while the pendulum hangs, hold it when it is up, and err often."""
    cosine, sine, speed = obs
    wanted = -8.0 * sine - 2.0 * speed if cosine > 0.8 else 2.0 * np.sign(speed)
    return np.clip([wanted + rng.normal(0.0, 1.5)], -2.0, 2.0).astype(np.float32)


def record(path: Path, num_episodes: int) -> None:
    """Write transitions as the six arrays that every dataset has; your own logs take the place of this loop."""
    env, rng, rows = gym.make("Pendulum-v1"), np.random.default_rng(0), []
    for episode in range(num_episodes):
        obs, _ = env.reset(seed=episode)
        is_over = False
        while not is_over:
            action = clumsy_action(obs, rng)
            next_obs, reward, terminated, truncated, _ = env.step(action)
            # `next_obs` of the last step is the true final observation, not the first of the next episode, and the
            # two ends stay apart: after a time limit (truncated) the value of `next_obs` counts.
            rows.append((obs, action, reward, next_obs, terminated, truncated))
            obs, is_over = next_obs, terminated or truncated
    names = ("obs", "actions", "rewards", "next_obs", "terminated", "truncated")
    columns: dict[str, Any] = dict(zip(names, zip(*rows, strict=True), strict=True))
    np.savez(path, **columns)


def train(agent: BC | TD3BC, last_step: int) -> float:
    """Train up to a step; the mean return of 20 evaluation episodes."""
    result = agent.learn(total_timesteps=last_step)
    if result.was_interrupted:  # by Ctrl-C: learn() has saved the run, and returns
        raise SystemExit("stopped")
    return result.metrics["eval_return_mean"]


def main() -> None:
    """Record, check, train, compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--total-timesteps", type=int, default=4_000, help="updates on the file")
    parser.add_argument("--output-dir", type=Path, default=Path("runs"))
    options = parser.parse_args()
    updates = options.total_timesteps

    options.output_dir.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="dataset-", dir=options.output_dir)) / "clumsy.npz"  # never an existing file
    record(path, num_episodes=50)

    # On the command line: rl-training data check FILE --env Pendulum-v1
    report = check_dataset(load_transition_dataset("npz", dataset_path=path))
    print(f"{report.num_transitions:,} transitions in {path}; errors: {len(report.errors)}")
    for line in (*(finding.found for finding in report.findings), *report.advice):
        print(textwrap.fill(line, 80, initial_indent="  ", subsequent_indent="  "))

    settings: dict[str, Any] = {"dataset_kind": "npz", "dataset_path": path, "hidden_sizes": [64, 64], "preset": False}
    settings |= {"output_dir": options.output_dir, "eval_episodes": 20, "progress": False}
    print("mean return (about -1,200 for random actions, -150 for a good policy)")
    print(f"  data        {report.episodes.returns.mean:8.1f}")
    print(f"  bc          {train(BC('Pendulum-v1', **settings), updates):8.1f}")
    # bc_alpha is ten times its default: these actions are not worth much imitation.
    td3_bc = TD3BC("Pendulum-v1", bc_alpha=25.0, online={"after_updates": updates}, **settings)
    print(f"  td3_bc      {train(td3_bc, updates):8.1f}")
    # The same run continues: `online` says after how many updates it goes on in the environment.
    print(f"  fine-tuned  {train(td3_bc, updates + ONLINE_STEPS):8.1f}")


if __name__ == "__main__":
    main()
