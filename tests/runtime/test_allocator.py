"""Freed memory stays in the process, with glibc."""

import platform
import subprocess
import sys

import pytest

CODE = """
import resource, torch
from rl_training.runtime.execution import keep_freed_memory
assert keep_freed_memory()
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def work(): return [torch.ones(1_000_000) for _ in range(20)]
for _ in range(3): work()
before = faults()
for _ in range(5): work()
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs mallopt of glibc")
def test_memory_that_was_freed_is_used_again_without_a_page_fault():
    answer = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True
    )
    assert int(answer.stdout) < 500  # else about 97,500: one per 4 kB that `work` fills
