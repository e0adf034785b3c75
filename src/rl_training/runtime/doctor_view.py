"""What `rl-training doctor` prints: a table in a terminal, plain lines in a pipe, or JSON."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rl_training.runtime.memory import available_memory
from rl_training.runtime.run_utils import has_compiler, resolve_device

if TYPE_CHECKING:
    from rl_training.runtime.env_doctor import EnvReport

COLORS = {"ok": "green", "warning": "yellow", "error": "red"}
PACKAGES = ("rl-training", "torch", "gymnasium", "numpy", "mujoco", "ale-py", "box2d", "minari", "matplotlib")


def print_report(report: EnvReport, as_json: bool) -> None:
    """Show the findings, each with its remedy."""
    if as_json:
        print(json.dumps(report.as_dict()))
        return
    rows = [(finding.check, finding.level.value, finding.finding, finding.remedy) for finding in report.findings]
    if not sys.stdout.isatty():
        for check, level, found, remedy in rows:
            print(f"{level:<8} {check:<12} {found}" + (f" [remedy: {remedy}]" if remedy else ""))
    else:
        table = Table(title=Text(report.env_id), title_justify="left", show_edge=False, pad_edge=False)
        for heading, no_wrap in (("", True), ("check", True), ("finding", False)):
            table.add_column(heading, no_wrap=no_wrap)
        for check, level, found, remedy in rows:
            text = Text(found)
            if remedy:
                text.append(f"\n→ {remedy}", style="italic")
            table.add_row(Text(level, style=COLORS[level]), Text(check), text)
        Console().print(table)
    print(f"exactness={report.exactness}")


def print_machine(as_json: bool) -> None:
    """Show what training here rests on."""
    facts = describe_machine()
    if as_json:
        print(json.dumps(facts))
        return
    for name, value in facts.items():
        print(f"{name:<12} {value}")


def describe_machine() -> dict[str, str]:
    """Versions, processors, memory, compiler and device."""
    import torch

    available = available_memory()
    facts = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    for name in PACKAGES:
        try:
            facts[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            facts[name] = "not installed"
    facts["processors"] = f"{os.cpu_count()}, of which torch uses {torch.get_num_threads()} by default"
    facts["memory"] = "unknown" if available is None else f"{available / 1e9:,.1f} GB free"
    facts["compiler"] = "found" if has_compiler() else "none: torch.compile cannot be used (install g++ or clang++)"
    facts["device"] = str(resolve_device("auto"))
    return facts
