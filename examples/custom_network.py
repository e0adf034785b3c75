"""A network of your own: an encoder for a short history of observations, trained, saved and loaded.

python examples/custom_network.py

CartPole without velocities: from one observation alone, PPO reaches a return of about 43. From the last four, the
encoder can find the velocities.
"""

import argparse
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from rl_training import PPO
from rl_training.envs.toys import CartPoleNoVel
from rl_training.spaces.observations import ObsSpec


class HistoryEncoder(nn.Module):
    """A convolution over time, shared by all steps of the history."""

    def __init__(self, obs: ObsSpec) -> None:
        """`obs` describes the observation. The run seeds torch around this call: equal seeds, equal weights."""
        super().__init__()
        self.steps, self.width = obs.shape
        self.num_features = 32 * (self.steps - 1)  # read by the package: how many outputs there are
        self.convolution = nn.Conv1d(self.width, 32, kernel_size=2)

    def forward(self, obs: Tensor) -> Tensor:
        """Observations arrive flat, [B, num_features of obs], and leave as [B, num_features]."""
        history = obs.reshape(-1, self.steps, self.width).movedim(1, 2)  # [B, width, steps]
        return torch.tanh(self.convolution(history)).flatten(1)


def make_env() -> gym.Env[Any, Any]:
    """CartPole without velocities; an observation is the last four of them, [4, 2]."""
    return gym.wrappers.FrameStackObservation(CartPoleNoVel(), 4)


def main() -> None:
    """Train, save, load."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--total-timesteps", type=int, default=40_000)
    parser.add_argument("--output-dir", type=Path, default=Path("runs"))
    options = parser.parse_args()

    # The encoder comes before the hidden layers of policy and value function, which stay: hidden_sizes.
    agent = PPO(
        make_env,
        network=HistoryEncoder,
        hidden_sizes=[64],
        num_envs=8,
        num_steps=64,
        learning_rate=1e-3,
        total_timesteps=options.total_timesteps,
        output_dir=options.output_dir,
    )
    result = agent.learn()

    # The files hold weights and the name of the class, but no code: another program gives the classes again, with
    # `network=` and `env=`. A class in a module that the program imports needs neither.
    path = agent.save(result.run_dir / "policy")
    loaded = PPO.load(path, network=HistoryEncoder, env=make_env)
    before, after = (each.evaluate(num_episodes=20)["eval_return_mean"] for each in (agent, loaded))
    print(f"saved {path}")
    print(f"return {before:.1f} before saving, {after:.1f} after loading")


if __name__ == "__main__":
    main()
