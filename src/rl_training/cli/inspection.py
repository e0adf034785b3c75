"""The commands that run nothing: `config`, `algos`, `presets` and `doctor`."""

from __future__ import annotations

import dataclasses
import shutil
import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from rl_training.cli.arguments import complete_algorithm, positive_number
from rl_training.cli.config_rows import configuration_rows, row_lines
from rl_training.cli.options import (
    NUMBER,
    AsJson,
    Callbacks,
    ConfigFile,
    Device,
    EvalEpisodes,
    NoPreset,
    NumEnvs,
    OutputDir,
    Plugins,
    Quiet,
    ResumeOrStart,
    RunSuffix,
    Seed,
    TotalTimesteps,
    Words,
    find_beside,
    resolve,
    say,
    show,
)
from rl_training.errors import RLTrainingError

if TYPE_CHECKING:
    from rl_training.algorithms.config import AlgorithmConfig
    from rl_training.experiment.presets import PresetScore

MIN_WIDTH = 40


def show_config(
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
    """Show the settings a run would have, and where each comes from.

    It takes every option of `train`; those that are no settings (--run-suffix, --resume-or-start, --callback) have no
    effect here.
    """
    resolved = resolve(context.params)
    rows = configuration_rows(resolved)
    values = {key: {"value": value, "source": source} for key, value, source in rows}
    show(values, row_lines(configuration_rows(resolved, is_flat=True)), as_json)


def algos(
    name: Annotated[
        str | None,
        typer.Argument(help="An algorithm, to list its settings.", metavar="[ALGO]", autocompletion=complete_algorithm),
    ] = None,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """List the algorithms, or the settings of one."""
    from rl_training.experiment.registry import get_algorithm_spec, list_algorithm_specs

    if name is None:
        rows = [(spec.name, spec.loop.value, spec.summary) for spec in list_algorithm_specs()]
        lines = [line for row in rows for line in _algorithm_lines(*row)]
        show([dict(zip(("name", "loop", "summary"), row, strict=True)) for row in rows], lines, as_json)
        return
    _show_settings(get_algorithm_spec(name).config_class(), as_json)


def _algorithm_lines(name: str, loop: str, summary: str) -> list[str]:
    """One algorithm, its summary wrapped by words in a column of its own."""
    start = f"{name:<8}{loop:<12}"
    width = max(MIN_WIDTH, shutil.get_terminal_size().columns)
    return textwrap.wrap(summary, width, initial_indent=start, subsequent_indent=" " * len(start))


def _show_settings(config_class: type[AlgorithmConfig], as_json: bool) -> None:
    from rl_training.cli.settings import list_settings, schedule_line

    settings = list_settings(config_class)
    width = shutil.get_terminal_size().columns
    lines = ["set as algo_kwargs.NAME=VALUE", ""]
    lines += [line for setting in settings for line in setting.lines(width)]
    schedule = schedule_line(config_class)
    lines += [] if schedule is None else ["", *textwrap.wrap(schedule, width)]
    values = {
        setting.key: {"default": setting.default, "meaning": setting.meaning, "values": setting.values}
        for setting in settings
    }
    show(values, lines, as_json)


def presets(as_json: AsJson = False) -> None:
    """List the presets: environment, steps, and the score that was measured with each."""
    from rl_training.experiment.presets import describe_presets

    found = describe_presets()
    rows = [("preset", "environment", "steps", "score")]
    rows += [(preset.name, preset.env_id, f"{preset.total_timesteps:,}", _score_text(preset.score)) for preset in found]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [f"{row[0]:<{widths[0]}} {row[1]:<{widths[1]}} {row[2]:>{widths[2]}} {row[3]}" for row in rows]
    show([dataclasses.asdict(preset) for preset in found], lines, as_json)
    if not as_json:
        say("score: mean over (n) seeds, of the last checkpoint; 'best': of the best one")


def _score_text(score: PresetScore | None) -> str:
    if score is None:
        return "not measured"
    is_rate = score.metric == "eval_success_rate"
    value = f"{score.mean:.0%} success" if is_rate else f"{score.mean:,.1f}"
    return f"{value}{' best' if score.policy == 'best' else ''} ({len(score.scores)})"


def doctor(
    words: Annotated[
        list[str] | None, typer.Argument(help="env_kwargs of the environment.", metavar="[KEY=VALUE]...")
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            "--env", metavar="ENV_ID", callback=find_beside, help="An environment to examine (default: the machine)."
        ),
    ] = None,
    steps: Annotated[
        int, typer.Option("--steps", help="Steps to watch it for.", metavar=NUMBER, parser=positive_number)
    ] = 600,
    seed: Annotated[
        int, typer.Option("--seed", min=0, metavar=NUMBER, help="Seed of the environment and the actions.")
    ] = 0,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Check an environment (API, seeding, exact resume), or the machine.

    With --env NAME the environment is checked; without it, versions and hardware are shown.
    """
    from rl_training.experiment.config import parse_overrides
    from rl_training.views.doctor_view import describe_machine, print_report

    if env is None:
        if words:
            raise RLTrainingError(f"{' '.join(words)!r} are settings of an environment: name it with --env")
        facts = describe_machine()
        width = max(map(len, facts))
        show(facts, [f"{name:<{width}} {value}" for name, value in facts.items()], as_json)
        return
    from rl_training.diagnostics.env_doctor import examine_environment

    settings = parse_overrides([f"env_kwargs.{word.removeprefix('env_kwargs.')}" for word in words or []])
    report = examine_environment(env, settings.get("env_kwargs"), steps=steps, seed=seed)
    if as_json:
        show(report.as_dict(), [], as_json)
    else:
        print_report(report)
    if report.has_errors:
        raise typer.Exit(1)
