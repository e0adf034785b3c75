"""The sections of a page in their order, from what the runs have logged; those of comparisons and films."""

from __future__ import annotations

import base64
import contextlib
import os
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rl_training.errors import CheckpointError
from rl_training.files import read_limited
from rl_training.studies.groups import RunGroup
from rl_training.views.report.blocks import (
    EPISODES,
    HEALTH,
    LEARNING,
    SPEED,
    Block,
    Cell,
    Chart,
    Film,
    Fold,
    Plot,
    Section,
    Table,
    Text,
    finite,
    number,
    others,
    table_of,
)
from rl_training.views.report.data import (
    FIRST_OFFLINE,
    OFFLINE,
    ONLINE,
    UNKNOWN,
    Logged,
    RunFacts,
    mapping,
    read_object,
)
from rl_training.views.report.history import (
    commands,
    configuration,
    event_section,
    provenance,
    speed_blocks,
)
from rl_training.views.report.summary import (
    GroupFacts,
    final_scores,
    offline_blocks,
    overview,
    runs_of,
)

MAX_COMPARISON_BYTES = 1 << 22
COMPARISONS, COMPARISON_FILE = "comparisons", "comparison.json"
VERDICTS = ("a_better", "b_better", "equivalent", "undecided")
TEXTS = {"a": "a", "b": "b", "verdict": "undecided", "sentence": "", "measure": "", "mode": ""}
"""Texts of a stored comparison, and what stands for a missing one."""
KINDS = {
    FIRST_OFFLINE: "offline, then online",
    OFFLINE: "offline",
    UNKNOWN: "online",
    ONLINE: "online",
}
"""Runs by what their steps count."""
COMPARISON_COLUMNS = [
    "comparison",
    "a and b",
    "verdict",
    "looks",
    "measure",
    "a − b",
    "interval",
    "p-value",
    "P(a > b)",
]
FILMS = "video"
"""Where `rl-training video RUN` writes."""
MEDIA = {".mp4": "video/mp4", ".gif": "image/gif"}
MAX_EMBEDDED_BYTES = 2_000_000
"""A larger film is linked."""
MAX_BYTES_OF_ALL = 8_000_000
"""Films are linked if those before them fill so much of the page."""
FILMS_OF_A_RUN = 3
"""The newest ones are shown."""


def comparison_section(run_dirs: Iterable[Path]) -> Section:
    """The comparisons stored around the runs whose runs are all on the page, planned ones first."""
    dirs = [run_dir.resolve() for run_dir in run_dirs]
    names = {run_dir.name for run_dir in dirs}
    places = dict.fromkeys(place for run_dir in dirs for place in run_dir.parents[:2])
    found: list[Mapping[str, Any]] = []
    for place in places:
        for path in sorted((place / COMPARISONS).glob(f"*/{COMPARISON_FILE}")):
            found += _read_comparisons(path, names)
    found.sort(key=lambda values: values["planned"] is not True)
    rows = [_comparison_row(values) for values in found]
    table = Table("Stored comparisons", COMPARISON_COLUMNS, rows, 5)
    return Section("comparisons", "Comparisons", [*_sentences(found), table] if found else [])


def _read_comparisons(path: Path, names: set[str]) -> list[Mapping[str, Any]]:
    """The comparison in a file, or all pairs of one of several arms; nothing of a damaged file."""
    stored = read_object(path, MAX_COMPARISON_BYTES)
    pairs = stored.get("pairs", [stored])
    found = []
    for pair in map(mapping, pairs if isinstance(pairs, list) else []):
        runs = pair.get("runs")
        if isinstance(runs, list) and runs and all(_is_among(run, names) for run in runs):
            found.append(_checked_comparison({**stored, **pair}, path.parent.name))
    return found


def _is_among(run: Any, names: set[str]) -> bool:
    return isinstance(run, str) and Path(run).name in names


def _checked_comparison(stored: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The values of one comparison, with texts where there should be texts."""
    values = {**stored, "name": name}
    for key, missing in TEXTS.items():
        values[key] = stored[key] if isinstance(stored.get(key), str) else missing
    if not isinstance(stored.get("planned"), bool):
        values["planned"] = None
    if values["verdict"] not in VERDICTS:
        values["verdict"] = "undecided"
    better = {"a_better": values["a"], "b_better": values["b"]}.get(values["verdict"])
    values["in_words"] = values["verdict"] if better is None else f"{better} is better"
    return values


def _comparison_row(values: Mapping[str, Any]) -> Sequence[Cell]:
    looks = {True: "planned", False: "ad hoc", None: "–"}[values["planned"]]
    look, ends = finite(values.get("look")), values.get("interval")
    if values["planned"] and look is not None:
        looks += f", look {look:g}"
    measure = [values["measure"]] if values["measure"] else []
    if values["mode"] == "min":
        measure.append("lower is better")
    if finite(values.get("margin")) is not None:
        measure.append(f"margin {number(values['margin'])}")
    interval = ""
    if isinstance(ends, list) and len(ends) == 2:
        interval = f"[{number(ends[0], '-∞')}, {number(ends[1], '∞')}]"
    return [
        values["name"],
        f"{values['a']} and {values['b']}",
        {"text": values["in_words"], "is_marked": values["verdict"] != "undecided"},
        looks,
        ", ".join(measure),
        number(values.get("difference")),
        interval,
        number(values.get("p_value")),
        number(values.get("prob_a_beats_b")),
    ]


def _sentences(found: Sequence[Mapping[str, Any]]) -> list[Text]:
    """What the comparisons say beyond their verdicts; where one of the arms was planned, ad-hoc ones say nothing."""
    planned = [{values["a"], values["b"]} for values in found if values["planned"]]
    texts = []
    for values in found:
        is_told = values["planned"] or {values["a"], values["b"]} not in planned
        if is_told and values["sentence"] not in ("", values["in_words"]):
            texts.append(
                Text(f"{values['a']} and {values['b']} ({values['name']}): {values['sentence']}")
            )
    return texts


def film_section(runs: Sequence[RunFacts], page_dir: Path) -> Section:
    """The films of the runs, for a page that is written into `page_dir`."""
    blocks: list[Film] = []
    room = MAX_BYTES_OF_ALL
    for run in runs:
        for path in find_films(run.record.run_dir):
            data = b""
            with contextlib.suppress(CheckpointError, OSError):  # too large, or unreadable
                data = read_limited(path, min(room, MAX_EMBEDDED_BYTES))
            room -= len(data)
            blocks.append(_film(run, path, data, page_dir))
    return Section("films", "Films", blocks)


def find_films(run_dir: Path) -> list[Path]:
    """The films of a run, newest first; links are left out."""
    folder = run_dir / FILMS
    found = []
    with contextlib.suppress(OSError):
        if not folder.is_symlink():
            for path in sorted(folder.iterdir()):
                if path.suffix.lower() in MEDIA and path.is_file() and not path.is_symlink():
                    found.append((path.stat().st_mtime, path))
    return [path for _, path in sorted(found, reverse=True)[:FILMS_OF_A_RUN]]


def _film(run: RunFacts, path: Path, data: bytes, page_dir: Path) -> Film:
    kind = MEDIA[path.suffix.lower()]
    # A colon is quoted too: no name of a folder can make the address one of another scheme.
    link = quote(os.path.relpath(path, page_dir).replace(os.sep, "/"), errors="replace")
    source = f"data:{kind};base64,{base64.b64encode(data).decode()}" if data else ""
    size = ""
    with contextlib.suppress(OSError):
        size = f"{path.stat().st_size / 1000:,.0f} kB"
    return Film(run.group, f"{run.label}: {path.name}", size, kind, source, link)


@dataclass(frozen=True)
class Facet:
    """Groups of runs that can share axes: one environment, and steps of one kind."""

    env: str
    unit: str
    """What the steps count."""
    groups: Sequence[GroupFacts]
    name: str
    """The environment, and whether the runs are offline where others are not."""

    @property
    def runs(self) -> list[RunFacts]:
        """The runs of its groups."""
        return runs_of(self.groups)

    @cached_property
    def logged(self) -> set[str]:
        """Metrics that a run has logged."""
        return {name for run in self.runs for name in run.logged.names}

    @property
    def marks(self) -> list[tuple[int, str]]:
        """Steps that charts mark, with a word."""
        places = dict.fromkeys(run.steps[1] for run in self.runs)
        return [(place, "online from here") for place in places if place is not None]

    @property
    def levels(self) -> list[tuple[float, str]]:
        """The mean return of the datasets that the runs learn from, with a word."""
        returns = [finite(run.dataset.get("return_mean")) for run in self.runs]
        known = [value for value in returns if value is not None]
        if not known:
            return []
        mean = statistics.fmean(known)
        return [(mean, f"data {number(mean)}")]


@dataclass(frozen=True)
class PageFacts:
    """Everything on a page except the curves."""

    title: str
    groups: Sequence[GroupFacts]
    facets: Sequence[Facet]
    words: Sequence[str]
    page_dir: Path | None = None
    """Folder of the page's file, from which films are linked; None for a live page, which shows none."""

    @property
    def runs(self) -> list[RunFacts]:
        """All runs, in the order of the groups."""
        return runs_of(self.groups)

    def sections(self) -> list[Section]:
        """The sections that have content."""
        groups, page_dir = self.groups, self.page_dir
        first = [
            overview(groups),
            Section("learning", "Learning curves", self._plots(LEARNING)),
        ]
        if len(groups) > 1:
            first.reverse()  # the curves are on the first screen, whatever the table's length
        health = [*offline_blocks(groups), *self._plots(HEALTH)]
        found = [
            *first,
            comparison_section(run.record.run_dir for run in self.runs),
            final_scores(groups),
            *([] if page_dir is None else [film_section(self.runs, page_dir)]),
            Section("episodes", "Episodes", self._plots(EPISODES)),
            Section("health", "Health of learning", health),
            Section("speed", "Speed", [*self._plots(SPEED), *speed_blocks(groups)]),
            Section("other", "Other metrics", self._other_plots()),
            event_section(groups),
            configuration(groups),
            provenance(groups),
            commands(groups, self.words),
        ]
        return [section for section in found if section.blocks]

    def _plots(self, charts: Iterable[Chart]) -> list[Plot]:
        """A plot for each metric and facet in which it was logged."""
        found = []
        for chart in charts:
            note = chart.note
            for index, facet in enumerate(self.facets):
                if chart.metric not in facet.logged:
                    continue
                title = f"{chart.title}, {facet.name}" if len(self.facets) > 1 else chart.title
                reference = chart.reference if chart.reference in facet.logged else None
                levels = facet.levels if chart.metric == "eval_return_mean" else []
                found.append(
                    Plot(
                        chart.metric, table_of(chart.metric), index, title, note, reference, levels
                    )
                )
                note = ""  # beside the first of them
        return found

    def _other_plots(self) -> list[Block]:
        plots = self._plots(others(name for facet in self.facets for name in facet.logged))
        title = f"{len(plots)} charts of metrics without a section of their own"
        return [Fold(title, [plot.as_dict() for plot in plots])] if plots else []

    def as_dict(self) -> dict[str, Any]:
        """Groups, facets and runs, for the page."""
        place = {
            group.index: place for place, facet in enumerate(self.facets) for group in facet.groups
        }
        return {
            "title": self.title,
            "groups": [
                {
                    "name": group.group.name,
                    "facet": place[group.index],
                    "runs": len(group.runs),
                }
                for group in self.groups
            ],
            "facets": [
                {"env": facet.env, "unit": facet.unit, "marks": facet.marks}
                for facet in self.facets
            ],
            "runs": [
                {
                    "name": run.info.name,
                    "label": run.label,
                    "group": run.group,
                    "state": run.info.state,
                }
                for run in self.runs
            ],
        }


def page_facts(
    groups: Sequence[RunGroup],
    logged: Mapping[Path, Logged],
    words: Sequence[str],
    page_dir: Path | None = None,
) -> PageFacts:
    """The facts of the runs in `groups`; `logged` has what their log files hold, by run folder."""
    found = []
    for index, group in enumerate(groups):
        name = group.name if len(groups) > 1 else ""
        runs = [RunFacts(run, index, logged[run.run_dir], name) for run in group.runs]
        found.append(GroupFacts(index, group, runs))
    members: dict[tuple[str, str], list[GroupFacts]] = {}
    for facts in found:
        members.setdefault((facts.env, _unit(facts.runs)), []).append(facts)
    envs = Counter(env for env, _ in members)
    facets = [
        Facet(env, unit, sharing, f"{env} ({KINDS[unit]})" if envs[env] > 1 else env)
        for (env, unit), sharing in members.items()
    ]
    return PageFacts(_title(found), found, facets, words, page_dir)


def _unit(runs: Sequence[RunFacts]) -> str:
    """What the steps of a group count: of runs of which some went online, both."""
    units = {run.steps[0] for run in runs}
    return next((unit for unit in KINDS if unit in units), ONLINE)


def _title(groups: Sequence[GroupFacts]) -> str:
    if not groups:
        return "No runs"
    algos, envs = _listed(group.algo for group in groups), _listed(group.env for group in groups)
    studies = {group.group.study for group in groups}
    study = studies.pop() if len(studies) == 1 else None
    start = "" if study is None else f"{study.resolve().name}: "
    return f"{start}{algos.upper()} on {envs}"


def _listed(words: Iterable[str]) -> str:
    """The different words; of more than three, the first three."""
    known = list(dict.fromkeys(words))
    return ", ".join([*known[:3], "…"] if len(known) > 3 else known)
