"""The commands that train: `train`, `resume` and `demo`, and how a run is reported."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    Run,
    Seed,
    TotalTimesteps,
    Words,
    put,
    resolve,
    say,
    show,
)
from rl_training.errors import RLTrainingError
from rl_training.streams import printable

if TYPE_CHECKING:
    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime.trainer import TrainResult


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
    as_json: AsJson = False,
) -> None:
    """Train an agent: `train ppo CartPole-v1`, or `train --config FILE`."""
    resolved = resolve(context.params)
    from rl_training.experiment.default_manager import DefaultExperimentManager
    from rl_training.runtime.callback_loading import load_callbacks

    callbacks = load_callbacks(callback)
    trainer = DefaultExperimentManager().setup(resolved.config, callbacks=callbacks, run_suffix=run_suffix)
    _report(trainer.train(), as_json, plugin, resolved.config, callback)


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
    _report(run_plan(plan, callbacks=callbacks), as_json, plugin, plan.config, callback)


def demo(context: typer.Context, output_dir: OutputDir = None, total_timesteps: TotalTimesteps = None) -> None:
    """Train PPO on CartPole-v1, show its score, and say what to try next."""
    resolved = resolve({**context.params, "words": ["ppo", "CartPole-v1"]})
    say("Training PPO to balance a pole on a cart. 500 is a perfect score.")
    from rl_training.experiment.plotting import plot_learning_curve
    from rl_training.runtime.training import run_training
    from rl_training.runtime.workflows import evaluate_checkpoint

    result = run_training(resolved.config)
    _report(result, as_json=False)
    metrics = evaluate_checkpoint(result.checkpoint_path, num_episodes=20)
    picture = plot_learning_curve(result.run_dir)
    run_dir, command = shlex.quote(str(result.run_dir)), shlex.join(_command())
    put(f"\nThe trained policy scores {metrics['eval_return_mean']:.1f} of 500 over 20 evaluation episodes.")
    put(f"Learning curve: {picture}\n\nTry next:")
    put(f"  {command} eval {run_dir} --eval-episodes 100")
    put(f"  {command} resume {run_dir} --total-timesteps {2 * resolved.config.total_timesteps}")
    put(f"  {command} train sac Pendulum-v1 seed=1")
    put(f"  {command} algos ppo")


def _command() -> list[str]:
    """How this program was called, so that a printed command can be pasted."""
    program = Path(sys.argv[0])
    return [str(program)] if program.name == "rl-training" else [sys.executable, "-m", "rl_training"]


def _report(
    result: TrainResult,
    as_json: bool,
    plugins: Sequence[str] | None = None,
    config: TrainConfig | None = None,
    callbacks: Sequence[str] | None = None,
) -> None:
    """Print where the run is and how it did; an interrupted run ends with the signal's exit code."""
    from rl_training.runtime.interrupts import interrupting_signal

    values = {
        "run_dir": str(result.run_dir),
        "checkpoint_path": str(result.checkpoint_path),
        "metrics": result.metrics,
        "stop_reason": result.stop_reason,
    }
    texts = {**values, "metrics": json.dumps(result.metrics)}
    signal_number = interrupting_signal(result.stop_reason)
    try:
        show(values, [f"{key}={text}" for key, text in texts.items() if text is not None], as_json)
    except RLTrainingError as error:  # the terminal may be what is gone
        if signal_number is None:
            raise
        say(str(error))
    if signal_number is not None:
        from rl_training.envs.foreign_paths import find_paths
        from rl_training.envs.user_code import plugin_of

        own = plugin_of((config and config.env_id) or "")
        paths = dict.fromkeys(path for _, path in find_paths(config.env_kwargs if config else {}))
        code = dict.fromkeys([*(plugins or []), *([own] if own else [])])
        words = [*_command(), "resume", str(result.run_dir)]
        words += [word for name in code for word in ("--plugin", name)]
        words += [word for path in paths for word in ("--allow-path", path)]
        words += [word for name in callbacks or () for word in ("--callback", name)]
        say(f"saved; to go on:\n  {shlex.join(words)}")
        raise typer.Exit(128 + signal_number)
