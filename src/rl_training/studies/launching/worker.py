"""The process that trains one run of a study, or checks the settings of all.

`python -m rl_training.studies.launching.worker` reads its order as JSON from standard input until that ends; without an
order it was not needed. What it prints goes to the log that its order names. It saves and ends when the process that
started it is gone.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from rl_training.errors import ConfigError, ReplacedError, RLTrainingError, RunOwnedError
from rl_training.experiment.config import TrainConfig
from rl_training.studies.launching.orders import FAILED, OWNED

SECONDS_BETWEEN_LOOKS = 0.5


def main() -> int:
    """Carry out the order on standard input; returns the exit code."""
    _end_with_parent()
    import torch  # noqa: F401  # most of the start-up time: spent while the launcher prepares the order

    text = sys.stdin.read()
    if not text.strip():
        return 0
    order = json.loads(text)
    with contextlib.suppress(OSError):  # the folder of the study's first command may be gone
        os.chdir(order.get("working_dir") or ".")
    if "study" in order and not os.path.isfile(order["study"]):  # noqa: PTH113
        print(
            f"error: {socket.gethostname()} does not see '{order['study']}': use a folder that all nodes share"
        )
        return FAILED
    _print_to(order.get("log"))
    sys.argv = order.get(
        "command", sys.argv
    )  # for the run's metadata: the command that the user gave
    return check(order) if "check" in order else train(order)


def train(order: Mapping[str, Any]) -> int:
    """Train the run, from its last checkpoint if it has one."""
    from rl_training.experiment.default_manager import DefaultExperimentManager
    from rl_training.experiment.ownership import stale_seconds, wait_until_free
    from rl_training.experiment.run_folder import is_interruption, run_name

    try:
        config, callbacks = _prepare(order, order["config"])
        # The process that this one replaces may need a moment to end, or its heartbeat to become stale.
        run_dir = config.output_dir / run_name(config, order["suffix"])
        wait_until_free(run_dir, stale_seconds() + 15, order["last_attempt"])
        trainer = DefaultExperimentManager().resume_or_start(
            config, run_suffix=order["suffix"], callbacks=callbacks, fall_back=True
        )
        result = trainer.train()
    except (RunOwnedError, ReplacedError) as error:
        print(f"error: {error}", file=sys.stderr)
        return OWNED
    except RLTrainingError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    return 128 + signal.SIGTERM if is_interruption(result.stop_reason) else 0


def check(order: Mapping[str, Any]) -> int:
    """Check every configuration of the order; prints one JSON object for each."""
    from rl_training.runtime.dry_run import SettingsChecker

    checker = SettingsChecker()
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # environments may print
    for values in order["check"]:
        try:
            config, _ = _prepare(order, values)
            needs = checker.check(config)
            answer: dict[str, Any] = {
                "num_threads": needs.num_threads,
                "memory_bytes": needs.memory_bytes,
                "warnings": needs.warnings,
            }
            if order.get("question") is not None:
                function, text = order["question"]
                answer["answer"] = _answer(function, text, config)
        except RLTrainingError as error:
            answer = {"error": str(error)}
        except Exception as error:  # an environment may raise anything
            answer = {"error": f"{type(error).__name__}: {error}"}
        try:
            print(json.dumps(answer), file=results, flush=True)
        except BrokenPipeError:  # the process that asked is gone
            break
    checker.close()
    with contextlib.suppress(BrokenPipeError):
        results.close()
    return 0


def _answer(function: str, text: str, config: TrainConfig) -> str:
    """What a function of the package, named as `module:name`, answers to a text about a checked configuration."""
    module, _, name = function.partition(":")
    if not module.startswith("rl_training.studies."):
        raise ConfigError(f"'{function}' is no function of rl_training.studies")
    return str(getattr(importlib.import_module(module), name)(text, config))


def _print_to(log: str | None) -> None:
    """Append all further output to a file."""
    if log is not None:
        with open(log, "ab") as file:  # noqa: PTH123
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)


def _prepare(
    order: Mapping[str, Any], values: Mapping[str, Any]
) -> tuple[TrainConfig, Iterable[object]]:
    """A configuration of an order and its callbacks, after its plugins were imported."""
    from rl_training.envs.wrapping.wrapper_list import find_wrappers_here
    from rl_training.plugins.user_code import add_working_directory, load_code
    from rl_training.runtime.callbacks import load_callbacks

    for name in (*order["plugins"], *order["callbacks"]):
        add_working_directory(name)
    for plugin in order["plugins"]:
        load_code(plugin)
    callbacks = load_callbacks(order["callbacks"])
    config = TrainConfig(**values)
    add_working_directory(config.env_id or "")
    find_wrappers_here(config.env_kwargs)
    return config, callbacks


def _end_with_parent() -> None:
    """Ask this process to save and stop as soon as its parent is gone."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(SECONDS_BETWEEN_LOOKS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
