"""A trained policy as one file that proves itself: `load` needs NumPy and safetensors only, `exporting` writes it."""

from rl_training.bundle.loading import load as load
from rl_training.bundle.policy import BundlePolicy as BundlePolicy

__all__ = ["BundlePolicy", "load"]
