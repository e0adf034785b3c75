"""Deep deterministic policy gradients (Lillicrap et al. 2016): TD3 without its three improvements."""

from __future__ import annotations

from pydantic import NonNegativeFloat, PositiveInt

from rl_training.algorithms.td3 import TD3Algorithm, TD3Config
from rl_training.spaces.spec import Spaces, require_bounded_box


class DDPGConfig(TD3Config):
    """Settings of DDPG."""

    policy_noise: NonNegativeFloat = 0.0
    """Deviation of the noise on the target policy's actions."""
    policy_delay: PositiveInt = 1
    """Updates of the critics for each update of the actor and of the targets."""
    num_critics: PositiveInt = 1
    """Critics, of which the least value is the target."""


class DDPGAlgorithm(TD3Algorithm):
    """Learns a deterministic policy from replayed transitions, by one critic."""

    @classmethod
    def check_spaces(cls, spaces: Spaces) -> None:
        """DDPG squashes its actions into the bounds, so it needs some."""
        require_bounded_box(spaces, "ddpg", "dqn or ppo")
