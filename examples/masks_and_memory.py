"""Action masks and memory: an environment that says which actions are valid, and a policy that remembers.

python examples/masks_and_memory.py

A messenger is told a door, walks down a corridor, and stands before the doors, of which two are open.
"""

import argparse
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training import PPO

DOORS, CORRIDOR = 4, 4
WALK = DOORS  # the last action


class Messenger(gym.Env[Any, Any]):
    """The right door pays 1. The observation is its number, at the first step only, and the place."""

    observation_space = gym.spaces.Box(0.0, 1.0, (DOORS + 1,), np.float32)
    action_space = gym.spaces.Discrete(DOORS + 1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Choose the door, and another one that is open."""
        super().reset(seed=seed)
        self.place, self.doors = 0, self.np_random.permutation(DOORS)[:2]
        return self._observation(), {"action_mask": self._mask()}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Walk, or open a door, which ends the episode."""
        is_over = bool(action != WALK)
        self.place += 1
        # With every reset and step: the mask of the next action. Algorithms find it by its name, and obey it.
        return self._observation(), float(action == self.doors[0]), is_over, False, {"action_mask": self._mask()}

    def _mask(self) -> Any:
        mask = np.zeros(DOORS + 1, bool)
        mask[self.doors if self.place == CORRIDOR else [WALK]] = True
        return mask

    def _observation(self) -> Any:
        obs = np.zeros(DOORS + 1, np.float32)
        obs[-1] = self.place / CORRIDOR
        if self.place == 0:
            obs[self.doors[0]] = 1.0
        return obs


def deliver(agent: PPO, seed: int) -> float:
    """One episode by hand: `predict` keeps nothing, so the caller passes the state on."""
    env = Messenger()
    obs, info = env.reset(seed=seed)
    state, is_over, reward = None, False, 0.0  # None begins an episode
    while not is_over:
        action, state = agent.predict(obs, state=state, mask=info["action_mask"])
        obs, reward, is_over, _, info = env.step(action)
    return reward


def main() -> None:
    """Train with and without memory."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--total-timesteps", type=int, default=20_000)
    parser.add_argument("--output-dir", type=Path, default=Path("runs"))
    settings: dict[str, Any] = vars(parser.parse_args())

    # num_steps is a multiple of sequence_length: a rollout is cut into sequences, and gradients flow within each.
    settings |= {"num_envs": 8, "num_steps": 64, "minibatch_size": 128, "learning_rate": 2e-3, "hidden_sizes": [32]}
    for memory in (None, {"kind": "gru", "size": 32, "sequence_length": 16}):
        agent = PPO(Messenger, memory=memory, progress=False, **settings)
        if agent.learn().was_interrupted:  # by Ctrl-C: learn() has saved the run, and returns
            raise SystemExit("stopped")
        rewards = [deliver(agent, seed) for seed in range(200)]
        print(f"{'with' if memory else 'without'} memory: the right door in {np.mean(rewards):.0%} of 200 deliveries")


if __name__ == "__main__":
    main()
