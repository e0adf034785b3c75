"""The style of all figures, and the files that they are written to: formats, and which files may be replaced."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.errors import ConfigError, RLTrainingError, install_extra
from rl_training.files import translate_write_errors

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARK = "rl-training"
"""Written into each picture as the program that made it."""
MARK_KEYS = {".png": "Software", ".svg": "Creator", ".pdf": "Creator"}
"""Formats of pictures, and the key of their metadata that names the program."""
TABLE = ".csv"
TABLE_START = "metric,x_axis,group,kind,"
"""How a table of curves begins."""


COLORS = ("#0b6bb8", "#c4560a", "#13805a", "#a3358a", "#7a5c00", "#4b4fc4", "#b02a37", "#4d6470")
"""Of the groups of runs, as on the report's page."""
DASHES = ("-", "--", ":", "-.")
INK, MUTED, LINES = "#1c2127", "#5b6570", "#e2e6ea"
MARGIN = 0.05
"""Room above and below the runs, as a fraction of their range."""


def new_figure(height: float = 4.5) -> Figure:
    """An empty figure; an error without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise RLTrainingError(f"plotting needs matplotlib: {install_extra('plot')}") from None
    return Figure(figsize=(8, height), dpi=120, layout="constrained")


def style_axes(axes: Any, grid: str = "both") -> None:
    """Give axes the style of all figures: light grid, two spines, numbers with separated thousands."""
    from matplotlib.ticker import FuncFormatter

    axes.grid(axis=grid, color=LINES, linewidth=0.8)
    axes.set_axisbelow(True)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(MUTED)
    axes.tick_params(colors=INK, length=3)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(
            FuncFormatter(lambda value, place: f"{value:,.10g}".replace("-", "\N{MINUS SIGN}"))
        )
        axis.label.set_color(INK)


def value_limits(values: Iterable[float]) -> tuple[float, float]:
    """Limits of an axis by the values of runs; it goes below zero only if a run does."""
    found = [value for value in values if math.isfinite(value)]
    low, high = min(found, default=0.0), max(found, default=1.0)
    room = MARGIN * (high - low) or MARGIN * abs(high) or 1.0
    return (max(0.0, low - room) if low >= 0 else low - room), high + room


def color_of(index: int) -> str:
    """The color of a group of runs."""
    return COLORS[index % len(COLORS)]


def check_target(path: Path) -> None:
    """Raise a `ConfigError` if a file that the user names cannot be written, or is not one of ours."""
    if path.suffix.lower() not in (*MARK_KEYS, TABLE):
        names = f"{', '.join(MARK_KEYS)} or {TABLE}"
        raise ConfigError(f"cannot write '{path}': its name should end in {names}")
    if path.is_dir():
        raise ConfigError(f"cannot write '{path}': it is a folder; name a file in it")
    if not path.parent.is_dir():
        raise ConfigError(
            f"cannot write '{path}': there is no folder '{path.parent}'; make it first"
        )
    if path.exists() and not _is_ours(path):
        raise ConfigError(
            f"'{path}' exists, and rl-training did not make it: choose another --out FILE, or remove it"
        )


def check_default_target(path: Path) -> None:
    """Raise an error if a link stands where a picture is written that the user did not name."""
    if path.is_symlink():
        raise RLTrainingError(f"'{path}' is a link: remove it, or write elsewhere with --out FILE")


def save_figure(figure: Figure, target: Path) -> Path:
    """Write a figure in the format of the file's name; a figure that cannot be drawn leaves no file."""
    data = io.BytesIO()
    suffix = target.suffix.lower()
    try:
        figure.savefig(data, format=suffix.removeprefix("."), metadata={MARK_KEYS[suffix]: MARK})
    except (OSError, ValueError, KeyError) as error:
        raise RLTrainingError(f"cannot write the picture '{target}': {error}") from None
    with translate_write_errors(target, kind="the picture "):
        target.write_bytes(data.getvalue())
    return target


def _is_ours(path: Path) -> bool:
    data = b""
    with contextlib.suppress(OSError):
        data = path.read_bytes()
    if path.suffix.lower() == TABLE:
        return data.startswith(TABLE_START.encode())
    return MARK.encode() in data
