"""Serves the pages of a folder of runs live, to this machine only: GET requests that name this server as their host."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from rl_training.errors import CheckpointError, ConfigError, RLTrainingError
from rl_training.files import is_file, open_regular
from rl_training.studies.catalog import STATES, find_run_folders, read_run
from rl_training.studies.groups import RunGroup, RunRecord, find_groups
from rl_training.studies.plan import PLAN_FILE
from rl_training.views.report.blocks import finite
from rl_training.views.report.data import Logged, read_curves
from rl_training.views.report.page import assemble, report_page, to_json
from rl_training.views.report.sections import page_facts

RUNS_AT_ONCE = 100
SECONDS_BETWEEN_POLLS = 3.0
MAX_SCORE_BYTES = 1 << 16
"""End of `evaluations.jsonl` that is read for the small curve of a run in the list."""
SPARK_POINTS = 40
NO_CONTENT = "default-src 'none'; frame-ancestors 'none'"
"""Content-Security-Policy of answers that are no page."""
HOST = "127.0.0.1"
DEFAULT_PORTS = range(8008, 8028)
LARGEST_PORT = 65_535
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


HTML = "text/html; charset=utf-8"
Query = Mapping[str, Sequence[str]]
"""The values of each name in the query of a request."""


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
    logged: dict[Path, Logged] = field(default_factory=dict)
    """What the log files of opened runs hold."""
    lock: Lock = field(default_factory=Lock)

    def answer(self, path: str, query: Query) -> Answer:
        """The answer to a request; a `NotFoundError` for an unknown path."""
        pages: dict[str, Callable[[Query], Answer]] = {
            "/": self.list_page,
            "/runs": self.run_rows,
            "/view": self.report,
            "/new": self.new_lines,
            "/sections": self.sections,
            # Browsers ask for it by themselves.
            "/favicon.ico": lambda _: Answer("", "image/x-icon", status=204),
        }
        if path not in pages:
            raise NotFoundError(f"there is no page {path!r:.80}")
        return pages[path](query)

    def list_page(self, query: Query) -> Answer:
        """The folders that hold runs: names only; the runs are read when a folder is opened."""
        members = Counter(
            run_dir if run_dir == self.folder else run_dir.parent
            for run_dir in find_run_folders(self.folder)
        )
        folders = [
            {
                "path": self._name(path),
                "name": "runs without a study" if path == self.folder else self._name(path),
                "runs": members[path],
                "is_study": is_file(path / PLAN_FILE),
            }
            for path in _newest_first(members)
        ]
        data = {
            "view": "list",
            "live": True,
            "folder": str(self.folder),
            "folders": folders,
            "states": STATES,
            "seconds": SECONDS_BETWEEN_POLLS,
            "num_runs": members.total(),
        }
        page, policy = assemble(f"Runs in {self.folder}", data)
        return Answer(page, HTML, policy)

    def run_rows(self, query: Query) -> Answer:
        """The runs directly in a folder, newest first, some at a time; of logs only the last lines are read."""
        folder = self._inside(_one(query, "folder"))
        first = _whole(_one(query, "from", "0"))
        runs = _newest_first(
            [path for path in find_run_folders(folder) if folder in (path, path.parent)],
            "config.yaml",
        )
        rows = [_row(path, self._name(path)) for path in runs[first : first + RUNS_AT_ONCE]]
        return Answer(to_json({"runs": rows, "count": len(runs)}))

    def report(self, query: Query) -> Answer:
        """The live page of the runs, studies or folders that the query names."""
        paths, groups = self._groups(query)
        address = urlencode({"path": query["path"]}, doseq=True)
        live = {
            "new": f"/new?{address}",
            "sections": f"/sections?{address}",
            "hash": "",
            "runs": _checksum_of(groups),
            "seconds": SECONDS_BETWEEN_POLLS,
        }
        page = report_page(groups, paths, live)
        for path, curves in page.curves.items():
            self._note(path, Logged().extended(curves))
        return Answer(page.html, HTML, page.policy)

    def new_lines(self, query: Query) -> Answer:
        """What the runs from number `from` on have logged after the places that the page has reached."""
        _, groups = self._groups(query)
        first = _whole(_one(query, "from", "0"))
        runs = [run for group in groups for run in group.runs][first:]
        tokens = [tuple(text.split("-")) for text in _one(query, "tokens", "").split("_")]
        is_same = _one(query, "runs") == _checksum_of(groups) and len(runs) >= len(tokens)
        is_changed = not is_same or any(len(pair) != 2 for pair in tokens)
        found: list[dict[str, Any] | None] = []
        for run, places in zip(runs, () if is_changed else tokens, strict=False):
            curves = read_curves(run, places)
            found.append(None if curves.tokens == places else curves.as_dict())
        return Answer(to_json({"is_changed": is_changed, "runs": found}))

    def sections(self, query: Query) -> Answer:
        """The sections of a page, if they differ from those that the page has."""
        paths, groups = self._groups(query)
        logged = {run.run_dir: self._logged(run) for group in groups for run in group.runs}
        facts = page_facts(groups, logged, paths)
        sections = [section.as_dict() for section in facts.sections()]
        checksum = _checksum(json.dumps(sections, sort_keys=True))
        is_known = checksum == _one(query, "known", "")
        return Answer(to_json({"hash": checksum, "sections": None if is_known else sections}))

    def _logged(self, run: RunRecord) -> Logged:
        """What the log files of a run hold; only their new lines are read."""
        with self.lock:
            before = self.logged.get(run.run_dir, Logged())
        return self._note(run.run_dir, before.extended(read_curves(run, before.tokens)))

    def _note(self, run_dir: Path, logged: Logged) -> Logged:
        with self.lock:
            self.logged[run_dir] = logged
        return logged

    def _groups(self, query: Query) -> tuple[list[str], list[RunGroup]]:
        """The runs, studies or folders that a query names, and their groups of runs."""
        paths = [str(self._inside(name)) for name in query.get("path", [])]
        if not paths:
            raise NotFoundError("no run is named")
        try:
            return paths, find_groups(paths)
        except ConfigError as error:
            raise NotFoundError(str(error)) from None

    def _inside(self, name: str) -> Path:
        """The run, study or folder of that name below the folder; anything else does not exist."""
        path = self.folder / name
        with contextlib.suppress(OSError, ValueError):
            is_inside = not Path(name).is_absolute() and ".." not in Path(name).parts
            is_real = (
                is_inside and path.resolve().is_relative_to(self.folder.resolve()) and path.is_dir()
            )
            if is_real and (is_file(path / PLAN_FILE) or find_run_folders(path)):
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


def _one(query: Query, name: str, default: str | None = None) -> str:
    values = query.get(name) or ([] if default is None else [default])
    if len(values) != 1:
        raise NotFoundError(f"the request needs one value of '{name}'")
    return values[0]


def _whole(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise NotFoundError(f"{text!r:.40} is not a whole number")
    return int(text)


def _newest_first(paths: Iterable[Path], file: str = "") -> list[Path]:
    """The paths by the time at which they, or their `file`, changed; of equal ones by their names."""

    def changed(path: Path) -> float:
        with contextlib.suppress(OSError):
            return (path / file).stat().st_mtime
        return 0.0

    return sorted(paths, key=lambda path: (-changed(path), path))


class Server(ThreadingHTTPServer):
    """The server of one site; its socket accepts connections of this machine only."""

    daemon_threads = True
    # A port in use is not shared with whoever uses it.
    allow_reuse_address = os.name == "posix"

    def __init__(self, site: Site, port: int) -> None:
        self.site = site
        super().__init__((HOST, port), Handler)

    @property
    def hosts(self) -> set[str]:
        """Values of the Host header that a browser of this machine sends; others come from rebound names."""
        return {f"{name}:{self.server_port}" for name in (HOST, "localhost")}

    @property
    def address(self) -> str:
        """Address of the first page."""
        return f"http://{HOST}:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD; everything else, and every other Host, is refused."""

    server: Server
    server_version = "rl-training"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        """Answer with a page, or with JSON."""
        self._send(self._answer(), with_body=True)

    def do_HEAD(self) -> None:
        """Answer with the headers of a page."""
        self._send(self._answer(), with_body=False)

    def __getattr__(self, name: str) -> Any:
        """Refuse every other method."""
        if name.startswith("do_"):
            return lambda: self._send(
                _refusal(405, "only GET and HEAD are answered"), with_body=True
            )
        raise AttributeError(name)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing for each request."""

    def _answer(self) -> Answer:
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or hosts[0] not in self.server.hosts:
            return _refusal(403, "the Host header is not that of this server")
        try:
            parts = urlsplit(self.path)
            query = parse_qs(parts.query, keep_blank_values=True, max_num_fields=5000)
            return self.server.site.answer(parts.path, query)
        except (NotFoundError, ValueError) as error:
            return _refusal(404, str(error))
        except (RLTrainingError, OSError) as error:
            return _refusal(500, str(error))

    def _send(self, answer: Answer, *, with_body: bool) -> None:
        body = answer.body.encode("utf-8", "replace")
        with contextlib.suppress(ConnectionError, TimeoutError):
            self.send_response(answer.status)
            headers = {"Content-Type": answer.kind, "Content-Length": str(len(body)), **HEADERS}
            for name, value in {**headers, "Content-Security-Policy": answer.policy}.items():
                self.send_header(name, value)
            if answer.status == 405:
                self.send_header("Allow", "GET, HEAD")
            self.end_headers()
            if with_body:
                self.wfile.write(body)


def _refusal(status: int, text: str) -> Answer:
    return Answer(to_json({"error": text}), status=status)


def make_server(folder: Path, port: int | None = None) -> Server:
    """A server for a folder of runs, at `port` or at the first free one from 8008 on."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(
            f"'{folder}' is a file, not a folder of runs: give the folder; a report opens in a browser"
        )
    if not folder.is_dir():
        raise ConfigError(f"folder '{folder}' does not exist (looked from {Path.cwd()})")
    if port is not None and not 0 <= port <= LARGEST_PORT:
        raise ConfigError(
            f"bad value {port} for --port: should be 1 to {LARGEST_PORT}, or 0 for any free one"
        )
    for candidate in DEFAULT_PORTS if port is None else [port]:
        with contextlib.suppress(OSError):
            return Server(Site(folder), candidate)
    tried = f"port {port} is" if port else f"ports {DEFAULT_PORTS[0]} to {DEFAULT_PORTS[-1]} are"
    raise ConfigError(
        f"{tried} in use or not permitted: give --port another number, or 0 for any free one"
    )
