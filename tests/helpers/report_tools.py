"""What tests of the report share: run folders written by hand, and the data inside a page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rl_training.experiment.yaml_text import dump_yaml

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
    """A run folder with these lines in `metrics.jsonl`, which has finished unless `metadata` tells otherwise."""
    run_dir = folder / name
    (run_dir / "checkpoints").mkdir(parents=True)
    config = {
        "algo": algo,
        "env_id": env_id,
        "seed": seed,
        "total_timesteps": 100,
        "algo_kwargs": dict(algo_kwargs or {}),
    }
    (run_dir / "config.yaml").write_text(dump_yaml(config))
    known = {
        "status": "finished",
        "algo": algo,
        "env_id": env_id,
        "seed": seed,
        "total_timesteps": 100,
    }
    more = {
        "exactness": "exact",
        "command": ["rl-training", "train", algo, env_id],
        "created": "2026-01-02T03:04:05+00:00",
    }
    (run_dir / "metadata.json").write_text(json.dumps({**known, **more, **metadata}))
    append_lines(run_dir, lines)
    return run_dir


def append_lines(run_dir: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Append to `metrics.jsonl`, and for each evaluation one episode to `evaluations.jsonl`."""
    lines = list(lines)
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    scored = [line for line in lines if line.get("eval_return_mean") is not None]
    with (run_dir / "evaluations.jsonl").open("a") as file:
        for line in scored:
            episodes = {"seeds": [1], "returns": [line["eval_return_mean"]], "lengths": [7]}
            file.write(json.dumps({"global_step": line["global_step"], **episodes}) + "\n")


def line(step: int, value: float, **metrics: Any) -> dict[str, Any]:
    """A line of metrics with an evaluation."""
    return {"global_step": step, "eval_return_mean": value, "eval_length_mean": 7.0, **metrics}


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
