"""The verb `import`: models of other packages become runs."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_training.cli.options import (
    AsJson,
    Plugins,
    RunSuffix,
    complete_words,
    find_in_working_directory,
    flag,
    option,
)
from rl_training.cli.output import say, show
from rl_training.cli.parsing import verb
from rl_training.errors import ConfigError

if TYPE_CHECKING:
    from rl_training.importers.sb3 import Imported


WIDTH = 80
PART_WIDTH = 28
app = typer.Typer(rich_markup_mode=None)
Model = Annotated[
    Path, typer.Argument(metavar="MODEL.zip", help="The file that the model's save() wrote.")
]
Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        autocompletion=complete_words,
        help="Settings of the run that win over the model's, such as env_kwargs.wrappers.atari={}.",
    ),
]
Env = Annotated[str, option("--env", "ENV_ID", "Environment in which the model was trained.")]
Statistics = Annotated[
    Path | None, option("--vecnormalize", "FILE", "The file that VecNormalize.save() wrote.")
]
ImportDir = Annotated[
    Path | None,
    typer.Option(
        "--output-dir", "--out", metavar="FOLDER", help="Parent of the run folder (default: runs)."
    ),
]
Verify = Annotated[
    bool,
    flag(
        "--verify",
        "Compare the actions with SB3's, which must be installed. SB3 unpickles the model: for files that you trust.",
    ),
]
Python = Annotated[
    str | None,
    option("--sb3-python", "PATH", "Python that has SB3, for --verify (default: this one)."),
]


@app.callback()
def _import() -> None:
    """Import models of other packages as runs."""


@verb(app, "sb3")
def import_stable_baselines3(
    model: Model,
    env: Env,
    words: Settings = None,
    vecnormalize: Statistics = None,
    output_dir: ImportDir = None,
    run_suffix: RunSuffix = None,
    verify: Verify = False,
    sb3_python: Python = None,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Import a Stable-Baselines3 model: `import sb3 model.zip --env CartPole-v1`.

    Reads zips of PPO, A2C, DQN, QR-DQN, SAC, TQC, CrossQ, TD3 and DDPG without unpickling anything. The result is a
    run folder: evaluate it, resume it with a larger --total-timesteps, or start a new run from it with init_from.
    """
    from rl_training.experiment.config import parse_overrides
    from rl_training.importers.sb3 import import_sb3

    if sb3_python is not None and not verify:
        raise ConfigError(
            "--sb3-python has no effect without --verify: add it, or remove the option"
        )
    changes = parse_overrides(words or [])
    for key in changes.keys() & {"algo", "env_id", "total_timesteps"}:
        raise ConfigError(
            f"'{key}' follows from the model and --env: remove it from the command line"
        )
    changes |= {} if output_dir is None else {"output_dir": str(output_dir)}
    imported = import_sb3(
        model,
        str(find_in_working_directory(env)),
        vecnormalize=vecnormalize,
        changes=changes,
        run_suffix=run_suffix,
        verify_with_sb3=verify,
        sb3_python=sb3_python,
    )
    for line in () if as_json else _next_steps(imported):
        say(line)
    show(imported.as_dict(), _imported_lines(imported), as_json)


def _imported_lines(imported: Imported) -> list[str]:
    conversion, result = imported.conversion, imported.result
    lines = [
        f"run={result.run_dir}",
        *_report_table("taken", conversion.report.taken),
        *_report_table("left", conversion.report.left),
    ]
    if imported.verified is not None:
        found = imported.verified
        lines.append(
            f"verified: {found['num_observations']} observations, largest difference {found['largest_difference']:.1e}"
        )
    score = result.metrics.get("eval_return_mean")
    count = conversion.config.eval_episodes
    episodes = f"{count} episode{'' if count == 1 else 's'}"
    return lines if score is None else [*lines, f"eval_return_mean={score:.2f} ({episodes})"]


def _report_table(title: str, rows: list[tuple[str, str]]) -> list[str]:
    """Rows of two columns under a title, at most 80 columns wide."""
    lines = [title]
    for part, detail in rows:
        first, *rest = textwrap.wrap(detail, WIDTH - PART_WIDTH - 4) or [""]
        lines.append(f"  {part:<{PART_WIDTH}}  {first}")
        lines += [f"  {'':<{PART_WIDTH}}  {line}" for line in rest]
    return lines


def _next_steps(imported: Imported) -> list[str]:
    """Commands that continue from here."""
    run, step = imported.result.run_dir, imported.conversion.global_step
    warm_up = imported.conversion.config.algo_kwargs.get("learning_starts", 0)
    return [
        f"imported {imported.conversion.config.algo} of SB3 {imported.conversion.archive.version} at step {step:,}",
        f"evaluate: rl-training eval {run} --eval-episodes 100",
        f"train on: rl-training resume {run} --total-timesteps {max(1, step) * 2 + warm_up}",
    ]
