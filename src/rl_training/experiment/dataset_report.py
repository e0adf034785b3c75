"""The data doctor's report for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rl_training.data.dataset_findings import Bin, DatasetReport, Finding, Level, Spread

STYLES = {Level.ERROR: "bold red", Level.WARNING: "yellow", Level.INFO: "cyan"}
BAR_WIDTH = 32
EIGHTHS = " ▏▎▍▌▋▊▉"


def render_report(report: DatasetReport) -> RenderableType:
    """Summary, histogram of the returns, findings with what to do, and advice."""
    parts: list[RenderableType] = [_summary(report)]
    if len(report.episodes.histogram) > 1:
        parts += [Text("\nreturns of the episodes", style="bold"), _histogram(report.episodes.histogram)]
    parts.append(Text(f"\n{_verdict(report)}", style="bold"))
    parts += [_finding(finding) for finding in report.findings]
    parts += _section("notes on reading", report.notes)
    parts += _section("advice", report.advice)
    return Group(*parts)


def _summary(report: DatasetReport) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    episodes = report.episodes
    endings = f"{episodes.num_terminated:,} terminated, {episodes.num_truncated:,} truncated"
    if episodes.num_unmarked:
        endings += f", {episodes.num_unmarked:,} without a mark"
    rows = {
        "transitions": f"{report.num_transitions:,} ({report.num_bytes / 2**20:,.1f} MiB)",
        "observations": report.shapes["obs"],
        "actions": report.shapes["actions"],
        "episodes": f"{episodes.count:,}: {endings}",
        "lengths": _spread(episodes.lengths),
        "returns": _spread(episodes.returns),
        "rewards": _spread(report.rewards),
    }
    if report.behaviour is not None:
        fit = report.behaviour
        guess = f" (guessing: {fit.baseline:.2f})" if fit.baseline else ""
        rows["behaviour"] = f"actions follow from observations with {fit.measure} {fit.value:.2f}{guess}"
    for name, value in rows.items():
        table.add_row(name, Text(value))
    return table


def _spread(spread: Spread) -> str:
    return (
        f"{spread.minimum:,.4g} to {spread.maximum:,.4g}, median {spread.median:,.4g}"
        f" (half between {spread.lower:,.4g} and {spread.upper:,.4g})"
    )


def _histogram(bins: tuple[Bin, ...]) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", style="dim")
    table.add_column(justify="right", style="dim")
    table.add_column(style="green")
    table.add_column(justify="right")
    most = max(part.count for part in bins)
    for part in bins:
        table.add_row(f"{part.low:,.4g}", f"– {part.high:,.4g}", _bar(part.count / most), f"{part.count:,}")
    return table


def _bar(share: float) -> str:
    eighths = round(share * BAR_WIDTH * 8)
    if share > 0:
        eighths = max(eighths, 1)
    return "█" * (eighths // 8) + (EIGHTHS[eighths % 8] if eighths % 8 else "")


def _verdict(report: DatasetReport) -> str:
    counts = {level: len(report.of_level(level)) for level in (Level.ERROR, Level.WARNING)}
    if not any(counts.values()):
        return "nothing wrong found" if report.is_thorough else "nothing wrong found at a quick look"
    return ", ".join(f"{n} {level.value}{'s' if n > 1 else ''}" for level, n in counts.items() if n)


def _finding(finding: Finding) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(width=7)
    table.add_column()
    where = "" if finding.index is None else f" (first: transition {finding.index:,})"
    table.add_row(Text(finding.level.value, STYLES[finding.level]), Text(f"{finding.name}: {finding.found}{where}"))
    table.add_row("", Text(f"→ {finding.remedy}", style="dim"))
    return table


def _section(title: str, lines: tuple[str, ...]) -> list[RenderableType]:
    if not lines:
        return []
    return [Text(f"\n{title}", style="bold"), *(Text(f"• {line}") for line in lines)]
