"""Atari preprocessing: frame skip, grayscale frame stacks, FIRE on reset, and episode ends at a lost life."""

from __future__ import annotations

from typing import Annotated, Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TransformReward
from pydantic import Field, NonNegativeInt, PositiveInt

from rl_training.envs.single.resumable import NO_RESET
from rl_training.envs.state.aliases import Env, Info, Result
from rl_training.envs.state.generators import is_atari
from rl_training.errors import ConfigError, EnvError, install_extra
from rl_training.spaces.observations import MIN_IMAGE_SIDE
from rl_training.validation import FrozenConfig

FIRE = 1
"""Index of FIRE among the actions of a game that has it."""
GAME_KWARGS = {"frameskip": 1, "obs_type": "grayscale"}
"""Arguments of the game that the wrappers need: every frame, in grayscale."""


class AtariConfig(FrozenConfig):
    """Atari preprocessing; all keys but the last two also apply to evaluation."""

    frame_skip: PositiveInt = 4
    """Frames for which each action is repeated; the observation is the maximum of the last two."""
    screen_size: Annotated[int, Field(ge=MIN_IMAGE_SIDE)] = 84
    """Width and height of a grayscale frame in pixels."""
    noop_max: NonNegativeInt = 30
    """Maximum number of no-op frames at the start of a game; the number is random."""
    frame_stack: PositiveInt = 4
    """Frames in one observation."""
    press_fire: bool = True
    """Take FIRE at the start of each life, if the game has it: some games wait for it."""
    terminal_on_life_loss: bool = True
    """In training, report a lost life as `terminated`; do not reset the game."""
    clip_reward: bool = True
    """In training, replace each reward by its sign; reported returns use the game's own rewards."""


def preprocess(env: Env, config: AtariConfig) -> Env:
    """Apply frame skip, grayscale, resizing, FIRE on reset and frame stacking."""
    if not is_atari(env.unwrapped):
        raise ConfigError(f"{env.unwrapped} is none of them")
    try:
        env = AtariPreprocessing(
            env,
            noop_max=config.noop_max,
            frame_skip=config.frame_skip,
            screen_size=config.screen_size,
        )
    except gym.error.DependencyNotInstalled:
        raise EnvError(
            f"env_kwargs.wrappers.atari needs OpenCV: {install_extra('atari')}"
        ) from None
    core: Any = env.unwrapped
    if config.press_fire and core.get_action_meanings()[FIRE] == "FIRE":
        env = FireReset(env)
    return FrameStackObservation(env, config.frame_stack)


def clip_rewards(env: Env) -> Env:
    """Replace each reward by its sign."""
    return TransformReward(env, lambda reward: float(np.sign(float(reward))))


class _Lives(gym.Wrapper[Any, Any, Any, Any]):
    """Counts the lives left."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._num_lives = 0

    def reset(self, **kwargs: Any) -> tuple[Any, Info]:
        """Start a game."""
        result = self.env.reset(**kwargs)
        self.has_lost_life()
        return result

    def has_lost_life(self) -> bool:
        """Whether the number of lives has fallen since the last call."""
        core: Any = self.env.unwrapped
        before, self._num_lives = self._num_lives, int(core.ale.lives())
        return self._num_lives < before


class FireReset(_Lives):
    """Take FIRE at the start of a game and after each lost life."""

    def reset(self, **kwargs: Any) -> tuple[Any, Info]:
        """Start a game and take FIRE."""
        super().reset(**kwargs)
        obs, _, terminated, truncated, info = self.env.step(FIRE)
        return super().reset(**kwargs) if terminated or truncated else (obs, info)

    def step(self, action: Any) -> Result:
        """Take the action; after a lost life, take FIRE."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        if self.has_lost_life() and not (terminated or truncated):
            obs, more, terminated, truncated, info = self.env.step(FIRE)
            reward = float(reward) + float(more)
        return obs, reward, terminated, truncated, info


class EpisodicLife(_Lives):
    """Report a lost life as `terminated`, with `NO_RESET` in the info: the game continues."""

    def step(self, action: Any) -> Result:
        """Take the action; `terminated` if it lost a life."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        if self.has_lost_life() and not (terminated or truncated):
            return obs, reward, True, False, {**info, NO_RESET: True}
        return obs, reward, terminated, truncated, info
