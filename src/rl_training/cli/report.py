"""Reports of `train`, `resume` and `eval`: key=value lines on standard output, a table on standard error."""

from __future__ import annotations

import contextlib
import json
import math
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rl_training.cli.command_lines import program_command, wrap_command
from rl_training.cli.output import say, show
from rl_training.errors import RLTrainingError, failure_note
from rl_training.terminal.streams import is_quiet, is_terminal
from rl_training.views.runs import evaluation_lines, reduced, training_lines

if TYPE_CHECKING:
    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime.trainer import TrainResult

COLUMN_OF_COMMANDS = 11


def report_training(
    result: TrainResult,
    config: TrainConfig,
    *,
    as_json: bool = False,
    plugins: Sequence[str] | None = None,
    callbacks: Sequence[str] | None = None,
    proposes: bool = True,
) -> None:
    """Print the run folder, the metrics and, if `proposes`, the commands to use next.

    An interrupted run ends with exit code 128 + signal number.
    """
    from rl_training.experiment.run_folder import interrupting_signal, is_interruption

    was_interrupted = is_interruption(result.stop_reason)
    code = _code_words(config, plugins)
    resume = ["resume", str(result.run_dir), *code, *_repeated("--callback", callbacks or [])]
    commands = _next_commands(result, config, code, resume) if proposes else []
    table = training_lines(result, config, _command_rows(commands))
    values = {
        "run_dir": str(result.run_dir),
        "checkpoint_path": str(result.checkpoint_path),
        "metrics": result.metrics,
        "stop_reason": result.stop_reason,
    }
    texts = {**values, "metrics": json.dumps(reduced(result.metrics))}
    try:
        _print_both(values, [f"{key}={text}" for key, text in texts.items() if text is not None], table, as_json)
    except RLTrainingError as error:
        if not was_interrupted:
            raise
        say(str(error))  # the signal may mean that the terminal is gone
    if was_interrupted:
        say("\n".join(["saved; to resume:", *(f"  {line}" for line in wrap_command(program_command(*resume), 2))]))
        raise typer.Exit(128 + (interrupting_signal(result.stop_reason) or signal.SIGTERM))


@contextlib.contextmanager
def explaining_failure(
    config: TrainConfig, plugins: Sequence[str] | None, callbacks: Sequence[str] | None
) -> Iterator[None]:
    """Add the command that resumes to the error of a failed run, and the name of a callback that raised it."""
    try:
        yield
    except Exception as error:
        note = failure_note(error)
        if note.run_dir is None:
            raise
        words = ["resume", str(note.run_dir), *_code_words(config, plugins), *_repeated("--callback", callbacks or [])]
        remedy = _resume_hint(note.run_dir, words)
        if note.callback is not None:
            text = f"{note.callback} raised {type(error).__name__}: {error}{note.trace}"
        elif isinstance(error, RLTrainingError):
            text = str(error)
        else:
            say(remedy)
            raise
        raise RLTrainingError(f"{text}\n{remedy}".rstrip()) from error


def _resume_hint(run_dir: Path, words: Sequence[str]) -> str:
    """The command that resumes a failed run; empty if it has no checkpoint."""
    from rl_training.experiment.checkpoint_folder import CheckpointFolder, checkpoint_order

    last = CheckpointFolder(run_dir / "checkpoints").last
    if last is None:
        return ""
    step = checkpoint_order(last.name)[0]
    command = "\n".join(f"  {line}" for line in wrap_command(program_command(*words), 2))
    return f"the last checkpoint is of step {step:,}; after fixing the cause, resume:\n{command}"


def _code_words(config: TrainConfig, plugins: Sequence[str] | None) -> list[str]:
    """The --plugin and --allow-path options that another command needs for the environment and network of this run."""
    from rl_training.envs.foreign_paths import find_paths
    from rl_training.envs.wrapping.trust import wrapper_plugins
    from rl_training.plugins.user_code import SHIPPED, plugin_of

    named = [plugin_of(name) for name in (config.env_id or "", config.algo_kwargs.get("network") or "")]
    named += wrapper_plugins(config.env_kwargs)
    paths = [path for _, path in find_paths(config.env_kwargs)]
    needed = [*(plugins or []), *(plugin for plugin in named if plugin and plugin not in SHIPPED)]
    return [*_repeated("--plugin", list(dict.fromkeys(needed))), *_repeated("--allow-path", paths)]


def report_evaluation(path: Path, metrics: Mapping[str, float], as_json: bool) -> None:
    """Print the evaluated checkpoint and its score."""
    from rl_training.experiment.checkpointing import resolve_checkpoint

    checkpoint = resolve_checkpoint(path)
    run_dir = checkpoint.parent.parent if checkpoint.parent.name == "checkpoints" else None
    places = {"run_dir": None if run_dir is None else str(run_dir), "checkpoint_path": str(checkpoint)}
    lines = [f"{key}={text}" for key, text in places.items() if text is not None]
    lines.append(f"metrics={json.dumps(reduced(metrics, keep_all=True))}")
    _print_both({**metrics, **places}, lines, evaluation_lines(metrics, run_dir or checkpoint), as_json)


def _print_both(values: Mapping[str, Any], lines: Sequence[str], table: Sequence[str], as_json: bool) -> None:
    """Print the table to standard error, and the lines to standard output unless that is a terminal, too."""
    if as_json or is_quiet() or not is_terminal(sys.stdout):
        show(dict(values), lines, as_json)
    if not as_json:
        say("\n".join(table))


def _command_rows(commands: Sequence[str]) -> list[tuple[str, str]]:
    """The commands to use next, wrapped."""
    texts = [line for command in commands for line in wrap_command(command, COLUMN_OF_COMMANDS)]
    return [("" if number else "next", text) for number, text in enumerate(texts)]


def _next_commands(result: TrainResult, config: TrainConfig, code: Sequence[str], resume: Sequence[str]) -> list[str]:
    """Commands to evaluate and extend the run; none if interrupted, since its resume is printed separately."""
    from rl_training.experiment.run_folder import is_interruption

    if is_interruption(result.stop_reason):
        return []
    commands = [program_command(*words, *code) for words in _evaluations(result, config)]
    return [*commands, program_command(*resume, *_words_to_continue(result, config))]


def _words_to_continue(result: TrainResult, config: TrainConfig) -> list[str]:
    """What `resume` needs to continue the run: no early stopping, or more steps and schedules that start again."""
    from rl_training.algorithms.config import Schedule
    from rl_training.experiment.registry import get_algorithm_spec

    settings = get_algorithm_spec(config.algo).parse_kwargs(config.algo_kwargs)
    step = int(result.metrics["global_step"])
    if result.stop_reason is None or step >= config.total_timesteps:
        # A learning rate that has decayed to its end would hardly learn more.
        has_schedules = any(isinstance(value, Schedule) for value in vars(settings).values())
        restart = ["--schedules", "restart"] if has_schedules else []
        return ["--total-timesteps", str(2 * max(step, config.total_timesteps)), *restart]
    stopping = settings.early_stopping
    is_early_stop = stopping is not None and result.stop_reason.startswith(f"{stopping.metric} ")
    return ["algo_kwargs.early_stopping=null"] if is_early_stop else []


def _evaluations(result: TrainResult, config: TrainConfig) -> list[list[str]]:
    """Arguments of `eval`: the best checkpoint if it is better than the last; the dataset if there is no env_id."""
    if config.env_id is None:
        dataset = config.algo_kwargs.get("dataset_path") or config.algo_kwargs.get("dataset_id")
        return [["eval", str(result.run_dir), "--dataset", str(dataset)]] if dataset else []
    metrics = result.metrics
    is_better = metrics.get("best_eval_return_mean", -math.inf) > metrics.get("eval_return_mean", math.inf)
    return [["eval", str(result.run_dir / "checkpoints" / "best" if is_better else result.run_dir)]]


def _repeated(option: str, values: Sequence[str]) -> list[str]:
    return [word for value in dict.fromkeys(values) for word in (option, value)]
