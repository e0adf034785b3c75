"""The server of `ui` over real HTTP: who may ask, what exists, what is new, and what a thousand runs cost."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from report_tools import HOSTILE, append_lines, data_of, line, section, serving, text_of, write_run

from rl_training.cli import main
from rl_training.views.report.data import START
from rl_training.views.report.site import Server, make_server

OPENED: list[str] = []
"""Files that this process opens."""
sys.addaudithook(lambda event, args: OPENED.append(str(args[0])) if event == "open" else None)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A running server for the runs in the test's folder."""
    with serving(tmp_path) as found:
        yield found


def ask(
    server: Server, path: str, method: str = "GET", **headers: str
) -> tuple[int, Any, dict[str, str]]:
    """Status, text and headers of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body, dict(answer.getheaders())


def ask_json(server: Server, page: str, **query: Any) -> Any:
    status, body, _ = ask(server, f"{page}?{urlencode(query)}")
    assert status == 200, body
    return json.loads(body)


def test_only_this_machine_may_only_read(server: Server, tmp_path: Path) -> None:
    write_run(tmp_path, lines=[line(1, 2.0)])
    address, port = server.server_address
    assert address == "127.0.0.1"
    for path in ("/", "/view?path=run", "/runs?folder=."):
        assert ask(server, path)[0] == 200
        assert ask(server, path, Host=f"localhost:{port}")[0] == 200
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", "127.0.0.1:1", ""):
            assert ask(server, path, Host=host)[0] == 403
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "NONSENSE"):
            status, _, headers = ask(server, path, method)
            assert (status, headers["Allow"]) == (405, "GET, HEAD")
    status, body, headers = ask(server, "/view?path=run", "HEAD")
    assert (status, body) == (200, "")
    assert int(headers["Content-Length"]) > 1000
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy


def test_nothing_outside_of_the_folder_exists(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    write_run(folder, "inside")
    secret = write_run(tmp_path, "secret", [line(1, 12345.0)])
    (folder / "link").symlink_to(secret)
    names = ["../secret", str(secret), "link", "inside/../../secret", "..", "no", "in\0side", "/"]
    places = [
        f"{page}={quote(name)}"
        for page in ("/view?path", "/new?path", "/sections?path", "/runs?folder")
        for name in [*names, "x" * 5000]
    ]
    places += ["/etc/passwd", "/../secret", "//x", "/view"]
    places += ["/runs?folder=.&from=-1", "/runs?folder=.&from=1e3"]
    with serving(folder) as server:
        for place in places:
            status, body, _ = ask(server, place)
            assert (status, "12345" in body) == (404, False), place


def test_a_page_gets_new_lines_only(server: Server, tmp_path: Path) -> None:
    run = write_run(tmp_path, lines=[line(1, 2.0, entropy=0.5)])
    data = data_of(ask(server, "/view?path=run")[1])
    tokens, known = data["runs"][0]["tokens"], data["live"]["runs"]
    append_lines(run, [line(2, 4.0, entropy=0.25)])
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"global_step": 3, "entropy"')  # a line that is being written
    (found,) = ask_json(server, "/new", path="run", runs=known, tokens="-".join(tokens))["runs"]
    assert found["evaluations"]["x"] == [2]
    assert found["updates"]["y"] == {"entropy": [0.25]}
    assert found["is_whole"] == [False, True]
    again = ask_json(server, "/new", path="run", runs=known, tokens="-".join(found["tokens"]))
    assert again == {"is_changed": False, "runs": [None]}


@pytest.mark.parametrize(
    "lines", [[line(1, 7.0)], [line(1, 7.0), line(2, 8.0), line(3, 9.0)]], ids=["short", "long"]
)
def test_a_run_that_was_resumed_earlier_is_sent_whole(
    server: Server, tmp_path: Path, lines: list[Any]
) -> None:
    run = write_run(tmp_path, lines=[line(1, 2.0), line(2, 3.0)])
    data = data_of(ask(server, "/view?path=run")[1])
    tokens, known = data["runs"][0]["tokens"], data["live"]["runs"]
    (run / "metrics.jsonl").unlink()
    append_lines(run, lines)
    (found,) = ask_json(server, "/new", path="run", runs=known, tokens="-".join(tokens))["runs"]
    assert found["is_whole"][0]
    assert found["evaluations"]["x"] == [values["global_step"] for values in lines]


def test_sections_come_when_they_have_changed(server: Server, tmp_path: Path) -> None:
    run = write_run(tmp_path, lines=[line(1, 2.0)])
    first = ask_json(server, "/sections", path="run", known="")
    assert section(first, "overview")[0]["score"] == "2.00"
    assert ask_json(server, "/sections", path="run", known=first["hash"])["sections"] is None
    append_lines(run, [line(2, 5.0, new_metric=1.0)])
    second = ask_json(server, "/sections", path="run", known=first["hash"])
    assert section(second, "overview")[0]["score"] == "5.00"
    assert "new_metric" in text_of(section(second, "other"))


def test_a_page_of_other_runs_is_told_to_reload(server: Server, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path, name, [line(1, 2.0)])
    known = data_of(ask(server, "/view?path=.")[1])["live"]["runs"]
    tokens = "_".join(["-".join([START, START])] * 2)
    assert not ask_json(server, "/new", path=".", runs=known, tokens=tokens)["is_changed"]
    assert ask_json(server, "/new", path=".", runs=known, tokens="nonsense")["is_changed"]
    write_run(tmp_path, "c", [line(1, 2.0)])
    assert ask_json(server, "/new", path=".", runs=known, tokens=tokens)["is_changed"]
    shutil.rmtree(tmp_path / "c")
    shutil.rmtree(tmp_path / "b")
    assert ask_json(server, "/new", path=".", runs=known, tokens=tokens)["is_changed"]


def test_a_thousand_runs_cost_nothing_until_they_are_opened(server: Server, tmp_path: Path) -> None:
    for number in range(1000):
        write_run(tmp_path, f"run{number:04d}", [line(1, 2.0)], seed=number)

    def opened_runs() -> set[str]:
        paths = {Path(name) for name in OPENED if str(tmp_path) in name}
        OPENED.clear()
        return {path.parent.name for path in paths if path.is_file()}

    opened_runs()
    assert data_of(ask(server, "/")[1])["num_runs"] == 1000
    assert opened_runs() == set()
    answer = ask_json(server, "/runs", folder=".", **{"from": 900})
    assert (len(answer["runs"]), answer["count"]) == (100, 1000)
    assert len(opened_runs()) == 100, "of the runs that are shown"
    ask(server, "/view?path=run0100")
    assert opened_runs() == {"run0100"}


def test_the_list_has_how_far_and_how_good_runs_are_the_newest_first(
    server: Server, tmp_path: Path
) -> None:
    lines = [line(step, step / 10) for step in (20, 50)]
    for age, name in enumerate(("new", "old", "bare")):
        run = write_run(tmp_path, name, lines, seed=age, steps_per_second=7.5)
        os.utime(run / "config.yaml", (1e9 - age, 1e9 - age))
    (run / "evaluations.jsonl").write_text('[]\n{"returns": [1e999]}\n{"returns": []}\nnot json\n')
    rows = ask_json(server, "/runs", folder=".")["runs"]
    assert [row["name"] for row in rows] == ["new", "old", "bare"]
    shown = {"step": 50, "total": 100, "share": 0.5, "last": 5.0, "rate": 7.5}
    assert {key: rows[0][key] for key in shown} == shown
    assert [row["scores"] for row in rows] == [[2.0, 5.0], [2.0, 5.0], []]
    append_lines(tmp_path / "old", [line(80, 9.0)])
    (_, old, _) = ask_json(server, "/runs", folder=".")["runs"]
    assert (old["share"], old["last"], old["scores"]) == (0.8, 9.0, [2.0, 5.0, 9.0])


def test_hostile_names_in_the_list_stay_text(server: Server, tmp_path: Path) -> None:
    name = HOSTILE.replace("/", "")
    write_run(tmp_path / name, "run", [line(1, 2.0)])
    page = ask(server, "/")[1]
    assert data_of(page)["folders"][0]["name"] == name
    assert "<img" not in page
    assert ask_json(server, "/runs", folder=name)["runs"][0]["path"] == f"{name}/run"
    assert ask(server, f"/view?{urlencode({'path': f'{name}/run'})}")[0] == 200


def test_an_empty_folder_has_a_page(server: Server) -> None:
    status, page, _ = ask(server, "/")
    assert status == 200
    assert data_of(page)["folders"] == []


def test_a_port_in_use_is_named_and_the_next_is_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["ui", str(tmp_path), "--port", str(port)]) == 2
        assert f"port {port} is in use" in capsys.readouterr().err
    with make_server(tmp_path) as first, make_server(tmp_path) as second:
        assert first.server_port != second.server_port


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([".", "--port", "99999"], "bad value 99999 for --port: should be 1 to 65535"),
        ([".", "--port", "-1"], "bad value -1 for --port: should be 1 to 65535"),
        (["no"], "does not exist"),
        (["page.html"], "is a file, not a folder"),
    ],
)
def test_a_wrong_port_or_folder_is_refused(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("page.html").touch()
    assert main(["ui", *words]) == 2
    assert message in capsys.readouterr().err


def test_an_interrupt_ends_the_server_with_exit_code_0(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "rl_training", "ui", str(tmp_path), "--port", "0", "--json"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address = json.loads(process.stdout.readline())["address"]
    assert address.startswith("http://127.0.0.1:")
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in error
