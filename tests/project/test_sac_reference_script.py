"""The reference scripts in examples/ run as they are written."""

from __future__ import annotations

from pathlib import Path

import pytest
import warm
from conftest import TESTS

EXAMPLES = TESTS.parent / "examples"


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*_reference.py")))
def test_a_reference_script_runs(name: str, tmp_path: Path) -> None:
    steps = "1300" if name.startswith("dqn") else "300"
    words = [
        str(EXAMPLES / name),
        "--total-timesteps",
        steps,
        "--seed",
        "2",
        "--output-dir",
        str(tmp_path),
    ]
    answer = warm.run([*words, "--eval-episodes", "2"], tmp_path, target=warm.SCRIPT)
    assert answer.returncode == 0, answer.stderr
    values = dict(line.split("=", 1) for line in answer.stdout.splitlines() if "=" in line)
    assert values.keys() >= {"run_dir", "eval_return_mean", "action"}
    assert Path(values["run_dir"]).parent == tmp_path
    assert "seed2" in values["run_dir"]


def test_there_is_one_for_each_built_in_algorithm() -> None:
    assert {path.stem.split("_")[0] for path in EXAMPLES.glob("*_reference.py")} == {
        "ppo",
        "dqn",
        "sac",
    }
