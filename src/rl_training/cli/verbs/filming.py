"""The verb that films a policy: `video`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_training.cli.arguments import find_run, output_file, positive_number
from rl_training.cli.options import NUMBER, AllowedPaths, AsJson, CheckpointPath, CheckpointPlugins, Device, Quiet, Run
from rl_training.cli.output import show
from rl_training.errors import ConfigError

if TYPE_CHECKING:
    from rl_training.views.video import Film

Episodes = Annotated[
    int,
    typer.Option(
        "--episodes", metavar=NUMBER, parser=positive_number, help="Evaluation episodes to play: the first so many."
    ),
]
PickOption = Annotated[
    str | None,
    typer.Option(
        "--pick",
        metavar="best|median|worst",
        help="Show this one of the episodes, by return (default: all, one after the other).",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        parser=output_file,
        help="File to write: .mp4 or .gif (default: video/STEP.mp4 in the run folder). An existing one is refused.",
    ),
]
Overlay = Annotated[bool, typer.Option("--overlay", help="Write step and return into the frames.")]
FramesPerSecond = Annotated[
    float | None, typer.Option("--fps", metavar=NUMBER, help="Frames per second (default: the environment's).")
]


def video(
    run: Run = None,
    checkpoint: CheckpointPath = None,
    episodes: Episodes = 3,
    pick: PickOption = None,
    out: Out = None,
    overlay: Overlay = False,
    fps: FramesPerSecond = None,
    device: Device = None,
    plugin: CheckpointPlugins = None,
    allow_path: AllowedPaths = None,
    quiet: Quiet = False,
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
        path, num_episodes=episodes, pick=chosen, out=out, overlay=overlay, fps=fps, device=device or "auto"
    )
    show(film.as_dict(), _lines(film), as_json)


def _lines(film: Film) -> list[str]:
    size = f"{film.width}x{film.height} pixels, {film.num_bytes / 1000:,.0f} kB"
    lines = [
        f"video={film.path}",
        f"{film.num_frames:,} frames, {film.seconds:,.1f} s at {film.fps:g} frames per second, {size}",
    ]
    which = "" if film.pick is None else f" ({film.pick} of {len(film.played)})"
    for episode in film.episodes:
        steps = f"{episode.length:,} step{'' if episode.length == 1 else 's'}"
        lines.append(f"episode {episode.number}{which}: return {episode.total:,.6g} in {steps}, seed {episode.seed}")
    return lines
