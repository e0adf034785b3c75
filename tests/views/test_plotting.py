"""The learning curve: what its axis counts, and where an offline run went online."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from rl_training.experiment.yaml_text import dump_yaml
from rl_training.views.plotting import draw_learning_curve

ONLINE = {"online": {"after_updates": 100}}


@pytest.mark.parametrize(
    ("algo", "algo_kwargs", "last_step", "label", "online_from"),
    [
        ("ppo", {}, 200, "environment steps", None),
        ("iql", {"dataset_kind": "random"}, 200, "updates", None),
        ("iql", ONLINE, 100, "updates", None),
        ("iql", ONLINE, 200, "updates, then environment steps", 100),
        (None, {}, 200, "steps", None),  # no configuration can be read
    ],
)
def test_the_axis_says_what_a_step_is(
    algo: str | None, algo_kwargs: dict[str, Any], last_step: int, label: str, online_from: int | None, tmp_path: Path
) -> None:
    lines = [{"global_step": step, "eval_return_mean": 1.0, "eval_return_std": 0.5} for step in (50, last_step)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    if algo is not None:
        (tmp_path / "config.yaml").write_text(dump_yaml({"algo": algo, "algo_kwargs": algo_kwargs}))
    (axes,) = draw_learning_curve(tmp_path).axes
    assert axes.get_xlabel() == label
    marks = [line.get_xdata()[0] for line in axes.lines if line.get_label() == "online from here"]
    assert marks == ([] if online_from is None else [online_from])
