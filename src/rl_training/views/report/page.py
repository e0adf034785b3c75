"""Puts a page together: one HTML document with its styles, scripts and data inside, which loads nothing."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from rl_training import __version__
from rl_training.errors import ConfigError, RLTrainingError
from rl_training.experiment.run_folder import now
from rl_training.files import atomic_write, translate_write_errors
from rl_training.studies.groups import RunGroup
from rl_training.studies.statistics import t_quantile
from rl_training.studies.statistics.summaries import (
    FEWEST_FOR_INTERVAL,
    MODULUS,
    MULTIPLIER,
    NUM_RESAMPLES,
    RANK,
)
from rl_training.views.report.data import Curves, Logged, read_curves, thinned
from rl_training.views.report.sections import page_facts

GENERATOR = "rl-training report"
"""Content of the meta element `generator`: such a file may be written again."""
DEFAULT_NAME = "report.html"
RETURN = "eval_return_mean"
"""The metric whose last values are the result: its chart does not repeat them."""
SUFFIXES = (".html", ".htm")
SCRIPTS = ("vendor/uPlot.iife.min.js", "assets/tables.js", "assets/charts.js", "assets/page.js")
LICENSE = "vendor/LICENSE"
STYLES = ("vendor/uPlot.min.css", "assets/page.css")
MARK_BYTES = 1 << 12
UNSAFE: dict[str, str | int | None] = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}
"""Characters that could end a script element or a line in it, with their escapes in JSON."""


@dataclass(frozen=True)
class Page:
    """One HTML document."""

    html: str
    policy: str
    """Content-Security-Policy: scripts and styles by their checksums, films inside the page, nothing from elsewhere."""
    curves: Mapping[Path, Curves]
    """The curves in it, before they were thinned, by run folder."""


def report_page(
    groups: Sequence[RunGroup],
    words: Sequence[str],
    live: Mapping[str, Any] | None = None,
    page_dir: Path | None = None,
) -> Page:
    """The page of the runs in `groups`; with `live`, it asks the server for what is new.

    Films are shown on a page that is written into a file of the folder `page_dir`.
    """
    curves = {run.run_dir: read_curves(run) for group in groups for run in group.runs}
    logged = {path: Logged().extended(found) for path, found in curves.items()}
    facts = page_facts(groups, logged, words, page_dir)
    drawn, limit = thinned(list(curves.values()))
    data = facts.as_dict()
    most = max((len(group.runs) for group in groups), default=0)
    data |= {
        "view": "report",
        "live": live,
        "made": now(),
        "version": __version__,
        "max_points": limit,
        "told": RETURN,
        "bootstrap": {
            "fewest": FEWEST_FOR_INTERVAL,
            "resamples": NUM_RESAMPLES,
            "rank": RANK,
            "multiplier": MULTIPLIER,
            "modulus": MODULUS,
        },
        "quantiles": [0, 0, *(round(t_quantile(count - 1), 5) for count in range(2, most + 1))],
        "runs": [
            {**run, **found.as_dict()} for run, found in zip(data["runs"], drawn, strict=True)
        ],
        "sections": [section.as_dict() for section in facts.sections()],
    }
    return Page(*assemble(facts.title, data), curves)


def write_report(
    groups: Sequence[RunGroup],
    words: Sequence[str],
    out: Path | None = None,
    *,
    force: bool = False,
) -> tuple[Path, int]:
    """Write the page into a file; returns its path and its size in bytes.

    An existing file is replaced if it is a report, else refused unless `force`.
    """
    target = out or default_path(groups)
    _refuse_others(target, force=force)
    data = report_page(groups, words, page_dir=target.parent).html.encode()
    with translate_write_errors(target, kind="the report "), atomic_write(target) as draft:
        draft.write_bytes(data)
    return target, len(data)


def default_path(groups: Sequence[RunGroup]) -> Path:
    """`report.html` in the folder of the study or of the run; for several, in the working directory."""
    studies = {group.study for group in groups}
    runs = [run.run_dir for group in groups for run in group.runs]
    if len(studies) == 1 and (study := next(iter(studies))) is not None:
        return study / DEFAULT_NAME
    return (runs[0] if len(runs) == 1 else Path()) / DEFAULT_NAME


def _refuse_others(path: Path, *, force: bool) -> None:
    """Raise a `ConfigError` if a report would replace a file that is none."""
    if path.is_dir():
        raise ConfigError(
            f"'{path}' is a folder: give --out the path of a file, such as {path / DEFAULT_NAME}"
        )
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(
            f"cannot write '{path}': the name of a report should end in {' or '.join(SUFFIXES)}"
        )
    if not path.parent.is_dir():
        raise ConfigError(
            f"folder '{path.parent}' does not exist: create it, or give another --out"
        )
    if force or not (path.exists() or path.is_symlink()):
        return
    try:
        with path.open("rb") as file:
            start = file.read(MARK_BYTES)
    except OSError as error:
        raise RLTrainingError(
            f"cannot read '{path}', which the report would replace: {error.strerror}"
        ) from None
    if f'<meta name="generator" content="{GENERATOR}'.encode() not in start:
        raise ConfigError(
            f"'{path}' exists and is not a report: give another --out, or --force to replace it"
        )


def assemble(title: str, data: Mapping[str, Any]) -> tuple[str, str]:
    """An HTML document with `data` in it, and its Content-Security-Policy."""
    scripts, styles = [_asset(name) for name in SCRIPTS], [_asset(name) for name in STYLES]
    has_films = any(section["id"] == "films" for section in data.get("sections", ()))
    policy = _policy(scripts, styles, is_live=bool(data.get("live")), has_films=has_films)
    head = [
        "<!doctype html>",
        '<html lang="en">',
        '<head><meta charset="utf-8">',
        f'<meta name="generator" content="{GENERATOR} {__version__}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        f"<title>{html.escape(title)}</title>",
        *(f"<style>{text}</style>" for text in styles),
        "</head><body>",
        f"<header><h1>{html.escape(title)}</h1></header><main></main><footer></footer>",
        "<noscript>The charts and tables of this page need JavaScript; nothing is loaded from elsewhere.</noscript>",
        f'<script type="application/json" id="data">{to_json(data)}</script>',
        f"<!-- uPlot, under its licence:\n{_asset(LICENSE)}\n-->",
        *(f"<script>{text}</script>" for text in scripts),
        "</body></html>",
    ]
    return _encodable("\n".join(head)), policy


def to_json(data: Any) -> str:
    """JSON in which no character can end a script element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return _encodable(text.translate(str.maketrans(UNSAFE)))


def _encodable(text: str) -> str:
    """The text without lone surrogates, as of a file name that is not UTF-8."""
    return text.encode("utf-8", "replace").decode()


def _policy(
    scripts: Sequence[str], styles: Sequence[str], *, is_live: bool, has_films: bool
) -> str:
    allowed = {
        "default-src": ["'none'"],
        "script-src": [_checksum(text) for text in scripts],
        "style-src": [_checksum(text) for text in styles],
        "connect-src": ["'self'" if is_live else "'none'"],
    }
    if has_films:
        allowed |= {"img-src": ["data:"], "media-src": ["data:"]}
    allowed |= {"base-uri": ["'none'"], "form-action": ["'none'"]}
    return "; ".join(f"{name} {' '.join(values)}" for name, values in allowed.items())


@cache
def _asset(name: str) -> str:
    path = resources.files("rl_training.views.report").joinpath(name)
    return path.read_text(encoding="utf-8").strip()


@cache
def _checksum(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
