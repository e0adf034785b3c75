"""The program `rl-training`: its commands, and what its exit codes mean."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rl_training.cli import data
from rl_training.cli.arguments import StrictCommand
from rl_training.cli.evaluation import evaluate, plot
from rl_training.cli.inspection import algos, doctor, presets, show_config
from rl_training.cli.options import say
from rl_training.cli.training import demo, resume, train
from rl_training.errors import RLTrainingError
from rl_training.terminal.streams import drop_unwritten

BAD_INPUT = 2


class Commands(TyperGroup):
    """The commands, any of which may be interrupted: typer would leave without a word."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Abort from None
        except SystemExit as error:  # typer's own way out is another one
            raise RLTrainingError(
                f"the command did not finish: an environment, a plugin or a package called sys.exit({error.code!r})"
            ) from error


app = typer.Typer(
    cls=Commands,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": sys.maxsize},  # help is as wide as the terminal, where typer stops at 80
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from rl_training import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train reinforcement-learning agents, evaluate them and go on training them."""


app.add_typer(data.app, name="data")
_COMMANDS: dict[str, Callable[..., None]] = {
    "train": train,
    "eval": evaluate,
    "resume": resume,
    "config": show_config,
    "presets": presets,
    "algos": algos,
    "doctor": doctor,
    "plot": plot,
    "demo": demo,
}
for _name, _command in _COMMANDS.items():
    app.command(_name, cls=StrictCommand)(_command)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 2 bad input, 129, 130 or 143 interrupted and saved."""
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
        say(f"error: {error.format_message()} (--help lists what is possible)")
        return BAD_INPUT
    return code if isinstance(code, int) else 0


def run() -> None:
    """Entry point of the `rl-training` script."""
    code = main()
    drop_unwritten()
    sys.exit(code)
