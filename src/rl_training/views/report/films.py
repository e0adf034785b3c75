"""The films in the folders of runs: small ones are put into the page, others are linked from it."""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from rl_training.errors import CheckpointError
from rl_training.files import read_limited
from rl_training.views.report.blocks import Film, Section
from rl_training.views.report.data import RunFacts

FOLDER = "video"
"""Where `rl-training video RUN` writes."""
KINDS = {".mp4": "video/mp4", ".gif": "image/gif"}
MAX_EMBEDDED_BYTES = 2_000_000
"""A larger film is linked."""
MAX_BYTES_OF_ALL = 8_000_000
"""Films are linked if those before them fill so much of the page."""
FILMS_OF_A_RUN = 3
"""The newest ones are shown."""


def film_section(runs: Sequence[RunFacts], page_dir: Path) -> Section:
    """The films of the runs, for a page that is written into `page_dir`."""
    blocks: list[Film] = []
    room = MAX_BYTES_OF_ALL
    for run in runs:
        for path in find_films(run.record.run_dir):
            data = _read_small(path, min(room, MAX_EMBEDDED_BYTES))
            room -= len(data)
            blocks.append(_block(run, path, data, page_dir))
    return Section("films", "Films", blocks)


def find_films(run_dir: Path) -> list[Path]:
    """The films of a run, newest first; links are left out."""
    folder = run_dir / FOLDER
    found = []
    with contextlib.suppress(OSError):
        if not folder.is_symlink():
            for path in sorted(folder.iterdir()):
                if path.suffix.lower() in KINDS and path.is_file() and not path.is_symlink():
                    found.append((path.stat().st_mtime, path))
    return [path for _, path in sorted(found, reverse=True)[:FILMS_OF_A_RUN]]


def _read_small(path: Path, max_bytes: int) -> bytes:
    """The content of a film of at most `max_bytes`; of a larger or unreadable one nothing."""
    with contextlib.suppress(CheckpointError, OSError):
        return read_limited(path, max_bytes)
    return b""


def _block(run: RunFacts, path: Path, data: bytes, page_dir: Path) -> Film:
    kind = KINDS[path.suffix.lower()]
    # A colon is quoted too: no name of a folder can make the address one of another scheme.
    link = quote(os.path.relpath(path, page_dir).replace(os.sep, "/"), errors="replace")
    source = f"data:{kind};base64,{base64.b64encode(data).decode()}" if data else ""
    with contextlib.suppress(OSError):
        size = path.stat().st_size
        return Film(run.group, f"{run.label}: {path.name}", f"{size / 1000:,.0f} kB", kind, source, link)
    return Film(run.group, f"{run.label}: {path.name}", "", kind, source, link)
