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
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from report_tools import HOSTILE, append_lines, data_of, line, section, text_of, write_run

from rl_training.cli import main
from rl_training.views.report.data import START
from rl_training.views.report.site import Server, make_server

OPENED: list[str] = []
"""Files that this process opens."""
sys.addaudithook(lambda event, args: OPENED.append(str(args[0])) if event == "open" else None)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A running server for the runs in the test's folder."""
    with make_server(tmp_path, 0) as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield found
        finally:
            found.shutdown()
            thread.join()


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
    assert server.server_address[0] == "127.0.0.1"
    for path in ("/", "/view?path=run", "/runs?folder=."):
        assert ask(server, path)[0] == 200
        assert ask(server, path, Host=f"localhost:{server.server_port}")[0] == 200
        for host in (
            "evil.example",
            f"evil.example:{server.server_port}",
            "127.0.0.1",
            "127.0.0.1:1",
            "",
        ):
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


def test_nothing_outside_of_the_folder_exists(tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    folder = outside / "runs"
    write_run(folder, "inside")
    secret = write_run(outside, "secret", [line(1, 12345.0)])
    (folder / "link").symlink_to(secret)
    with make_server(folder, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        names = [
            "../secret",
            str(secret),
            "link",
            "inside/../../secret",
            "..",
            "",
            "no",
            "in\0side",
            "x" * 5000,
            "/",
        ]
        for page, key in (
            ("/view", "path"),
            ("/new", "path"),
            ("/sections", "path"),
            ("/runs", "folder"),
        ):
            for name in names if page != "/runs" else [name for name in names if name]:
                status, body, _ = ask(server, f"{page}?{urlencode({key: name})}")
                assert status == 404 or (name == "" and status == 200), (page, name, body)
                assert "12345" not in body
        for path in (
            "/etc/passwd",
            "/../secret",
            "//x",
            "/view",
            "/runs?folder=.&from=-1",
            "/runs?folder=.&from=1e3",
        ):
            assert ask(server, path)[0] == 404
        server.shutdown()
        thread.join()


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
    OPENED.clear()
    status, page, _ = ask(server, "/")
    assert status == 200
    assert data_of(page)["num_runs"] == 1000
    assert not [name for name in OPENED if str(tmp_path) in name and Path(name).is_file()]
    answer = ask_json(server, "/runs", folder=".", **{"from": 900})
    assert (len(answer["runs"]), answer["count"]) == (100, 1000)
    opened = {
        Path(name).parent.name for name in OPENED if str(tmp_path) in name and Path(name).is_file()
    }
    assert len(opened) == 100, "of the runs that are shown"
    OPENED.clear()
    ask(server, "/view?path=run0100")
    assert {name for name in OPENED if name.endswith("metrics.jsonl")} == {
        str(tmp_path / "run0100" / "metrics.jsonl")
    }


def test_the_list_has_how_far_and_how_good_runs_are_the_newest_first(
    server: Server, tmp_path: Path
) -> None:
    for age, name in enumerate(("new", "old", "bare")):
        run = write_run(
            tmp_path,
            name,
            [line(step, step / 10) for step in (20, 50)],
            seed=age,
            steps_per_second=7.5,
        )
        os.utime(run / "config.yaml", (1e9 - age, 1e9 - age))
    (run / "evaluations.jsonl").write_text('[]\n{"returns": [1e999]}\n{"returns": []}\nnot json\n')
    rows = ask_json(server, "/runs", folder=".")["runs"]
    assert [row["name"] for row in rows] == ["new", "old", "bare"]
    assert [rows[0][key] for key in ("step", "total", "share", "last", "rate")] == [
        50,
        100,
        0.5,
        5.0,
        7.5,
    ]
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


@pytest.mark.parametrize("port", ["99999", "-1"])
def test_a_number_that_is_no_port_is_refused(
    port: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ui", str(tmp_path), "--port", port]) == 2
    assert f"bad value {port} for --port: should be 1 to 65535" in capsys.readouterr().err


def test_a_missing_folder_and_a_file_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ui", str(tmp_path / "no")]) == 2
    assert "does not exist" in capsys.readouterr().err
    (tmp_path / "page.html").touch()
    assert main(["ui", str(tmp_path / "page.html")]) == 2
    assert "is a file, not a folder" in capsys.readouterr().err


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
