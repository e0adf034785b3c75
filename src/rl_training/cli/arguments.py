"""How arguments are read: each once, whole numbers in any spelling, the run a command names, and completion."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperOption

from rl_training.errors import ConfigError
from rl_training.terminal.streams import results_alone

RUNS = Path("runs")
LONGEST_SENTENCE = 1000


class StrictCommand(TyperCommand):
    """A command that refuses an option given twice, of which the last would win; its help has no Python types."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The options, and each argument as it is written: typer would put brackets around all of them."""
        arguments = [parameter for parameter in self.get_params(ctx) if isinstance(parameter, TyperArgument)]
        return ["[OPTIONS]", *(argument.display_name_raw for argument in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The arguments and the options, each with its text."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, TyperArgument):
                sections["Arguments"].append((parameter.display_name_raw, record[1]))
            elif record is not None:
                sections["Options"].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def get_short_help_str(self, limit: int = 0) -> str:
        """The first sentence, whole: the list of commands wraps it."""
        return super().get_short_help_str(LONGEST_SENTENCE)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments of one call."""
        if not ctx.resilient_parsing:
            *_, order = self.make_parser(ctx).parse_args(args=list(args))
            for parameter, count in Counter(order).items():
                is_single = isinstance(parameter, TyperOption) and not (parameter.multiple or parameter.is_flag)
                if is_single and count > 1:
                    raise ConfigError(f"'{parameter.opts[0]}' is given twice on the command line: remove one")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; with --json what others print does not mix with its object."""
        with results_alone() if ctx.params.get("as_json") else contextlib.nullcontext():
            return super().invoke(ctx)


def whole_number(text: str | int) -> int:
    """Parse 20000, 20_000, 1e6 or 1.0e6; a number with a fraction is refused."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
        if number == int(number):
            return int(number)
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"'{text}' is not a whole number: write an integer, such as 20000 or 1e6") from None
    raise typer.BadParameter(f"{text} is not a whole number: write an integer, such as 20000 or 1e6")


def positive_number(text: str | int) -> int:
    """Parse a whole number that is at least 1."""
    number = whole_number(text)
    if number < 1:
        raise typer.BadParameter(f"{text} should be at least 1")
    return number


def find_run(run: Path | None, checkpoint: Path | None = None) -> Path:
    """The run folder or checkpoint that a command names, by position or as --checkpoint: exactly one of them."""
    if run is not None and checkpoint is not None:
        raise ConfigError(f"the run is given twice: as RUN '{run}' and as --checkpoint '{checkpoint}': remove one")
    found = run or checkpoint
    if found is None:
        raise ConfigError("missing argument RUN (or --checkpoint): name a run folder or a checkpoint in it")
    return found


def find_run_folder(run: Path | None, checkpoint: Path | None = None) -> Path:
    """The run folder that a command names, by itself or by a checkpoint in it."""
    found = find_run(run, checkpoint)
    return found.parent.parent if found.parent.name == "checkpoints" else found


def complete_algorithm(incomplete: str) -> list[tuple[str, str]]:
    """Names of the algorithms, each with its summary."""
    from rl_training.experiment.registry import list_algorithm_specs

    return [(spec.name, spec.summary) for spec in list_algorithm_specs() if spec.name.startswith(incomplete)]


def complete_words(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """ALGO, then the environments that have a preset for it."""
    words = [word for word in ctx.params.get("words") or [] if "=" not in word and word != incomplete]
    if not words:
        return complete_algorithm(incomplete)
    if len(words) > 1:
        return []
    from rl_training.experiment.config import load_config_file
    from rl_training.experiment.presets import list_presets

    files = [path for path in list_presets() if path.parent.name == words[0]]
    found = {str(load_config_file(path).get("env_id")): path for path in files}
    return [
        (name, f"preset {path.parent.name}/{path.name}") for name, path in found.items() if name.startswith(incomplete)
    ]


def complete_run(incomplete: str) -> Iterator[str]:
    """Run folders whose path begins like this, or that lie in a folder whose path does."""
    for pattern in (f"{incomplete}*", f"{incomplete}*/*"):
        for path in sorted(Path().glob(pattern)) if not incomplete.startswith(("/", "~")) else ():
            if (path / "checkpoints").is_dir() and (path / "config.yaml").is_file():
                yield str(path)
