"""The verbs that show runs: `plot`, `video`, `report` writes a page, `ui` serves it live."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_training.cli.options import (
    NUMBER,
    AllowedPaths,
    AsJson,
    CheckpointPath,
    CheckpointPlugins,
    Device,
    Run,
    complete_run,
    find_run,
    flag,
    option,
    output_file,
    positive_number,
    whole_number,
)
from rl_training.cli.output import say, show
from rl_training.errors import ConfigError

if TYPE_CHECKING:
    from rl_training.views.video import Film


PlottedRuns = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN...",
        autocompletion=complete_run,
        help="Runs (folders, prefixes, @last), studies, STUDY:SETTING, folders of runs, quoted patterns. Needed unless"
        " --checkpoint is given.",
    ),
]
Metric = Annotated[str, option("--metric", "NAME", "Metric on the y axis.")]
XAxisOption = Annotated[
    str, option("--x", "AXIS", "The x axis: steps, time (wall time) or updates (gradient steps).")
]
Picture = Annotated[
    Path | None,
    option(
        "--out",
        "FILE",
        "File to write: .png, .svg, .pdf, or .csv with the numbers (default: in the folder of the run or study).",
        parser=output_file,
    ),
]


Mean = Annotated[
    bool, flag("--mean", "Draw the mean and its interval (Student's t) of four and more runs.")
]


def plot(
    runs: PlottedRuns = None,
    checkpoint: CheckpointPath = None,
    metric: Metric = "eval_return_mean",
    x: XAxisOption = "steps",
    mean: Mean = False,
    out: Picture = None,
    as_json: AsJson = False,
) -> None:
    """Plot runs: `plot RUN`, `plot STUDY`, `plot 'runs/ppo*' --x time --out a.svg`.

    One run: training and evaluation return. Several: a thin line for each seed, and for each setting the median and
    range of up to three runs, or the interquartile mean of four and more and its 95 % interval.

    Needs an extra: pip install "rl-training[plot]"
    """
    from rl_training.studies.groups import find_groups
    from rl_training.views.curves import X_KEYS
    from rl_training.views.plotting import plot_runs

    words = list(runs or [])
    if checkpoint is not None:
        words.append(str(checkpoint))
    if not words:
        raise ConfigError("missing argument RUN: name a run folder, a study, or a folder of runs")
    axis = next((name for name in X_KEYS if name == x), None)
    if axis is None:
        raise ConfigError(f"bad value '{x}' for --x: use {', '.join(X_KEYS)}")
    plotted = plot_runs(find_groups(words), metric, axis, out, use_mean=mean)
    for message in plotted.curves.messages:
        say(message)
    kind = "table" if plotted.is_table else "picture"
    show(plotted.as_dict(), [f"{kind}={plotted.path}"], as_json)


Episodes = Annotated[
    int,
    option(
        "--episodes",
        NUMBER,
        "Evaluation episodes to play: the first so many.",
        parser=positive_number,
    ),
]
PickOption = Annotated[
    str | None,
    option(
        "--pick",
        "best|median|worst",
        "Show this one of the episodes, by return (default: all, one after the other).",
    ),
]
FilmFile = Annotated[
    Path | None,
    option(
        "--out",
        "FILE",
        "File to write: .mp4 or .gif (default: video/STEP.mp4 in the run folder). An existing one is refused.",
        parser=output_file,
    ),
]
Overlay = Annotated[bool, flag("--overlay", "Write step and return into the frames.")]
FramesPerSecond = Annotated[
    float | None, option("--fps", NUMBER, "Frames per second (default: the environment's).")
]


def video(
    run: Run = None,
    checkpoint: CheckpointPath = None,
    episodes: Episodes = 3,
    pick: PickOption = None,
    out: FilmFile = None,
    overlay: Overlay = False,
    fps: FramesPerSecond = None,
    device: Device = None,
    plugin: CheckpointPlugins = None,
    allow_path: AllowedPaths = None,
    as_json: AsJson = False,
) -> None:
    """Film a policy: `video RUN`, `video RUN --pick best --out film.gif`.

    Plays the deterministic policy of the last checkpoint, or of the checkpoint named, on the run's evaluation seeds,
    without a display.

    Needs an extra: pip install "rl-training[video]"
    """
    from rl_training.views.video import PICKS, record_video

    path = find_run(run, checkpoint)
    chosen = next((name for name in PICKS if name == pick), None)
    if pick is not None and chosen is None:
        raise ConfigError(f"bad value '{pick}' for --pick: use {', '.join(PICKS)}")
    film = record_video(
        path,
        num_episodes=episodes,
        pick=chosen,
        out=out,
        overlay=overlay,
        fps=fps,
        device=device or "auto",
    )
    show(film.as_dict(), _film_lines(film), as_json)


def _film_lines(film: Film) -> list[str]:
    length = f"{film.num_frames:,} frames, {film.seconds:,.1f} s at {film.fps:g} frames per second"
    size = f"{film.width}x{film.height} pixels, {film.num_bytes / 1000:,.0f} kB"
    which = "" if film.pick is None else f" ({film.pick} of {len(film.played)})"
    lines = [f"video={film.path}", f"{length}, {size}"]
    for shown in film.episodes:
        steps = f"{shown.length:,} step{'' if shown.length == 1 else 's'}"
        score = f"return {shown.total:,.6g} in {steps}, seed {shown.seed}"
        lines.append(f"episode {shown.number}{which}: {score}")
    return lines


ReportedRuns = Annotated[
    list[str],
    typer.Argument(
        metavar="RUNS...",
        autocompletion=complete_run,
        help="Runs, studies (NAME, or NAME:SETTING for one of its settings), folders of runs or patterns.",
    ),
]
Page = Annotated[
    Path | None,
    option(
        "--out",
        "FILE",
        "HTML file to write (default: report.html in the folder of the run or study; of several, here).",
        parser=output_file,
    ),
]
Force = Annotated[bool, flag("--force", "Replace FILE even if it is not a report.")]
Folder = Annotated[Path, typer.Argument(metavar="[DIR]", help="Folder of runs.")]
Port = Annotated[
    int | None,
    option(
        "--port",
        NUMBER,
        "Port (default: the first free one from 8008; 0: any).",
        parser=whole_number,
    ),
]


def report(
    runs: ReportedRuns, out: Page = None, force: Force = False, as_json: AsJson = False
) -> None:
    """Write one HTML page about runs: `report runs/STUDY`.

    Scores, learning curves, health of learning, speed, events, settings, origin and commands, in one file that
    needs no network. A report is replaced by a newer one; any other file is refused.
    """
    from rl_training.studies.groups import find_groups
    from rl_training.views.report.page import write_report

    groups = find_groups(runs)
    path, size = write_report(groups, runs, out, force=force)
    count = sum(len(group.runs) for group in groups)
    lines = [f"report={path}", f"{count} run{'' if count == 1 else 's'}, {size / 1000:,.0f} kB"]
    show({"report": str(path), "runs": count, "bytes": size}, lines, as_json)


def ui(folder: Folder = Path("runs"), port: Port = None, as_json: AsJson = False) -> None:
    """Show a folder of runs live in the browser: `ui`, then open the address that it prints.

    Listens to this machine only, and only reads. Ctrl-C ends it with exit code 0.
    """
    from rl_training.views.report.site import make_server

    with make_server(folder, port) as server:
        try:
            values = {"address": server.address, "folder": str(folder)}
            show(values, [f"address={server.address}"], as_json)
            say("Ctrl-C ends the server")
            server.serve_forever()
        except KeyboardInterrupt:
            say("ended")
