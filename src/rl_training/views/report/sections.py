"""The sections of a page in their order, from what the runs have logged."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.studies.groups import RunGroup
from rl_training.views.report.blocks import Block, Fold, Plot, Section, number
from rl_training.views.report.charts import EPISODES, HEALTH, LEARNING, SPEED, Chart, chosen, others, table_of
from rl_training.views.report.comparisons import comparison_section, find_comparisons
from rl_training.views.report.data import Logged, RunFacts, facts_of
from rl_training.views.report.films import film_section
from rl_training.views.report.history import commands, configuration, event_section, provenance, speed_blocks
from rl_training.views.report.lines import finite
from rl_training.views.report.summary import GroupFacts, final_scores, offline_blocks, overview

OFFLINE_UNIT, ONLINE_UNIT = "updates", "environment steps"


@dataclass(frozen=True)
class Facet:
    """Runs that can share axes: one environment, and steps of one kind."""

    env: str
    unit: str
    """What the steps count."""
    name: str
    """The environment, and whether the runs are offline where others are not."""
    marks: Sequence[tuple[int, str]]
    """Steps that charts mark, with a word."""


@dataclass(frozen=True)
class PageFacts:
    """Everything on a page except the curves."""

    title: str
    groups: Sequence[GroupFacts]
    facets: Sequence[Facet]
    facet_of: Mapping[int, int]
    """Facet of each group, by their indices."""
    words: Sequence[str]
    page_dir: Path | None = None
    """Folder of the page's file, from which films are linked; None for a live page, which shows none."""

    @property
    def runs(self) -> list[RunFacts]:
        """All runs, in the order of the groups."""
        return [run for group in self.groups for run in group.runs]

    def sections(self) -> list[Section]:
        """The sections that have content."""
        comparisons = comparison_section(find_comparisons(run.record.run_dir for run in self.runs))
        charts = [
            final_scores(self.groups),
            *([] if self.page_dir is None else [film_section(self.runs, self.page_dir)]),
            Section("episodes", "Episodes", self._plots(EPISODES)),
            Section("health", "Health of learning", [*offline_blocks(self.groups), *self._plots(HEALTH)]),
            Section("speed", "Speed", [*self._plots(SPEED), *speed_blocks(self.groups)]),
            Section("other", "Other metrics", self._other_plots()),
        ]
        last = [event_section(self.groups), configuration(self.groups), provenance(self.groups)]
        first = [overview(self.groups), Section("learning", "Learning curves", self._plots(LEARNING))]
        if len(self.groups) > 1:
            first.reverse()  # the curves are on the first screen, whatever the table's length
        compared = [comparisons] if comparisons else []
        found = [*first, *compared, *charts, *last, commands(self.groups, self.words)]
        return [section for section in found if section.blocks]

    def _plots(self, charts: Iterable[Chart]) -> list[Plot]:
        """A plot for each metric and facet in which it was logged."""
        found = []
        for chart in charts:
            note = chart.note
            for index, facet in enumerate(self.facets):
                logged = self._logged(index)
                if not chosen([chart], logged):
                    continue
                title = f"{chart.title}, {facet.name}" if len(self.facets) > 1 else chart.title
                reference = chart.reference if chart.reference in logged else None
                levels = self._levels(index) if chart.metric == "eval_return_mean" else []
                found.append(Plot(chart.metric, table_of(chart.metric), index, title, note, reference, levels))
                note = ""  # beside the first of them
        return found

    def _levels(self, facet: int) -> list[tuple[float, str]]:
        """The mean return of the datasets that the runs of a facet learn from."""
        runs = [run for run in self.runs if self.facet_of[run.group] == facet]
        returns = [value for run in runs if (value := finite(run.dataset.get("return_mean"))) is not None]
        return [(statistics.fmean(returns), f"data {number(statistics.fmean(returns))}")] if returns else []

    def _other_plots(self) -> list[Block]:
        logged = {name for index in range(len(self.facets)) for name in self._logged(index)}
        plots = self._plots(others(logged))
        title = f"{len(plots)} charts of metrics without a section of their own"
        return [Fold(title, [plot.as_dict() for plot in plots])] if plots else []

    def _logged(self, facet: int) -> set[str]:
        runs = [run for run in self.runs if self.facet_of[run.group] == facet]
        return {name for run in runs for name in run.logged.names}

    def as_dict(self) -> dict[str, Any]:
        """Groups, facets and runs, for the page."""
        return {
            "title": self.title,
            "groups": [
                {"name": group.group.name, "facet": self.facet_of[group.index], "runs": len(group.runs)}
                for group in self.groups
            ],
            "facets": [{"env": facet.env, "unit": facet.unit, "marks": list(facet.marks)} for facet in self.facets],
            "runs": [
                {"name": run.info.name, "label": run.label, "group": run.group, "state": run.info.state}
                for run in self.runs
            ],
        }


def page_facts(
    groups: Sequence[RunGroup], logged: Mapping[Path, Logged], words: Sequence[str], page_dir: Path | None = None
) -> PageFacts:
    """The facts of the runs in `groups`; `logged` has what their log files hold, by run folder."""
    runs = facts_of(groups, logged)
    members = [
        GroupFacts(index, group, [run for run in runs if run.group == index]) for index, group in enumerate(groups)
    ]
    facets: dict[tuple[str, str], list[tuple[int, str]]] = {}
    facet_of = {}
    for group in members:
        key = (group.env, _unit(group.runs))
        marks = facets.setdefault(key, [])
        marks += [mark for run in group.runs for mark in _marks(run) if mark not in marks]
        facet_of[group.index] = list(facets).index(key)
    envs = Counter(env for env, _ in facets)
    found = [
        Facet(env, unit, f"{env} ({_kind(unit)})" if envs[env] > 1 else env, marks)
        for (env, unit), marks in facets.items()
    ]
    return PageFacts(_title(members), members, found, facet_of, words, page_dir)


def _unit(runs: Sequence[RunFacts]) -> str:
    if any(run.online_from is not None for run in runs):
        return f"{OFFLINE_UNIT}, then {ONLINE_UNIT}"
    return OFFLINE_UNIT if any(run.is_offline for run in runs) else ONLINE_UNIT


def _kind(unit: str) -> str:
    return "offline" if unit == OFFLINE_UNIT else "online" if unit == ONLINE_UNIT else "offline, then online"


def _marks(run: RunFacts) -> list[tuple[int, str]]:
    return [] if run.online_from is None else [(run.online_from, "online from here")]


def _title(groups: Sequence[GroupFacts]) -> str:
    algos = dict.fromkeys(group.algo for group in groups)
    envs = dict.fromkeys(group.env for group in groups)
    names = [", ".join([*list(words)[:3], *(["…"] if len(words) > 3 else [])]) for words in (algos, envs)]
    studies = {group.group.study for group in groups}
    study = next(iter(studies)) if len(studies) == 1 else None
    start = "" if study is None else f"{study.resolve().name}: "
    return f"{start}{names[0].upper()} on {names[1]}" if groups else "No runs"
