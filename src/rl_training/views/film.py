"""Writes frames into a film, MP4 or GIF, one after the other: a film of any length needs the memory of a few frames."""

from __future__ import annotations

import contextlib
import importlib.util
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import numpy.typing as npt

from rl_training.errors import ConfigError, RLTrainingError, install_extra
from rl_training.files import atomic_write, translate_write_errors

Frame = npt.NDArray[np.uint8]
"""One picture, [height, width, 3]."""
MP4, GIF = ".mp4", ".gif"
FASTEST_GIF = 50.0
"""Frames per second of a GIF at most: viewers show shorter delays than 20 ms as 100 ms."""
GIF_COLORS = 256


class FilmWriter(Protocol):
    """Takes the frames of one film."""

    def add(self, frame: Frame) -> None:
        """Append a frame; all frames have one size."""

    def finish(self) -> None:
        """Complete the file."""

    def abort(self) -> None:
        """Stop writing; the file is incomplete."""


def check_film_path(path: Path, *, makes_folder: bool = False) -> None:
    """Raise an error if a film cannot be written to `path`, or if what its format needs is not installed."""
    suffix = path.suffix.lower()
    if suffix not in (MP4, GIF):
        raise ConfigError(f"cannot write '{path}': the name of a film should end in {MP4} or {GIF}")
    if path.is_dir():
        raise ConfigError(f"'{path}' is a folder: give --out the path of a file, such as {path / 'film.mp4'}")
    _refuse_existing(path)
    if not makes_folder and not path.parent.is_dir():
        raise ConfigError(f"folder '{path.parent}' does not exist: create it, or give another --out")
    if suffix == MP4 and importlib.util.find_spec("imageio_ffmpeg") is None:
        raise RLTrainingError(
            f"an MP4 film needs imageio-ffmpeg: {install_extra('video')}; or write a GIF: --out {path.stem}{GIF}"
        )
    if suffix == GIF:
        check_has_pillow("a GIF film")


def check_has_pillow(what: str) -> None:
    """Raise an error that names the extra if Pillow is missing, which `what` needs."""
    if importlib.util.find_spec("PIL") is None:
        raise RLTrainingError(f"{what} needs Pillow: {install_extra('video')}")


def film_rate(path: Path, fps: float) -> float:
    """The frames per second that a film of this format has, if `fps` are asked for."""
    return min(fps, FASTEST_GIF) if path.suffix.lower() == GIF else fps


def film_size(path: Path, height: int, width: int) -> tuple[int, int]:
    """Width and height of a film of this format whose frames have `height` and `width`: MP4 has even sides."""
    is_mp4 = path.suffix.lower() == MP4
    return (width + width % 2, height + height % 2) if is_mp4 else (width, height)


@contextlib.contextmanager
def open_film(path: Path, fps: float) -> Iterator[FilmWriter]:
    """Take frames during the block and write them to a new file; after an error neither file nor folder is left."""
    is_new_folder = not path.parent.exists()
    try:
        with translate_write_errors(path, kind="the film "):
            path.parent.mkdir(exist_ok=True)
            with atomic_write(path) as draft:
                writer: FilmWriter = Mp4Writer(draft, fps) if path.suffix.lower() == MP4 else GifWriter(draft, fps)
                try:
                    yield writer
                    writer.finish()
                finally:
                    writer.abort()
                _refuse_existing(path)  # another process may have written it meanwhile
    except BaseException:
        if is_new_folder:
            with contextlib.suppress(OSError):
                path.parent.rmdir()
        raise


def _refuse_existing(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise ConfigError(f"'{path}' exists and is not overwritten: give another --out FILE, or remove it")


class Mp4Writer:
    """Pipes raw frames to ffmpeg, which encodes H.264 that browsers play."""

    def __init__(self, path: Path, fps: float) -> None:
        self._path, self._fps = path, fps
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed in abort)

    def add(self, frame: Frame) -> None:
        """Append a frame."""
        # H.264 with 4:2:0 colours needs even sides: the last row or column of an odd one is repeated.
        height, width, _ = frame.shape
        even = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        if self._process is None:
            self._process = self._start(even.shape[1], even.shape[0])
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(even.tobytes())
        except BrokenPipeError:
            self.finish()
            raise

    def finish(self) -> None:
        """Wait until ffmpeg has completed the file."""
        if self._process is None:
            raise RLTrainingError(f"cannot write the film '{self._path}': it has no frames")
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()
        if self._process.returncode != 0:
            self._log.seek(0)
            text = self._log.read().decode(errors="replace").strip()[-500:]
            raise RLTrainingError(f"ffmpeg could not write the film (exit code {self._process.returncode}): {text}")

    def abort(self) -> None:
        """End ffmpeg if it still runs."""
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()
            with contextlib.suppress(OSError, ValueError):
                process.communicate()
        self._log.close()

    def _start(self, width: int, height: int) -> subprocess.Popen[bytes]:
        import imageio_ffmpeg

        command = [
            *(imageio_ffmpeg.get_ffmpeg_exe(), "-loglevel", "error", "-nostats"),
            *("-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{self._fps:g}", "-i", "pipe:0"),
            *("-an", "-c:v", "libx264", "-crf", "20", "-pix_fmt", "yuv420p", "-movflags", "+faststart"),
            *("-f", "mp4", "-y", str(self._path)),
        ]
        # A session of its own: Ctrl-C in the terminal must reach this process only, which then ends ffmpeg.
        try:
            return subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self._log, start_new_session=True
            )
        except OSError as error:
            raise RLTrainingError(
                f"ffmpeg cannot be started: {error}; check IMAGEIO_FFMPEG_EXE, or write a GIF: --out film.gif"
            ) from error


class GifWriter:
    """Writes each frame as the rectangle that differs from the frame before, with a palette of its own."""

    def __init__(self, path: Path, fps: float) -> None:
        self._file = path.open("xb")
        self._fps = fps
        self._last: Frame | None = None
        self._num_frames = 0

    def add(self, frame: Frame) -> None:
        """Append a frame."""
        if self._last is None:
            self._file.write(_gif_header(*frame.shape[:2]))
        top, bottom, left, right = _changed_part(frame, self._last)
        for part in _gif_frame(frame[top:bottom, left:right], (left, top), 10 * self._delay()):
            self._file.write(part)
        self._last = frame.copy()
        self._num_frames += 1

    def finish(self) -> None:
        """Write the end of the file."""
        if self._last is None:
            raise RLTrainingError("cannot write the film: it has no frames")
        self._file.write(b";")
        self._file.close()

    def abort(self) -> None:
        """Close the file."""
        self._file.close()

    def _delay(self) -> int:
        """Hundredths of a second for which a frame is shown: rounded so that the sum stays right."""
        end, start = (round(100 * number / self._fps) for number in (self._num_frames + 1, self._num_frames))
        return end - start


def _gif_header(height: int, width: int) -> bytes:
    """Signature and size, without a global palette; then the extension that repeats the film for ever."""
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0, 0, 0) + b"\x21\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00"


def _gif_frame(pixels: Frame, offset: tuple[int, int], milliseconds: int) -> list[Any]:
    from PIL import GifImagePlugin, Image

    image = Image.fromarray(np.ascontiguousarray(pixels)).quantize(GIF_COLORS, dither=Image.Dither.NONE)
    return GifImagePlugin.getdata(image, offset, duration=milliseconds, include_color_table=True, disposal=1)


def _changed_part(frame: Frame, last: Frame | None) -> tuple[int, int, int, int]:
    """First and last row and column (exclusive) of the pixels that changed; one pixel if none did."""
    height, width, _ = frame.shape
    if last is None:
        return 0, height, 0, width
    changed = (frame != last).any(axis=2)
    rows, columns = np.flatnonzero(changed.any(axis=1)), np.flatnonzero(changed.any(axis=0))
    if len(rows) == 0:
        return 0, 1, 0, 1
    return int(rows[0]), int(rows[-1]) + 1, int(columns[0]), int(columns[-1]) + 1
