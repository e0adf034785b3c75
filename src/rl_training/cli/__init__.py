"""The command line: parse, call, print."""

from rl_training.cli.configuration import load_config
from rl_training.cli.program import main, run

__all__ = ["load_config", "main", "run"]
