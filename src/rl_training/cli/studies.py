"""The verbs for many runs: `study run`, `study status`, and `train --seeds`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli.configuration import resolve
from rl_training.cli.options import (
    AsJson,
    LaunchOptions,
    Plugins,
    SeedOptions,
    TrainOptions,
    flag,
    option,
    words_of,
)
from rl_training.cli.output import SAVED, say, show, with_command
from rl_training.cli.parsing import verb
from rl_training.errors import ConfigError, RunExistsError
from rl_training.files import is_file
from rl_training.terminal.streams import results_alone
from rl_training.views.studies import failed_tasks, plan_lines, status_lines, study_lines

if TYPE_CHECKING:
    from rl_training.studies.launching.driver import Driver
    from rl_training.studies.launching.launchers import ClusterOptions, Launcher
    from rl_training.studies.launching.study import Study
    from rl_training.studies.variation import Shard


app = typer.Typer(rich_markup_mode=None)
StudyName = Annotated[
    str,
    typer.Argument(
        metavar="FILE|NAME", help="A study file, or a study that has begun: its folder or its name."
    ),
]
StartedStudy = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]", help="The folder or name of a study (default: list the studies)."
    ),
]
StudiesDir = Annotated[
    Path | None, option("--output-dir", "FOLDER", "Parent of the study's folder (default: runs).")
]
RUNS = Path("runs")
DryRun = Annotated[
    bool,
    flag(
        "--dry-run", "Check and list the runs, their memory and time as far as known; train none."
    ),
]
ShardText = Annotated[
    str | None,
    option(
        "--shard",
        "K/N",
        "Train share K of N of the plan (default: by the variables of a Slurm or Grid Engine array, or all).",
    ),
]
Fork = Annotated[
    str | None, option("--fork", "NAME", "Begin a new study of this name with the plan of FILE.")
]
Extend = Annotated[
    bool, flag("--extend", "Add the runs that FILE has and the study does not have yet.")
]


@dataclasses.dataclass(frozen=True)
class StudyOptions(LaunchOptions):
    """The options of `study run`."""

    dry_run: DryRun = False
    shard: ShardText = None
    fork: Fork = None
    extend: Extend = False
    output_dir: StudiesDir = None
    plugin: Plugins = None
    as_json: AsJson = False


OPTIONS_OF_LAUNCH = {"shard", *(field.name for field in dataclasses.fields(LaunchOptions))}
"""Options of `study run` that the command to continue repeats."""


@app.callback()
def _study() -> None:
    """Train and watch studies: settings that vary, times seeds."""


def run(study: StudyName, options: StudyOptions) -> None:
    """Train what is not finished of a study: `study run study.yaml`, and again after any stop: `study run NAME`.

    Exits with 1 if runs failed.
    """
    found = _open(study, options)
    shard = _shard(options.shard)
    if options.dry_run:
        values, lines = plan_lines(found, shard, extend=options.extend)
        show(values, lines, options.as_json)
        return
    with results_alone():  # Ray prints to standard output
        driver = found.drive(
            launcher_in(found.path.parent, options), shard=shard, extend=options.extend
        )
    report_study(found.path, driver, launch_words(options), as_json=options.as_json)


verb(app, "run")(run)


@verb(app, "status")
def status(
    study: StartedStudy = None, output_dir: StudiesDir = None, as_json: AsJson = False
) -> None:
    """Show the runs of a study, or list the studies: `study status NAME`."""
    from rl_training.studies.plan import find_study, list_studies, open_study

    parent = output_dir or RUNS
    if study is None:
        paths = [str(path) for path in list_studies(parent)]
        show(paths, paths or [f"there is no study in '{parent}'"], as_json)
        return
    values, lines = status_lines(open_study(find_study(study, parent)))
    show(values, lines, as_json)


def train_seeds(options: TrainOptions, many: SeedOptions) -> None:
    """`train --seeds`: a study with one setting."""
    from rl_training.studies.launching.study import Study

    words = options.words or []
    if options.seed is not None or any(word.startswith("seed=") for word in words):
        raise ConfigError("the seed is given twice, by --seeds and by --seed or seed=: remove one")
    if options.resume_or_start and options.run_suffix is None:
        raise ConfigError(
            "--resume-or-start needs --run-suffix NAME, which identifies the runs: add it"
        )
    config = resolve(options).config
    name, suffix = _names_of_seeds(config, options.run_suffix)
    study = Study(
        config,
        seeds=many.seeds,
        name=name,
        suffix=suffix,
        plugins=options.plugin or (),
        callbacks=options.callback or (),
    )
    if options.run_suffix is not None and study.path.exists() and not options.resume_or_start:
        raise RunExistsError(
            f"study '{study.path}' exists already: choose another --run-suffix, or add --resume-or-start to continue it"
        )
    words = launch_words(many)
    text = with_command("to continue after a stop:", "study", "run", str(study.path), *words)
    with results_alone():  # Ray prints to standard output
        driver = study.drive(
            launcher_in(study.path.parent, many), shard=_shard(None), on_begin=lambda: say(text)
        )
    report_study(study.path, driver, words, as_json=options.as_json)


def report_study(path: Path, driver: Driver, words: Sequence[str], *, as_json: bool) -> None:
    """Print the scores and the picture; `words` are the options of the command that continues.

    Exits with 1 if runs failed, with 128 + signal number if a signal stopped the study.
    """
    values, lines = study_lines(path, driver.tasks, driver.shard)
    show(values, lines, as_json)
    command = ["study", "run", str(path), *words]
    if driver.interrupted_by is not None:
        say(with_command(SAVED, *command))
        raise typer.Exit(128 + driver.interrupted_by)
    num_failed = len(failed_tasks(driver.tasks))
    if num_failed:
        text = f"{num_failed} run{'' if num_failed == 1 else 's'} failed"
        say(with_command(f"{text}; after fixing the cause, continue:", *command))
        raise typer.Exit(1)


def refuse_without_seeds(many: SeedOptions) -> None:
    """Raise a `ConfigError` for an option that has no effect on a single run."""
    words = words_of(many, without=())
    if words:
        raise ConfigError(
            f"{words[0]} has no effect on a single run: add --seeds, such as --seeds 0..4, or remove it"
        )


def _names_of_seeds(config: Any, run_suffix: str | None) -> tuple[str, str]:
    """Name of the study and end of its run folders' names."""
    from rl_training.experiment.run_folder import check_suffix, safe_name

    check_suffix(run_suffix)
    stem = f"{safe_name(config.algo)}__{safe_name(config.env_id or 'offline')}"
    if run_suffix is not None:
        return f"{stem}__{safe_name(run_suffix)}", run_suffix
    suffix = stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    number = 0
    while (config.output_dir / f"{stem}__{suffix}").exists():
        number += 1
        suffix = f"{stamp}-{number}"
    return f"{stem}__{suffix}", suffix


def _open(name: str, options: StudyOptions) -> Study:
    """The study that the argument of `study run` means."""
    from rl_training.studies.launching.study import Study
    from rl_training.studies.plan import find_study

    path, plugins = Path(name), options.plugin or ()
    if is_file(path):
        study = Study.from_file(path).with_plugins(plugins).within(options.output_dir)
        return study if options.fork is None else study.fork(options.fork)
    if path.suffix in (".yaml", ".yml"):
        raise ConfigError(f"study file '{path}' does not exist (looked from {Path.cwd()})")
    if options.fork is not None or options.extend:
        usage = "--extend" if options.fork is None else "--fork NAME"
        raise ConfigError(
            f"{usage.split()[0]} needs a study file: rl-training study run FILE {usage}"
        )
    return Study.open(find_study(name, options.output_dir or RUNS)).with_plugins(plugins)


def _shard(text: str | None) -> Shard:
    from rl_training.studies.variation import WHOLE, parse_shard, shard_of_array

    return parse_shard(text) if text is not None else shard_of_array() or WHOLE


def launcher_in(folder: Path, options: LaunchOptions) -> Launcher:
    """Who starts the runs of studies in a folder."""
    from rl_training.studies.launching.study import make_launcher

    return make_launcher(
        folder, jobs=options.jobs, backend=options.backend, cluster=_cluster(options)
    )


def launch_words(options: LaunchOptions) -> list[str]:
    """The same options as words of a command."""
    every = {field.name for field in dataclasses.fields(options)}
    return words_of(options, without=every - OPTIONS_OF_LAUNCH)


def _cluster(options: LaunchOptions) -> ClusterOptions | None:
    from rl_training.studies.launching.launchers import ClusterOptions

    names = {field.name for field in dataclasses.fields(ClusterOptions)}
    given = {
        name: value
        for name, value in vars(options).items()
        if name in names and value not in (None, False)
    }
    if given and options.backend == "local":
        option = "--" + next(iter(given)).replace("_", "-")
        raise ConfigError(f"{option} needs --backend ray: add it, or remove the option")
    return ClusterOptions(**given) if options.backend == "ray" else None
