"""Types of what `rl_training.runtime` exports.

`__getattr__` types `train_<algo>`; in a stub it also lets type checkers accept the modules `<algo>_trainer`.
"""

from rl_training.runtime.callbacks import Callback as Callback
from rl_training.runtime.callbacks import CallbackList as CallbackList
from rl_training.runtime.controls import EarlyStoppingCallback as EarlyStoppingCallback
from rl_training.runtime.controls import EarlyStoppingConfig as EarlyStoppingConfig
from rl_training.runtime.run_utils import create_training_run as create_training_run
from rl_training.runtime.run_utils import resolve_device as resolve_device
from rl_training.runtime.run_utils import save_training_checkpoint as save_training_checkpoint
from rl_training.runtime.run_utils import serialize_train_config as serialize_train_config
from rl_training.runtime.trainer import CollectResult as CollectResult
from rl_training.runtime.trainer import Trainer as Trainer
from rl_training.runtime.trainer import TrainerState as TrainerState
from rl_training.runtime.trainer import TrainResult as TrainResult
from rl_training.runtime.trainer_modules import TrainFunction
from rl_training.runtime.workflows import evaluate_checkpoint as evaluate_checkpoint
from rl_training.runtime.workflows import predict_checkpoint as predict_checkpoint
from rl_training.runtime.workflows import resume_training as resume_training

def __getattr__(name: str) -> TrainFunction: ...
