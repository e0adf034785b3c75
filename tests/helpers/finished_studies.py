"""Runs and studies without training: real run folders with all but the checkpoints' tensors, and their owners."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_training.experiment.run_folder import run_name
from rl_training.experiment.yaml_text import dump_yaml
from rl_training.studies.plan import make_plan, store_plan

NUM_EVALUATIONS = 10


def write_run(
    run_dir: Path,
    settings: Mapping[str, Any],
    curve: Sequence[float],
    status: str = "finished",
    **metadata: Any,
) -> Path:
    """A run that was evaluated at equal distances with these mean returns; the last one at its last step."""
    (run_dir / "checkpoints").mkdir(parents=True)
    (run_dir / "config.yaml").write_text(dump_yaml(settings))
    total = int(settings["total_timesteps"])
    steps = [total * (index + 1) // len(curve) for index in range(len(curve))]
    metrics = [
        {"global_step": step, "eval_return_mean": score}
        for step, score in zip(steps, curve, strict=True)
    ]
    evaluations = [
        {"global_step": step, "returns": [score], "lengths": [1]}
        for step, score in zip(steps, curve, strict=True)
    ]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    (run_dir / "evaluations.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in evaluations)
    )
    known = {key: settings[key] for key in ("algo", "env_id", "seed", "total_timesteps")}
    values = {
        "status": status,
        **known,
        "created": "2026-01-01T00:00:00+00:00",
        "exactness": "exact",
        **metadata,
    }
    (run_dir / "metadata.json").write_text(json.dumps(values))
    return run_dir


def own(run_dir: Path, attempt: int = 1, beat: Any = None, **values: Any) -> Path:
    """Pretend that a process of another machine owns a run, with a heartbeat of now; returns its workspace."""
    owner = {
        "host": "elsewhere",
        "pid": 17,
        "machine": "elsewhere",
        "started": "1",
        "since": "then",
    }
    workspace = run_dir / "owner" / str(attempt)
    workspace.mkdir(parents=True)
    workspace.with_suffix(".json").write_text(json.dumps({**owner, **values}))
    (workspace / "heartbeat").write_text(json.dumps({} if beat is None else beat))
    return workspace


def release(workspace: Path) -> None:
    """Pretend that the owner has released the run."""
    owner_file = workspace.with_suffix(".json")
    owner_file.rename(owner_file.with_suffix(".ended.json"))


def write_finished_study(
    path: Path,
    scores: Mapping[int, float | Sequence[float]]
    | Mapping[str, Mapping[int, float | Sequence[float]]],
    *,
    vary: Sequence[Mapping[str, Any]] = (),
    **base: Any,
) -> Path:
    """A study in the folder `path` whose runs are finished with these scores by seed.

    A score may be a whole curve of evaluations. With `vary`, `scores` has the label of each setting first.
    """
    shared = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 10_000, **base}
    of_setting: dict[str, Any] = {"": scores} if not vary else dict(scores)
    seeds = sorted({seed for members in of_setting.values() for seed in members})
    plan = make_plan(path.name, [shared], vary=list(vary), seeds=seeds)
    store_plan(plan, path)
    for run in plan.runs(path):
        score = of_setting[run.setting][run.config.seed]
        curve = [float(score)] * NUM_EVALUATIONS if isinstance(score, (int, float)) else list(score)
        settings = {**run.config.model_dump(mode="json"), "output_dir": str(path)}
        write_run(path / run_name(run.config, run.suffix), settings, curve)
    return path
