"""`python -m rl_training` is the command line."""

from rl_training.cli import run

if __name__ == "__main__":
    run()
