"""The verb `runs`: lists runs, shows one, compares the settings of two."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rl_training.cli.options import AsJson, complete_run, named_run
from rl_training.cli.output import show
from rl_training.cli.parsing import StrictCommand
from rl_training.errors import ConfigError
from rl_training.terminal.streams import is_terminal
from rl_training.terminal.tables import shorten_names, table_lines

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
        help="Folder of runs (default: runs), then filters: state=dead, algo=ppo, algo_kwargs.gamma=0.99, or a part"
        " of the name.",
    ),
]
OneRun = Annotated[
    Path,
    typer.Argument(metavar="RUN", autocompletion=complete_run, help="A run folder, a prefix of its name, or @last."),
]
OtherRun = Annotated[Path, typer.Argument(metavar="OTHER", autocompletion=complete_run, help="Another run.")]


@app.callback()
def _runs() -> None:
    """List runs, show one, or compare the settings of two."""


@app.command(LIST, cls=StrictCommand)
def list_all(words: Filters = None, as_json: AsJson = False) -> None:
    """List runs: state, algorithm, environment, seed, share done, scores, speed, age."""
    from rl_training.studies.catalog import check_filters, format_age, list_runs

    folder, filters = _split(words or [])
    check_filters(filters)
    infos = list_runs(folder, filters)
    rows: list[tuple[str, ...]] = [("run", "state", "done", "last", "best", "steps/s", "age")]
    for info in infos:
        share = "-" if info.share is None else f"{info.share:.0%}"
        scores = ["-" if score is None else f"{score:.1f}" for score in (info.last_eval, info.best_eval)]
        rate = "-" if info.rate is None else f"{info.rate:,.0f}"
        name = info.name if info.run_dir == folder else str(info.run_dir.relative_to(folder))
        rows.append((name, info.state, share, *scores, rate, format_age(info.age_seconds)))
    if is_terminal(sys.stdout):
        rows = shorten_names(rows, shutil.get_terminal_size().columns)
    nothing = [f"there is no {'such ' if filters else ''}run in '{folder}'"]
    lines = table_lines(rows, "llr") if infos else nothing
    show([info.as_dict() for info in infos], lines, as_json)


@app.command("show", cls=StrictCommand)
def show_one(run: OneRun, as_json: AsJson = False) -> None:
    """Show what a run's folder tells of it: state, owner, scores, versions, settings."""
    from rl_training.experiment.config import leaves
    from rl_training.experiment.run_folder import TrainingRun
    from rl_training.studies.catalog import RunReader

    folder = _run_folder(run)
    reader = RunReader(folder)
    info = reader.info()
    metadata = TrainingRun(folder).metadata()
    versions = metadata["versions"] if isinstance(metadata.get("versions"), dict) else {}
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
        "versions": ", ".join(f"{name} {value}" for name, value in versions.items()),
    }
    reasons = _inexact_reasons(folder) if info.exactness == "approximate" else []
    settings = dict(leaves(reader.config))
    rows = [*facts.items(), *(("", reason) for reason in reasons), ("settings", "")]
    rows += [(name, str(value)) for name, value in settings.items()]
    lines = [str(folder), *table_lines(rows, "l", "  ")]
    values = {**info.as_dict(), "inexact_reasons": reasons, "settings": dict(reader.config), "metadata": metadata}
    show(values, lines, as_json)


@app.command("diff", cls=StrictCommand)
def diff(run: OneRun, other: OtherRun, as_json: AsJson = False) -> None:
    """Show the settings in which two runs differ."""
    from rl_training.experiment.config import leaves
    from rl_training.studies.catalog import RunReader

    folders = [_run_folder(run), _run_folder(other)]
    first, second = (dict(leaves(RunReader(folder).config)) for folder in folders)
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


def _inexact_reasons(folder: Path) -> list[str]:
    """Why a run is not bit-exact, from the manifest of its last checkpoint."""
    from rl_training.experiment.checkpoint_folder import last_metadata

    reasons = last_metadata(folder).get("inexact_reasons")
    return [str(reason) for reason in reasons] if isinstance(reasons, list) else []
