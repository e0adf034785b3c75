"""The verbs that train nothing: `config`, `algos`, `presets` and `doctor`."""

from __future__ import annotations

import dataclasses
import shutil
import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from rl_training.cli.configuration import configuration_rows, resolve, row_lines
from rl_training.cli.options import (
    NUMBER,
    AsJson,
    Plugins,
    TrainOptions,
    complete_algorithm,
    find_in_working_directory,
    option,
    positive_number,
)
from rl_training.cli.output import say, show
from rl_training.errors import ConfigError
from rl_training.terminal.tables import table_lines

if TYPE_CHECKING:
    from rl_training.algorithms.config import AlgorithmConfig
    from rl_training.experiment.presets import PresetScore


MIN_WIDTH = 40


Algo = Annotated[
    str | None,
    typer.Argument(
        metavar="[ALGO]",
        autocompletion=complete_algorithm,
        help="Algorithm whose settings to list.",
    ),
]
EnvSettings = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="env_kwargs of the environment."),
]
CheckedEnv = Annotated[
    str | None,
    option(
        "--env",
        "ENV_ID",
        "Environment to check (default: show versions and hardware).",
        callback=find_in_working_directory,
    ),
]
CheckedSteps = Annotated[
    int, option("--steps", NUMBER, "Environment steps to take.", parser=positive_number)
]
CheckSeed = Annotated[
    int, option("--seed", NUMBER, "Seed of the environment and the random actions.", min=0)
]


def show_config(options: TrainOptions) -> None:
    """Show the settings a run would have, and the source of each.

    Takes every option of `train`; --run-suffix, --resume-or-start and --callback are not settings and have no effect.
    """
    resolved = resolve(options)
    values = {
        key: {"value": value, "source": source}
        for key, value, source in configuration_rows(resolved)
    }
    show(values, row_lines(configuration_rows(resolved, is_flat=True)), options.as_json)


def algos(name: Algo = None, plugin: Plugins = None, as_json: AsJson = False) -> None:
    """List the algorithms, or the settings of one."""
    from rl_training.experiment.registry import get_algorithm_spec, list_algorithm_specs

    if name is None:
        rows = [(spec.name, spec.loop.value, spec.summary) for spec in list_algorithm_specs()]
        lines = table_lines(rows, "l", width=max(MIN_WIDTH, shutil.get_terminal_size().columns))
        show(
            [dict(zip(("name", "loop", "summary"), row, strict=True)) for row in rows],
            lines,
            as_json,
        )
        return
    _show_settings(get_algorithm_spec(name).config_class(), as_json)


def _show_settings(config_class: type[AlgorithmConfig], as_json: bool) -> None:
    from rl_training.cli.configuration import list_settings, schedule_line

    settings = list_settings(config_class)
    width = shutil.get_terminal_size().columns
    lines = ["set as NAME=VALUE; in a file under algo_kwargs", ""]
    lines += [line for setting in settings for line in setting.lines(width)]
    schedule = schedule_line(config_class)
    lines += [] if schedule is None else ["", *textwrap.wrap(schedule, width)]
    values = {
        setting.key: {
            "default": setting.default,
            "meaning": setting.meaning,
            "values": setting.values,
            "tune": None if setting.tune is None else setting.tune.as_dict(),
        }
        for setting in settings
    }
    show(values, lines, as_json)


def presets(as_json: AsJson = False) -> None:
    """List the presets: environment, training steps and measured score."""
    from rl_training.experiment.presets import describe_presets

    found = describe_presets()
    rows = [("preset", "environment", "steps", "score")]
    rows += [
        (preset.name, preset.env_id, f"{preset.total_timesteps:,}", _score_text(preset.score))
        for preset in found
    ]
    show([dataclasses.asdict(preset) for preset in found], table_lines(rows, "llrl"), as_json)
    if not as_json:
        say("score: mean over (n) seeds, last checkpoint; *: best checkpoint; %: success rate")


def _score_text(score: PresetScore | None) -> str:
    if score is None:
        return "not measured"
    value = f"{score.mean:.0%}" if score.metric == "eval_success_rate" else f"{score.mean:,.1f}"
    return f"{value}{'*' if score.policy == 'best' else ''} ({len(score.scores)})"


def doctor(
    words: EnvSettings = None,
    env: CheckedEnv = None,
    steps: CheckedSteps = 600,
    seed: CheckSeed = 0,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Check an environment (API, seeding, exact resume); without --env, show versions and hardware.

    Exits with 1 if training on the environment would fail.
    """
    if env is not None:
        _check_environment(env, words or [], steps, seed, as_json)
        return
    if words:
        named = "ENV_ID" if "=" in words[0] else words[0]
        raise ConfigError(
            f"{' '.join(words)!r} is no option and sets nothing of an environment: name it by --env {named}"
        )
    from rl_training.views.findings import describe_machine

    facts = describe_machine()
    show(facts, table_lines(list(facts.items()), "l"), as_json)


def _check_environment(env_id: str, words: list[str], steps: int, seed: int, as_json: bool) -> None:
    from rl_training.diagnostics.env_doctor import check_environment
    from rl_training.envs.wrapping.wrapper_list import find_wrappers_here
    from rl_training.experiment.config import parse_overrides
    from rl_training.views.findings import print_report

    settings = parse_overrides([f"env_kwargs.{word.removeprefix('env_kwargs.')}" for word in words])
    find_wrappers_here(settings.get("env_kwargs") or {})
    report = check_environment(env_id, settings.get("env_kwargs"), steps=steps, seed=seed)
    if as_json:
        show(report.as_dict(), [], as_json)
    else:
        print_report(report)
    if report.has_errors:
        raise typer.Exit(1)
