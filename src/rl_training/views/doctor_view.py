"""Output of `rl-training doctor`: a table at a terminal, lines in a pipe; and the facts about the machine."""

from __future__ import annotations

import os
import platform
import sys

from rich.console import Console
from rich.text import Text

from rl_training.diagnostics.env_doctor import EnvReport
from rl_training.experiment.run_folder import installed_versions
from rl_training.memory import available_memory
from rl_training.runtime.execution import has_compiler
from rl_training.runtime.run_utils import resolve_device
from rl_training.terminal.streams import printable
from rl_training.views.dataset_report import render_findings

PACKAGES = (
    *("rl-training", "torch", "gymnasium", "numpy", "mujoco", "ale-py", "box2d", "gymnasium-robotics", "envpool"),
    *("minari", "matplotlib"),
)


def print_report(report: EnvReport) -> None:
    """Print the findings, each with its remedy."""
    if sys.stdout.isatty():
        Console().print(Text(printable(report.env_id), style="italic"), render_findings(report.findings), sep="\n")
    else:
        for row in report.findings:
            remedy = f" [remedy: {row.remedy}]" if row.remedy else ""
            print(printable(f"{row.level.value:<8} {row.name:<12} {row.found}{remedy}"))
    print(f"exactness={report.exactness}")


def describe_machine() -> dict[str, str]:
    """Versions of the packages, processors, memory, compiler and device."""
    import torch

    available = available_memory()
    facts = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    facts |= dict.fromkeys(PACKAGES, "not installed") | installed_versions(PACKAGES)
    facts["processors"] = f"{os.cpu_count()}, of which torch uses {torch.get_num_threads()} by default"
    facts["memory"] = "unknown" if available is None else f"{available / 1e9:,.1f} GB free"
    facts["compiler"] = "found" if has_compiler() else "none: torch.compile cannot be used (install g++ or clang++)"
    facts["device"] = str(resolve_device("auto"))
    return facts
