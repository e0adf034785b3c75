"""Deep deterministic policy gradient, DDPG (Lillicrap et al. 2016): TD3 with one critic, no delay, no smoothing."""

from __future__ import annotations

from pydantic import NonNegativeFloat, PositiveInt

from rl_training.algorithms.td3 import TD3Algorithm, TD3Config


class DDPGConfig(TD3Config):
    """Settings of DDPG."""

    policy_noise: NonNegativeFloat = 0.0
    """Standard deviation of the noise on the target policy's actions."""
    policy_delay: PositiveInt = 1
    """Gradient steps of the critics per step of the actor and the target networks."""
    num_critics: PositiveInt = 1
    """Critics; the TD target uses their minimum."""


class DDPGAlgorithm(TD3Algorithm):
    """TD3 with other defaults."""
