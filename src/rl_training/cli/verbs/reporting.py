"""The verbs that show runs in a browser: `report` writes a page, `ui` serves it live."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rl_training.cli.arguments import output_file, whole_number
from rl_training.cli.completion import complete_run
from rl_training.cli.options import NUMBER, AsJson
from rl_training.cli.output import say, show

Runs = Annotated[
    list[str],
    typer.Argument(
        metavar="RUNS...",
        autocompletion=complete_run,
        help="Runs, studies (NAME, or NAME:SETTING for one of its settings), folders of runs or patterns.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        parser=output_file,
        help="HTML file to write (default: report.html in the folder of the run or study; of several, here).",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace FILE even if it is not a report.")]
Folder = Annotated[Path, typer.Argument(metavar="[DIR]", help="Folder of runs.")]
Port = Annotated[
    int | None,
    typer.Option(
        "--port", metavar=NUMBER, parser=whole_number, help="Port (default: the first free one from 8008; 0: any)."
    ),
]


def report(runs: Runs, out: Out = None, force: Force = False, as_json: AsJson = False) -> None:
    """Write one HTML page about runs: `report runs/STUDY`.

    Scores, learning curves, health of learning, speed, events, settings, origin and commands, in one file that
    needs no network. A report is replaced by a newer one; any other file is refused.
    """
    from rl_training.studies.groups import find_groups
    from rl_training.views.report.page import write_report

    groups = find_groups(runs)
    path, size = write_report(groups, runs, out, force=force)
    count = sum(len(group.runs) for group in groups)
    value = {"report": str(path), "runs": count, "bytes": size}
    show(value, [f"report={path}", f"{count} run{'' if count == 1 else 's'}, {size / 1000:,.0f} kB"], as_json)


def ui(folder: Folder = Path("runs"), port: Port = None, as_json: AsJson = False) -> None:
    """Show a folder of runs live in the browser: `ui`, then open the address that it prints.

    Listens to this machine only, and only reads. Ctrl-C ends it with exit code 0.
    """
    from rl_training.views.report.server import make_server

    with make_server(folder, port) as server:
        try:
            show({"address": server.address, "folder": str(folder)}, [f"address={server.address}"], as_json)
            say("Ctrl-C ends the server")
            server.serve_forever()
        except KeyboardInterrupt:
            say("ended")
