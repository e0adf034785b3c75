"""How a command is parsed: groups of options shared between commands, strict repetition, and plain help."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Annotated, Any, get_type_hints

import typer
from typer import TyperException
from typer.core import TyperArgument, TyperCommand, TyperOption

from rl_training.errors import ConfigError
from rl_training.terminal.streams import quieted, results_alone

NO_LIMIT = 1000
KEYWORD = inspect.Parameter.KEYWORD_ONLY


def _be_quiet(ctx: typer.Context, value: bool) -> bool:
    if value:
        ctx.with_resource(quieted())
    return value


Quiet = Annotated[
    bool,
    typer.Option(
        "-q", "--quiet", callback=_be_quiet, is_eager=True, help="Print results and errors only."
    ),
]


def verb(
    app: typer.Typer, name: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a command of `app`: its options, those of its groups, and `-q`."""

    def register(command: Callable[..., None]) -> Callable[..., None]:
        app.command(name, cls=StrictCommand)(expand_groups(command))
        return command

    return register


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter whose type is a data class by one parameter per field, for typer to parse; add `-q`.

    Commands that take the same options share the data class: `def train(options: TrainOptions)`.
    """
    signature = inspect.signature(command, eval_str=True)
    types: dict[str, Any] = {
        name: parameter.annotation for name, parameter in signature.parameters.items()
    }
    groups = {name: types[name] for name in types if dataclasses.is_dataclass(types[name])}
    expanded: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        expanded += (
            _parameters_of(groups[name]) if name in groups else [parameter.replace(kind=KEYWORD)]
        )
    expanded.append(inspect.Parameter("quiet", KEYWORD, default=False, annotation=Quiet))

    @functools.wraps(command)
    def call(**values: Any) -> None:
        del values["quiet"]  # its callback has acted
        for name, group in groups.items():
            values[name] = group(
                **{field.name: values.pop(field.name) for field in dataclasses.fields(group)}
            )
        command(**values)

    vars(call)["__signature__"] = signature.replace(parameters=expanded)
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in expanded}
    return call


def _parameters_of(group: Any) -> list[inspect.Parameter]:
    types = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(field.name, KEYWORD, default=field.default, annotation=types[field.name])
        for field in dataclasses.fields(group)
    ]


class StrictCommand(TyperCommand):
    """A command that refuses an option given twice (the last would win silently); its help shows no Python types."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The usage line's words: `[OPTIONS]`, and each argument by its metavar without added brackets."""
        arguments = [
            parameter for parameter in self.get_params(ctx) if isinstance(parameter, TyperArgument)
        ]
        return ["[OPTIONS]", *(argument.display_name_raw for argument in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the help of arguments and options, each in a section of its own."""
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
        """The whole first sentence; the list of commands wraps it."""
        return super().get_short_help_str(NO_LIMIT)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; an option that takes one value may appear once."""
        if not ctx.resilient_parsing:
            with self._explaining_settings():
                *_, order = self.make_parser(ctx).parse_args(args=list(args))
            for parameter, count in Counter(order).items():
                is_single = isinstance(parameter, TyperOption) and not (
                    parameter.multiple or parameter.is_flag
                )
                if is_single and count > 1:
                    raise ConfigError(
                        f"'{parameter.opts[0]}' is given twice on the command line: remove one"
                    )
        return super().parse_args(ctx, args)

    @contextlib.contextmanager
    def _explaining_settings(self) -> Iterator[None]:
        """Name the setting that an unknown option means: `--learning-rate` is written `learning_rate=…`."""
        try:
            yield
        except TyperException as error:
            option = str(getattr(error, "option_name", ""))
            is_unknown = type(error).__name__ == "NoSuchOption"  # typer does not export it
            if not is_unknown or not any(parameter.name == "words" for parameter in self.params):
                raise
            from rl_training.experiment.config import full_key, nearest_algorithm_key

            name = option.lstrip("-").replace("-", "_")
            name = nearest_algorithm_key(name, None) or name
            with contextlib.suppress(ConfigError):
                full_key(name, "")
                raise TyperException(
                    f"unknown option {option}: write the setting as {name}=VALUE"
                ) from None
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command; with --json, standard output holds the JSON object alone."""
        with results_alone() if ctx.params.get("as_json") else contextlib.nullcontext():
            return super().invoke(ctx)
