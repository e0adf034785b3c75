"""The command line: parse, call workflows, print."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli_data import app as data_app
from rl_training.errors import RLTrainingError

if TYPE_CHECKING:
    from rl_training.experiment.config import ResolvedConfig
    from rl_training.runtime.trainer import TrainResult

BAD_INPUT = 2
WORDS_HELP = "ALGO, ENV_ID and any number of key=value settings (algo_kwargs.learning_rate=1e-3 seed=3)."

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.add_typer(data_app, name="data")

Words = Annotated[list[str] | None, typer.Argument(help=WORDS_HELP, metavar="[ALGO ENV_ID] [KEY=VALUE]...")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="YAML file of settings.")]
OutputDir = Annotated[Path | None, typer.Option("--output-dir", help="Folder that holds the run folders.")]
TotalTimesteps = Annotated[int | None, typer.Option("--total-timesteps", help="Environment steps in all.")]
NumEnvs = Annotated[int | None, typer.Option("--num-envs", help="Environments stepped together.")]
EvalEpisodes = Annotated[int | None, typer.Option("--eval-episodes", help="Episodes of one evaluation.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of every random number.")]
Device = Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda, cuda:1, mps.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")]
RunSuffix = Annotated[str | None, typer.Option("--run-suffix", help="End of the run folder's name (default: time).")]
CheckpointPath = Annotated[Path, typer.Option("--checkpoint", help="A run folder or a checkpoint in it.")]
Plugins = Annotated[
    list[str] | None,
    typer.Option("--plugin", help="Module or file.py to import first, to register algorithms or environments."),
]


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
    words: Words = None,
    config: ConfigFile = None,
    output_dir: OutputDir = None,
    total_timesteps: TotalTimesteps = None,
    num_envs: NumEnvs = None,
    eval_episodes: EvalEpisodes = None,
    seed: Seed = None,
    device: Device = None,
    run_suffix: RunSuffix = None,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Train an agent: `train ppo CartPole-v1`, or `train --config FILE`."""
    _import_plugins(plugin)
    flags = _given(
        output_dir=output_dir,
        total_timesteps=total_timesteps,
        num_envs=num_envs,
        eval_episodes=eval_episodes,
        seed=seed,
        device=device,
    )
    resolved = _resolve(words or [], config, flags)
    from rl_training.experiment.default_manager import DefaultExperimentManager

    trainer = DefaultExperimentManager().setup(resolved.config, run_suffix=run_suffix)
    _report(trainer.train(), as_json, _code_in_use(plugin, resolved.config.env_id))


@app.command("eval")
def evaluate(
    checkpoint: CheckpointPath,
    eval_episodes: EvalEpisodes = None,
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="Judge by this file or Minari id instead of an environment.")
    ] = None,
    fqe_updates: Annotated[int, typer.Option("--fqe-updates", min=1, help="Updates of that estimate.")] = 10_000,
    device: Device = None,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a checkpoint, or a run's last one, on the run's evaluation seeds, or by recorded data alone."""
    _import_plugins(plugin)
    from rl_training.runtime.workflows import evaluate_checkpoint, evaluate_checkpoint_offline

    if dataset is not None and eval_episodes is not None:
        raise RLTrainingError("--dataset judges without an environment, so --eval-episodes means nothing beside it")
    if dataset is None:
        metrics = evaluate_checkpoint(checkpoint, num_episodes=eval_episodes, device=device or "auto")
    else:
        from rl_training.cli_data import load_source

        metrics = evaluate_checkpoint_offline(
            checkpoint, load_source(dataset), num_updates=fqe_updates, device=device or "auto"
        )
    if as_json:
        print(json.dumps(metrics))
    else:
        print(f"metrics={json.dumps(metrics)}")


@app.command()
def resume(
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
    _import_plugins(plugin)
    from rl_training.errors import CheckpointError
    from rl_training.runtime.workflows import plan_resume, run_plan

    changes: dict[str, Any] = {
        "total_timesteps": total_timesteps,
        "output_dir": output_dir,
        "eval_episodes": eval_episodes,
        "device": device,
    }
    try:
        plan = plan_resume(checkpoint, **changes)
    except CheckpointError as error:
        if error.fallback is None:
            raise
        if not fall_back and not (sys.stdin.isatty() and typer.confirm(f"{error}. Go on from there?", err=True)):
            raise CheckpointError(f"{error}: --fall-back goes on from there") from None
        plan = plan_resume(checkpoint, fall_back=True, **changes)
        _say(f"going on from step {plan.global_step:,} instead")
    if plan.is_finished:
        _say(f"this run is finished at step {plan.global_step:,}; --total-timesteps with a larger number extends it")
    _report(run_plan(plan), as_json, _code_in_use(plugin, plan.config.env_id))


@app.command("config")
def show_config(
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
    _import_plugins(plugin)
    flags = _given(
        output_dir=output_dir,
        total_timesteps=total_timesteps,
        num_envs=num_envs,
        eval_episodes=eval_episodes,
        seed=seed,
        device=device,
    )
    resolved = _resolve(words or [], config, flags)
    rows = list(_configuration_rows(resolved))
    if as_json:
        print(json.dumps({key: {"value": value, "source": source} for key, value, source in rows}))
        return
    width = max(len(key) for key, _, _ in rows)
    for key, value, source in rows:
        print(f"{key:<{width}}  {json.dumps(value):<24}  # {source}")


@app.command()
def algos(
    name: Annotated[str | None, typer.Argument(help="An algorithm, to list its settings.")] = None,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """List the algorithms, or the settings of one."""
    _import_plugins(plugin)
    from rl_training.experiment.registry import get_algorithm_spec, list_algorithm_specs

    if name is None:
        specs = list_algorithm_specs()
        if as_json:
            print(json.dumps([{"name": s.name, "loop": s.loop.value, "summary": s.summary} for s in specs]))
            return
        for spec in specs:
            print(f"{spec.name:<8}{spec.loop.value:<12}{spec.summary}")
        return
    config_class = get_algorithm_spec(name).config_class()
    defaults = config_class().model_dump(mode="json")
    if as_json:
        fields = config_class.model_fields
        print(json.dumps({key: {"default": defaults[key], "meaning": fields[key].description} for key in defaults}))
        return
    for key, field in config_class.model_fields.items():
        print(f"{key + '=' + json.dumps(defaults[key]):<38}{field.description or ''}")


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
    _import_plugins(plugin)
    from rl_training.experiment.config import parse_overrides
    from rl_training.runtime.doctor_view import print_machine, print_report

    if env is None:
        if words:
            raise RLTrainingError(f"{' '.join(words)!r} are settings of an environment: name it with --env")
        print_machine(as_json)
        return
    from rl_training.runtime.env_doctor import examine_environment

    settings = parse_overrides([f"env_kwargs.{word.removeprefix('env_kwargs.')}" for word in words or []])
    report = examine_environment(env, settings.get("env_kwargs"), steps=steps, seed=seed)
    print_report(report, as_json)
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
def demo(
    output_dir: OutputDir = None,
    total_timesteps: TotalTimesteps = None,
) -> None:
    """Train PPO on CartPole-v1, evaluate it, draw its learning curve and say what to try next."""
    resolved = _resolve(["ppo", "CartPole-v1"], None, _given(output_dir=output_dir, total_timesteps=total_timesteps))
    _say("Training PPO to balance a pole on a cart. 500 is a perfect score.")
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
        _say(f"error: {error}")
        return BAD_INPUT
    except typer.Exit as exit_request:
        return exit_request.exit_code
    except (KeyboardInterrupt, typer.Abort):
        _say("interrupted")
        return 130
    except typer.TyperException as error:
        _say(f"error: {error.format_message()} (--help lists what is possible)")
        return BAD_INPUT
    return code if isinstance(code, int) else 0


def run() -> None:
    """Entry point of the `rl-training` script."""
    sys.exit(main())


def _command() -> list[str]:
    """How this program was called, so that a printed command can be pasted."""
    program = Path(sys.argv[0])
    return [str(program)] if program.name == "rl-training" else [sys.executable, "-m", "rl_training"]


def _given(**flags: Any) -> dict[str, Any]:
    return {key: value for key, value in flags.items() if value is not None}


def _resolve(words: Sequence[str], file: Path | None, flags: Mapping[str, Any]) -> ResolvedConfig:
    """Merge defaults < preset < file < command line. A pair ALGO ENV_ID picks its preset."""
    from rl_training.errors import ConfigError
    from rl_training.experiment.config import load_config_file, parse_overrides, resolve_config
    from rl_training.experiment.presets import find_preset
    from rl_training.experiment.registry import get_algorithm_spec

    overrides = parse_overrides([word for word in words if "=" in word])
    plain_words = [word for word in words if "=" not in word]
    if len(plain_words) > 2:
        raise ConfigError(f"expected ALGO ENV_ID and key=value settings, not {' '.join(words)!r}")
    names = dict(zip(("algo", "env_id"), plain_words, strict=False))
    twice = overrides.keys() & (names.keys() | flags.keys())
    if twice:
        raise ConfigError(f"'{min(twice)}' is given twice on the command line")
    layers: list[tuple[str, Mapping[str, Any]]] = []
    if len(names) == 2:
        preset = find_preset(get_algorithm_spec(names["algo"]).name, names["env_id"])
        if preset is not None:
            layers.append((f"preset {preset.parent.name}/{preset.name}", load_config_file(preset)))
            _say(f"using preset {preset.parent.name}/{preset.name}")
    if file is not None:
        layers.append((f"file {file}", load_config_file(file)))
    elif not _says_what_to_train({**names, **overrides}):
        raise ConfigError("say what to train: ALGO ENV_ID (train ppo CartPole-v1) or --config FILE")
    layers.append(("command line", names))
    layers.append(("command line", flags))
    layers.append(("command line", overrides))
    return resolve_config(layers)


def _says_what_to_train(given: Mapping[str, Any]) -> bool:
    from rl_training.experiment.registry import learns_offline

    return "algo" in given and ("env_id" in given or learns_offline(str(given["algo"])))


def _configuration_rows(resolved: ResolvedConfig) -> list[tuple[str, Any, str]]:
    """Every key with its value and its source, the algorithm's own defaults included."""
    from rl_training.envs.factory import split_env_kwargs
    from rl_training.experiment.registry import get_algorithm_spec
    from rl_training.runtime.run_utils import serialize_train_config

    config = resolved.config
    values = serialize_train_config(config)
    algo_config = get_algorithm_spec(config.algo).parse_kwargs(config.algo_kwargs)
    split_env_kwargs(config.env_kwargs)
    values["algo_kwargs"] = algo_config.model_dump(mode="json")
    rows = []
    for key, value in values.items():
        nested = value.items() if key in ("algo_kwargs", "env_kwargs") else [("", value)]
        for name, item in nested:
            path = f"{key}.{name}" if name else key
            source = next((s for known, s in resolved.sources.items() if f"{known}.".startswith(f"{path}.")), "default")
            rows.append((path, item, source))
    return rows


def _report(result: TrainResult, as_json: bool, plugins: Sequence[str] | None = None) -> None:
    """Print where the run is and how it did; an interrupted run ends with the signal's exit code."""
    from rl_training.runtime.interrupts import interrupting_signal

    values = {
        "run_dir": str(result.run_dir),
        "checkpoint_path": str(result.checkpoint_path),
        "metrics": result.metrics,
        "stop_reason": result.stop_reason,
    }
    if as_json:
        print(json.dumps(values))
    else:
        print(f"run_dir={result.run_dir}")
        print(f"checkpoint_path={result.checkpoint_path}")
        print(f"metrics={json.dumps(result.metrics)}")
        if result.stop_reason is not None:
            print(f"stop_reason={result.stop_reason}")
    signal_number = interrupting_signal(result.stop_reason)
    if signal_number is not None:
        words = [*_command(), "resume", "--checkpoint", str(result.run_dir)]
        words += [word for plugin in plugins or [] for word in ("--plugin", plugin)]
        _say(f"saved; to go on:\n  {shlex.join(words)}")
        raise typer.Exit(128 + signal_number)


def _code_in_use(plugins: Sequence[str] | None, env_id: str | None) -> list[str]:
    """What a command that resumes the run must name as plugins."""
    place = (env_id or "").rpartition(":")[0]
    return list(dict.fromkeys([*(plugins or []), *([place] if place else [])]))


def _import_plugins(plugins: Sequence[str] | None) -> None:
    if plugins:
        from rl_training.envs.factory import load_code

        for plugin in plugins:
            load_code(plugin)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
