"""An environment of your own: check it, train on it by its class and by a name, compare the agents with a rule.

python examples/custom_environment.py

A shop orders goods every evening. Demand is random, and goods that are not sold cost money.
"""

import argparse
import textwrap
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training import DQN, PPO
from rl_training.diagnostics.env_doctor import check_environment
from rl_training.envs import register_env

DAYS, SHELF, LARGEST_ORDER = 50, 20, 9
MEAN_DEMAND = (2.0, 2.0, 3.0, 3.0, 6.0, 8.0, 1.0)  # of each day of the week


class Shop(gym.Env[Any, Any]):
    """Earns 2 for each sold item; pays 1 for each ordered one, and 0.1 a day for each that lies on the shelf.

    For exact resume, checkpoints hold the attributes and the generator `np_random`. Random numbers from `np.random`
    or `random` would not be restored: draw from `self.np_random` only, or the check below says `approximate`.
    """

    observation_space = gym.spaces.Box(0.0, 1.0, (8,), np.float32)  # the stock, and the day of the week as one-hot
    action_space = gym.spaces.Discrete(LARGEST_ORDER + 1)  # how many to order

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin with a random stock on a random day, so that the agent sees all of them from the start."""
        super().reset(seed=seed)  # seeds self.np_random
        self.days, self.weekday, self.stock = 0, int(self.np_random.integers(7)), int(self.np_random.integers(SHELF))
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The order arrives, then customers buy."""
        order = min(int(action), SHELF - self.stock)
        sold = min(int(self.np_random.poisson(MEAN_DEMAND[self.weekday])), self.stock + order)
        self.stock, self.weekday, self.days = self.stock + order - sold, (self.weekday + 1) % 7, self.days + 1
        reward = 2.0 * sold - 1.0 * order - 0.1 * self.stock
        # The shop stays open: the episode is cut, not over. `truncated` (the fourth value) says so, and algorithms
        # then count the value of the last state; `terminated` would teach them that nothing follows.
        return self._observation(), reward, False, self.days >= DAYS, {}

    def _observation(self) -> Any:
        return np.concatenate([[self.stock / SHELF], np.eye(7)[self.weekday]]).astype(np.float32)


def return_of_rule(level: int, num_episodes: int = 100) -> float:
    """Mean return of the rule `fill up to level`: a score means little without something to compare it with."""
    env, total = Shop(), 0.0
    for episode in range(num_episodes):
        env.reset(seed=episode)
        for _ in range(DAYS):
            total += env.step(min(max(level - env.stock, 0), LARGEST_ORDER))[1]
    return total / num_episodes


def main() -> None:
    """Check, train twice, compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--total-timesteps", type=int, default=40_000)
    parser.add_argument("--output-dir", type=Path, default=Path("runs"))
    options = parser.parse_args()

    # On the command line: rl-training doctor --env examples/custom_environment.py:Shop
    env_id = register_env("python:Shop", Shop)
    for finding in check_environment(env_id).findings:
        print(textwrap.fill(f"{finding.level.value} {finding.name}: {finding.found}", 80, subsequent_indent="   "))

    # By its class, and by the name that was registered above. Goods are sold within days: rewards that are further
    # away tell nothing about an order, so gamma is below its default of 0.99.
    settings: dict[str, Any] = {**vars(options), "gamma": 0.9}
    agents = {
        "ppo": PPO(Shop, num_envs=8, num_steps=64, learning_rate=1e-3, **settings),
        "dqn": DQN(env_id, learning_rate=1e-3, target_update_interval=500, **settings),
    }
    returns = {f"fill up to {level}": return_of_rule(level) for level in (4, 8, 12)}
    for name, agent in agents.items():
        if agent.learn().was_interrupted:  # by Ctrl-C: learn() has saved the run, and returns
            raise SystemExit("stopped")
        returns[name] = agent.evaluate(num_episodes=100)["eval_return_mean"]
    print("mean return of 100 episodes")
    for name, value in sorted(returns.items(), key=lambda item: item[1]):
        print(f"  {name:<14}{value:7.1f}")


if __name__ == "__main__":
    main()
