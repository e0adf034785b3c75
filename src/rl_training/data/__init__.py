"""Datasets of transitions: loading, checking and sampling."""

from typing import TYPE_CHECKING

from rl_training.exports import lazy_exports

if TYPE_CHECKING:
    from rl_training.data.dataset_loaders import load_transition_dataset as load_transition_dataset
    from rl_training.data.offline_dataset import TransitionDataset as TransitionDataset
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "dataset_loaders": "load_transition_dataset",
            "offline_dataset": "TransitionDataset",
        },
    )
