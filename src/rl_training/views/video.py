"""Films of a trained policy: evaluation episodes of the deterministic policy, rendered frame by frame."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from rl_training.algorithms.base import Algorithm
from rl_training.errors import ConfigError, EnvError
from rl_training.evaluation.episode_runner import Episode, EpisodeRunner
from rl_training.evaluation.evaluator import MAX_EPISODE_STEPS, act_in
from rl_training.experiment.checkpointing import resolve_checkpoint
from rl_training.runtime.execution import choose_execution
from rl_training.runtime.run_utils import RunSeeds
from rl_training.runtime.workflows import (
    check_spaces,
    evaluation_source,
    load_algorithm,
    stored_step,
)
from rl_training.spaces.spec import describe_spaces
from rl_training.terminal.progress import counter
from rl_training.terminal.streams import tell
from rl_training.views.film import (
    FilmWriter,
    Frame,
    RenderedSource,
    check_film_path,
    check_frame,
    check_installed,
    film_rate,
    open_film,
    translate_render_errors,
    with_rendering,
    without_display,
)

Pick = Literal["best", "median", "worst"]
PICKS: tuple[Pick, ...] = get_args(Pick)
FOLDER = "video"
"""Folder in a run folder for films without a path of their own; the report shows those."""
DEFAULT_EPISODES = 3
SMALLEST_FONT, FRAME_HEIGHTS_PER_LINE = 9, 26
OnStep = Callable[[Episode], None]


@dataclass(frozen=True)
class PlayedEpisode:
    """One evaluation episode that was played."""

    number: int
    """Position among the evaluation episodes, from 1."""
    seed: int
    total: float
    """Return: the sum of its rewards, not discounted."""
    length: int

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "episode": self.number,
            "seed": self.seed,
            "return": self.total,
            "length": self.length,
        }


@dataclass(frozen=True)
class Film:
    """A film that was written."""

    path: Path
    checkpoint: Path
    global_step: int
    episodes: Sequence[PlayedEpisode]
    """The episodes that it shows, in order."""
    played: Sequence[PlayedEpisode]
    """All episodes that were played."""
    pick: Pick | None
    num_frames: int
    width: int
    height: int
    fps: float
    num_bytes: int

    @property
    def seconds(self) -> float:
        """Length."""
        return self.num_frames / self.fps

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "video": str(self.path),
            "checkpoint_path": str(self.checkpoint),
            "global_step": self.global_step,
            "pick": self.pick,
            "frames": self.num_frames,
            "width": self.width,
            "height": self.height,
            "fps": self.fps,
            "seconds": self.seconds,
            "bytes": self.num_bytes,
            "episodes": [episode.as_dict() for episode in self.episodes],
            "played": [episode.as_dict() for episode in self.played],
        }


def record_video(
    path: str | Path,
    *,
    num_episodes: int = DEFAULT_EPISODES,
    pick: Pick | None = None,
    out: str | Path | None = None,
    overlay: bool = False,
    fps: float | None = None,
    device: str = "auto",
) -> Film:
    """Film the deterministic policy of a checkpoint (or a run folder's last one) on the run's evaluation seeds.

    The film shows all `num_episodes` episodes, one after the other; with `pick`, the best, median or worst of them by
    return. An episode of L steps has L + 1 frames. `out` ends in `.mp4` or `.gif` (default: in the folder `video` of
    the run) and must not exist. `overlay` writes step and return into the frames. `fps` are frames per second
    (default: the environment's).
    """
    _check_arguments(num_episodes, pick, fps)
    checkpoint = resolve_checkpoint(path)
    target = Path(out) if out is not None else default_film_path(checkpoint, pick)
    check_film_path(target, makes_folder=out is None)
    if overlay:
        check_installed("--overlay", "PIL", "Pillow")
    config, algorithm, state = load_algorithm(path, device=device)
    rendered = with_rendering(evaluation_source(config, algorithm, state.metadata))
    rate = _rate(target, fps or rendered.fps)
    seeds = RunSeeds.from_seed(config.seed).eval_seeds(num_episodes)
    with (
        without_display(rendered.uses_mujoco),
        choose_execution(config, state).applied(),
        open_player(rendered, algorithm, seeds) as player,
    ):
        played = [] if pick is None else player.play_all()
        chosen = range(num_episodes) if pick is None else [picked(played, pick)]
        with open_film(target, rate) as writer:
            shown = _film(player, writer, chosen, played, overlay=overlay)
    return Film(
        target,
        checkpoint,
        stored_step(state),
        shown,
        played or shown,
        pick,
        writer.num_frames,
        writer.width,
        writer.height,
        rate,
        target.stat().st_size,
    )


def _rate(target: Path, wanted: float) -> float:
    """Frames per second of the film; a message says if its format cannot have as many."""
    rate = film_rate(target, wanted)
    if rate < wanted:
        tell(f"a GIF has at most {rate:g} frames per second: the film is slower than {wanted:g}")
    return rate


def _check_arguments(num_episodes: int, pick: str | None, fps: float | None) -> None:
    if num_episodes < 1:
        raise ConfigError(
            f"bad value {num_episodes} for the number of episodes: should be at least 1"
        )
    if pick is not None and pick not in PICKS:
        raise ConfigError(f"bad value '{pick}' for pick: use {', '.join(PICKS)}")
    if fps is not None and not 0 < fps <= 1000:
        raise ConfigError(
            f"bad value {fps:g} for fps: should be above 0 and at most 1000 frames per second"
        )


def default_film_path(checkpoint: Path, pick: Pick | None) -> Path:
    """`video/STEP.mp4` in the run folder; for a policy that is not in a run folder, in the working directory."""
    name = f"{checkpoint.name}.mp4" if pick is None else f"{checkpoint.name}_{pick}.mp4"
    folder = checkpoint.parent
    return folder.parent / FOLDER / name if folder.name == "checkpoints" else Path(name)


def picked(played: Sequence[PlayedEpisode], pick: Pick) -> int:
    """Index of the best, median or worst episode by return; of equal ones the first, of two middle ones the lower.

    NaN counts as the worst.
    """
    totals = [-math.inf if math.isnan(episode.total) else episode.total for episode in played]
    last = len(totals) - 1
    place = {"worst": 0, "median": last // 2, "best": last}[pick]
    return totals.index(sorted(totals)[place])


@contextlib.contextmanager
def open_player(
    rendered: RenderedSource, algorithm: Algorithm[Any], seeds: Sequence[int]
) -> Iterator[Player]:
    """A player whose environments are closed at the end of the block."""
    runner = EpisodeRunner(rendered.source, 1)
    spaces = describe_spaces(runner.obs_space, runner.action_space, has_masks=runner.has_masks)
    check_spaces(rendered.source.env_id, spaces, algorithm)
    try:
        yield Player(rendered, algorithm, seeds, runner)
    finally:
        try:
            runner.close()
        except EnvError as error:
            tell(f"closing the environment failed: {error}")


@dataclass
class Player:
    """Plays evaluation episodes one at a time, each in a new environment and with seeded global generators.

    An episode played twice is the same, so that one can be chosen by its return and then be filmed.
    """

    rendered: RenderedSource
    algorithm: Algorithm[Any]
    seeds: Sequence[int]
    runner: EpisodeRunner
    shape: tuple[int, ...] | None = None
    """Of all frames; None before the first."""

    def play_all(self) -> list[PlayedEpisode]:
        """Play every episode without rendering it."""
        found: list[PlayedEpisode] = []
        with counter(len(self.seeds), "playing", "episodes", shows_time=True) as show:
            for index in range(len(self.seeds)):
                found.append(self.play(index, lambda _: show(len(found))))
        return found

    def play(self, index: int, on_step: OnStep) -> PlayedEpisode:
        """Play one episode; `on_step` is called after its reset and after each of its steps."""
        episode = Episode(index, 0, self.seeds[index])
        with self.runner.running(episode.seed):
            self.runner.start([episode])
            on_step(episode)
            has_ended = False
            while not has_ended:
                actions = act_in(self.algorithm, [episode], self.runner.batch([episode]))
                (step,) = self.runner.step([episode], list(actions))
                assert step is not None  # a failed episode is not restarted
                on_step(episode)
                has_ended = step.ended or episode.length >= MAX_EPISODE_STEPS
        return PlayedEpisode(index + 1, episode.seed, episode.total, episode.length)

    def frame(self, episode: Episode) -> Frame:
        """The picture of an episode's current state."""
        env_id = self.rendered.source.env_id
        with translate_render_errors(env_id, uses_mujoco=self.rendered.uses_mujoco):
            frame = self.runner.render(episode)
        frame = check_frame(frame, env_id, self.shape)
        self.shape = frame.shape
        return frame


def _film(
    player: Player,
    writer: FilmWriter,
    chosen: Sequence[int],
    played: Sequence[PlayedEpisode],
    *,
    overlay: bool,
) -> list[PlayedEpisode]:
    """Film the episodes of these indices; a message says if one differs from how it was played before."""
    shown: list[PlayedEpisode] = []
    lengths = [played[index].length + 1 for index in chosen] if played else []
    total, unit = (sum(lengths), "frames") if played else (len(chosen), "episodes")

    def take(episode: Episode) -> None:
        show(writer.num_frames if played else len(shown))
        frame = player.frame(episode)
        if overlay:
            first = f"episode {episode.index + 1}  " if len(chosen) > 1 else ""
            frame = with_text(frame, f"{first}step {episode.length:,}  return {episode.total:,.1f}")
        writer.add(frame)

    with counter(total, "filming", unit, shows_time=True) as show:
        for index in chosen:
            again = player.play(index, take)
            if played and played[index] != again:
                _tell_difference(played[index], again)
            shown.append(again)
    return shown


def _tell_difference(before: PlayedEpisode, again: PlayedEpisode) -> None:
    tell(
        f"WARNING: the environment does not repeat an episode from its seed: episode {again.number} was chosen for its"
        f" return of {before.total:,.6g} in {before.length:,} steps, and the film shows one of {again.total:,.6g} in"
        f" {again.length:,}; leave --pick out, or let reset(seed=...) seed everything random"
    )


def with_text(frame: Frame, text: str) -> Frame:
    """The frame with white text on a dark bar at its upper left corner."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.fromarray(frame)
    draw = ImageDraw.Draw(image, "RGBA")
    size = max(SMALLEST_FONT, frame.shape[0] // FRAME_HEIGHTS_PER_LINE)
    font = ImageFont.load_default(size)
    pad = size // 3
    left, top, right, bottom = draw.textbbox((2 * pad, pad), text, font=font)
    draw.rectangle((0, 0, right + left, bottom + top), fill=(0, 0, 0, 170))
    draw.text((2 * pad, pad), text, font=font, fill=(255, 255, 255, 255))
    return np.asarray(image)
