"""Environments: making them, shaping their rewards, recording their episodes."""

from typing import TYPE_CHECKING

from rl_training.exports import lazy_exports

if TYPE_CHECKING:
    from rl_training.envs.factory import make_env as make_env
    from rl_training.envs.factory import make_vector_env as make_vector_env
    from rl_training.envs.given.objects import register_env as register_env
    from rl_training.envs.rewards import RewardClipWrapper as RewardClipWrapper
    from rl_training.envs.rewards import RewardScaleWrapper as RewardScaleWrapper
    from rl_training.envs.rewards import RewardShiftWrapper as RewardShiftWrapper
    from rl_training.envs.rewards import RewardTransformConfig as RewardTransformConfig
    from rl_training.envs.rewards import apply_reward_wrappers as apply_reward_wrappers
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "factory": "make_env make_vector_env",
            "given.objects": "register_env",
            "rewards": "RewardClipWrapper RewardScaleWrapper RewardShiftWrapper RewardTransformConfig"
            " apply_reward_wrappers",
        },
    )
