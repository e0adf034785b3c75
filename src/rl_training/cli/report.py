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
from rl_training.terminal.streams import is_terminal

if TYPE_CHECKING:
    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime.trainer import TrainResult

LABEL_WIDTH = 9
Row = tuple[str, str]


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
    table = _training_table(result, config, _next_commands(result, config, code, resume) if proposes else [])
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
    table = _table(f"step {int(metrics['global_step']):,} of {run_dir or checkpoint}", _score_rows(metrics))
    _print_both({**metrics, **places}, lines, table, as_json)


def _print_both(values: Mapping[str, Any], lines: Sequence[str], table: Sequence[str], as_json: bool) -> None:
    """Print the lines to standard output and the table to standard error; at a terminal the table comes first."""
    is_read = is_terminal(sys.stdout) and not as_json
    if is_read:
        say("\n".join(table))
    show(dict(values), lines, as_json)
    if not as_json and not is_read:
        say("\n".join(table))


def reduced(metrics: Mapping[str, float], *, keep_all: bool = False) -> dict[str, float | None]:
    """Steps, evaluation and best score, to six significant digits; all metrics are in metrics.jsonl and --json."""
    wanted = {"global_step", "gradient_steps", "best_eval_return_mean"}
    return {
        name: value if isinstance(value, int) else float(f"{value:.6g}") if math.isfinite(value) else None
        for name, value in metrics.items()
        if keep_all or name in wanted or name.startswith("eval_")
    }


def _training_table(result: TrainResult, config: TrainConfig, commands: Sequence[str]) -> list[str]:
    metrics = result.metrics
    steps, updates = int(metrics["global_step"]), int(metrics["gradient_steps"])
    end = "finished" if result.stop_reason is None else "stopped"
    title = f"{config.algo} on {config.env_id or 'a dataset'}, seed {config.seed}: {end} at step {steps:,}"
    rows = [("reason", result.stop_reason)] if result.stop_reason is not None else []
    rows += [*_score_rows(metrics), *_best_rows(result.run_dir), ("run", str(result.run_dir))]
    lines = _table(f"{title} ({updates:,} gradient steps)", rows, commands)
    if updates == 0:
        lines.append("WARNING: nothing was learned: this run took 0 gradient steps")
    return lines


def _score_rows(metrics: Mapping[str, float]) -> list[Row]:
    if "eval_return_mean" not in metrics:
        return _estimate_rows(metrics) if "fqe_return_mean" in metrics else []
    count = int(metrics["eval_episodes"])
    score = f"{metrics['eval_return_mean']:.1f} ± {metrics['eval_return_std']:.1f}"
    meaning = f"mean ± standard deviation of {count:,} {'episode' if count == 1 else 'episodes'}"
    step = int(metrics.get("eval_step", metrics["global_step"]))
    if step == metrics["global_step"]:
        rows = [("score", f"{score} ({meaning})")]
    else:
        rows = [("score", f"{score} at step {step:,} (not evaluated since)"), ("", meaning)]
    if "eval_normalized_score" in metrics:
        rows.append(("", f"{metrics['eval_normalized_score']:.1f} normalized (0: random, 100: expert)"))
    if "eval_success_rate" in metrics:
        rows.append(("", f"{metrics['eval_success_rate']:.0%} of the episodes successful"))
    return rows


def _estimate_rows(metrics: Mapping[str, float]) -> list[Row]:
    """The rows of fitted Q evaluation."""
    mean, low, high = (f"{metrics[f'fqe_return_{name}']:.4g}" for name in ("mean", "low", "high"))
    count, converged = int(metrics["held_out_episodes"]), "" if metrics["fqe_converged"] else "not "
    rows = [
        ("estimate", f"{mean} (95 % bootstrap interval {low} to {high})"),
        ("dataset", f"{metrics['behaviour_return_mean']:.4g} (mean of {count:,} held-out episodes)"),
        ("", f"both are returns discounted by gamma {metrics['gamma']:g}"),
        ("drift", f"{metrics['fqe_drift']:.2g} in the last tenth of the updates: {converged}converged"),
    ]
    if metrics["tail_weight"] > 0:
        rows.append(("tail", f"{metrics['tail_weight']:.2g} weight of rewards after the recorded episode ends"))
    return rows


def _best_rows(run_dir: Path) -> list[Row]:
    from rl_training.experiment.checkpoint_folder import CheckpointFolder

    best = CheckpointFolder(run_dir / "checkpoints").best
    if best is None:
        return []
    return [("best", f"{best.score:.1f} at step {int(best.name.split('_')[1]):,} (checkpoints/best)")]


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


def _table(title: str, rows: Sequence[Row], commands: Sequence[str] = ()) -> list[str]:
    """Title, labels and texts in two columns, and the commands to use next."""
    width = max([LABEL_WIDTH, *(len(label) + 2 for label, _ in rows)])
    lines = [title, *(f"  {label:<{width}}{text}" for label, text in rows)]
    for number, command in enumerate(commands):
        first, *rest = wrap_command(command, 2 + width)
        lines += [f"  {'' if number else 'next':<{width}}{first}", *(f"{' ' * (2 + width)}{part}" for part in rest)]
    return lines
