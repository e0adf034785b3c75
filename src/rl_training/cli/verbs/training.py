"""The verbs that train: `train`, `resume` and `demo`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rl_training.cli.command_lines import program_command, wrap_command
from rl_training.cli.config_sources import read_resume, resolve
from rl_training.cli.options import DemoTimesteps, OutputDir, Quiet, ResumeOptions, SeedOptions, TrainOptions
from rl_training.cli.output import put, say
from rl_training.cli.report import explaining_failure, report_training
from rl_training.cli.verbs.studies import refuse_without_seeds, train_seeds
from rl_training.errors import CheckpointError, ConfigError, RLTrainingError
from rl_training.terminal.streams import printable

if TYPE_CHECKING:
    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime.resuming.plan import ResumePlan


def train(options: TrainOptions, many: SeedOptions) -> None:
    """Train an agent: `train ppo CartPole-v1`, or `train --config FILE`.

    With --seeds, a run for each seed, each in a process of its own: `train ppo CartPole-v1 --seeds 0..4`.
    """
    if many.seeds is not None:
        train_seeds(options, many)
        return
    refuse_without_seeds(many)
    config = resolve(options).config
    from rl_training.runtime.checks.callback_loading import load_callbacks

    callbacks = load_callbacks(options.callback)
    plan = _find_started(config, options.run_suffix) if options.resume_or_start else None
    if plan is not None:
        _continue(plan, callbacks, options)
        return
    from rl_training.experiment.default_manager import DefaultExperimentManager

    trainer = DefaultExperimentManager().setup(
        config, callbacks=callbacks, run_suffix=options.run_suffix, is_restart=options.resume_or_start
    )
    with explaining_failure(config, options.plugin, options.callback):
        result = trainer.train()
    report_training(result, config, as_json=options.as_json, plugins=options.plugin, callbacks=options.callback)


def _find_started(config: TrainConfig, run_suffix: str | None) -> ResumePlan | None:
    """The plan to resume the run of this configuration and suffix; None if it has not been started."""
    from rl_training.runtime.resuming.plan import plan_restart

    if run_suffix is None:
        raise ConfigError("--resume-or-start needs --run-suffix NAME, which identifies the run: add it")
    try:
        return plan_restart(config, run_suffix)
    except CheckpointError as error:
        if error.fallback is None:
            raise
        run_dir = shlex.quote(str(error.fallback.parent.parent))
        raise CheckpointError(f"{error}: `rl-training resume {run_dir} --fall-back` resumes from that one") from None


def resume(options: ResumeOptions) -> None:
    """Resume a run: `resume RUN`.

    A finished run is extended by a larger --total-timesteps.
    """
    path, arguments = read_resume(options)
    from rl_training.runtime.checks.callback_loading import load_callbacks
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


def _continue(plan: ResumePlan, callbacks: Sequence[object], options: TrainOptions | ResumeOptions) -> None:
    """Carry out a resume and report it."""
    from rl_training.runtime.workflows import run_plan

    _say_if_over(plan)
    with explaining_failure(plan.config, options.plugin, options.callback):
        result = run_plan(plan, callbacks=callbacks)
    report_training(result, plan.config, as_json=options.as_json, plugins=options.plugin, callbacks=options.callback)


def _say_if_over(plan: ResumePlan) -> None:
    step = f"{plan.global_step:,}"
    if plan.is_finished:
        say(f"this run is finished at step {step}; to extend it, give a larger --total-timesteps")
    elif plan.early_stop is not None:
        say(
            f"this run was stopped at step {step}: {plan.early_stop}; to resume it, give a larger --total-timesteps,"
            " algo_kwargs.early_stopping=null or another algo_kwargs.early_stopping.patience"
        )


def demo(output_dir: OutputDir = None, total_timesteps: DemoTimesteps = None, quiet: Quiet = False) -> None:
    """Train PPO on CartPole-v1, evaluate it, and list commands to try next."""
    words = ["ppo", "CartPole-v1"]
    config = resolve(TrainOptions(words=words, output_dir=output_dir, total_timesteps=total_timesteps)).config
    say("Training PPO to balance a pole on a cart. The maximum return is 500.")
    from rl_training.runtime.run import run_training
    from rl_training.runtime.workflows import evaluate_checkpoint

    result = run_training(config)
    report_training(result, config, proposes=False)
    metrics = evaluate_checkpoint(result.checkpoint_path, num_episodes=20)
    score, spread = metrics["eval_return_mean"], metrics["eval_return_std"]
    put(f"\nThe trained policy scores {score:.1f} ± {spread:.1f} of 500 over 20 evaluation episodes.")
    put(_plot_line(result.run_dir))
    say("\nTry next:")
    for command in (
        ["eval", str(result.run_dir), "--eval-episodes", "100"],
        ["train", "ppo", "Pendulum-v1"],
        ["presets"],
        ["algos", "ppo"],
    ):
        for line in wrap_command(program_command(*command), 2):
            say(f"  {line}")


def _plot_line(run_dir: Path) -> str:
    """Plot the learning curve; if that fails, for example without matplotlib, return the reason."""
    from rl_training.views.plotting import plot_learning_curve

    try:
        return f"Learning curve: {plot_learning_curve(run_dir)}"
    except RLTrainingError as error:
        return f"No picture of the learning curve: {error}"
