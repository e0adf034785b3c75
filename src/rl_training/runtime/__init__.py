"""The training loops and what they need: collector, callbacks, controls, resuming, workflows."""

from rl_training.experiment.registry import BUILT_IN_CLASSES
from rl_training.exports import lazy_exports
from rl_training.runtime.trainer_modules import install

install()  # makes the modules <algo>_trainer importable
__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "callbacks": "Callback CallbackList",
        "controls": "EarlyStoppingCallback EarlyStoppingConfig",
        "run_utils": "create_training_run resolve_device save_training_checkpoint serialize_train_config",
        "trainer": "CollectResult Trainer TrainerState TrainResult",
        "workflows": "evaluate_checkpoint predict_checkpoint resume_training",
        **{f"{algo}_trainer": f"train_{algo}" for algo in BUILT_IN_CLASSES.values()},
    },
)
