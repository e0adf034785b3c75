"""Serves the report live to this machine only: GET requests, from a browser that names this server as its host."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from rl_training.errors import ConfigError, RLTrainingError
from rl_training.views.report.page import to_json
from rl_training.views.report.site import Answer, NotFoundError, Site

HOST = "127.0.0.1"
DEFAULT_PORT = 8008
NUM_PORTS_TRIED = 20
LARGEST_PORT = 65_535
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


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
            return lambda: self._send(_refusal(405, "only GET and HEAD are answered"), with_body=True)
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
        raise ConfigError(f"'{folder}' is a file, not a folder of runs: give the folder; a report opens in a browser")
    if not folder.is_dir():
        raise ConfigError(f"folder '{folder}' does not exist (looked from {Path.cwd()})")
    if port is not None and not 0 <= port <= LARGEST_PORT:
        raise ConfigError(f"bad value {port} for --port: should be 1 to {LARGEST_PORT}, or 0 for any free one")
    for candidate in _ports(port):
        with contextlib.suppress(OSError):
            return Server(Site(folder), candidate)
    tried = f"port {port} is" if port else f"ports {DEFAULT_PORT} to {DEFAULT_PORT + NUM_PORTS_TRIED - 1} are"
    raise ConfigError(f"{tried} in use or not permitted: give --port another number, or 0 for any free one")


def _ports(port: int | None) -> Iterator[int]:
    if port is not None:
        yield port
        return
    yield from range(DEFAULT_PORT, DEFAULT_PORT + NUM_PORTS_TRIED)
