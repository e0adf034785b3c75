"""The loops and everything around them."""

from typing import TYPE_CHECKING

from rl_training.exports import lazy_exports

if TYPE_CHECKING:
    from rl_training.runtime.a2c_trainer import train_a2c as train_a2c
    from rl_training.runtime.awac_trainer import train_awac as train_awac
    from rl_training.runtime.bc_trainer import train_bc as train_bc
    from rl_training.runtime.callbacks import Callback as Callback
    from rl_training.runtime.callbacks import CallbackList as CallbackList
    from rl_training.runtime.controls import EarlyStoppingCallback as EarlyStoppingCallback
    from rl_training.runtime.controls import EarlyStoppingConfig as EarlyStoppingConfig
    from rl_training.runtime.cql_trainer import train_cql as train_cql
    from rl_training.runtime.crossq_trainer import train_crossq as train_crossq
    from rl_training.runtime.ddpg_trainer import train_ddpg as train_ddpg
    from rl_training.runtime.dqn_trainer import train_dqn as train_dqn
    from rl_training.runtime.her_trainer import train_her as train_her
    from rl_training.runtime.iql_trainer import train_iql as train_iql
    from rl_training.runtime.ppo_trainer import train_ppo as train_ppo
    from rl_training.runtime.qrdqn_trainer import train_qrdqn as train_qrdqn
    from rl_training.runtime.run_utils import create_training_run as create_training_run
    from rl_training.runtime.run_utils import resolve_device as resolve_device
    from rl_training.runtime.run_utils import save_training_checkpoint as save_training_checkpoint
    from rl_training.runtime.run_utils import serialize_train_config as serialize_train_config
    from rl_training.runtime.sac_trainer import train_sac as train_sac
    from rl_training.runtime.td3_bc_trainer import train_td3_bc as train_td3_bc
    from rl_training.runtime.td3_trainer import train_td3 as train_td3
    from rl_training.runtime.tqc_trainer import train_tqc as train_tqc
    from rl_training.runtime.trainer import CollectResult as CollectResult
    from rl_training.runtime.trainer import Trainer as Trainer
    from rl_training.runtime.trainer import TrainerState as TrainerState
    from rl_training.runtime.trainer import TrainResult as TrainResult
    from rl_training.runtime.workflows import evaluate_checkpoint as evaluate_checkpoint
    from rl_training.runtime.workflows import predict_checkpoint as predict_checkpoint
    from rl_training.runtime.workflows import resume_training as resume_training
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "callbacks": "Callback CallbackList",
            "controls": "EarlyStoppingCallback EarlyStoppingConfig",
            "run_utils": "create_training_run resolve_device save_training_checkpoint serialize_train_config",
            "trainer": "CollectResult Trainer TrainerState TrainResult",
            "workflows": "evaluate_checkpoint predict_checkpoint resume_training",
            "a2c_trainer": "train_a2c",
            "awac_trainer": "train_awac",
            "bc_trainer": "train_bc",
            "cql_trainer": "train_cql",
            "crossq_trainer": "train_crossq",
            "ddpg_trainer": "train_ddpg",
            "dqn_trainer": "train_dqn",
            "her_trainer": "train_her",
            "iql_trainer": "train_iql",
            "ppo_trainer": "train_ppo",
            "qrdqn_trainer": "train_qrdqn",
            "sac_trainer": "train_sac",
            "td3_trainer": "train_td3",
            "td3_bc_trainer": "train_td3_bc",
            "tqc_trainer": "train_tqc",
        },
    )
