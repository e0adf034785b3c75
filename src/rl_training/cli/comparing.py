"""The verb `compare`: which of two or more algorithms or settings is better."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from rl_training.cli.options import (
    NUMBER,
    AsJson,
    LaunchOptions,
    Plugins,
    complete_run,
    flag,
    option,
    output_file,
    positive_number,
)
from rl_training.cli.output import SAVED, say, show, with_command
from rl_training.cli.studies import launch_words, launcher_in
from rl_training.errors import ConfigError, RLTrainingError
from rl_training.files import is_file
from rl_training.terminal.streams import results_alone

if TYPE_CHECKING:
    from rl_training.studies.comparison.verdict import Comparison, ManyComparisons


Arms = Annotated[
    list[str],
    typer.Argument(
        metavar="A B [MORE]...",
        autocompletion=complete_run,
        help="What to compare: studies, STUDY:SETTING, folders of runs, or quoted patterns such as 'runs/ppo__*'. One"
        " study alone: all its settings. With --until-decided also study files.",
    ),
]
Metric = Annotated[
    str | None, option("--metric", "NAME", "Metric to compare (default: eval_return_mean).")
]
MeasureName = Annotated[
    str | None,
    option(
        "--measure",
        "last|best|auc",
        "Score of a run: the last policy's evaluation (default), the best over time (biased), or the mean over steps.",
    ),
]
ModeName = Annotated[
    str | None, option("--mode", "max|min", "Whether larger or smaller is better (default: max).")
]
Failed = Annotated[
    str | None,
    option(
        "--failed",
        "refuse|worst",
        "A failed run: refuse (default), or count it as the worst score.",
    ),
]
Margin = Annotated[
    float | None,
    option("--margin", "D", "Difference that matters: smaller ones count as equal within D."),
]
Alpha = Annotated[
    float | None,
    option("--alpha", NUMBER, "Probability of calling equal arms different (default: 0.05)."),
]
UntilDecided = Annotated[
    bool,
    flag(
        "--until-decided",
        "Train further seeds of both studies, in looks that are planned and frozen in advance.",
    ),
]
Looks = Annotated[
    int | None,
    option("--looks", NUMBER, "--until-decided: looks (default: 4).", parser=positive_number),
]
SeedsPerLook = Annotated[
    int | None,
    option(
        "--seeds-per-look",
        NUMBER,
        "--until-decided: further seeds of each arm at each look (default: 5).",
        parser=positive_number,
    ),
]
Name = Annotated[
    str | None,
    option("--name", "NAME", "Name of the comparison's folder (default: the names of the arms)."),
]
Explain = Annotated[
    bool, flag("--explain", "Add what the figures are: intervals, p-values, and when they hold.")
]
Picture = Annotated[
    Path | None,
    option(
        "--out",
        "FILE",
        "Write the picture here (default: in the comparison's folder).",
        parser=output_file,
    ),
]


@dataclass(frozen=True)
class CompareOptions(LaunchOptions):
    """The options of `compare`."""

    metric: Metric = None
    measure: MeasureName = None
    mode: ModeName = None
    failed: Failed = None
    margin: Margin = None
    alpha: Alpha = None
    until_decided: UntilDecided = False
    looks: Looks = None
    seeds_per_look: SeedsPerLook = None
    name: Name = None
    out: Picture = None
    plugin: Plugins = None
    explain: Explain = False
    as_json: AsJson = False

    def given(self, names: Iterable[str]) -> dict[str, Any]:
        """The options of these names that were given."""
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def compare(arms: Arms, options: CompareOptions) -> None:
    """Compare algorithms or settings by whole runs: one verdict, then the figures.

    With --until-decided, trains seeds in planned looks; again, after any stop, it continues.
    """
    if options.out is not None:
        _check_picture(options.out)
    if options.until_decided:
        try:
            _until_decided(arms, options)
        except KeyboardInterrupt:  # while it plans or computes; training handles signals by itself
            _leave(arms, options, signal.SIGINT)
        return
    training = [
        *(field.name for field in fields(LaunchOptions)),
        "looks",
        "seeds_per_look",
        "plugin",
    ]
    for field in fields(options):
        if field.name in training and getattr(options, field.name) != field.default:
            option = "--" + field.name.replace("_", "-")
            raise ConfigError(
                f"{option} has no effect without --until-decided: add it, or remove the option"
            )
    _compare_once(arms, options)


def _check_picture(path: Path) -> None:
    from rl_training.views.figures import TABLE, check_target

    if path.suffix.lower() == TABLE:
        raise ConfigError(
            f"cannot write '{path}': a comparison is drawn as .png, .svg or .pdf; --json has its numbers"
        )
    check_target(path)


def _compare_once(words: Sequence[str], options: CompareOptions) -> None:
    from rl_training.studies.comparison.run_scores import RULE_OPTIONS, ScoreRule
    from rl_training.studies.comparison.verdict import compare_arms, find_arms, folder_of

    rule = ScoreRule(**options.given(RULE_OPTIONS))
    groups = find_arms(words)
    result = compare_arms(groups, rule, **options.given(["alpha", "margin"]))
    _show(result, folder_of(groups, words, options.name), options)


def _until_decided(words: Sequence[str], options: CompareOptions) -> None:
    from rl_training.studies.comparison.looks import PLAN_OPTIONS, plan_comparison
    from rl_training.views.comparisons import look_line

    if len(words) != 2:
        raise ConfigError(
            f"--until-decided compares two arms, and {len(words)} are named: name two"
        )
    planned = plan_comparison(words, options.given(PLAN_OPTIONS), options.name)
    with results_alone():  # Ray prints to standard output
        decided = planned.run(
            lambda folder: launcher_in(folder, options),
            [*(options.plugin or ()), *_code_of_files(words)],
            lambda look, comparison: say(look_line(look, planned.plan, comparison)),
        )
    if decided is None:
        _leave(words, options, planned.interrupted_by)
    look, comparison = decided
    end = f"planned: look {look} of {planned.plan.looks}, {planned.plan.seeds_per_look} seeds each"
    _show(comparison, planned.folder, options, look, [f"  {end}; plan in {planned.folder}"])


def _code_of_files(words: Sequence[str]) -> list[str]:
    """The code of the study files among the arms: whoever names a file means its code too."""
    from rl_training.studies.launching.study import Study

    return [text for word in words if is_file(Path(word)) for text in Study.from_file(word).code()]


def _show(
    result: Comparison | ManyComparisons,
    folder: Path,
    options: CompareOptions,
    look: int | None = None,
    more_lines: Sequence[str] = (),
) -> None:
    """Store the result, draw it, and print it; `look` is the look of a planned comparison."""
    from rl_training.studies.comparison.looks import PLAN_FILE
    from rl_training.studies.comparison.verdict import read_result, store_result
    from rl_training.views.comparisons import comparison_lines, explanation_lines

    if look is None and is_file(folder / PLAN_FILE):
        raise ConfigError(
            f"'{folder}' is a planned comparison: give another --name, or add --until-decided"
        )
    times = int(read_result(folder).get("times") or 0) + 1
    lines = [*comparison_lines(result), *more_lines]
    if look is None and times > 1:
        lines.append(
            f"  compared {times} times: a verdict after added seeds errs more often; plan them: --until-decided"
        )
    if options.explain:
        lines += explanation_lines(result, is_planned=look is not None)
    picture = _draw(result, folder, options.out)
    values = result.as_dict()
    values |= {"planned": look is not None, "look": look, "picture": picture, "times": times}
    try:
        store_result(folder, values)
    except RLTrainingError as error:
        say(f"the result is not stored: {error}")
    lines = [_wrapped(line) for line in lines]
    if picture:
        lines.append(f"  picture  {picture}")
    show(values, lines, options.as_json)


def _draw(result: Comparison | ManyComparisons, folder: Path, out: Path | None) -> str | None:
    """Draw the scores and the difference; None, with the reason on the screen, if that fails."""
    from rl_training.studies.comparison.verdict import PICTURE
    from rl_training.views.figures import check_target
    from rl_training.views.plotting import plot_comparison

    try:
        if out is None:
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
        target = out or folder / PICTURE
        check_target(target)
        return str(plot_comparison(result, target))
    except RLTrainingError as error:
        if out is not None:
            raise
        say(f"no picture: {error}")
        return None


def _wrapped(line: str) -> str:
    import textwrap

    from rl_training.terminal.tables import WIDTH

    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def _leave(words: Sequence[str], options: CompareOptions, signal_number: int | None) -> NoReturn:
    own = [] if options.name is None else ["--name", options.name]
    own += [word for plugin in options.plugin or () for word in ("--plugin", plugin)]
    say(with_command(SAVED, "compare", *words, "--until-decided", *own, *launch_words(options)))
    raise typer.Exit(128 + (signal_number or 0))
