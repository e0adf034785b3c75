"""The sections of a page in their order, from what the runs have logged; those of comparisons and films."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
    chosen,
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
    facts_of,
    finite,
    step_unit,
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
NUMBERS = ("margin", "look", "difference", "p_value", "prob_a_beats_b")
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


def comparison_section(run_dirs: Iterable[Path]) -> Section | None:
    """The comparisons stored around the runs whose runs are all on the page, planned ones first; None without any."""
    dirs = [run_dir.resolve() for run_dir in run_dirs]
    names = {run_dir.name for run_dir in dirs}
    places = dict.fromkeys(
        place for run_dir in dirs for place in (run_dir.parent, run_dir.parent.parent)
    )
    files = dict.fromkeys(
        path
        for place in places
        for path in sorted((place / COMPARISONS).glob(f"*/{COMPARISON_FILE}"))
    )
    found = [values for path in files for values in _read_comparisons(path, names)]
    if not found:
        return None
    found.sort(key=lambda values: values["planned"] is not True)
    table = Table(
        "Stored comparisons", COMPARISON_COLUMNS, [_comparison_row(values) for values in found], 5
    )
    return Section("comparisons", "Comparisons", [*_sentences(found), table])


def _read_comparisons(path: Path, names: set[str]) -> list[dict[str, Any]]:
    """The comparison in a file, or all pairs of one of several arms; nothing of a damaged file."""
    stored: Any = None
    with contextlib.suppress(CheckpointError, OSError, ValueError, RecursionError):
        stored = json.loads(read_limited(path, MAX_COMPARISON_BYTES))
    pairs = stored.get("pairs", [stored]) if isinstance(stored, Mapping) else []
    found = []
    for pair in pairs if isinstance(pairs, list) else []:
        runs = pair.get("runs") if isinstance(pair, Mapping) else None
        if (
            isinstance(runs, list)
            and runs
            and all(isinstance(run, str) and Path(run).name in names for run in runs)
        ):
            found.append(_checked_comparison({**stored, **pair}, path.parent.name))
    return found


def _checked_comparison(stored: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The values of one comparison with the types that they should have."""
    values: dict[str, Any] = {
        "name": name,
        "planned": stored.get("planned") if stored.get("planned") in (True, False) else None,
    }
    for key, missing in TEXTS.items():
        values[key] = stored[key] if isinstance(stored.get(key), str) else missing
    values |= {key: finite(stored.get(key)) for key in NUMBERS}
    if values["verdict"] not in VERDICTS:
        values["verdict"] = "undecided"
    better = {"a_better": values["a"], "b_better": values["b"]}.get(values["verdict"])
    values["in_words"] = values["verdict"] if better is None else f"{better} is better"
    ends = stored.get("interval")
    values["interval"] = ""
    if isinstance(ends, list) and len(ends) == 2:
        values["interval"] = f"[{number(finite(ends[0]), '-∞')}, {number(finite(ends[1]), '∞')}]"
    return values


def _comparison_row(values: Mapping[str, Any]) -> Sequence[Cell]:
    looks = {True: "planned", False: "ad hoc", None: "–"}[values["planned"]]
    if values["planned"] and values["look"] is not None:
        looks += f", look {values['look']:g}"
    lower = "lower is better" if values["mode"] == "min" else ""
    margin = "" if values["margin"] is None else f"margin {number(values['margin'])}"
    return [
        values["name"],
        f"{values['a']} and {values['b']}",
        {"text": values["in_words"], "is_marked": values["verdict"] != "undecided"},
        looks,
        ", ".join(filter(None, (values["measure"], lower, margin))),
        number(values["difference"]),
        values["interval"],
        number(values["p_value"]),
        number(values["prob_a_beats_b"]),
    ]


def _sentences(found: Sequence[Mapping[str, Any]]) -> list[Text]:
    """What the comparisons say beyond their verdicts; where one of the arms was planned, ad-hoc ones say nothing."""
    planned = {frozenset((values["a"], values["b"])) for values in found if values["planned"]}
    texts = []
    for values in found:
        is_told = values["planned"] or frozenset((values["a"], values["b"])) not in planned
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
            data = _read_small(path, min(room, MAX_EMBEDDED_BYTES))
            room -= len(data)
            blocks.append(_block(run, path, data, page_dir))
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


def _read_small(path: Path, max_bytes: int) -> bytes:
    """The content of a film of at most `max_bytes`; of a larger or unreadable one nothing."""
    with contextlib.suppress(CheckpointError, OSError):
        return read_limited(path, max_bytes)
    return b""


def _block(run: RunFacts, path: Path, data: bytes, page_dir: Path) -> Film:
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
        return runs_of(self.groups)

    def sections(self) -> list[Section]:
        """The sections that have content."""
        comparisons = comparison_section(run.record.run_dir for run in self.runs)
        charts = [
            final_scores(self.groups),
            *([] if self.page_dir is None else [film_section(self.runs, self.page_dir)]),
            Section("episodes", "Episodes", self._plots(EPISODES)),
            Section(
                "health", "Health of learning", [*offline_blocks(self.groups), *self._plots(HEALTH)]
            ),
            Section("speed", "Speed", [*self._plots(SPEED), *speed_blocks(self.groups)]),
            Section("other", "Other metrics", self._other_plots()),
        ]
        last = [event_section(self.groups), configuration(self.groups), provenance(self.groups)]
        first = [
            overview(self.groups),
            Section("learning", "Learning curves", self._plots(LEARNING)),
        ]
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
                found.append(
                    Plot(
                        chart.metric, table_of(chart.metric), index, title, note, reference, levels
                    )
                )
                note = ""  # beside the first of them
        return found

    def _levels(self, facet: int) -> list[tuple[float, str]]:
        """The mean return of the datasets that the runs of a facet learn from."""
        runs = [run for run in self.runs if self.facet_of[run.group] == facet]
        returns = [
            value for run in runs if (value := finite(run.dataset.get("return_mean"))) is not None
        ]
        return (
            [(statistics.fmean(returns), f"data {number(statistics.fmean(returns))}")]
            if returns
            else []
        )

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
                {
                    "name": group.group.name,
                    "facet": self.facet_of[group.index],
                    "runs": len(group.runs),
                }
                for group in self.groups
            ],
            "facets": [
                {"env": facet.env, "unit": facet.unit, "marks": list(facet.marks)}
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
    runs = facts_of(groups, logged)
    members = [
        GroupFacts(index, group, [run for run in runs if run.group == index])
        for index, group in enumerate(groups)
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
        Facet(env, unit, f"{env} ({KINDS[unit]})" if envs[env] > 1 else env, marks)
        for (env, unit), marks in facets.items()
    ]
    return PageFacts(_title(members), members, found, facet_of, words, page_dir)


def _unit(runs: Sequence[RunFacts]) -> str:
    """What the steps of a group count: of runs of which some went online, both."""
    units = {run.unit for run in runs}
    return next((unit for unit in KINDS if unit in units), ONLINE)


def _marks(run: RunFacts) -> list[tuple[int, str]]:
    first = step_unit(run.record)[1]
    return [] if first is None else [(first, "online from here")]


def _title(groups: Sequence[GroupFacts]) -> str:
    algos = dict.fromkeys(group.algo for group in groups)
    envs = dict.fromkeys(group.env for group in groups)
    names = [
        ", ".join([*list(words)[:3], *(["…"] if len(words) > 3 else [])]) for words in (algos, envs)
    ]
    studies = {group.group.study for group in groups}
    study = next(iter(studies)) if len(studies) == 1 else None
    start = "" if study is None else f"{study.resolve().name}: "
    return f"{start}{names[0].upper()} on {names[1]}" if groups else "No runs"
