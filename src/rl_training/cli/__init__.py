"""The command line: parse, call, print."""

from rl_training.cli.program import main, run

__all__ = ["main", "run"]
