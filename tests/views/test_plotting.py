"""Plots: curves joined over what all runs have, the label of their axis, captions, pictures and tables."""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from report_tools import append_lines, line, write_run

from rl_training.cli import main
from rl_training.errors import ConfigError, RLTrainingError
from rl_training.studies.groups import RunRecord, find_groups
from rl_training.studies.plan import make_plan, store_plan
from rl_training.views.curves import CurveSet, XAxis, collect_curves
from rl_training.views.figures import new_figure
from rl_training.views.plotting import draw_curves, plot_learning_curve, plot_runs

ONLINE = {"online": {"after_updates": 100}}
RETURN = "eval_return_mean"
PNG = b"\x89PNG"
Points = dict[int, float]
Call = Callable[..., tuple[str, str]]


def write_curve(
    path: Path,
    points: Points,
    *,
    seconds_per_step: float | None = 0.5,
    metric: str = RETURN,
    **config: Any,
) -> Path:
    """A run folder that has logged `points` of a metric; its gradient steps are twice its steps."""
    lines = [
        {"global_step": step, "gradient_steps": 2 * step, metric: value}
        for step, value in points.items()
    ]
    write_run(path.parent, path.name, lines, **config)
    if seconds_per_step is not None:
        times = [{"global_step": step, "wall_time": step * seconds_per_step} for step in points]
        (path / "timing.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in times))
    return path


def write_seeds(folder: Path, *curves: Points, **config: Any) -> Path:
    """A folder of runs that differ in their seed, one for each curve."""
    for seed, points in enumerate(curves):
        write_curve(folder / f"{seed}", points, seed=seed, **config)
    return folder


def curves_in(
    folder: Path, metric: str = RETURN, x_axis: XAxis = "steps", **options: Any
) -> CurveSet:
    return collect_curves(find_groups([str(folder)]), metric, x_axis, **options)


class TestMean:
    def test_up_to_three_runs_have_their_median_and_range(self, tmp_path: Path) -> None:
        write_seeds(tmp_path, {10: 1.0, 30: 5.0}, {10: 2.0, 30: 6.0}, {10: 6.0, 30: 70.0})
        (group,) = curves_in(tmp_path).groups
        assert (group.kind, group.x, group.y) == ("median", [10, 30], [2.0, 6.0])
        assert (group.low, group.high, group.mean) == ([1.0, 5.0], [6.0, 70.0], [3.0, 27.0])

    def test_four_runs_have_their_interquartile_mean_or_on_request_their_mean(
        self, tmp_path: Path
    ) -> None:
        scores = [1.0, 2.0, 6.0, 70.0]
        write_seeds(tmp_path, *({10: score} for score in scores))
        (group,) = curves_in(tmp_path).groups
        assert (group.kind, group.y) == ("iqm", [4.0])  # of 2 and 6
        assert scores[0] <= group.low[0] < 4.0 < group.high[0] <= scores[-1]
        (group,) = curves_in(tmp_path, use_mean=True).groups
        half = 3.1824 * statistics.stdev(scores) / 2  # Student's t, three degrees of freedom
        assert (group.kind, group.y) == ("mean", [19.75])
        assert [*group.low, *group.high] == pytest.approx([19.75 - half, 19.75 + half], rel=1e-4)

    @pytest.mark.parametrize(
        ("one", "other", "mean"),
        [
            # Of 10 and 0, 20 and 20, 30 and 40, 40 and 60.
            (
                {0: 0.0, 20: 20.0, 40: 40.0},
                {10: 0.0, 30: 40.0, 60: 100.0},
                {10: 5.0, 20: 20.0, 30: 35.0, 40: 50.0},
            ),
            ({10: 1.0, 20: 1.0, 30: 9.0}, {10: 3.0, 20: 3.0}, {10: 2.0, 20: 2.0}),
            ({10: 1.0, 20: 1.0}, {30: 3.0, 40: 3.0}, {}),
        ],
        ids=["interpolated", "shorter", "apart"],
    )
    def test_a_summary_is_where_all_runs_have_values(
        self, tmp_path: Path, one: Points, other: Points, mean: Points
    ) -> None:
        found = curves_in(write_seeds(tmp_path, one, other))
        (group,) = found.groups
        assert dict(zip(group.x, group.y, strict=True)) == mean
        assert [curve.x for curve in group.curves] == [list(one), list(other)]
        assert ("no steps in common" in "".join(found.messages)) == (mean == {})

    def test_many_different_places_make_an_even_grid(self, tmp_path: Path) -> None:
        places = [range(seed, 900, 3) for seed in range(3)]
        (group,) = curves_in(write_seeds(tmp_path, *(dict.fromkeys(x, 1.0) for x in places))).groups
        assert (len(group.x), group.x[0], group.x[-1]) == (512, 2, 897)
        assert group.y == pytest.approx([1.0] * 512)

    def test_of_two_lines_of_a_step_the_later_one_counts_and_what_is_not_finite_does_not(
        self, tmp_path: Path
    ) -> None:
        run = write_curve(tmp_path / "a", {10: 1.0})
        append_lines(run, [line(10, 2.0), line(20, math.nan)])
        (group,) = curves_in(run).groups
        assert (group.kind, group.x, group.y) == ("run", [10], [2.0])


class TestAxis:
    @pytest.mark.parametrize(
        ("algo", "algo_kwargs", "last_step", "label", "online_from"),
        [
            ("ppo", {}, 200, "environment steps", None),
            ("iql", {"dataset_kind": "random"}, 200, "updates", None),
            ("iql", ONLINE, 100, "updates", None),
            ("iql", ONLINE, 200, "updates, then environment steps", 100),
            ("my_own", {}, 200, "steps", None),
        ],
    )
    def test_it_says_what_a_step_is(
        self,
        algo: str,
        algo_kwargs: dict[str, Any],
        last_step: int,
        label: str,
        online_from: int | None,
        tmp_path: Path,
    ) -> None:
        run = write_curve(
            tmp_path / "a", {50: 1.0, 100: 1.0, last_step: 2.0}, algo=algo, algo_kwargs=algo_kwargs
        )
        found = curves_in(run)
        assert (found.x_label, found.groups[0].online_from) == (label, online_from)

    def test_without_settings_it_says_steps(self, tmp_path: Path) -> None:
        run = write_curve(tmp_path / "a", {50: 1.0})
        (run / "config.yaml").unlink()
        assert curves_in(run).x_label == "steps"

    def test_runs_of_different_kinds_have_a_common_label(self, tmp_path: Path) -> None:
        write_curve(tmp_path / "a", {50: 1.0})
        write_curve(tmp_path / "b", {50: 1.0}, algo="iql")
        assert curves_in(tmp_path).x_label == "environment steps (offline runs: updates)"
        tuned = write_seeds(
            tmp_path / "iql", {50: 1.0}, {50: 1.0, 150: 1.0}, algo="iql", algo_kwargs=ONLINE
        )
        assert curves_in(tuned).x_label == "updates, then environment steps"

    @pytest.mark.parametrize(
        ("x_axis", "label", "x"),
        [
            ("time", "wall time (seconds)", [25.0, 50.0, 75.0]),
            ("updates", "gradient steps", [100, 200, 300]),
        ],
    )
    def test_time_and_updates(
        self, tmp_path: Path, x_axis: XAxis, label: str, x: list[float]
    ) -> None:
        points = {50: 1.0, 100: 2.0, 150: 3.0}
        run = write_curve(tmp_path / "a", points, algo="iql", algo_kwargs=ONLINE)
        found = curves_in(run, x_axis=x_axis)
        assert (found.x_label, found.groups[0].x, found.groups[0].online_from) == (label, x, x[1])


class TestWhatIsNotShown:
    def test_an_unknown_metric_is_refused_with_the_nearest(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="did you mean 'eval_return_mean'"):
            curves_in(write_curve(tmp_path / "a", {1: 1.0}), "eval_retrn_mean")

    def test_runs_without_the_metric_or_its_times_are_told(self, tmp_path: Path) -> None:
        write_curve(tmp_path / "a", {1: 1.0})
        write_curve(tmp_path / "b", {1: 1.0}, seed=1, metric="policy_loss")
        write_curve(tmp_path / "c", {1: 1.0}, seed=2, seconds_per_step=None)
        found = curves_in(tmp_path)
        assert found.messages == ("b is left out: it has not logged eval_return_mean",)
        assert found.num_runs == 2
        timed = curves_in(tmp_path, x_axis="time")
        assert timed.messages[1] == "c is left out: it has not logged wall_time"
        with pytest.raises(RLTrainingError, match="together with wall_time: use --x steps"):
            curves_in(tmp_path / "c", x_axis="time")

    def test_empty_and_damaged_runs_are_told(self, tmp_path: Path) -> None:
        write_seeds(tmp_path, *[{1: 1.0}] * 3)
        (tmp_path / "1" / "metrics.jsonl").write_text("")
        with (tmp_path / "2" / "metrics.jsonl").open("a") as file:
            file.write("[]\n")
        empty, damaged = curves_in(tmp_path).messages
        assert empty == "1 is left out: it has logged nothing yet"
        assert damaged.startswith("2 is read up to its damage only: line 2 of ")
        with pytest.raises(RLTrainingError, match="has logged nothing yet"):
            curves_in(tmp_path / "1")

    def test_planned_runs_that_have_not_begun_are_told(self, tmp_path: Path) -> None:
        study = small_study(tmp_path, begun=3)
        (message,) = curves_in(study).messages
        assert message == "1 planned run of 'gamma=0.99' not begun: gamma=0.99 seed 1"


class TestCaption:
    @pytest.mark.parametrize(
        ("groups", "caption"),
        [
            (
                {"ppo": [0, 1, 2]},
                "3 runs (seeds 0–2); thin lines: runs; thick line and band: median and range",
            ),
            ({"ppo": [0, 2], "dqn": [0, 2]}, "2 groups of 2 runs (seeds 0, 2); thin lines"),
            ({"ppo": [0, 1], "dqn": [5, 6]}, "2 groups of 2 runs each; thin lines"),
            ({"ppo": [0, 1], "dqn": [5]}, "2 groups, 3 runs; thin lines"),
            ({"ppo": [4]}, "1 run (seed 4); no band"),
            (
                {"ppo": [0, 1, 2, 3], "dqn": [0, 1]},
                "2 groups, 6 runs; thin lines: runs; thick line and band: interquartile mean and its 95 % bootstrap"
                " interval or, below four runs, median and range of the runs",
            ),
        ],
    )
    def test_it_counts_the_runs(
        self, tmp_path: Path, groups: dict[str, list[int]], caption: str
    ) -> None:
        for algo, seeds in groups.items():
            for seed in seeds:
                write_curve(tmp_path / f"{algo}{seed}", {1: 1.0}, seed=seed, algo=algo)
        found = curves_in(tmp_path).caption
        assert found.startswith(caption)
        counts = {len(seeds) for seeds in groups.values()}
        assert ("no band where there is one run" in found) == (counts == {1, 2})


def axes_of(curves: CurveSet, run: RunRecord | None = None) -> Any:
    figure = new_figure()
    draw_curves(figure, curves, run)
    return figure.axes[0]


def small_study(folder: Path, begun: int = 4) -> Path:
    """A study of two settings and two seeds, of which the first runs have begun."""
    base = {"algo": "ppo", "env_id": "CartPole-v1"}
    plan = make_plan("small", [base], vary={"algo_kwargs.gamma": [0.9, 0.99]}, seeds="0..1")
    study = store_plan(plan, folder / "small")
    for number, run in enumerate(study.runs()[:begun]):
        write_curve(run.run_dir, {10: number, 20: number + 1.0}, seed=run.config.seed)
    return study.path


class TestPictures:
    @pytest.fixture(autouse=True)
    def _matplotlib(self) -> None:
        pytest.importorskip("matplotlib")

    def test_one_run_shows_both_returns_and_where_it_went_online(self, tmp_path: Path) -> None:
        run = write_curve(tmp_path / "a", {50: 1.0, 200: 2.0}, algo="iql", algo_kwargs=ONLINE)
        axes = axes_of(curves_in(run), find_groups([str(run)])[0].runs[0])
        assert axes.get_xlabel() == "updates, then environment steps"
        marks = [
            line.get_xdata()[0] for line in axes.lines if line.get_label() == "online from here"
        ]
        assert marks == [100]

    def test_a_run_that_was_not_evaluated_shows_its_training(self, tmp_path: Path) -> None:
        run = write_curve(tmp_path / "a", {50: 1.0, 200: 2.0}, metric="train_return_mean")
        assert plot_learning_curve(run).read_bytes().startswith(PNG)

    def test_groups_are_thin_lines_a_summary_and_a_band_on_an_axis_of_the_runs(
        self, tmp_path: Path
    ) -> None:
        axes = axes_of(curves_in(small_study(tmp_path)))
        thin = [line for line in axes.lines if line.get_linewidth() < 1]
        thick = [line for line in axes.lines if line.get_linewidth() >= 2]
        assert (len(thin), len(thick), len(axes.collections)) == (4, 2, 2)
        assert [line.get_label() for line in thick] == ["gamma=0.9 (2 runs)", "gamma=0.99 (2 runs)"]
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("environment steps", "evaluation return")
        assert axes.get_title() == ""
        low, high = axes.get_ylim()
        assert low == 0.0, "no run is below zero"
        assert 4.0 < high < 4.5, "the largest score is 4"

    def test_the_axis_comes_from_the_runs_and_not_from_the_interval(self, tmp_path: Path) -> None:
        write_seeds(tmp_path, *[{1000: 0.0, 2000: 0.0}] * 3, {1000: 100.0, 2000: 100.0})
        axes = axes_of(curves_in(tmp_path, use_mean=True))
        assert axes.get_ylim() == pytest.approx((0.0, 105.0))
        axes.figure.canvas.draw()
        assert "1,000" in [label.get_text() for label in axes.get_xticklabels()]

    @pytest.mark.parametrize(("num_runs", "num_lines"), [(1, 1), (2, 3), (5, 6)])
    def test_one_evaluation_per_run_is_a_mark(
        self, num_runs: int, num_lines: int, tmp_path: Path
    ) -> None:
        write_seeds(tmp_path, *({10: float(seed)} for seed in range(num_runs)))
        axes = axes_of(curves_in(tmp_path))
        assert [line.get_marker() for line in axes.lines] == ["o"] * num_lines

    @pytest.mark.parametrize(
        ("seconds", "unit", "last"), [(1, "seconds", 100), (60, "minutes", 100), (360, "hours", 10)]
    )
    def test_long_times_have_larger_units(
        self, tmp_path: Path, seconds: float, unit: str, last: float
    ) -> None:
        run = write_curve(tmp_path / "a", {50: 1.0, 100: 2.0}, seconds_per_step=seconds)
        axes = axes_of(curves_in(run, x_axis="time"))
        assert axes.get_xlabel() == f"wall time ({unit})"
        assert axes.lines[0].get_xdata()[-1] == last

    def test_default_places_are_the_folders_of_a_run_and_of_a_whole_study(
        self, tmp_path: Path
    ) -> None:
        run, study = write_curve(tmp_path / "a", {50: 1.0}), small_study(tmp_path)
        assert plot_learning_curve(run) == run / "learning_curve.png"
        assert plot_runs(find_groups([str(study)])).path == study / "curves.png"
        assert plot_runs(find_groups([str(run)]), "gradient_steps", "time").path.name == (
            "learning_curve-gradient_steps-time.png"
        )
        for words in ([f"{study}:gamma=0.9"], [str(study), str(run)], [f"{tmp_path}/*"]):
            with pytest.raises(ConfigError, match="add --out FILE"):
                plot_runs(find_groups(words))

    @pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf", ".csv"])
    def test_a_file_of_ours_is_replaced_and_another_is_not(
        self, tmp_path: Path, suffix: str
    ) -> None:
        out = tmp_path / f"out{suffix}"
        groups = find_groups([str(write_curve(tmp_path / "a", {50: 1.0}))])
        for _ in range(2):
            assert plot_runs(groups, out=out).path == out
        out.write_text("mine")
        with pytest.raises(ConfigError, match="did not make it"):
            plot_runs(groups, out=out)
        assert out.read_text() == "mine"

    def test_a_link_in_the_default_place_is_refused(self, tmp_path: Path) -> None:
        run = write_curve(tmp_path / "a", {50: 1.0})
        (run / "learning_curve.png").symlink_to(tmp_path / "victim")
        with pytest.raises(RLTrainingError, match="is a link"):
            plot_learning_curve(run)
        assert not (tmp_path / "victim").exists()

    def test_an_error_leaves_no_file(self, tmp_path: Path) -> None:
        run = write_curve(tmp_path / "a", {50: 1.0})
        with pytest.raises(ConfigError):
            plot_runs(find_groups([str(run)]), "nonsense", out=tmp_path / "x.png")
        assert not (tmp_path / "x.png").exists()


class TestTable:
    def test_its_rows_are_points_of_runs_and_summaries(self, tmp_path: Path) -> None:
        out = plot_runs(find_groups([str(small_study(tmp_path))]), out=tmp_path / "x.csv").path
        with out.open() as file:
            rows = list(csv.DictReader(file))
        assert {(row["metric"], row["x_axis"]) for row in rows} == {(RETURN, "steps")}
        first = [row for row in rows if row["group"] == "gamma=0.9"]
        points = [[row["seed"], row["x"], row["value"]] for row in first if row["kind"] == "run"]
        assert points == [
            ["0", "10.0", "0.0"],
            ["0", "20.0", "1.0"],
            ["1", "10.0", "2.0"],
            ["1", "20.0", "3.0"],
        ]
        medians = [row for row in first if row["kind"] == "median"]
        assert [[row["low"], row["value"], row["high"]] for row in medians] == [
            ["0.0", "1.0", "2.0"],
            ["1.0", "2.0", "3.0"],
        ]


class TestCommand:
    @pytest.fixture
    def call(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> Call:
        monkeypatch.chdir(tmp_path)
        small_study(tmp_path / "runs", begun=3)

        def call_main(*words: str) -> tuple[str, str]:
            assert main(["plot", *words]) == 0
            return capsys.readouterr()

        return call_main

    def test_settings_of_a_study_into_a_table(self, call: Call) -> None:
        out, err = call("small:gamma=0.9", "small:gamma=0.99", "--x", "time", "--out", "x.csv")
        assert out == "table=x.csv\n"
        assert "1 planned run of 'gamma=0.99' not begun" in err

    def test_json_says_what_was_drawn(self, call: Call) -> None:
        values = json.loads(call("small", "--out", "x.csv", "--json")[0])
        shown = {"table": "x.csv", "metric": RETURN, "x_label": "environment steps"}
        assert {name: values[name] for name in shown} == shown
        groups = {group["name"]: group for group in values["groups"]}
        assert [len(groups[name]["runs"]) for name in ("gamma=0.9", "gamma=0.99")] == [2, 1]
        last = {"x": 20, "mean": 2.0, "summary": "median", "value": 2.0, "low": 1.0, "high": 3.0}
        assert groups["gamma=0.9"]["last"] == last
        assert len(values["messages"]) == 1
        assert values["caption"].startswith("2 groups, 3 runs")

    def test_several_runs_into_a_picture(self, call: Call) -> None:
        pytest.importorskip("matplotlib")
        out, _ = call("runs/small/ppo*seed0*", "--out", "x.svg")
        assert out == "picture=x.svg\n"
        assert "rl-training" in Path("x.svg").read_text()
