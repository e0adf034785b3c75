"""The commands that train: `train`, `resume` and `demo`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_training.cli.commands import own_command, wrap_command
from rl_training.cli.options import (
    AllowedPaths,
    AsJson,
    Callbacks,
    Changes,
    CheckpointPath,
    CheckpointPlugins,
    ConfigFile,
    DemoTimesteps,
    Device,
    EvalEpisodes,
    NoPreset,
    NumEnvs,
    OutputDir,
    Plugins,
    Quiet,
    ResumeOrStart,
    ResumeOutputDir,
    ResumeTotalTimesteps,
    Run,
    RunSuffix,
    Seed,
    TotalTimesteps,
    Words,
    put,
    read_resume,
    resolve,
    say,
)
from rl_training.cli.report import explaining_failure, report_training
from rl_training.errors import RLTrainingError
from rl_training.terminal.streams import printable

if TYPE_CHECKING:
    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime.resuming.plan import ResumePlan


def train(
    context: typer.Context,
    words: Words = None,
    config: ConfigFile = None,
    no_preset: NoPreset = False,
    output_dir: OutputDir = None,
    total_timesteps: TotalTimesteps = None,
    num_envs: NumEnvs = None,
    eval_episodes: EvalEpisodes = None,
    seed: Seed = None,
    device: Device = None,
    run_suffix: RunSuffix = None,
    resume_or_start: ResumeOrStart = False,
    plugin: Plugins = None,
    callback: Callbacks = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train an agent: `train ppo CartPole-v1`, or `train --config FILE`."""
    resolved = resolve(context.params)
    from rl_training.cli.callback_loading import load_callbacks

    callbacks = load_callbacks(callback)
    plan = _find_started(resolved.config, run_suffix) if resume_or_start else None
    if plan is not None:
        from rl_training.runtime.workflows import run_plan

        _say_if_over(plan)
        with explaining_failure(resolved.config, plugin, callback):
            result = run_plan(plan, callbacks=callbacks)
    else:
        from rl_training.experiment.default_manager import DefaultExperimentManager

        manager = DefaultExperimentManager().setup(resolved.config, callbacks=callbacks, run_suffix=run_suffix)
        with explaining_failure(resolved.config, plugin, callback):
            result = manager.train()
    report_training(result, resolved.config, as_json=as_json, plugins=plugin, callbacks=callback)


def _find_started(config: TrainConfig, run_suffix: str | None) -> ResumePlan | None:
    from rl_training.errors import CheckpointError, ConfigError
    from rl_training.runtime.resuming.plan import plan_restart

    if run_suffix is None:
        raise ConfigError("--resume-or-start needs --run-suffix NAME: it tells which run the same command means")
    try:
        return plan_restart(config, run_suffix)
    except CheckpointError as error:
        if error.fallback is None:
            raise
        run_dir = shlex.quote(str(error.fallback.parent.parent))
        raise CheckpointError(f"{error}: `rl-training resume {run_dir} --fall-back` goes on from there") from None


def resume(
    context: typer.Context,
    run: Run = None,
    words: Changes = None,
    checkpoint: CheckpointPath = None,
    total_timesteps: ResumeTotalTimesteps = None,
    output_dir: ResumeOutputDir = None,
    eval_episodes: EvalEpisodes = None,
    device: Device = None,
    schedules: Annotated[
        str | None,
        typer.Option(
            "--schedules",
            metavar="stretch|restart|hold",
            help="Schedules of an extended run: stretch the rest over the steps left (default), restart, or hold.",
        ),
    ] = None,
    rewind: Annotated[
        bool, typer.Option("--rewind", help="Resume an older checkpoint and discard everything after it.")
    ] = False,
    fall_back: Annotated[
        bool, typer.Option("--fall-back", help="If the checkpoint is damaged, use the newest intact one.")
    ] = False,
    plugin: CheckpointPlugins = None,
    allow_path: AllowedPaths = None,
    callback: Callbacks = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Resume a run: `resume RUN`. With --total-timesteps, one that has ended is extended."""
    from rl_training.cli.callback_loading import load_callbacks
    from rl_training.errors import CheckpointError
    from rl_training.runtime.workflows import plan_resume, run_plan

    path, given = read_resume(run, checkpoint, words, context.params)
    callbacks = load_callbacks(callback)
    options = {**given, "rewind": rewind, "schedules": schedules}
    try:
        plan = plan_resume(path, **options)
    except CheckpointError as error:
        if error.fallback is None:
            raise
        if not fall_back and not (
            sys.stdin.isatty() and typer.confirm(printable(f"{error}. Go on from there?"), err=True)
        ):
            raise CheckpointError(f"{error}: --fall-back goes on from there") from None
        plan = plan_resume(path, fall_back=True, **options)
        say(f"going on from step {plan.global_step:,} instead")
    _say_if_over(plan)
    with explaining_failure(plan.config, plugin, callback):
        result = run_plan(plan, callbacks=callbacks)
    report_training(result, plan.config, as_json=as_json, plugins=plugin, callbacks=callback)


def _say_if_over(plan: ResumePlan) -> None:
    step = f"{plan.global_step:,}"
    if plan.is_finished:
        say(f"this run is finished at step {step}; --total-timesteps with a larger number extends it")
    elif plan.early_stop is not None:
        say(
            f"this run was stopped at step {step}: {plan.early_stop}; to resume it, give a larger --total-timesteps,"
            " algo_kwargs.early_stopping=null or another algo_kwargs.early_stopping.patience"
        )


def demo(
    context: typer.Context,
    output_dir: OutputDir = None,
    total_timesteps: DemoTimesteps = None,
    quiet: Quiet = False,
) -> None:
    """Train PPO on CartPole-v1, show its score, and say what to try next."""
    resolved = resolve({**context.params, "words": ["ppo", "CartPole-v1"]})
    say("Training PPO to balance a pole on a cart. 500 is a perfect score.")
    from rl_training.runtime.run import run_training
    from rl_training.runtime.workflows import evaluate_checkpoint

    result = run_training(resolved.config)
    report_training(result, resolved.config, proposes=False)
    metrics = evaluate_checkpoint(result.checkpoint_path, num_episodes=20)
    score, spread = metrics["eval_return_mean"], metrics["eval_return_std"]
    put(f"\nThe trained policy scores {score:.1f} ± {spread:.1f} of 500 over 20 evaluation episodes.")
    put(_picture_line(result.run_dir))
    say("\nTry next:")
    for words in (
        ["eval", str(result.run_dir), "--eval-episodes", "100"],
        ["train", "ppo", "Pendulum-v1"],
        ["presets"],
        ["algos", "ppo"],
    ):
        for line in wrap_command(own_command(*words), 2):
            say(f"  {line}")


def _picture_line(run_dir: Path) -> str:
    """Draw the learning curve; where that fails, as without matplotlib, say why and go on."""
    from rl_training.views.plotting import plot_learning_curve

    try:
        return f"Learning curve: {plot_learning_curve(run_dir)}"
    except RLTrainingError as error:
        return f"No picture of its learning: {error}"
