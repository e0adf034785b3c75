"""Frames of environments that render without a display, and the film, MP4 or GIF, that they are written to."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.error import DependencyNotInstalled

from rl_training.envs.factory import EnvSource
from rl_training.envs.parallel.pools import close_example
from rl_training.errors import ConfigError, EnvError, RLTrainingError, install_extra
from rl_training.files import atomic_write, translate_write_errors

RENDER_MODE = "rgb_array"
DEFAULT_FPS = 30.0
"""Frames per second of an environment whose metadata does not name them."""
PYGAME_VARIABLES = {
    "PYGAME_HIDE_SUPPORT_PROMPT": "1",
    "SDL_VIDEODRIVER": "dummy",
    "SDL_AUDIODRIVER": "dummy",
}
"""Without them pygame prints a line at its import, and SDL looks for a display and a sound card."""
GL_VARIABLE = "MUJOCO_GL"
GL_BACKENDS = ("egl", "osmesa")
"""Ways of MuJoCo to render without a display, the faster one first."""
GL_TRIAL = (
    "import importlib, sys;"
    "context = importlib.import_module('mujoco.' + sys.argv[1]).GLContext(8, 8);"
    "context.make_current(); context.free()"
)
SECONDS_TO_TRY_GL = 60
GL_REMEDY = (
    "install EGL (Debian, Ubuntu: apt install libegl1 libgl1) or OSMesa (apt install libosmesa6); the first that works"
    f" is used, unless {GL_VARIABLE}=egl or {GL_VARIABLE}=osmesa chooses"
)
Frame = npt.NDArray[np.uint8]
"""One picture, [height, width, 3]."""
MP4, GIF = ".mp4", ".gif"
FASTEST_GIF = 50.0
"""Frames per second of a GIF at most: viewers show shorter delays than 20 ms as 100 ms."""
PALETTE_OF_EACH_FRAME = "palettegen=stats_mode=single[p];[b][p]paletteuse"
ENCODINGS = {
    MP4: (
        "-c:v",
        "libx264",
        "-crf",
        "20",
        "-pix_fmt",
        "yuv420p",
        "-movflags",
        "+faststart",
        "-f",
        "mp4",
    ),
    GIF: (
        "-filter_complex",
        f"split[a][b];[a]{PALETTE_OF_EACH_FRAME}=new=1:dither=none",
        "-f",
        "gif",
    ),
}
"""Arguments of ffmpeg; H.264 in MP4 is what browsers play."""


def check_film_path(path: Path, *, makes_folder: bool = False) -> None:
    """Raise an error if a film cannot be written to `path`, or if what its format needs is not installed."""
    if path.suffix.lower() not in (MP4, GIF):
        raise ConfigError(f"cannot write '{path}': the name of a film should end in {MP4} or {GIF}")
    if path.is_dir():
        raise ConfigError(
            f"'{path}' is a folder: give --out the path of a file, such as {path / 'film.mp4'}"
        )
    _refuse_existing(path)
    if not makes_folder and not path.parent.is_dir():
        raise ConfigError(
            f"folder '{path.parent}' does not exist: create it, or give another --out"
        )
    check_installed("a film", "imageio_ffmpeg", "imageio-ffmpeg")


def check_installed(what: str, module: str, package: str) -> None:
    """Raise an error that names the extra if a package is missing, which `what` needs."""
    if importlib.util.find_spec(module) is None:
        raise RLTrainingError(f"{what} needs {package}: {install_extra('video')}")


def film_rate(path: Path, fps: float) -> float:
    """The frames per second that a film of this format has, if `fps` are asked for."""
    return min(fps, FASTEST_GIF) if path.suffix.lower() == GIF else fps


@contextlib.contextmanager
def open_film(path: Path, fps: float) -> Iterator[FilmWriter]:
    """Take frames during the block and write them to a new file; after an error neither file nor folder is left."""
    is_new_folder = not path.parent.exists()
    try:
        with translate_write_errors(path, kind="the film "):
            path.parent.mkdir(exist_ok=True)
            with (
                atomic_write(path) as draft,
                FilmWriter(draft, fps, path.suffix.lower()) as writer,
            ):
                yield writer
                writer.finish()
                _refuse_existing(path)  # another process may have written it meanwhile
    except BaseException:
        if is_new_folder:
            with contextlib.suppress(OSError):
                path.parent.rmdir()
        raise


def _refuse_existing(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise ConfigError(
            f"'{path}' exists and is not overwritten: give another --out FILE, or remove it"
        )


class FilmWriter:
    """Pipes raw frames to ffmpeg as they come: a film of any length needs the memory of a few frames."""

    def __init__(self, path: Path, fps: float, suffix: str) -> None:
        self._path, self._fps, self._suffix = path, fps, suffix
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed at the end of the block)
        self.num_frames = 0
        self.width, self.height = 0, 0
        """Size of the film: MP4 has even sides."""

    def __enter__(self) -> FilmWriter:
        return self

    def __exit__(self, *error: object) -> None:
        """End ffmpeg if it still runs."""
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()
            with contextlib.suppress(OSError, ValueError):
                process.communicate()
        self._log.close()

    def add(self, frame: Frame) -> None:
        """Append a frame; all frames have one size."""
        if self._suffix == MP4:
            # H.264 with 4:2:0 colours needs even sides: the last row or column of an odd one is repeated.
            height, width, _ = frame.shape
            frame = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        if self._process is None:
            self.height, self.width, _ = frame.shape
            self._process = self._start()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(frame.tobytes())
        except BrokenPipeError:
            self.finish()
            raise
        self.num_frames += 1

    def finish(self) -> None:
        """Wait until ffmpeg has completed the file."""
        if self._process is None:
            raise RLTrainingError(f"cannot write the film '{self._path}': it has no frames")
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()
        if self._process.returncode != 0:
            self._log.seek(0)
            text = self._log.read().decode(errors="replace").strip()[-500:]
            raise RLTrainingError(
                f"ffmpeg could not write the film (exit code {self._process.returncode}): {text}"
            )

    def _start(self) -> subprocess.Popen[bytes]:
        import imageio_ffmpeg

        size = f"{self.width}x{self.height}"
        frames = ("-f", "rawvideo", "-pix_fmt", "rgb24", "-s", size, "-r", f"{self._fps:g}")
        film = ("-an", *ENCODINGS[self._suffix], "-y", str(self._path))
        program = (imageio_ffmpeg.get_ffmpeg_exe(), "-loglevel", "error", "-nostats")
        # A session of its own: Ctrl-C in the terminal must reach this process only, which then ends ffmpeg.
        try:
            return subprocess.Popen(
                [*program, *frames, "-i", "pipe:0", *film],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._log,
                start_new_session=True,
            )
        except OSError as error:
            raise RLTrainingError(
                f"ffmpeg cannot be started: {error}; check IMAGEIO_FFMPEG_EXE"
            ) from error


@dataclass(frozen=True)
class RenderedSource:
    """A source of environments that render."""

    source: EnvSource
    fps: float
    """Frames per second, by the environment's metadata."""
    uses_mujoco: bool


def with_rendering(source: EnvSource) -> RenderedSource:
    """The source of the same evaluation environments, in this process, with `render_mode="rgb_array"`.

    A failed environment is not recreated: the film of its episode could not be continued.
    """
    settings = source.settings.model_copy(update={"backend": "sync", "max_restarts": 0})
    plain = replace(source, settings=settings, is_single=True)
    rendering = replace(plain, arguments={**plain.arguments, "render_mode": RENDER_MODE})
    refusal = f"environment '{source.env_id}' cannot be filmed:"
    env = _make_plain(plain)
    close_example(env)
    modes, rate = list(env.metadata.get("render_modes") or []), env.metadata.get("render_fps")
    if RENDER_MODE not in modes:
        raise EnvError(
            f"{refusal} its metadata['render_modes'] is {modes}, without '{RENDER_MODE}'; an environment of your own"
            " lists it there and returns an RGB array from render()"
        )
    classes = type(env.unwrapped).__mro__
    uses_mujoco = any("mujoco" in f"{base.__module__}.{base.__name__}".lower() for base in classes)
    fps = float(rate) if isinstance(rate, (int, float)) and rate > 0 else DEFAULT_FPS
    try:
        example = rendering.make(with_wrappers=False)
    except ConfigError as error:  # the same arguments without render_mode were accepted
        if env.render_mode == RENDER_MODE:
            return RenderedSource(plain, fps, uses_mujoco)
        raise EnvError(
            f"{refusal} its constructor does not accept render_mode='{RENDER_MODE}'; let it take render_mode and keep"
            f" it in self.render_mode ({error})"
        ) from error
    mode = example.render_mode
    close_example(example)
    if mode != RENDER_MODE:
        raise EnvError(
            f"{refusal} made with render_mode='{RENDER_MODE}', its render_mode is {mode!r}; let its constructor keep"
            " the argument in self.render_mode"
        )
    return RenderedSource(rendering, fps, uses_mujoco)


def _make_plain(source: EnvSource) -> gym.Env[Any, Any]:
    """An environment that need not render; the import of mujoco fails if MUJOCO_GL names a library that is missing."""
    try:
        return source.make(with_wrappers=False)
    except EnvError as error:
        chosen = os.environ.get(GL_VARIABLE)
        if chosen is None or "OpenGL" not in str(error):
            raise
        raise EnvError(f"{GL_VARIABLE}={chosen} does not work here: {GL_REMEDY}") from error


@contextlib.contextmanager
def without_display(uses_mujoco: bool) -> Iterator[None]:
    """Let environments render without a display during the block: pygame, and MuJoCo unless MUJOCO_GL is set."""
    variables = {name: value for name, value in PYGAME_VARIABLES.items() if name not in os.environ}
    if sys.platform == "linux" and "mujoco" in sys.modules and GL_VARIABLE not in os.environ:
        backend = find_gl_backend()
        if backend is not None:
            variables[GL_VARIABLE] = backend
        elif uses_mujoco:
            raise EnvError(f"MuJoCo cannot render without a display here: {GL_REMEDY}")
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)


@functools.cache
def find_gl_backend() -> str | None:
    """MuJoCo's first backend that renders here without a display.

    Each is tried in a process of its own: the first that is imported decides which OpenGL library a process uses.
    """
    for name in GL_BACKENDS:
        command = [sys.executable, "-c", GL_TRIAL, name]
        with contextlib.suppress(subprocess.TimeoutExpired):
            tried = subprocess.run(
                command,
                env={**os.environ, GL_VARIABLE: name},
                capture_output=True,
                timeout=SECONDS_TO_TRY_GL,
            )
            if tried.returncode == 0:
                return name
    return None


@contextlib.contextmanager
def translate_render_errors(env_id: str, *, uses_mujoco: bool) -> Iterator[None]:
    """Add the remedy to an error of `render`: a missing package, or a missing OpenGL library."""
    try:
        yield
    except EnvError as error:
        cause = error.__cause__
        if isinstance(cause, (DependencyNotInstalled, ImportError)) and "pygame" in str(cause):
            raise EnvError(
                f"rendering '{env_id}' needs pygame: {install_extra('video')}"
            ) from error
        if uses_mujoco:
            chosen = os.environ.get(GL_VARIABLE)
            raise EnvError(
                f"{error}\n{GL_VARIABLE} is {chosen or 'not set'}. If OpenGL is missing, {GL_REMEDY}"
            ) from error
        raise


def check_frame(frame: Any, env_id: str, shape: tuple[int, ...] | None) -> Frame:
    """The frame if it is an RGB array, of the shape of the first one if there is one."""
    start = f"environment '{env_id}' cannot be filmed: its render() returned"
    expected = "not an array of uint8 [height, width, 3]"
    if not isinstance(frame, np.ndarray):
        raise EnvError(f"{start} a {type(frame).__name__}, {expected}")
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        raise EnvError(f"{start} an array of {frame.dtype} {list(frame.shape)}, {expected}")
    if shape is not None and frame.shape != shape:
        sizes = " and then ".join(f"{width}x{height}" for height, width, _ in (shape, frame.shape))
        raise EnvError(f"{start} frames of {sizes} pixels")
    return frame
