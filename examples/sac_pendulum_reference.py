"""Train SAC to swing up a pendulum, evaluate it and act with it.

python examples/sac_pendulum_reference.py --total-timesteps 20000 --seed 0
"""

import argparse
from pathlib import Path

import gymnasium as gym

from rl_training import SAC, TrainConfig


def main() -> None:
    """Train, evaluate, and show one action."""
    parser = argparse.ArgumentParser(description="SAC on Pendulum-v1")
    parser.add_argument("--total-timesteps", type=int, default=20_000)
    parser.add_argument("--output-dir", type=Path, default=Path("runs"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--eval-episodes", type=int, default=10)
    arguments = parser.parse_args()

    agent = SAC(
        TrainConfig(
            algo="sac",
            env_id="Pendulum-v1",
            total_timesteps=arguments.total_timesteps,
            output_dir=arguments.output_dir,
            seed=arguments.seed,
            eval_episodes=arguments.eval_episodes,
            algo_kwargs={"learning_rate": 1e-3},
        )
    )
    result = agent.learn()
    print(f"run_dir={result.run_dir}")
    print(f"eval_return_mean={agent.evaluate()['eval_return_mean']:.1f}")

    env = gym.make("Pendulum-v1")
    obs, _ = env.reset(seed=arguments.seed)
    print(f"action={agent.predict(obs)}")


if __name__ == "__main__":
    main()
