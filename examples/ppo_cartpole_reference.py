"""Train PPO to balance a pole on a cart, evaluate it and act with it.

python examples/ppo_cartpole_reference.py --total-timesteps 100000 --seed 0
"""

import argparse
from pathlib import Path

import gymnasium as gym

from rl_training import PPO, TrainConfig


def main() -> None:
    """Train, evaluate, and show one action."""
    parser = argparse.ArgumentParser(description="PPO on CartPole-v1")
    parser.add_argument("--total-timesteps", type=int, default=100_000)
    parser.add_argument("--output-dir", type=Path, default=Path("runs"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--eval-episodes", type=int, default=10)
    arguments = parser.parse_args()

    agent = PPO(
        TrainConfig(
            algo="ppo",
            env_id="CartPole-v1",
            total_timesteps=arguments.total_timesteps,
            output_dir=arguments.output_dir,
            seed=arguments.seed,
            eval_episodes=arguments.eval_episodes,
            num_envs=8,
            algo_kwargs={
                "num_steps": 32,
                "minibatch_size": 256,
                "update_epochs": 20,
                "gae_lambda": 0.8,
                "gamma": 0.98,
                "learning_rate": {"kind": "linear", "start": 1e-3, "end": 0.0},
                "clip_coef": {"kind": "linear", "start": 0.2, "end": 0.0},
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
