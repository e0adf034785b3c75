"""The commands that train: `train`, `resume` and `demo`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rl_training.cli.arguments import find_run
from rl_training.cli.options import (
    FLAGS,
    AllowedPaths,
    AsJson,
    Callbacks,
    CheckpointPath,
    ConfigFile,
    Device,
    EvalEpisodes,
    NoPreset,
    NumEnvs,
    OutputDir,
    Plugins,
    Quiet,
    Run,
    Seed,
    TotalTimesteps,
    Words,
    put,
    resolve,
    say,
)
from rl_training.cli.report import own_command, report_training
from rl_training.errors import RLTrainingError
from rl_training.streams import printable


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
    run_suffix: Annotated[
        str | None, typer.Option("--run-suffix", help="End of the run folder's name (default: time).")
    ] = None,
    plugin: Plugins = None,
    callback: Callbacks = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train an agent: `train ppo CartPole-v1`, or `train --config FILE`."""
    resolved = resolve(context.params)
    from rl_training.experiment.default_manager import DefaultExperimentManager
    from rl_training.runtime.callback_loading import load_callbacks

    callbacks = load_callbacks(callback)
    trainer = DefaultExperimentManager().setup(resolved.config, callbacks=callbacks, run_suffix=run_suffix)
    report_training(trainer.train(), resolved.config, as_json=as_json, plugins=plugin, callbacks=callback)


def resume(
    context: typer.Context,
    run: Run = None,
    checkpoint: CheckpointPath = None,
    total_timesteps: TotalTimesteps = None,
    output_dir: OutputDir = None,
    eval_episodes: EvalEpisodes = None,
    device: Device = None,
    fall_back: Annotated[
        bool, typer.Option("--fall-back", help="If the checkpoint is damaged, use the newest one that is whole.")
    ] = False,
    plugin: Plugins = None,
    allow_path: AllowedPaths = None,
    callback: Callbacks = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Resume a run: `resume RUN`. With --total-timesteps, one that has ended is extended."""
    from rl_training.errors import CheckpointError
    from rl_training.runtime.callback_loading import load_callbacks
    from rl_training.runtime.workflows import plan_resume, run_plan

    path, callbacks = find_run(run, checkpoint), load_callbacks(callback)
    changes = {name: value for name, value in context.params.items() if name in FLAGS}
    try:
        plan = plan_resume(path, **changes)
    except CheckpointError as error:
        if error.fallback is None:
            raise
        if not fall_back and not (
            sys.stdin.isatty() and typer.confirm(printable(f"{error}. Go on from there?"), err=True)
        ):
            raise CheckpointError(f"{error}: --fall-back goes on from there") from None
        plan = plan_resume(path, fall_back=True, **changes)
        say(f"going on from step {plan.global_step:,} instead")
    if plan.is_finished:
        say(f"this run is finished at step {plan.global_step:,}; --total-timesteps with a larger number extends it")
    result = run_plan(plan, callbacks=callbacks)
    report_training(result, plan.config, as_json=as_json, plugins=plugin, callbacks=callback)


def demo(
    context: typer.Context,
    output_dir: OutputDir = None,
    total_timesteps: TotalTimesteps = None,
    quiet: Quiet = False,
) -> None:
    """Train PPO on CartPole-v1, show its score, and say what to try next."""
    resolved = resolve({**context.params, "words": ["ppo", "CartPole-v1"]})
    say("Training PPO to balance a pole on a cart. 500 is a perfect score.")
    from rl_training.runtime.training import run_training
    from rl_training.runtime.workflows import evaluate_checkpoint

    result = run_training(resolved.config)
    report_training(result, resolved.config)
    metrics = evaluate_checkpoint(result.checkpoint_path, num_episodes=20)
    score, spread = metrics["eval_return_mean"], metrics["eval_return_std"]
    put(f"\nThe trained policy scores {score:.1f} ± {spread:.1f} of 500 over 20 evaluation episodes.")
    put(_picture_line(result.run_dir))
    say("\nTry next:")
    for words in (
        ["eval", str(result.run_dir), "--eval-episodes", "100"],
        ["train", "dqn", "CartPole-v1"],
        ["train", "sac", "Pendulum-v1"],
        ["algos", "ppo"],
    ):
        say(f"  {own_command(*words)}")


def _picture_line(run_dir: Path) -> str:
    """Draw the learning curve; where that fails, as without matplotlib, say why and go on."""
    from rl_training.experiment.plotting import plot_learning_curve

    try:
        return f"Learning curve: {plot_learning_curve(run_dir)}"
    except RLTrainingError as error:
        return f"No picture of its learning: {error}"
