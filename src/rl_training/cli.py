"""The command line: parse, call workflows, print."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from rl_training import cli_data
from rl_training.cli_options import (
    FLAGS,
    AsJson,
    CheckpointPath,
    ConfigFile,
    Device,
    EvalEpisodes,
    NumEnvs,
    OutputDir,
    Plugins,
    Seed,
    TotalTimesteps,
    Words,
    configuration_rows,
    resolve,
    say,
    show,
)
from rl_training.errors import RLTrainingError

if TYPE_CHECKING:
    from rl_training.runtime.trainer import TrainResult

BAD_INPUT = 2


class Commands(TyperGroup):
    """The commands, any of which may be interrupted: typer would leave without a word."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Abort from None


app = typer.Typer(cls=Commands, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.add_typer(cli_data.app, name="data")


def _show_version(wanted: bool) -> None:
    if wanted:
        from rl_training import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """Train reinforcement-learning agents, evaluate them and go on training them."""


@app.command()
def train(
    context: typer.Context,
    words: Words = None,
    config: ConfigFile = None,
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
    as_json: AsJson = False,
) -> None:
    """Train an agent: `train ppo CartPole-v1`, or `train --config FILE`."""
    resolved = resolve(context.params)
    from rl_training.experiment.default_manager import DefaultExperimentManager

    trainer = DefaultExperimentManager().setup(resolved.config, run_suffix=run_suffix)
    _report(trainer.train(), as_json, plugin, resolved.config.env_id)


@app.command("eval")
def evaluate(
    checkpoint: CheckpointPath,
    eval_episodes: EvalEpisodes = None,
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="Judge by this file or Minari id instead of an environment.")
    ] = None,
    fqe_updates: Annotated[
        int | None, typer.Option("--fqe-updates", min=1, help="Updates of that estimate (default: 10000).")
    ] = None,
    device: Device = None,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a checkpoint, or a run's last one, on the run's evaluation seeds, or by recorded data alone."""
    from rl_training.runtime.workflows import evaluate_checkpoint, evaluate_checkpoint_offline

    if dataset is not None and eval_episodes is not None:
        raise RLTrainingError("--dataset judges without an environment, so --eval-episodes means nothing beside it")
    if dataset is None and fqe_updates is not None:
        raise RLTrainingError("--fqe-updates belongs to an estimate from data: name the data with --dataset")
    if dataset is None:
        metrics = evaluate_checkpoint(checkpoint, num_episodes=eval_episodes, device=device or "auto")
    else:
        data = cli_data.load_source(dataset)
        updates = fqe_updates or 10_000
        metrics = evaluate_checkpoint_offline(checkpoint, data, num_updates=updates, device=device or "auto")
    show(metrics, [f"metrics={json.dumps(metrics)}"], as_json)


@app.command()
def resume(
    context: typer.Context,
    checkpoint: CheckpointPath,
    total_timesteps: TotalTimesteps = None,
    output_dir: OutputDir = None,
    eval_episodes: EvalEpisodes = None,
    device: Device = None,
    fall_back: Annotated[
        bool, typer.Option("--fall-back", help="If the checkpoint is damaged, use the newest one that is whole.")
    ] = False,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a run that was stopped, or extend one that ended."""
    from rl_training.errors import CheckpointError
    from rl_training.runtime.workflows import plan_resume, run_plan

    changes = {name: value for name, value in context.params.items() if name in FLAGS}
    try:
        plan = plan_resume(checkpoint, **changes)
    except CheckpointError as error:
        if error.fallback is None:
            raise
        if not fall_back and not (sys.stdin.isatty() and typer.confirm(f"{error}. Go on from there?", err=True)):
            raise CheckpointError(f"{error}: --fall-back goes on from there") from None
        plan = plan_resume(checkpoint, fall_back=True, **changes)
        say(f"going on from step {plan.global_step:,} instead")
    if plan.is_finished:
        say(f"this run is finished at step {plan.global_step:,}; --total-timesteps with a larger number extends it")
    _report(run_plan(plan), as_json, plugin, plan.config.env_id)


@app.command("config")
def show_config(
    context: typer.Context,
    words: Words = None,
    config: ConfigFile = None,
    output_dir: OutputDir = None,
    total_timesteps: TotalTimesteps = None,
    num_envs: NumEnvs = None,
    eval_episodes: EvalEpisodes = None,
    seed: Seed = None,
    device: Device = None,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Show the configuration a run would have, and where each value comes from."""
    rows = configuration_rows(resolve(context.params))
    width = max(len(key) for key, _, _ in rows)
    lines = [f"{key:<{width}}  {json.dumps(value):<24}  # {source}" for key, value, source in rows]
    show({key: {"value": value, "source": source} for key, value, source in rows}, lines, as_json)


@app.command()
def algos(
    name: Annotated[str | None, typer.Argument(help="An algorithm, to list its settings.")] = None,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """List the algorithms, or the settings of one."""
    from rl_training.experiment.registry import get_algorithm_spec, list_algorithm_specs

    if name is None:
        rows = [(spec.name, spec.loop.value, spec.summary) for spec in list_algorithm_specs()]
        lines = [f"{name:<8}{loop:<12}{summary}" for name, loop, summary in rows]
        show([dict(zip(("name", "loop", "summary"), row, strict=True)) for row in rows], lines, as_json)
        return
    config_class = get_algorithm_spec(name).config_class()
    defaults = config_class().model_dump(mode="json")
    meanings = {key: field.description for key, field in config_class.model_fields.items()}
    texts = {key: " ".join((meaning or "").split()) for key, meaning in meanings.items()}
    lines = [f"{key + '=' + json.dumps(defaults[key]):<36}  {text}" for key, text in texts.items()]
    show({key: {"default": defaults[key], "meaning": meanings[key]} for key in meanings}, lines, as_json)


@app.command()
def doctor(
    words: Annotated[
        list[str] | None, typer.Argument(help="env_kwargs of the environment.", metavar="[KEY=VALUE]...")
    ] = None,
    env: Annotated[str | None, typer.Option("--env", help="An environment to examine (default: the machine).")] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps to watch it for.")] = 600,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the environment and the actions.")] = 0,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Examine an environment: can it be trained on, and a run on it resumed exactly? Or show the machine."""
    from rl_training.experiment.config import parse_overrides
    from rl_training.runtime.doctor_view import describe_machine, print_report

    if env is None:
        if words:
            raise RLTrainingError(f"{' '.join(words)!r} are settings of an environment: name it with --env")
        facts = describe_machine()
        show(facts, [f"{name:<12} {value}" for name, value in facts.items()], as_json)
        return
    from rl_training.runtime.env_doctor import examine_environment

    settings = parse_overrides([f"env_kwargs.{word.removeprefix('env_kwargs.')}" for word in words or []])
    report = examine_environment(env, settings.get("env_kwargs"), steps=steps, seed=seed)
    if as_json:
        show(report.as_dict(), [], as_json)
    else:
        print_report(report)
    if report.has_errors:
        raise typer.Exit(1)


@app.command()
def plot(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[Path | None, typer.Option("--out", help="PNG to write (default: in the run folder).")] = None,
) -> None:
    """Draw a run's learning curve (needs the extra: pip install "rl-training[plot]")."""
    from rl_training.experiment.plotting import plot_learning_curve

    print(f"picture={plot_learning_curve(run, out)}")


@app.command()
def demo(context: typer.Context, output_dir: OutputDir = None, total_timesteps: TotalTimesteps = None) -> None:
    """Train PPO on CartPole-v1, evaluate it, draw its learning curve and say what to try next."""
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
    print(f"\nThe trained policy scores {metrics['eval_return_mean']:.1f} of 500 over 20 evaluation episodes.")
    print(f"Learning curve: {picture}\n\nTry next:")
    print(f"  {command} eval --checkpoint {run_dir} --eval-episodes 100")
    print(f"  {command} resume --checkpoint {run_dir} --total-timesteps {2 * resolved.config.total_timesteps}")
    print(f"  {command} train sac Pendulum-v1 seed=1")
    print(f"  {command} algos ppo")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 2 bad input, 130 or 143 interrupted and saved."""
    try:
        arguments = list(sys.argv[1:] if argv is None else argv)
        code = app(args=arguments or ["--help"], standalone_mode=False)
    except RLTrainingError as error:
        say(f"error: {error}")
        return BAD_INPUT
    except typer.Abort:
        say("interrupted")
        return 130
    except typer.TyperException as error:
        say(f"error: {error.format_message()} (--help lists what is possible)")
        return BAD_INPUT
    return code if isinstance(code, int) else 0


def run() -> None:
    """Entry point of the `rl-training` script."""
    sys.exit(main())


def _command() -> list[str]:
    """How this program was called, so that a printed command can be pasted."""
    program = Path(sys.argv[0])
    return [str(program)] if program.name == "rl-training" else [sys.executable, "-m", "rl_training"]


def _report(
    result: TrainResult, as_json: bool, plugins: Sequence[str] | None = None, env_id: str | None = None
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
    show(values, [f"{key}={text}" for key, text in texts.items() if text is not None], as_json)
    signal_number = interrupting_signal(result.stop_reason)
    if signal_number is not None:
        place = (env_id or "").rpartition(":")[0]
        code = dict.fromkeys([*(plugins or []), *([place] if place else [])])
        words = [*_command(), "resume", "--checkpoint", str(result.run_dir)]
        words += [word for name in code for word in ("--plugin", name)]
        say(f"saved; to go on:\n  {shlex.join(words)}")
        raise typer.Exit(128 + signal_number)
