"""How much of the package one training step enters: the figures of docs/architecture.md."""

from __future__ import annotations

import re
import subprocess
import sys

from conftest import TESTS

COUNTS = re.compile(r"^(\w+): (\d+) files, (\d+) functions$", re.MULTILINE)
TOLD = re.compile(r"for SAC (\d+) functions in (\d+) files, for PPO (\d+) in (\d+)")


def test_one_step_with_its_update_enters_no_more_files_and_functions_than_the_page_says() -> None:
    words = [sys.executable, str(TESTS.parent / "benchmarks" / "reading.py")]
    answer = subprocess.run(words, capture_output=True, text=True, check=True)
    traced = {
        name: (int(files), int(functions))
        for name, files, functions in COUNTS.findall(answer.stdout)
    }
    (told,) = TOLD.findall((TESTS.parent / "docs" / "architecture.md").read_text())
    assert traced.keys() == {"sac", "ppo"}
    for name, functions, files in (("sac", *told[:2]), ("ppo", *told[2:])):
        assert traced[name] <= (int(files), int(functions))
        assert traced[name][1] <= int(functions)
