"""A small run with compiled updates, in a process of its own: prints its loss, or the named error that stopped it."""

from __future__ import annotations

import sys
from pathlib import Path

from conftest import small_config

from rl_training.algorithms import compiling
from rl_training.errors import CompilationError
from rl_training.runtime.training import run_training

if __name__ == "__main__":
    if sys.argv[2] == "one-folder":  # as if every machine had the same name for its kernels
        compiling._cache_folder = lambda: "rl_training-shared"
    config = small_config("dqn", Path(sys.argv[1]), compile=True, total_timesteps=48, log_interval=48)
    try:
        print(run_training(config).metrics["critic_loss"])
    except CompilationError as error:
        print(error)
