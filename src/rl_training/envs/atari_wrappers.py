"""Atari games as agents learn them: stacks of small grey pictures, a few frames to each action, and lives."""

from __future__ import annotations

from typing import Annotated, Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TransformReward
from pydantic import Field, NonNegativeInt, PositiveInt

from rl_training.envs.resumable import NO_RESET
from rl_training.envs.state.ale_rng import is_atari
from rl_training.errors import ConfigError, EnvError, install_extra
from rl_training.spaces.observations import MIN_IMAGE_SIDE
from rl_training.validation import FrozenConfig

Env = gym.Env[Any, Any]
Result = tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]
FIRE = 1
"""The place of FIRE in the list of actions, where a game has it."""
GAME_KWARGS = {"frameskip": 1, "obs_type": "grayscale"}
"""What the wrappers ask of the game: each frame, and not in colours that no one looks at."""


class AtariConfig(FrozenConfig):
    """How a game is shown and played. All but the last two apply to evaluation, too."""

    frame_skip: PositiveInt = 4
    """Frames that one action lasts; the last two of them are shown as one."""
    screen_size: Annotated[int, Field(ge=MIN_IMAGE_SIDE)] = 84
    """Side of the grey picture in pixels."""
    noop_max: NonNegativeInt = 30
    """A game begins after up to this many frames without an action."""
    frame_stack: PositiveInt = 4
    """Pictures in one observation."""
    press_fire: bool = True
    """Press FIRE where a life begins, if the game has it: some wait for it, and a policy that does not would hang."""
    terminal_on_life_loss: bool = True
    """In training, count what follows a lost life as worth nothing. The game itself goes on."""
    clip_reward: bool = True
    """In training, only the sign of a reward counts. Returns that are reported are those of the game."""


def show(env: Env, config: AtariConfig) -> Env:
    """The game as agents see it."""
    if not is_atari(env.unwrapped):
        raise ConfigError(f"{env.unwrapped} is none of them")
    try:
        env = AtariPreprocessing(
            env, noop_max=config.noop_max, frame_skip=config.frame_skip, screen_size=config.screen_size
        )
    except gym.error.DependencyNotInstalled:
        raise EnvError(f"env_kwargs.wrappers.atari needs OpenCV: {install_extra('atari')}") from None
    core: Any = env.unwrapped
    if config.press_fire and core.get_action_meanings()[FIRE] == "FIRE":
        env = FireReset(env)
    return FrameStackObservation(env, config.frame_stack)


def reward_for_training(env: Env, config: AtariConfig) -> Env:
    """What training makes of lives and rewards."""
    if config.terminal_on_life_loss:
        env = EpisodicLife(env)
    return TransformReward(env, lambda reward: float(np.sign(float(reward)))) if config.clip_reward else env


class _Lives(gym.Wrapper[Any, Any, Any, Any]):
    """Knows how many lives are left."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._num_lives = 0

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Begin a game."""
        result = self.env.reset(**kwargs)
        self.has_lost_life()
        return result

    def has_lost_life(self) -> bool:
        """Whether there are fewer lives than when this was asked last."""
        core: Any = self.env.unwrapped
        before, self._num_lives = self._num_lives, int(core.ale.lives())
        return self._num_lives < before


class FireReset(_Lives):
    """Press FIRE for the agent at the beginning of a game and after each lost life."""

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Begin a game."""
        super().reset(**kwargs)
        obs, _, terminated, truncated, info = self.env.step(FIRE)
        return super().reset(**kwargs) if terminated or truncated else (obs, info)

    def step(self, action: Any) -> Result:
        """Take the action, and start the next life if it lost one."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        if self.has_lost_life() and not (terminated or truncated):
            obs, more, terminated, truncated, info = self.env.step(FIRE)
            reward = float(reward) + float(more)
        return obs, reward, terminated, truncated, info


class EpisodicLife(_Lives):
    """A lost life terminates what is learned from, while the game goes on."""

    def step(self, action: Any) -> Result:
        """Take the action."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        if self.has_lost_life() and not (terminated or truncated):
            return obs, reward, True, False, {**info, NO_RESET: True}
        return obs, reward, terminated, truncated, info
