"""The verb `tune`: search settings, race the best on fresh seeds, and compare the winner with the default."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli.configuration import resolve
from rl_training.cli.options import (
    NUMBER,
    AsJson,
    Callbacks,
    ConfigFile,
    Device,
    EvalEpisodes,
    LaunchOptions,
    NoPreset,
    NumEnvs,
    Plugins,
    TotalTimesteps,
    TrainOptions,
    complete_words,
    flag,
    option,
    positive_number,
    whole_number,
    words_of,
)
from rl_training.cli.output import SAVED, say, show, with_command
from rl_training.cli.studies import launcher_in
from rl_training.errors import ConfigError
from rl_training.files import is_file
from rl_training.terminal.streams import results_alone
from rl_training.terminal.tables import WIDTH
from rl_training.views.studies import tune_plan_lines, tune_result_lines, tune_warnings

if TYPE_CHECKING:
    from rl_training.studies.tuning.tune_plan import TunePlan
    from rl_training.studies.tuning.tuner import Tuning


INTERRUPTED = 130
Count = int | None


def _count(name: str, text: str) -> Any:
    return option(name, NUMBER, text, parser=positive_number)


@dataclasses.dataclass(frozen=True)
class TuneOptions(LaunchOptions):
    """The options of `tune`."""

    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ALGO ENV_ID [KEY=VALUE]... | FILE",
            autocompletion=complete_words,
            help="Algorithm, environment id, and settings of the default configuration; or a study file with a tune"
            " block.",
        ),
    ] = None
    tune: Annotated[
        list[str] | None,
        option(
            "--tune",
            "KEY[=SPACE]",
            "Setting to tune, with its own search space or LOW..HIGH, LOW..HIGH:log or A,B,C. Repeatable (default:"
            " all settings that `rl-training algos ALGO` shows a space for).",
        ),
    ] = None
    fix: Annotated[
        list[str] | None,
        option("--fix", "KEY=VALUE", "Setting that is not tuned, and its value. Repeatable."),
    ] = None
    trials: Annotated[
        Count, _count("--trials", "Settings tried in the search; the first is the default (20).")
    ] = None
    batch: Annotated[
        Count, _count("--batch", "Trials sampled together (4); part of the plan, unlike --jobs.")
    ] = None
    seeds_per_trial: Annotated[Count, _count("--seeds-per-trial", "Seeds of each trial (1).")] = (
        None
    )
    pruner: Annotated[
        str | None,
        option(
            "--pruner",
            "median|hyperband|none",
            "Who ends bad trials early, not before a third of their steps (median).",
        ),
    ] = None
    finalists: Annotated[
        Count, _count("--finalists", "Best settings that race against the default (3).")
    ] = None
    race_seeds: Annotated[Count, _count("--race-seeds", "Fresh seeds of the race (5).")] = None
    final_seeds: Annotated[
        Count, _count("--final-seeds", "Untouched seeds of the winner and the default (5).")
    ] = None
    seed: Annotated[
        Count,
        option(
            "--seed",
            NUMBER,
            "Seed of the sampler; it also shifts the runs' seeds (0).",
            parser=whole_number,
        ),
    ] = None
    name: Annotated[
        str | None,
        option("--name", "NAME", "Name of the tuning and its folder (tune__ALGO__ENV_ID)."),
    ] = None
    config: ConfigFile = None
    no_preset: NoPreset = False
    output_dir: Annotated[
        Path | None,
        option("--output-dir", "FOLDER", "Parent of the tuning's folder (default: runs)."),
    ] = None
    total_timesteps: TotalTimesteps = None
    num_envs: NumEnvs = None
    eval_episodes: EvalEpisodes = None
    device: Device = None
    dry_run: Annotated[
        bool, flag("--dry-run", "List the search space, the runs and their steps; train none.")
    ] = False
    plugin: Plugins = None
    callback: Callbacks = None
    as_json: AsJson = False


SHARED = ("config", "no_preset", "total_timesteps", "num_envs", "eval_episodes", "device")
"""Options of the default configuration, which a study file has itself."""
USAGE = "give ALGO ENV_ID (tune ppo CartPole-v1), a study FILE with a tune block, or --config FILE"


def tune(options: TuneOptions) -> None:
    """Tune settings: `tune dqn CartPole-v1`. The same command continues.

    The best settings of a search race against the default on fresh seeds, and the winner meets the default on seeds
    that nobody used: that comparison is the result. Exits with 1 if runs of the race or the final failed.
    """
    from rl_training.studies.tuning.journal import import_optuna
    from rl_training.studies.tuning.stages import StageError
    from rl_training.studies.tuning.tune_plan import find_plan
    from rl_training.studies.tuning.tuner import Tuning

    import_optuna()
    asked, parent = _asked(options)
    path = parent / asked.study.name
    if options.dry_run:
        values, lines = tune_plan_lines(find_plan(asked, path), path)
        show(values, lines, options.as_json)
        return
    again = [*(options.words or []), *words_of(options, without=("words", "as_json", "dry_run"))]
    try:
        with results_alone():  # Ray prints to standard output
            tuning = Tuning(find_plan(asked, path), path)
            result = tuning.run(launcher_in(path, options), lambda: _announce(tuning))
    except StageError as error:
        say(f"error: {error}")
        raise typer.Exit(1) from None
    except KeyboardInterrupt:  # outside of training, as during the check of settings
        say(with_command("interrupted; to continue:", "tune", *again))
        raise typer.Exit(INTERRUPTED) from None
    if result is None:
        say(with_command(SAVED, "tune", *again))
        raise typer.Exit(128 + (tuning.interrupted_by or 2))
    values, lines = tune_result_lines(result)
    show(values, lines, options.as_json)
    if result.verdict.is_better:
        text = "to train with the winner's settings:"
        say(with_command(text, "train", "--config", str(result.best)))


def _announce(tuning: Tuning) -> None:
    plan = tuning.plan
    say(f"tuning {tuning.path}: {plan.settings.trials:,} trials of {plan.total_steps:,} steps")
    for warning in tune_warnings(plan):
        say("\n".join(textwrap.wrap(f"warning: {warning}", WIDTH)))


def _asked(options: TuneOptions) -> tuple[TunePlan, Path]:
    """The plan that is asked for, and the folder that holds the tuning's folder."""
    from rl_training.studies.plan import make_plan
    from rl_training.studies.tuning.search_space import parse_asked
    from rl_training.studies.tuning.tune_plan import TuneSettings

    words = options.words or []
    plan, parent = _plan_of_file(words, options) if _names_file(words) else _plan_of_words(options)
    settings = plan.settings.model_dump()
    given = {name: getattr(options, name) for name in settings}
    settings |= {name: value for name, value in given.items() if value is not None}
    study = dataclasses.replace(
        plan.study,
        name=make_plan(options.name or plan.study.name, []).name,  # checked
        plugins=tuple(dict.fromkeys([*plan.study.plugins, *(options.plugin or ())])),
        callbacks=tuple(dict.fromkeys([*plan.study.callbacks, *(options.callback or ())])),
    )
    asked = parse_asked(options.tune) if options.tune else plan.asked
    plan = dataclasses.replace(plan, study=study, asked=asked, settings=TuneSettings(**settings))
    return plan.fix(_parse_fixed(options.fix or [])), options.output_dir or parent


def _names_file(words: Sequence[str]) -> bool:
    """Whether the first word is a study file; a folder may have a file with the name of an algorithm."""
    if not words or Path(words[0]).suffix in (".yaml", ".yml"):
        return bool(words)
    return all("=" in word for word in words[1:]) and is_file(Path(words[0]))


def _plan_of_words(options: TuneOptions) -> tuple[TunePlan, Path]:
    from rl_training.studies.tuning.tune_plan import TuneSettings, default_name, plan_tuning

    if any(word.startswith("seed=") for word in options.words or ()):
        raise ConfigError(
            "'seed' of the default configuration has no effect: give --seed, which shifts all seeds"
        )
    shared = {name: getattr(options, name) for name in (*SHARED, "words", "plugin", "callback")}
    config = resolve(TrainOptions(**shared), USAGE).config
    given = config.model_fields_set - {"seed", "output_dir"}
    values = {key: value for key, value in config.model_dump().items() if key in given}
    return plan_tuning(default_name(config), values, {}, TuneSettings()), config.output_dir


def _plan_of_file(words: Sequence[str], options: TuneOptions) -> tuple[TunePlan, Path]:
    from rl_training.studies.tuning.tune_plan import TunePlan

    file, *others = words
    if others:
        key, equals, value = others[0].partition("=")
        if not equals:
            raise ConfigError(f"'{key}' has no effect with a study file: give '{file}' alone")
        raise ConfigError(
            f"'{others[0]}': KEY=VALUE is not supported with a study file: set {key} in the base of '{file}', or keep"
            f" it from being tuned with --fix {key.removeprefix('algo_kwargs.')}={value}"
        )
    if not is_file(Path(file)):
        raise ConfigError(f"study file '{file}' does not exist (looked from {Path.cwd()})")
    for name in SHARED:
        if getattr(options, name) not in (None, False):
            raise ConfigError(
                f"--{name.replace('_', '-')} has no effect with a study file: set it in the file's base"
            )
    return TunePlan.from_file(Path(file))


def _parse_fixed(texts: Sequence[str]) -> dict[str, Any]:
    from rl_training.experiment.yaml_text import parse_yaml

    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"'{text}' of --fix is not of the form key=value")
        if key in found:
            raise ConfigError(f"'{key}' is given twice to --fix: remove one")
        found[key] = parse_yaml(value, f"the value of '{key}'")
    return found
