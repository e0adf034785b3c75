"""Train DQN to balance a pole on a cart, evaluate it and act with it.

python examples/dqn_cartpole_reference.py --total-timesteps 50000 --seed 0
"""

import argparse
from pathlib import Path

import gymnasium as gym

from rl_training import DQN, TrainConfig


def main() -> None:
    """Train, evaluate, and show one action."""
    parser = argparse.ArgumentParser(description="DQN on CartPole-v1")
    parser.add_argument("--total-timesteps", type=int, default=50_000)
    parser.add_argument("--output-dir", type=Path, default=Path("runs"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--eval-episodes", type=int, default=10)
    arguments = parser.parse_args()

    agent = DQN(
        TrainConfig(
            algo="dqn",
            env_id="CartPole-v1",
            total_timesteps=arguments.total_timesteps,
            output_dir=arguments.output_dir,
            seed=arguments.seed,
            eval_episodes=arguments.eval_episodes,
            algo_kwargs={
                "learning_rate": 2.3e-3,
                "hidden_sizes": [256, 256],
                "batch_size": 64,
                "buffer_capacity": 100_000,
                "learning_starts": 1000,
                "target_update_interval": 10,
                "train_frequency": 256,
                "gradient_steps": 128,
                "epsilon_end": 0.04,
                "exploration_fraction": 0.16,
            },
        )
    )
    result = agent.learn()
    print(f"run_dir={result.run_dir}")
    print(f"eval_return_mean={agent.evaluate()['eval_return_mean']:.1f}")

    env = gym.make("CartPole-v1")
    obs, _ = env.reset(seed=arguments.seed)
    print(f"action={agent.predict(obs)}")


if __name__ == "__main__":
    main()
