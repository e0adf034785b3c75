"""Text of checks: the findings of doctor and of data check, with their remedies; the facts about a machine."""

from __future__ import annotations

import os
import platform
import sys
from collections import Counter
from collections.abc import Sequence

from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from rl_training.data.dataset_checks import DatasetReport, Summary
from rl_training.data.findings import Finding, Level
from rl_training.diagnostics.env_doctor import EnvReport
from rl_training.experiment.run_folder import installed_versions
from rl_training.memory import available_memory
from rl_training.runtime.execution import has_compiler
from rl_training.runtime.run_utils import resolve_device
from rl_training.terminal.streams import printable

STYLES = {Level.ERROR: "bold red", Level.WARNING: "yellow", Level.INFO: "cyan", Level.OK: "green"}
BAR_WIDTH = 32


def render_report(report: DatasetReport) -> RenderableType:
    """Summary, histogram of returns, findings with remedies, and advice."""
    parts: list[RenderableType] = [_summary(report)]
    if len(report.episodes.histogram) > 1:
        parts += [Text("\nepisode returns", style="bold"), _histogram(report)]
    parts += [Text(f"\n{_verdict(report)}", style="bold"), render_findings(report.findings)]
    for title, lines in (("notes of the loader", report.notes), ("advice", report.advice)):
        if lines:
            parts.append(Text(f"\n{title}", style="bold"))
            parts += [Text(printable(f"• {line}")) for line in lines]
    return Group(*parts)


def render_findings(findings: Sequence[Finding]) -> Table:
    """One row per finding: its level and text, then its remedy."""
    table = Table.grid(padding=(0, 1))
    table.add_column(width=7)
    for finding in findings:
        where = "" if finding.index is None else f" (first: transition {finding.index:,})"
        table.add_row(
            Text(finding.level.value, STYLES[finding.level]),
            Text(printable(f"{finding.name}: {finding.found}{where}")),
        )
        if finding.remedy:
            table.add_row("", Text(printable(f"→ {finding.remedy}"), style="dim"))
    return table


def _summary(report: DatasetReport) -> Table:
    episodes, fit = report.episodes, report.behaviour
    ends = f"{episodes.num_terminated:,} terminated, {episodes.num_truncated:,} truncated"
    if episodes.num_unflagged:
        ends += f", {episodes.num_unflagged:,} without an end flag"
    rows = {
        "transitions": f"{report.num_transitions:,} ({report.num_bytes / 2**20:,.1f} MiB)",
        "observations": report.shapes["obs"],
        "actions": report.shapes["actions"],
        "episodes": f"{episodes.count:,}: {ends}",
        "lengths": _quartiles(episodes.lengths),
        "returns": _quartiles(episodes.returns),
        "rewards": _quartiles(report.rewards),
    }
    if fit is not None:
        baseline = f" (most frequent action: {fit.baseline:.2f})" if fit.baseline else ""
        rows["behaviour"] = (
            f"actions predicted from observations with {fit.measure} {fit.value:.2f}{baseline}"
        )
    table = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        table.add_row(Text(name, style="dim"), Text(printable(value)))
    return table


def _quartiles(summary: Summary) -> str:
    return (
        f"{summary.minimum:,.4g} to {summary.maximum:,.4g}, median {summary.median:,.4g}"
        f" (quartiles {summary.q25:,.4g} and {summary.q75:,.4g})"
    )


def _histogram(report: DatasetReport) -> Table:
    table = Table.grid(padding=(0, 1))
    for justify in ("right", "right", "left", "right"):
        table.add_column(justify=justify)
    bins = report.episodes.histogram
    most = max(part.count for part in bins)
    for part in bins:
        bar = Bar(most, 0, part.count, width=BAR_WIDTH, color="green")
        table.add_row(f"{part.low:,.4g}", f"– {part.high:,.4g}", bar, f"{part.count:,}")
    return table


def _verdict(report: DatasetReport) -> str:
    counts = Counter(finding.level for finding in report.findings)
    words = [
        f"{counts[level]} {level.value}{'s' if counts[level] > 1 else ''}"
        for level in (Level.ERROR, Level.WARNING)
        if counts[level]
    ]
    end = "" if report.is_thorough else " in a quick check"
    return ", ".join(words) or f"no faults found{end}"


PACKAGES = (
    "rl-training",
    "torch",
    "gymnasium",
    "numpy",
    "mujoco",
    "ale-py",
    "box2d",
    "gymnasium-robotics",
    "envpool",
    "minari",
    "matplotlib",
)


def print_report(report: EnvReport) -> None:
    """Print the findings, each with its remedy."""
    if sys.stdout.isatty():
        title = Text(printable(report.env_id), style="italic")
        Console().print(title, render_findings(report.findings), sep="\n")
    else:
        for row in report.findings:
            remedy = f" [remedy: {row.remedy}]" if row.remedy else ""
            print(printable(f"{row.level.value:<8} {row.name:<12} {row.found}{remedy}"))
    print(f"exactness={report.exactness}")


def describe_machine() -> dict[str, str]:
    """Versions of the packages, processors, memory, compiler and device."""
    import torch

    available = available_memory()
    compiler = "found"
    if not has_compiler():
        compiler = "none: torch.compile cannot be used (install g++ or clang++)"
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        **dict.fromkeys(PACKAGES, "not installed"),
        **installed_versions(PACKAGES),
        "processors": f"{os.cpu_count()}, of which torch uses {torch.get_num_threads()} by default",
        "memory": "unknown" if available is None else f"{available / 1e9:,.1f} GB free",
        "compiler": compiler,
        "device": str(resolve_device("auto")),
    }
