"""What users call: one class per algorithm."""

from typing import TYPE_CHECKING

from rl_training.exports import lazy_exports

if TYPE_CHECKING:
    from rl_training.api.algorithms import A2C as A2C
    from rl_training.api.algorithms import AWAC as AWAC
    from rl_training.api.algorithms import BC as BC
    from rl_training.api.algorithms import CQL as CQL
    from rl_training.api.algorithms import DDPG as DDPG
    from rl_training.api.algorithms import DQN as DQN
    from rl_training.api.algorithms import HER as HER
    from rl_training.api.algorithms import IQL as IQL
    from rl_training.api.algorithms import PPO as PPO
    from rl_training.api.algorithms import QRDQN as QRDQN
    from rl_training.api.algorithms import SAC as SAC
    from rl_training.api.algorithms import TD3 as TD3
    from rl_training.api.algorithms import TD3BC as TD3BC
    from rl_training.api.algorithms import TQC as TQC
    from rl_training.api.algorithms import CrossQ as CrossQ
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "algorithms": "A2C AWAC BC CQL DDPG DQN HER IQL PPO QRDQN SAC TD3 TD3BC TQC CrossQ",
        },
    )
