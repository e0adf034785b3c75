"""The report without a browser: what is in its file, which runs it survives, and what it does not overwrite."""

from __future__ import annotations

import json
import os
import re
import shlex
import statistics
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from conftest import small_config
from report_tools import HOSTILE, data_of, line, page_of, section, text_of, write_run

from rl_training.algorithms.config import AlgorithmConfig
from rl_training.cli import main
from rl_training.experiment.registry import list_algorithm_specs
from rl_training.runtime.run import run_training
from rl_training.studies.groups import find_groups
from rl_training.studies.statistics.summaries import summarize
from rl_training.views.report.data import DEFAULT_DISCOUNT, MAX_POINTS, Columns, discount, thin
from rl_training.views.report.page import write_report


def blocks_of(name: str, *paths: Path) -> list[dict[str, Any]]:
    """The blocks of a section on the page of some runs."""
    return section(data_of(page_of(*paths)), name)


def test_the_page_tells_what_a_trained_run_has_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [run_training(small_config("ppo", tmp_path, seed=seed)).run_dir for seed in (1, 2)]
    capsys.readouterr()
    assert main(["report", str(tmp_path), "--out", f"{tmp_path}/page.html", "--json"]) == 0
    path = tmp_path / "page.html"
    answer, data = json.loads(capsys.readouterr().out), data_of(path.read_text())
    assert answer == {"report": str(path), "runs": 2, "bytes": path.stat().st_size}
    verdict = section(data, "overview")[0]
    scores = []
    for run, found in zip(runs, data["runs"], strict=True):
        *_, last = (run / "evaluations.jsonl").read_text().splitlines()
        scores.append(statistics.fmean(json.loads(last)["returns"]))
        drawn = found["updates"]
        values = dict(zip(drawn["x"], drawn["y"]["approx_kl"], strict=True))
        for logged in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
            if "approx_kl" in logged:
                assert values[logged["global_step"]] == pytest.approx(logged["approx_kl"], rel=1e-4)
    summary = summarize(scores)
    assert verdict["facts"][:3] == ["PPO", "CartPole-v1", "seeds 1..2"]
    assert float(verdict["score"]) == pytest.approx(summary.value, abs=0.05)
    assert verdict["interval"].startswith(f"median [{summary.low:.2f}"[:11])
    assert verdict["exactness"] == "exact"
    health = [block["metric"] for block in section(data, "health")]
    assert health[:4] == ["approx_kl", "clip_fraction", "explained_variance", "entropy"]
    assert "collecting" in text_of(section(data, "speed"))


def test_reading_runs_imports_no_torch(tmp_path: Path) -> None:
    write_run(tmp_path, lines=[line(1, 2.0)])
    code = (
        "import sys; from rl_training.cli import main; assert main(['report', '.', '--out', 'page.html']) == 0;"
        "import rl_training.views.report.site; assert not {'torch', 'gymnasium', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)


class Elements(HTMLParser):
    """Counts elements and collects the addresses in attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [
            value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")
        ]


def test_hostile_names_stay_text_and_nothing_is_loaded(tmp_path: Path) -> None:
    # A folder's name has no slash; names inside of files may hold anything.
    write_run(
        tmp_path,
        HOSTILE.replace("/", "\u2028"),
        [line(1, 2.0, **{HOSTILE: 1.0})],
        algo=HOSTILE,
        env_id="\"'&`<b>é",
    )
    page = page_of(tmp_path)
    parser = Elements()
    parser.feed(page)
    assert not {"img", "b", "link", "iframe"} & set(parser.tags)
    assert parser.addresses == []
    assert parser.tags.count("script") == 5
    assert "\u2028" not in page
    inside = page.partition('id="data">')[2].partition("</script>\n")[0]
    assert json.loads(inside)["view"] == "report"
    assert not set("<>&") & set(inside)
    data = data_of(page)
    assert HOSTILE in data["runs"][0]["updates"]["y"]
    assert HOSTILE.upper() in data["title"]
    assert "onerror" not in re.sub(
        r'<script type="application/json".*?</script>', "", page, flags=re.DOTALL
    ).replace("&lt;/SCRIPT&gt;&lt;IMG SRC=X ONERROR=HACKED=1&gt;", "")


def test_damaged_files_and_missing_values_are_survived(tmp_path: Path) -> None:
    run = write_run(tmp_path, "damaged", [line(1, 2.0, entropy=0.5)])
    with (run / "metrics.jsonl").open("a") as file:
        file.write(
            '{"global_step": 2, "entropy": NaN, "eval_return_mean": null}\nnot json\n[1]\n{"entropy": 1}\n'
        )
        file.write(
            '{"global_step": 3, "entropy": 1e999, "other": "text", "big": 1%s}\n' % ("0" * 400)
        )
        file.write('{"global_step": 4, "entropy": 0.25}\n{"global_step": 5, "entr')
    (run / "evaluations.jsonl").write_text("nonsense\n")
    (run / "timing.jsonl").mkdir()
    (write_run(tmp_path, "less", seed=3) / "metrics.jsonl").write_text("not json\n")
    write_run(tmp_path, "silent", seed=1)
    empty = write_run(tmp_path, "empty", seed=2, status=7, versions=[], command="x", exactness=None)
    (empty / "config.yaml").write_text("]")
    data = data_of(page_of(tmp_path))
    (found,) = [run for run in data["runs"] if run["name"] == "damaged"]
    assert found["updates"] == {"x": [1, 2, 3, 4], "y": {"entropy": [0.5, None, None, 0.25]}}
    events = text_of(section(data, "events"))
    for text in ("3 damaged lines", "1 damaged line of its log files is left out", "dead"):
        assert text in events
    assert "big" not in text_of(data)


def test_names_that_are_no_utf8_are_replaced(tmp_path: Path) -> None:
    name = os.fsdecode(b"odd\xff")
    run = write_run(tmp_path, name, [line(1, 2.0)], algo="\ud800", env_id="x\udfff")
    (run / "config.yaml").write_text("")
    assert data_of(page_of(tmp_path))["runs"][0]["name"] == "odd?"


def test_a_run_without_any_metrics_has_no_empty_charts(tmp_path: Path) -> None:
    run = write_run(tmp_path, "silent")
    (run / "metrics.jsonl").unlink()
    data = data_of(page_of(run))
    blocks = [block for found in data["sections"] for block in found["blocks"]]
    assert "plot" not in {block["kind"] for block in blocks}
    assert section(data, "overview")[0]["score"] == "no evaluation yet"


def test_states_reasons_and_resumes_are_events(tmp_path: Path) -> None:
    reason, early = "loss is not finite", "early stopping: no gain in 3 evaluations"
    failed = write_run(tmp_path, "failed", status="failed", stop_reason=reason, ended="2026-01-02")
    (failed / "run.log").write_text(
        "2026-01-02T00:00:00+00:00 INFO created: ppo\n2026-01-02T00:00:01+00:00 INFO resumed at step 50 of 100\n"
        f"2026-01-02T00:00:02+00:00 ERROR failed: {reason}\nTraceback (most recent call last):\n"
    )
    write_run(tmp_path, "stopped", seed=1, status="stopped", stop_reason=early)
    write_run(tmp_path, "dead", seed=2, status="running")
    data = data_of(page_of(tmp_path))
    events = text_of(section(data, "events"))
    for words in ("resumed at step 50", reason, early, "dead: no process"):
        assert words in events
    assert "Traceback" not in events
    assert "1 failed" in text_of(section(data, "overview"))


def test_groups_of_other_environments_get_charts_of_their_own(tmp_path: Path) -> None:
    write_run(tmp_path, "a", [line(1, 2.0)])
    write_run(tmp_path, "b", [line(1, 3.0)], algo="dqn")
    write_run(tmp_path, "c", [line(1, -3.0)], algo="sac", env_id="Pendulum-v1")
    data = data_of(page_of(tmp_path))
    assert [facet["env"] for facet in data["facets"]] == ["CartPole-v1", "Pendulum-v1"]
    titles = [block["title"] for block in section(data, "learning")]
    assert titles == ["Evaluation return, CartPole-v1", "Evaluation return, Pendulum-v1"]
    (table,) = section(data, "overview")
    assert len(table["rows"]) == 3


def test_offline_steps_are_updates_and_the_online_start_is_marked(tmp_path: Path) -> None:
    data: dict[str, Any] = {"dataset_kind": "random"}
    tuned = {**data, "online": {"after_updates": 60}}
    for algo, kwargs in (("iql", tuned), ("bc", data)):
        lines = [line(1, 2.0), line(90, 3.0)]
        write_run(tmp_path, algo, lines, algo=algo, env_id="Pendulum-v1", algo_kwargs=kwargs)
    facets = {facet["unit"]: facet["marks"] for facet in data_of(page_of(tmp_path))["facets"]}
    assert facets == {"updates": [], "updates, then environment steps": [[60, "online from here"]]}


def test_offline_runs_are_set_against_their_data_and_estimates(tmp_path: Path) -> None:
    run = run_training(small_config("iql", tmp_path / "runs")).run_dir
    facts = json.loads((run / "metadata.json").read_text())["dataset"]
    assert facts["transitions"] == 300
    # Pendulum's rewards are costs.
    assert facts["return_min"] <= facts["return_mean"] <= facts["return_max"] <= 0
    estimate = {"fqe_return_low": -20, "fqe_return_high": -5.0, "fqe_converged": True}
    (run / "fqe.json").write_text(json.dumps({"fqe_return_mean": -12.5, **estimate}))
    data = data_of(page_of(run))
    table = section(data, "health")[0]
    cells = dict(zip(table["columns"], table["rows"][0], strict=True))
    names = ("FQE", "95 % interval", "converged")
    assert [cells[name] for name in names] == ["-12.50", "[-20.00, -5.00]", "yes"]
    mean = float(cells["data: mean"].replace(",", ""))
    assert mean == pytest.approx(facts["return_mean"], abs=0.06)
    (level,) = section(data, "learning")[0]["levels"]
    assert level[0] == pytest.approx(facts["return_mean"])


def test_what_differs_from_the_preset_is_listed(tmp_path: Path) -> None:
    run = write_run(tmp_path, "run", algo_kwargs={"gamma": 0.5, "num_steps": 32})
    table, _ = blocks_of("configuration", run)
    assert table["caption"].endswith("ppo/cartpole")
    rows = {row[0]: row[1:] for row in table["rows"]}
    assert rows["algo_kwargs.gamma"] == ["0.5", "0.98"]
    assert "algo_kwargs.num_steps" not in rows  # as in the preset


def test_commands_are_quoted_for_a_shell(tmp_path: Path) -> None:
    command = ["rl-training", "train", "ppo", "CartPole-v1", "env_kwargs.name=a b; rm -rf $HOME'"]
    run = write_run(tmp_path, "my run", command=command)
    lines = [text for block in blocks_of("commands", run) for text in block["lines"]]
    assert shlex.split(lines[0]) == command
    assert shlex.split(lines[1]) == ["rl-training", "train", "--config", str(run / "config.yaml")]


def store_comparisons(folder: Path, **comparisons: Any) -> None:
    """Store comparisons beside two runs, `a0` and `b0`."""
    for name in ("a0", "b0"):
        write_run(folder, name, [line(1, 2.0)])
    for name, values in comparisons.items():
        (folder / "comparisons" / name / "extra").mkdir(parents=True)
        (folder / "comparisons" / name / "comparison.json").write_text(json.dumps(values))


def test_stored_comparisons_of_the_runs_are_shown(tmp_path: Path) -> None:
    good = {"verdict": "a_better", "sentence": "a is better than b.", "a": "a", "b": "b"}
    pair = {"verdict": "b_better", "a": "c", "b": "d", "runs": ["a0", "b0"]}
    store_comparisons(
        tmp_path,
        good={**good, "runs": ["a0", "b0"]},
        other={**good, "sentence": "of other runs", "runs": ["a0", "elsewhere"]},
        bare={"runs": ["b0"], "interval": [1, None], "p_value": "x", "verdict": ["y"]},
        many={"pairs": [pair, 3, {"runs": 4}]},
        damaged={},
    )
    (tmp_path / "comparisons" / "damaged" / "comparison.json").write_text("{")
    found = text_of(blocks_of("comparisons", tmp_path))
    for text in ("a is better than b.", "undecided", "d is better"):
        assert text in found
    assert "of other runs" not in found


def test_comparisons_of_the_same_arms_are_told_apart(tmp_path: Path) -> None:
    arms = {"verdict": "undecided", "a": "a", "b": "b", "runs": ["a0", "b0"], "measure": "final"}
    ad_hoc = {"sentence": "ad hoc words", "mode": "min", "margin": 2.5, "planned": False}
    planned = {"sentence": "planned words", "mode": "max", "planned": True, "look": 3}
    store_comparisons(tmp_path, a__vs__b=arms | ad_hoc, a__vs__b__planned=arms | planned)
    *texts, table = blocks_of("comparisons", tmp_path)
    assert [found["text"] for found in texts] == ["a and b (a__vs__b__planned): planned words"]
    assert [[row[0], row[3], row[4]] for row in table["rows"]] == [
        ["a__vs__b__planned", "planned, look 3", "final"],
        ["a__vs__b", "ad hoc", "final, lower is better, margin 2.50"],
    ]


def test_a_score_over_fewer_runs_says_so_and_why(tmp_path: Path) -> None:
    scores = [0.0, 1.0, 2.0, 3.0, 4.0, 1.7e308, 1.7e308]
    runs = [
        write_run(tmp_path, f"run{seed}", [line(5, score)], seed=seed)
        for seed, score in enumerate(scores)
    ]
    with (runs[2] / "metrics.jsonl").open("a") as file:
        file.write('{"global_step": 6, "eval_return_mean": NaN}\n')
    (runs[3] / "evaluations.jsonl").write_text('{"global_step": 5, "returns": [NaN]}\n')
    (runs[4] / "evaluations.jsonl").write_text("")
    data = data_of(page_of(tmp_path))
    (verdict,) = section(data, "overview")
    assert verdict["score"] == "0.5"
    assert verdict["interval"].endswith("] over 2 of 7 runs")
    reasons = dict.fromkeys(
        [f"seed {seed}" for seed in range(2, 7)],
        "the returns of its last evaluation are not all finite numbers, or too large",
    ) | {
        "seed 2": "its last evaluation is of step 5, and its metrics end at step 6",
        "seed 4": "evaluations.jsonl has no last line that can be read",
    }
    texts = [block["text"] for block in section(data, "scores") if block["kind"] == "text"]
    assert texts[1:] == [f"{name} has no score: {reason}." for name, reason in reasons.items()]
    events = text_of(section(data, "events"))
    for reason in reasons.values():
        assert f"no score: {reason}" in events
    assert "2 of 7 runs: created and finished without an interruption" in events


def test_ten_runs_of_twenty_metrics_are_under_300_kb(tmp_path: Path) -> None:
    for seed in range(10):
        lines = []
        for step in range(2000):
            values = {f"m{k}": (-1) ** k * (seed + 1) / (step + k + 1) for k in range(18)}
            lines.append({"global_step": step, **values})
            if step % 50 == 0:
                lines[-1] = line(step, step / 7, **values)
        write_run(tmp_path, f"run{seed}", lines, seed=seed)
    page = page_of(tmp_path)
    assert len(page.encode()) < 300_000
    steps = data_of(page)["runs"][3]["updates"]["x"]
    assert len(steps) >= 40
    assert (steps[0], steps[-1]) == (0, 1999)


def test_thinning_keeps_the_ends_and_the_extremes() -> None:
    values = [0.0] * 5000
    values[1234], values[4321] = 9.0, -9.0
    thinned = thin(Columns(tuple(range(5000)), {"metric": tuple(values)}), MAX_POINTS)
    assert len(thinned.steps) <= MAX_POINTS
    assert {0, 1234, 4321, 4999} <= set(thinned.steps)
    assert max(thinned.metrics["metric"]) == 9.0  # type: ignore[type-var]
    assert thin(thinned, MAX_POINTS) is thinned


def test_a_report_is_replaced_and_any_other_file_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, other = write_run(tmp_path, "run", [line(1, 2.0)]), tmp_path / "notes.html"
    for _ in range(2):
        assert main(["report", str(run)]) == 0
        assert f"report={run / 'report.html'}" in capsys.readouterr().out
    other.write_text("mine")
    assert main(["report", str(run), "--out", str(other)]) == 2
    assert "--force" in capsys.readouterr().err
    assert other.read_text() == "mine"
    assert main(["report", str(run), "--out", str(other), "--force"]) == 0
    assert "<!doctype html>" in other.read_text()


@pytest.mark.parametrize(
    ("verb", "name", "part"),
    [
        ("report", "page.txt", ".html or .htm"),
        ("report", "page.html/", "names a folder"),
        ("plot", "picture.png/", "names a folder"),
        ("report", "no/page.html", "does not exist: create it"),
    ],
)
def test_a_report_is_an_html_file_and_a_picture_no_folder(
    verb: str, name: str, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path, "run", [line(1, 2.0)])
    assert main([verb, str(run), "--out", f"{tmp_path}/{name}"]) == 2
    assert part in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_folder_without_runs_is_refused_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "page.html")]) == 2
    assert "holds none" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_q_values_are_compared_with_the_discounted_return(tmp_path: Path) -> None:
    lines = [line(10, 3.0, q_mean=1.5, eval_length_mean=3.0)]
    write_run(tmp_path, "plain", lines, algo="dqn", algo_kwargs={"gamma": 0.5})
    write_run(tmp_path, "scaled", lines, algo="cql", algo_kwargs={"reward_scale": 0.1})
    data = data_of(page_of(tmp_path))
    runs = {run["name"]: run["evaluations"]["y"] for run in data["runs"]}
    assert runs["plain"]["eval_discounted_estimate"] == [1 + 0.5 + 0.25]
    assert "eval_discounted_estimate" not in runs["scaled"]


def test_the_discount_is_the_default_of_every_algorithm() -> None:
    defaults = {
        spec.config_class().model_fields["gamma"].default for spec in list_algorithm_specs()
    }
    assert defaults == {AlgorithmConfig.model_fields["gamma"].default} == {DEFAULT_DISCOUNT}
    assert discount({}) == DEFAULT_DISCOUNT
    assert discount({"algo_kwargs": {"normalize_reward": True}}) is None


def write_films(run: Path, **sizes: int) -> None:
    (run / "video").mkdir()
    for age, (name, size) in enumerate(sizes.items()):
        path = run / "video" / name.replace("_", ".")
        path.write_bytes(b"x" * size)
        os.utime(path, (1e9 - age, 1e9 - age))


def test_small_films_are_in_the_page_and_others_are_linked_from_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs", "javascript:alert(1)", [line(1, 2.0)])
    page = page_of(run, page_dir=run)
    assert "data:" not in page.partition("Content-Security-Policy")[2].partition(">")[0]
    write_films(run, a_mp4=3000, b_gif=6, c_mp4=2_000_001, d_mp4=5, notes_txt=5)
    (run / "video" / "link.mp4").symlink_to(tmp_path)
    for folder, prefix in ((run, ""), (tmp_path, "runs/javascript%3Aalert%281%29/")):
        page = page_of(run, page_dir=folder)
        films = section(data_of(page), "films")
        assert [(film["title"], film["media"], film["link"]) for film in films] == [
            ("seed 0: a.mp4", "video/mp4", f"{prefix}video/a.mp4"),
            ("seed 0: b.gif", "image/gif", f"{prefix}video/b.gif"),
            ("seed 0: c.mp4", "video/mp4", f"{prefix}video/c.mp4"),
        ]
        assert films[0]["source"].startswith("data:video/mp4;base64,eHh4")
        assert (films[1]["source"], films[2]["source"]) == ("data:image/gif;base64,eHh4eHh4", "")
        assert "img-src data:; media-src data:" in page


def test_films_fill_a_part_of_the_page_only(tmp_path: Path) -> None:
    for seed in range(5):
        write_films(write_run(tmp_path, f"run{seed}", [line(1, 2.0)], seed=seed), a_mp4=1_900_000)
    groups = find_groups([str(tmp_path)])
    path, size = write_report(groups, [], tmp_path / "page.html")
    films = section(data_of(path.read_text()), "films")
    assert [bool(film["source"]) for film in films] == [True, True, True, True, False]
    assert 4 * 1_900_000 * 4 / 3 < size < 11_500_000
