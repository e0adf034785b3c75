"""The program `rl-training`: its commands, and what its exit codes mean."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rl_training.cli import data
from rl_training.cli.evaluation import evaluate, plot
from rl_training.cli.inspection import algos, doctor, show_config
from rl_training.cli.options import say
from rl_training.cli.training import demo, resume, train
from rl_training.errors import RLTrainingError

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


app.add_typer(data.app, name="data")
app.command()(train)
app.command("eval")(evaluate)
app.command()(resume)
app.command("config")(show_config)
app.command()(algos)
app.command()(doctor)
app.command()(plot)
app.command()(demo)


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
