"""The verbs that train or evaluate a run: `train`, `resume`, `eval` and `demo`, and their reports."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import shlex
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli.configuration import read_resume, resolve
from rl_training.cli.data import load_source
from rl_training.cli.options import (
    NUMBER,
    AllowedPaths,
    AsJson,
    CheckpointPath,
    CheckpointPlugins,
    DemoTimesteps,
    Device,
    EvalEpisodes,
    OutputDir,
    ResumeOptions,
    Run,
    SeedOptions,
    TrainOptions,
    find_run,
    option,
    positive_number,
)
from rl_training.cli.output import program_command, put, say, show, with_command, wrap_command
from rl_training.cli.studies import refuse_without_seeds, train_seeds
from rl_training.errors import CheckpointError, ConfigError, RLTrainingError, failure_note
from rl_training.terminal.streams import is_quiet, is_terminal, printable
from rl_training.views.runs import evaluation_lines, reduced, training_lines

if TYPE_CHECKING:
    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime.resuming.plan import ResumePlan
    from rl_training.runtime.trainer import TrainResult


COLUMN_OF_COMMANDS = 11


def report_training(
    result: TrainResult,
    config: TrainConfig,
    options: TrainOptions | ResumeOptions,
    *,
    proposes: bool = True,
) -> None:
    """Print the run folder, the metrics and, if `proposes`, the commands to use next.

    An interrupted run ends with exit code 128 + signal number.
    """
    from rl_training.experiment.run_folder import interrupting_signal, is_interruption

    was_interrupted = is_interruption(result.stop_reason)
    resume = _resume_words(result.run_dir, config, options)
    commands = []
    if proposes and not was_interrupted:  # the command that resumes is printed below
        code = _code_words(config, options)
        commands = [program_command(*words, *code) for words in _evaluations(result, config)]
        commands.append(program_command(*resume, *_words_to_continue(result, config)))
    table = training_lines(result, config, _command_rows(commands))
    values = {
        "run_dir": str(result.run_dir),
        "checkpoint_path": str(result.checkpoint_path),
        "metrics": result.metrics,
        "stop_reason": result.stop_reason,
    }
    texts = {**values, "metrics": json.dumps(reduced(result.metrics))}
    try:
        _print_both(values, texts, table, options.as_json)
    except RLTrainingError as error:
        if not was_interrupted:
            raise
        say(str(error))  # the signal may mean that the terminal is gone
    if was_interrupted:
        say(with_command("saved; to resume:", *resume))
        raise typer.Exit(128 + (interrupting_signal(result.stop_reason) or signal.SIGTERM))


@contextlib.contextmanager
def explaining_failure(
    config: TrainConfig, options: TrainOptions | ResumeOptions
) -> Iterator[None]:
    """Add the command that resumes to the error of a failed run, and the name of a callback that raised it."""
    try:
        yield
    except Exception as error:
        note = failure_note(error)
        if note.run_dir is None:
            raise
        remedy = _resume_hint(note.run_dir, _resume_words(note.run_dir, config, options))
        if note.callback is not None:
            text = f"{note.callback} raised {type(error).__name__}: {error}{note.trace}"
        elif isinstance(error, RLTrainingError):
            text = str(error)
        else:
            say(remedy)
            raise
        raise RLTrainingError(f"{text}\n{remedy}".rstrip()) from error


def _resume_words(
    run_dir: Path, config: TrainConfig, options: TrainOptions | ResumeOptions
) -> list[str]:
    """The command that resumes a run, with the code that it was started with."""
    callbacks = [("--callback", name) for name in dict.fromkeys(options.callback or [])]
    return ["resume", str(run_dir), *_code_words(config, options), *itertools.chain(*callbacks)]


def _resume_hint(run_dir: Path, words: Sequence[str]) -> str:
    """The command that resumes a failed run; empty if it has no checkpoint."""
    from rl_training.experiment.checkpoint_folder import CheckpointFolder, checkpoint_order

    last = CheckpointFolder(run_dir / "checkpoints").last
    if last is None:
        return ""
    step = checkpoint_order(last.name)[0]
    return with_command(
        f"the last checkpoint is of step {step:,}; after fixing the cause, resume:", *words
    )


def _code_words(config: TrainConfig, options: TrainOptions | ResumeOptions) -> list[str]:
    """The --plugin and --allow-path options that another command needs for the environment and network of this run."""
    from rl_training.envs.needs import env_needs
    from rl_training.plugins.gate import flags_for, network_needs

    needs = [
        *env_needs(config.env_id, config.env_kwargs),
        *network_needs(config.algo_kwargs.get("network")),
    ]
    return flags_for(needs, options.plugin or ())


def report_evaluation(path: Path, metrics: Mapping[str, float], as_json: bool) -> None:
    """Print the evaluated checkpoint and its score."""
    from rl_training.experiment.checkpointing import resolve_checkpoint

    checkpoint = resolve_checkpoint(path)
    run_dir = checkpoint.parent.parent if checkpoint.parent.name == "checkpoints" else None
    places = {
        "run_dir": None if run_dir is None else str(run_dir),
        "checkpoint_path": str(checkpoint),
    }
    texts = {**places, "metrics": json.dumps(reduced(metrics, keep_all=True))}
    table = evaluation_lines(metrics, run_dir or checkpoint)
    _print_both({**metrics, **places}, texts, table, as_json)


def _print_both(
    values: Mapping[str, Any], texts: Mapping[str, Any], table: Sequence[str], as_json: bool
) -> None:
    """Print the table to standard error, and the values or texts to standard output unless that is a terminal, too."""
    if as_json or is_quiet() or not is_terminal(sys.stdout):
        lines = [f"{key}={text}" for key, text in texts.items() if text is not None]
        show(values, lines, as_json)
    if not as_json:
        say("\n".join(table))


def _command_rows(commands: Sequence[str]) -> list[tuple[str, str]]:
    """The commands to use next, wrapped."""
    texts = [line for command in commands for line in wrap_command(command, COLUMN_OF_COMMANDS)]
    return [("" if number else "next", text) for number, text in enumerate(texts)]


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
    is_better = metrics.get("best_eval_return_mean", -math.inf) > metrics.get(
        "eval_return_mean", math.inf
    )
    return [["eval", str(result.run_dir / "checkpoints" / "best" if is_better else result.run_dir)]]


def train(options: TrainOptions, many: SeedOptions) -> None:
    """Train an agent: `train ppo CartPole-v1`, or `train --config FILE`.

    With --seeds, one run per seed, each in its own process: `train ppo CartPole-v1 --seeds 0..4`.
    """
    if many.seeds is not None:
        train_seeds(options, many)
        return
    refuse_without_seeds(many)
    config = resolve(options).config
    from rl_training.runtime.callbacks import load_callbacks

    callbacks = load_callbacks(options.callback)
    plan = _find_started(config, options.run_suffix) if options.resume_or_start else None
    if plan is not None:
        _continue(plan, callbacks, options)
        return
    from rl_training.experiment.default_manager import DefaultExperimentManager

    trainer = DefaultExperimentManager().setup(
        config,
        callbacks=callbacks,
        run_suffix=options.run_suffix,
        is_restart=options.resume_or_start,
    )
    with explaining_failure(config, options):
        result = trainer.train()
    report_training(result, config, options)


def _find_started(config: TrainConfig, run_suffix: str | None) -> ResumePlan | None:
    """The plan to resume the run of this configuration and suffix; None if it has not been started."""
    from rl_training.runtime.resuming.plan import plan_restart

    if run_suffix is None:
        raise ConfigError(
            "--resume-or-start needs --run-suffix NAME, which identifies the run: add it"
        )
    try:
        return plan_restart(config, run_suffix)
    except CheckpointError as error:
        if error.fallback is None:
            raise
        run_dir = shlex.quote(str(error.fallback.parent.parent))
        raise CheckpointError(
            f"{error}: `rl-training resume {run_dir} --fall-back` resumes from that one"
        ) from None


def resume(options: ResumeOptions) -> None:
    """Resume a run: `resume RUN`.

    A finished run is extended by a larger --total-timesteps.
    """
    path, arguments = read_resume(options)
    from rl_training.runtime.callbacks import load_callbacks
    from rl_training.runtime.workflows import plan_resume

    callbacks = load_callbacks(options.callback)
    try:
        plan = plan_resume(path, **arguments)
    except CheckpointError as error:
        if error.fallback is None:
            raise
        if not (options.fall_back or _confirm(f"{error}. Resume from that one?")):
            raise CheckpointError(f"{error}: add --fall-back to resume from that one") from None
        plan = plan_resume(path, fall_back=True, **arguments)
        say(f"resuming from the checkpoint of step {plan.global_step:,} instead")
    _continue(plan, callbacks, options)


def _confirm(question: str) -> bool:
    """Ask at a terminal; elsewhere the answer is no."""
    return sys.stdin.isatty() and typer.confirm(printable(question), err=True)


def _continue(
    plan: ResumePlan, callbacks: Iterable[object], options: TrainOptions | ResumeOptions
) -> None:
    """Carry out a resume and report it."""
    from rl_training.runtime.workflows import run_plan

    _say_if_over(plan)
    with explaining_failure(plan.config, options):
        result = run_plan(plan, callbacks=callbacks)
    report_training(result, plan.config, options)


def _say_if_over(plan: ResumePlan) -> None:
    step = f"{plan.global_step:,}"
    if plan.is_finished:
        say(f"this run is finished at step {step}; to extend it, give a larger --total-timesteps")
    elif plan.early_stop is not None:
        say(
            f"this run was stopped at step {step}: {plan.early_stop}; to resume it, give a larger --total-timesteps,"
            " algo_kwargs.early_stopping=null or another algo_kwargs.early_stopping.patience"
        )


def demo(output_dir: OutputDir = None, total_timesteps: DemoTimesteps = None) -> None:
    """Train PPO on CartPole-v1, evaluate it, and list commands to try next."""
    words = ["ppo", "CartPole-v1"]
    options = TrainOptions(words=words, output_dir=output_dir, total_timesteps=total_timesteps)
    config = resolve(options).config
    say("Training PPO to balance a pole on a cart. The maximum return is 500.")
    from rl_training.runtime.run import run_training
    from rl_training.runtime.workflows import evaluate_checkpoint

    result = run_training(config)
    report_training(result, config, options, proposes=False)
    metrics = evaluate_checkpoint(result.checkpoint_path, num_episodes=20)
    score, spread = metrics["eval_return_mean"], metrics["eval_return_std"]
    put(
        f"\nThe trained policy scores {score:.1f} ± {spread:.1f} of 500 over 20 evaluation episodes."
    )
    put(_plot_line(result.run_dir))
    say(with_command("\nTry next:", "eval", str(result.run_dir), "--eval-episodes", "100"))
    for words in (["train", "ppo", "Pendulum-v1"], ["presets"], ["algos", "ppo"]):
        say(f"  {program_command(*words)}")


def _plot_line(run_dir: Path) -> str:
    """Plot the learning curve; if that fails, for example without matplotlib, return the reason."""
    from rl_training.views.plotting import plot_learning_curve

    try:
        return f"Learning curve: {plot_learning_curve(run_dir)}"
    except RLTrainingError as error:
        return f"No picture of the learning curve: {error}"


Dataset = Annotated[
    str | None,
    option(
        "--dataset",
        "FILE|MINARI_ID",
        "Estimate the return from this dataset (fitted Q evaluation).",
    ),
]
FQEUpdates = Annotated[
    int | None,
    option(
        "--fqe-updates",
        NUMBER,
        "Gradient updates of fitted Q evaluation (default: 10000).",
        parser=positive_number,
    ),
]


def evaluate(
    run: Run = None,
    checkpoint: CheckpointPath = None,
    eval_episodes: EvalEpisodes = None,
    dataset: Dataset = None,
    fqe_updates: FQEUpdates = None,
    device: Device = None,
    plugin: CheckpointPlugins = None,
    allow_path: AllowedPaths = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a run: `eval RUN`.

    Runs the deterministic policy of the last checkpoint, or of the checkpoint named, on the run's evaluation seeds.
    With --dataset no environment is needed: the return is estimated from recorded transitions.
    """
    from rl_training.runtime.workflows import evaluate_checkpoint, evaluate_checkpoint_offline

    path = find_run(run, checkpoint)
    if dataset is not None and eval_episodes is not None:
        raise ConfigError(
            "--eval-episodes has no effect with --dataset, which runs no episodes: remove one of them"
        )
    if dataset is None and fqe_updates is not None:
        raise ConfigError(
            "--fqe-updates has no effect without --dataset: add --dataset FILE, or remove it"
        )
    if dataset is None:
        metrics = evaluate_checkpoint(path, num_episodes=eval_episodes, device=device or "auto")
    else:
        data, updates = load_source(dataset), fqe_updates or 10_000
        metrics = evaluate_checkpoint_offline(
            path, data, num_updates=updates, device=device or "auto"
        )
    report_evaluation(path, metrics, as_json)
