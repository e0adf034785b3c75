"""The verb `runs`: lists runs, shows one, compares the settings of two, and removes them."""

from __future__ import annotations

import math
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from rl_training.cli.options import (
    NUMBER,
    AsJson,
    flag,
    named_run,
    option,
    positive_number,
    run_argument,
)
from rl_training.cli.output import show
from rl_training.cli.parsing import verb
from rl_training.errors import ConfigError, RLTrainingError
from rl_training.files import TEMPORARY
from rl_training.terminal.streams import is_terminal, printable
from rl_training.terminal.tables import shorten_names, table_lines

if TYPE_CHECKING:
    from rl_training.studies.catalog import RunInfo

LIST = "list"


class RunsGroup(TyperGroup):
    """`runs` alone, or with a folder or filters, is `runs list`."""

    default_command = LIST

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert `list` where no command is named."""
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = [LIST, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=RunsGroup, rich_markup_mode=None)
Filters = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[DIR] [FILTER]...",
        help="Folder of runs (default: runs), then filters: state=dead, algo=ppo, gamma=0.99, or a part of the name.",
    ),
]
OneRun = Annotated[Path, run_argument(text="A run folder, a prefix of its name, or @last.")]
OtherRun = Annotated[Path, run_argument("OTHER", "Another run.")]
Sort = Annotated[
    str,
    option(
        "--sort", "KEY", "Order: age (newest first; the default), name, state, done, last, best."
    ),
]
Limit = Annotated[
    int | None, option("--limit", NUMBER, "Show the first so many only.", parser=positive_number)
]
All = Annotated[bool, flag("--all", "A line for each run of a study or tuning, too.")]
Removed = Annotated[list[Path], run_argument("RUN...", "Runs, studies and tunings to remove.")]
Yes = Annotated[bool, flag("--yes", "Do not ask.")]
SORTS: dict[str, Callable[[RunInfo], Any]] = {
    "age": lambda info: info.created or "",
    "name": lambda info: info.name,
    "state": lambda info: info.state,
    "done": lambda info: info.share or 0.0,
    "last": lambda info: -math.inf if info.last_eval is None else info.last_eval,
    "best": lambda info: -math.inf if info.best_eval is None else info.best_eval,
}
"""What `--sort` sorts by, the largest first; names and states alphabetically."""
PLANS = ("study.yaml", "tune.yaml")
"""Files of a folder whose runs belong together."""


@app.callback()
def _runs() -> None:
    """List runs, show one, compare the settings of two, or remove them."""


@verb(app, LIST)
def list_all(
    words: Filters = None,
    sort: Sort = "age",
    limit: Limit = None,
    every: All = False,
    as_json: AsJson = False,
) -> None:
    """List runs, newest first: state, share done, scores, speed, age. Those of a study or tuning are one line."""
    from rl_training.studies.catalog import list_runs

    if sort not in SORTS:
        raise ConfigError(f"bad value '{sort}' for --sort: use {', '.join(SORTS)}")
    folder, filters = _split(words or [])
    infos = list_runs(folder, filters)
    infos.sort(key=SORTS[sort], reverse=sort not in ("name", "state"))
    is_folded = not (every or filters)
    groups: dict[Path, list[RunInfo]] = {}
    for info in infos:
        above = [path for path in info.run_dir.parents if folder in path.parents and _is_plan(path)]
        line = above[0] if above and is_folded else info.run_dir
        groups.setdefault(line, []).append(info)
    rows: list[tuple[str, ...]] = [("run", "state", "done", "last", "best", "steps/s", "age")]
    rows += [_row(path, members, folder) for path, members in [*groups.items()][:limit]]
    num_hidden = len(groups) + 1 - len(rows)
    if is_terminal(sys.stdout):
        rows = shorten_names(rows, shutil.get_terminal_size().columns)
    lines = table_lines(rows, "llr")
    if not infos:
        lines = [f"there is no {'such ' if filters else ''}run in '{folder}'"]
    if num_hidden:
        lines.append(f"{num_hidden:,} more: leave out --limit")
    show([info.as_dict() for info in infos[:limit]], lines, as_json)


def _is_plan(path: Path) -> bool:
    return any((path / name).is_file() for name in PLANS)


def _row(path: Path, members: list[RunInfo], folder: Path) -> tuple[str, ...]:
    """The line of a run, or of the runs of a study or tuning."""
    from rl_training.studies.catalog import format_age

    first, name = members[0], str(path.relative_to(folder)) if path != folder else path.name
    state: str = first.state
    last, working = first.last_eval, members
    if path != first.run_dir:
        name, last = f"{name}/ ({len(members):,} runs)", None
        working = [info for info in members if info.state == "running"]
        counts = Counter(info.state for info in members)
        if len(counts) > 1:
            state = ", ".join(f"{count} {word}" for word, count in counts.most_common(2))
    shares = [info.share for info in members if info.share is not None]
    rates = [info.rate for info in working if info.rate is not None]
    best = [info.best_eval for info in members if info.best_eval is not None]
    ages = [info.age_seconds for info in members if info.age_seconds is not None]
    return (
        name,
        state,
        f"{sum(shares) / len(members):.0%}" if shares else "-",
        "-" if last is None else f"{last:.1f}",
        f"{max(best):.1f}" if best else "-",
        f"{sum(rates):,.0f}" if rates else "-",
        format_age(min(ages, default=None)),
    )


@verb(app, "rm")
def remove_runs(runs: Removed, yes: Yes = False, as_json: AsJson = False) -> None:
    """Remove runs, or a whole study or tuning: `runs rm RUN`. Asks first; a run that is being trained is refused."""
    _remove(list(dict.fromkeys(map(_folder_to_remove, runs))), yes=yes, as_json=as_json)


@verb(app, "prune")
def prune(words: Filters = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Remove runs that ended before their first checkpoint, or all that match: `runs prune state=failed`. Asks first.

    Runs that are being trained and runs of studies and tunings stay.
    """
    from rl_training.studies.catalog import list_runs

    folder, filters = _split(words or [])
    found = [
        info.run_dir
        for info in list_runs(folder, filters)
        if info.state != "running" and not any(map(_is_plan, info.run_dir.parents))
        if filters or not info.has_checkpoint
    ]
    _remove(found, yes=yes, as_json=as_json)


def _folder_to_remove(name: Path) -> Path:
    """A run, or a study or tuning by its path or by its name in `runs`."""
    for path in (name, Path("runs") / name):
        if _is_plan(path):
            return path
    return _run_folder(name)


def _remove(paths: list[Path], *, yes: bool, as_json: bool) -> None:
    """Remove these folders, after a question and unless a live process owns one of their runs."""
    from rl_training.experiment.ownership import refuse_owned
    from rl_training.studies.catalog import find_run_folders

    for path in paths:
        for run_dir in [path, *find_run_folders(path)]:
            refuse_owned(run_dir)
    if paths and not yes:
        count = f"{len(paths):,} folder{'' if len(paths) == 1 else 's'}"
        if not sys.stdin.isatty():
            raise ConfigError(f"{count} would be removed, the first '{paths[0]}': add --yes")
        listed = "\n".join(f"  {path}" for path in paths)
        if not typer.confirm(printable(f"{listed}\nRemove {count} for good?"), err=True):
            paths = []
    for path in paths:
        hidden = path.with_name(f".{path.name}{TEMPORARY}removed")
        try:
            path.rename(hidden)  # nobody reads a part of it
            shutil.rmtree(hidden)
        except OSError as error:
            raise RLTrainingError(f"cannot remove '{path}': {error.strerror}") from None
    show(
        [str(path) for path in paths],
        [f"removed {path}" for path in paths] or ["nothing to remove"],
        as_json,
    )


@verb(app, "show")
def show_one(run: OneRun, as_json: AsJson = False) -> None:
    """Show a run: state, owner, scores, versions, settings."""
    from rl_training.experiment.checkpoint_folder import last_metadata
    from rl_training.experiment.config import leaves
    from rl_training.experiment.run_folder import TrainingRun
    from rl_training.studies.catalog import read_run

    folder = _run_folder(run)
    info = read_run(folder)
    metadata = TrainingRun(folder).metadata()
    versions = metadata.get("versions")
    ended = ", which has ended" if info.owner is not None and info.owner.is_gone else ""
    facts = {
        "state": info.state if info.reason is None else f"{info.state}: {info.reason}",
        "owner": "never had one" if info.owner is None else f"{info.owner}{ended}",
        "step": f"{info.step:,} of {info.total:,}" if info.total else f"{info.step:,}",
        "last eval": "none" if info.last_eval is None else f"{info.last_eval:.6g}",
        "best eval": "none" if info.best_eval is None else f"{info.best_eval:.6g}",
        "steps/s": "not known" if info.rate is None else f"{info.rate:,.1f}",
        "exactness": info.exactness or "exact",
        "created": info.created or "not known",
        "git commit": str(metadata.get("git_commit")),
        "versions": "",
    }
    if isinstance(versions, dict):
        facts["versions"] = ", ".join(f"{name} {value}" for name, value in versions.items())
    found = last_metadata(folder).get("inexact_reasons") if info.exactness == "approximate" else ()
    reasons = [str(reason) for reason in found] if isinstance(found, list) else []
    rows = [*facts.items(), *(("", reason) for reason in reasons), ("settings", "")]
    rows += [(name, str(value)) for name, value in leaves(info.settings)]
    lines = [str(folder), *table_lines(rows, "l", "  ")]
    values = {
        **info.as_dict(),
        "inexact_reasons": reasons,
        "settings": info.settings,
        "metadata": metadata,
    }
    show(values, lines, as_json)


@verb(app, "diff")
def diff(run: OneRun, other: OtherRun, as_json: AsJson = False) -> None:
    """Show the settings in which two runs differ."""
    from rl_training.experiment.config import leaves
    from rl_training.studies.catalog import read_settings

    folders = [_run_folder(run), _run_folder(other)]
    first, second = (dict(leaves(read_settings(folder))) for folder in folders)
    keys = [key for key in dict.fromkeys([*first, *second]) if first.get(key) != second.get(key)]
    values = {key: [first.get(key), second.get(key)] for key in keys}
    rows = [("setting", *(folder.name for folder in folders))]
    rows += [(key, *(str(value) for value in pair)) for key, pair in values.items()]
    show(values, table_lines(rows, "l") if keys else ["the settings are the same"], as_json)


def _split(words: list[str]) -> tuple[Path, list[str]]:
    """The folder and the filters among the arguments."""
    if words and Path(words[0]).is_dir():
        return Path(words[0]), words[1:]
    if words and "=" not in words[0] and ("/" in words[0] or words[0] in (".", "..")):
        raise ConfigError(f"folder '{words[0]}' does not exist (looked from {Path.cwd()})")
    return Path("runs"), words


def _run_folder(run: Path) -> Path:
    from rl_training.studies.catalog import is_run_folder

    found = named_run(run)
    if not is_run_folder(found):
        raise ConfigError(f"'{found}' is not a run folder: it has no config.yaml and checkpoints")
    return found
