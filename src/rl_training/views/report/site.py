"""The pages that `ui` serves for a folder of runs, and the answers to a page that asks for what is new."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import urlencode

from rl_training.errors import CheckpointError, ConfigError, RLTrainingError
from rl_training.files import is_file, open_regular
from rl_training.studies.catalog import STATES, find_run_folders, is_run_folder, read_run
from rl_training.studies.groups import RunGroup, find_groups
from rl_training.studies.records import RunRecord
from rl_training.studies.study_folder import PLAN_FILE
from rl_training.views.report.data import Curves, Logged, read_curves
from rl_training.views.report.lines import finite
from rl_training.views.report.page import assemble, report_page, to_json
from rl_training.views.report.sections import page_facts

RUNS_AT_ONCE = 100
SECONDS_BETWEEN_POLLS = 3.0
MAX_SCORE_BYTES = 1 << 16
"""End of `evaluations.jsonl` that is read for the small curve of a run in the list."""
SPARK_POINTS = 40
NO_CONTENT = "default-src 'none'; frame-ancestors 'none'"
"""Content-Security-Policy of answers that are no page."""


@dataclass(frozen=True)
class Answer:
    """What a request gets."""

    body: str
    kind: str = "application/json"
    policy: str = NO_CONTENT
    status: int = 200


class NotFoundError(RLTrainingError):
    """The request names nothing that this server shows."""


@dataclass
class Site:
    """The pages of one folder of runs."""

    folder: Path
    logged: dict[Path, tuple[tuple[str, str], Logged]] = field(default_factory=dict)
    """What the log files of opened runs hold, and the places up to which they were read."""
    lock: Lock = field(default_factory=Lock)

    def answer(self, path: str, query: Mapping[str, Sequence[str]]) -> Answer:
        """The answer to a request; a `NotFoundError` for an unknown path."""
        pages: dict[str, Callable[[Mapping[str, Sequence[str]]], Answer]] = {
            "/": self.list_page,
            "/runs": self.run_rows,
            "/view": self.report,
            "/new": self.new_lines,
            "/sections": self.sections,
            "/favicon.ico": lambda _: Answer("", "image/x-icon", status=204),  # browsers ask for it by themselves
        }
        if path not in pages:
            raise NotFoundError(f"there is no page {path!r:.80}")
        return pages[path](query)

    def list_page(self, query: Mapping[str, Sequence[str]]) -> Answer:
        """The folders that hold runs: names only; the runs are read when a folder is opened."""
        members: dict[Path, int] = {}
        for run_dir in find_run_folders(self.folder):
            parent = run_dir.parent if run_dir != self.folder else run_dir
            members[parent] = members.get(parent, 0) + 1
        folders = [
            {
                "path": self._name(path),
                "name": "runs without a study" if path == self.folder else self._name(path),
                "runs": count,
                "is_study": is_file(path / PLAN_FILE),
            }
            for path, count in sorted(members.items(), key=lambda item: (-_changed(item[0]), item[0]))
        ]
        data = {"view": "list", "live": True, "folder": str(self.folder), "folders": folders, "states": STATES}
        data["seconds"] = SECONDS_BETWEEN_POLLS
        page, policy = assemble(f"Runs in {self.folder}", {**data, "num_runs": sum(members.values())})
        return Answer(page, "text/html; charset=utf-8", policy)

    def run_rows(self, query: Mapping[str, Sequence[str]]) -> Answer:
        """The runs directly in a folder, newest first, some at a time; of logs only the last lines are read."""
        folder = self._inside(_one(query, "folder"))
        first = _whole(_one(query, "from", "0"))
        runs = [path for path in find_run_folders(folder) if path.parent == folder or path == folder]
        runs.sort(key=lambda path: (-_changed(path / "config.yaml"), path))
        rows = [_row(path, self._name(path)) for path in runs[first : first + RUNS_AT_ONCE]]
        return Answer(to_json({"runs": rows, "count": len(runs)}))

    def report(self, query: Mapping[str, Sequence[str]]) -> Answer:
        """The live page of the runs, studies or folders that the query names."""
        names = query.get("path", [])
        groups = self._groups(names)
        address = urlencode([("path", name) for name in names])
        live = {
            "new": f"/new?{address}",
            "sections": f"/sections?{address}",
            "hash": "",
            "runs": _checksum_of(groups),
            "seconds": SECONDS_BETWEEN_POLLS,
        }
        page = report_page(groups, [str(self._inside(name)) for name in names], live)
        for path, curves in page.curves.items():
            self._note(path, curves)
        return Answer(page.html, "text/html; charset=utf-8", page.policy)

    def new_lines(self, query: Mapping[str, Sequence[str]]) -> Answer:
        """What the runs from number `from` on have logged after the places that the page has reached."""
        groups = self._groups(query.get("path", []))
        runs = [run for group in groups for run in group.runs]
        first = _whole(_one(query, "from", "0"))
        tokens = [tuple(text.split("-")) for text in _one(query, "tokens", "").split("_")]
        is_same = _one(query, "runs") == _checksum_of(groups) and len(runs) >= first + len(tokens)
        is_changed = not is_same or any(len(pair) != 2 for pair in tokens)
        found: list[dict[str, Any] | None] = []
        for run, places in zip(runs[first:], () if is_changed else tokens, strict=False):
            curves = read_curves(run, places)
            found.append(None if curves.tokens == places else curves.as_dict())
        return Answer(to_json({"is_changed": is_changed, "runs": found}))

    def sections(self, query: Mapping[str, Sequence[str]]) -> Answer:
        """The sections of a page, if they differ from those that the page has."""
        names = query.get("path", [])
        groups = self._groups(names)
        logged = {run.run_dir: self._logged(run) for group in groups for run in group.runs}
        facts = page_facts(groups, logged, [str(self._inside(name)) for name in names])
        sections = [section.as_dict() for section in facts.sections()]
        checksum = _checksum(json.dumps(sections, sort_keys=True))
        is_known = checksum == _one(query, "known", "")
        return Answer(to_json({"hash": checksum, "sections": None if is_known else sections}))

    def _logged(self, run: RunRecord) -> Logged:
        """What the log files of a run hold; only their new lines are read."""
        with self.lock:
            tokens, logged = self.logged.get(run.run_dir, (None, Logged()))
        curves = read_curves(run) if tokens is None else read_curves(run, tokens)
        return self._note(run.run_dir, curves, logged)

    def _note(self, run_dir: Path, curves: Curves, before: Logged | None = None) -> Logged:
        logged = (before or Logged()).extended(curves)
        with self.lock:
            self.logged[run_dir] = (curves.tokens, logged)
        return logged

    def _groups(self, names: Sequence[str]) -> list[RunGroup]:
        if not names:
            raise NotFoundError("no run is named")
        try:
            return find_groups([str(self._inside(name)) for name in names])
        except ConfigError as error:
            raise NotFoundError(str(error)) from None

    def _inside(self, name: str) -> Path:
        """The run, study or folder of that name below the folder; anything else does not exist."""
        path = self.folder if name == "." else self.folder / name
        parts = Path(name).parts
        with contextlib.suppress(OSError, ValueError):
            is_inside = not Path(name).is_absolute() and ".." not in parts
            is_real = is_inside and path.resolve().is_relative_to(self.folder.resolve()) and path.is_dir()
            if is_real and (is_run_folder(path) or is_file(path / PLAN_FILE) or find_run_folders(path)):
                return path
        raise NotFoundError(f"there is no run {name!r:.200}")

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.folder))


def _row(run_dir: Path, name: str) -> dict[str, Any]:
    """One run of the list."""
    info = read_run(run_dir)
    return {
        "path": name,
        "name": run_dir.name,
        "state": info.state,
        "algo": info.algo or "–",
        "env_id": info.env_id or "–",
        "seed": info.seed,
        "step": info.step,
        "total": info.total,
        "share": info.share,
        "last": info.last_eval,
        "best": info.best_eval,
        "rate": info.rate,
        "created": (info.created or "–")[:16].replace("T", " "),
        "scores": _scores(run_dir / "evaluations.jsonl"),
    }


def _scores(path: Path) -> list[float]:
    """Mean returns of a run's evaluations, the last 40 as far as they are in the end of the file."""
    lines: list[bytes] = []
    with contextlib.suppress(CheckpointError, OSError), open_regular(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - MAX_SCORE_BYTES))
        lines = file.read().splitlines()[-SPARK_POINTS:]
    return [score for line in lines if (score := _mean_return(line)) is not None]


def _mean_return(line: bytes) -> float | None:
    with contextlib.suppress(ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return finite(statistics.fmean(json.loads(line)["returns"]))
    return None


def _checksum_of(groups: Sequence[RunGroup]) -> str:
    """Changes when a run is added, removed or grouped otherwise: a page then loads again."""
    return _checksum(json.dumps([[str(run.run_dir) for run in group.runs] for group in groups]))


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def _one(query: Mapping[str, Sequence[str]], name: str, default: str | None = None) -> str:
    values = query.get(name) or ([] if default is None else [default])
    if len(values) != 1:
        raise NotFoundError(f"the request needs one value of '{name}'")
    return values[0]


def _whole(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise NotFoundError(f"{text!r:.40} is not a whole number")
    return int(text)


def _changed(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0
