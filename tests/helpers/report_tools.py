"""What tests of the report share: run folders written by hand, and the data inside a page."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rl_training.experiment.yaml_text import dump_yaml
from rl_training.studies.groups import find_groups
from rl_training.views.report.page import report_page
from rl_training.views.report.site import Server, make_server

HOSTILE = "</script><img src=x onerror=hacked=1>"
"""As in the name of a run or an algorithm."""


def write_run(
    folder: Path,
    name: str = "run",
    lines: Iterable[Mapping[str, Any]] = (),
    *,
    algo: str = "ppo",
    env_id: str = "CartPole-v1",
    seed: int = 0,
    algo_kwargs: Mapping[str, Any] | None = None,
    **metadata: Any,
) -> Path:
    """A run folder with these lines in `metrics.jsonl`, which has finished unless `metadata` says otherwise."""
    run_dir = folder / name
    (run_dir / "checkpoints").mkdir(parents=True)
    known = {"algo": algo, "env_id": env_id, "seed": seed, "total_timesteps": 100}
    (run_dir / "config.yaml").write_text(dump_yaml({**known, "algo_kwargs": algo_kwargs or {}}))
    more = {
        "status": "finished",
        "exactness": "exact",
        "command": ["rl-training", "train", algo, env_id],
        "created": "2026-01-02T03:04:05+00:00",
    }
    (run_dir / "metadata.json").write_text(json.dumps({**known, **more, **metadata}))
    append_lines(run_dir, lines)
    return run_dir


def append_lines(run_dir: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Append to `metrics.jsonl`, and for each evaluation one episode to `evaluations.jsonl`."""
    metrics, evaluations = run_dir / "metrics.jsonl", run_dir / "evaluations.jsonl"
    with metrics.open("a") as file, evaluations.open("a") as scored:
        for line in lines:
            file.write(json.dumps(line) + "\n")
            if line.get("eval_return_mean") is not None:
                episodes = {"seeds": [1], "returns": [line["eval_return_mean"]], "lengths": [7]}
                scored.write(json.dumps({"global_step": line["global_step"], **episodes}) + "\n")


def line(step: int, value: float, **metrics: Any) -> dict[str, Any]:
    """A line of metrics with an evaluation."""
    return {"global_step": step, "eval_return_mean": value, "eval_length_mean": 7.0, **metrics}


def page_of(*paths: Path, page_dir: Path | None = None) -> str:
    """The page of runs or folders of runs."""
    words = list(map(str, paths))
    return report_page(find_groups(words), words, page_dir=page_dir).html


def data_of(page: str) -> dict[str, Any]:
    """The data inside a page."""
    (text,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL
    )
    found: dict[str, Any] = json.loads(text)
    return found


def section(data: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The blocks of a section; empty if the page has no such section."""
    return next((found["blocks"] for found in data["sections"] if found["id"] == name), [])


def text_of(blocks: Any) -> str:
    """All text in blocks."""
    return json.dumps(blocks, ensure_ascii=False)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """A running server for the runs in a folder."""
    with make_server(folder, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
