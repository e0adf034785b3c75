"""How much of the package one training step enters: the figures of docs/architecture.md."""

from __future__ import annotations

import re
import subprocess
import sys

from conftest import TESTS


def test_one_step_with_its_update_enters_no_more_files_and_functions_than_the_page_says() -> None:
    words = [sys.executable, str(TESTS.parent / "benchmarks" / "reading.py")]
    answer = subprocess.run(words, capture_output=True, text=True, check=True)
    traced = dict(re.findall(r"^(\w+): (\d+ files, \d+) functions$", answer.stdout, re.MULTILINE))
    page = (TESTS.parent / "docs" / "architecture.md").read_text()
    (told,) = re.findall(r"for SAC (\d+) functions in (\d+) files, for PPO (\d+) in (\d+)", page)
    shown = {"sac": f"{told[1]} files, {told[0]}", "ppo": f"{told[3]} files, {told[2]}"}
    assert traced == shown
