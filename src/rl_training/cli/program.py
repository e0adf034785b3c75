"""The program `rl-training`: its verbs and its exit codes."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rl_training.cli import data, importing, runs, studies
from rl_training.cli.comparing import compare
from rl_training.cli.exporting import export
from rl_training.cli.inspection import algos, doctor, presets, show_config
from rl_training.cli.output import say
from rl_training.cli.parsing import Quiet, verb
from rl_training.cli.training import demo, evaluate, resume, train
from rl_training.cli.tuning import tune
from rl_training.cli.viewing import plot, report, ui, video
from rl_training.errors import RLTrainingError
from rl_training.terminal.streams import drop_unwritten, is_terminal

BAD_INPUT = 2


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP: ends a verb as Ctrl-C does, so that it removes half-written files.

    Training and studies have handlers of their own, which save.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class Commands(TyperGroup):
    """All verbs. An interrupt ends with a message and exit code 130, which typer would not print."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb that was given."""
        try:
            return super().invoke(ctx)
        except Terminated as signalled:
            say("interrupted")
            raise typer.Exit(128 + signalled.number) from None
        except KeyboardInterrupt:
            raise typer.Abort from None
        except SystemExit as error:  # typer itself leaves with typer.Exit
            raise RLTrainingError(
                f"the command did not finish: an environment, a plugin or a package called sys.exit({error.code!r})"
            ) from error


app = typer.Typer(
    cls=Commands,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={
        "max_content_width": sys.maxsize
    },  # help is as wide as the terminal; typer's limit is 80
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from rl_training import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Train, evaluate and resume reinforcement-learning agents."""


app.add_typer(data.app, name="data")
app.add_typer(runs.app, name="runs")
app.add_typer(studies.app, name="study")
app.add_typer(importing.app, name="import")
_VERBS: dict[str, Callable[..., None]] = {
    "train": train,
    "eval": evaluate,
    "resume": resume,
    "config": show_config,
    "presets": presets,
    "algos": algos,
    "doctor": doctor,
    "plot": plot,
    "report": report,
    "ui": ui,
    "video": video,
    "compare": compare,
    "tune": tune,
    "export": export,
    "demo": demo,
}
for _name, _verb in _VERBS.items():
    verb(app, _name)(_verb)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0: done; 1: `doctor` or `data check` found errors, or runs of a study failed; 2: bad input; 129, 130, 143:
    interrupted by SIGHUP, SIGINT or SIGTERM, and saved.
    """
    try:
        arguments = list(sys.argv[1:] if argv is None else argv)
        code = app(args=arguments or ["--help"], prog_name="rl-training", standalone_mode=False)
    except RLTrainingError as error:
        say(f"error: {error}")
        return BAD_INPUT
    except typer.Abort:
        say("interrupted")
        return 130
    except typer.TyperException as error:
        say(f"error: {error.format_message()} (see --help)")
        return BAD_INPUT
    return code if isinstance(code, int) else 0


def run() -> None:
    """Entry point of the `rl-training` script."""
    for name in ("SIGTERM", "SIGHUP"):
        if (
            getattr(signal, name, None) is not None
            and signal.getsignal(signal.Signals[name]) == signal.SIG_DFL
        ):
            signal.signal(signal.Signals[name], _exit_on)
    if is_terminal(sys.stderr) and "torch" not in sys.modules:
        sys.meta_path.insert(0, LoadingNotice())
    code = main()
    drop_unwritten()
    sys.exit(code)


class LoadingNotice(MetaPathFinder):
    """Says at a terminal that PyTorch is being loaded, which takes seconds, when it is first imported."""

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        """Find nothing: the finders after this one do."""
        if name == "torch":
            sys.meta_path.remove(self)
            say("loading PyTorch…")


def _exit_on(number: int, frame: FrameType | None) -> None:
    raise Terminated(number)
