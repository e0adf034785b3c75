"""A trained policy as one file that proves itself: `load` needs NumPy and safetensors only, `exporting` writes it."""

from rl_training.bundle.loading import BundlePolicy as BundlePolicy
from rl_training.bundle.loading import load as load

__all__ = ["BundlePolicy", "load"]
