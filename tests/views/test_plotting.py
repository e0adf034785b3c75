"""Plots: curves joined over what all runs have, the label of their axis, captions, pictures and tables."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_training.cli import main
from rl_training.errors import ConfigError, RLTrainingError
from rl_training.experiment.yaml_text import dump_yaml
from rl_training.studies.groups import RunRecord, find_groups
from rl_training.studies.plan import make_plan, store_plan
from rl_training.views.curves import CurveSet, XAxis, collect_curves
from rl_training.views.figures import new_figure
from rl_training.views.plotting import draw_curves, plot_learning_curve, plot_runs, plot_study

ONLINE = {"online": {"after_updates": 100}}
RETURN = "eval_return_mean"
PNG = b"\x89PNG"


def write_run(
    path: Path,
    points: dict[int, float],
    *,
    seed: int = 0,
    seconds_per_step: float | None = 0.5,
    metric: str = RETURN,
    **config: Any,
) -> Path:
    """A run folder that has logged `points` of a metric; its gradient steps are twice its steps."""
    (path / "checkpoints").mkdir(parents=True)
    values = {"algo": "ppo", "env_id": "CartPole-v1", "seed": seed, "algo_kwargs": {}, **config}
    (path / "config.yaml").write_text(dump_yaml(values))
    lines = [
        {"global_step": step, "gradient_steps": 2 * step, metric: value}
        for step, value in points.items()
    ]
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    if seconds_per_step is not None:
        times = [{"global_step": step, "wall_time": step * seconds_per_step} for step in points]
        (path / "timing.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in times))
    return path


def curves_in(folder: Path, metric: str = RETURN, x_axis: XAxis = "steps") -> CurveSet:
    return collect_curves(find_groups([str(folder)]), metric, x_axis)


class TestMean:
    def test_up_to_three_runs_have_their_median_and_range(self, tmp_path: Path) -> None:
        for seed, (first, second) in enumerate([(1.0, 5.0), (2.0, 6.0), (6.0, 70.0)]):
            write_run(tmp_path / str(seed), {10: first, 30: second}, seed=seed)
        (group,) = curves_in(tmp_path).groups
        assert (group.kind, group.x, group.y) == ("median", [10, 30], [2.0, 6.0])
        assert (group.low, group.high, group.mean) == ([1.0, 5.0], [6.0, 70.0], [3.0, 27.0])

    def test_four_runs_have_their_interquartile_mean_or_on_request_their_mean(
        self, tmp_path: Path
    ) -> None:
        scores = [1.0, 2.0, 6.0, 70.0]
        for seed, score in enumerate(scores):
            write_run(tmp_path / str(seed), {10: score}, seed=seed)
        (group,) = curves_in(tmp_path).groups
        assert (group.kind, group.y) == ("iqm", [4.0])  # of 2 and 6
        assert scores[0] <= group.low[0] < 4.0 < group.high[0] <= scores[-1]
        (group,) = collect_curves(find_groups([str(tmp_path)]), use_mean=True).groups
        half = 3.1824 * statistics.stdev(scores) / 2  # Student's t, three degrees of freedom
        assert (group.kind, group.y) == ("mean", [19.75])
        assert (group.low[0], group.high[0]) == pytest.approx(
            (19.75 - half, 19.75 + half), rel=1e-4
        )

    def test_others_are_interpolated_within_the_range_that_all_have(self, tmp_path: Path) -> None:
        write_run(tmp_path / "a", {0: 0.0, 20: 20.0, 40: 40.0}, seed=0)
        write_run(tmp_path / "b", {10: 0.0, 30: 40.0, 60: 100.0}, seed=1)
        (group,) = curves_in(tmp_path).groups
        assert group.x == [10, 20, 30, 40]
        assert group.y == [5.0, 20.0, 35.0, 50.0]  # 10 and 0, 20 and 20, 30 and 40, 40 and 60

    def test_a_shorter_run_ends_the_mean(self, tmp_path: Path) -> None:
        write_run(tmp_path / "a", {10: 1.0, 20: 1.0, 30: 9.0}, seed=0)
        write_run(tmp_path / "b", {10: 3.0, 20: 3.0}, seed=1)
        (group,) = curves_in(tmp_path).groups
        assert (group.x, group.y) == ([10, 20], [2.0, 2.0])
        assert [curve.x for curve in group.curves] == [[10, 20, 30], [10, 20]]

    def test_runs_without_a_common_range_have_no_mean(self, tmp_path: Path) -> None:
        write_run(tmp_path / "a", {10: 1.0, 20: 1.0}, seed=0)
        write_run(tmp_path / "b", {30: 3.0, 40: 3.0}, seed=1)
        found = curves_in(tmp_path)
        assert found.groups[0].x == []
        assert "no steps in common" in found.messages[0]

    def test_many_different_places_make_an_even_grid(self, tmp_path: Path) -> None:
        for seed in range(3):
            write_run(
                tmp_path / str(seed), {3 * step + seed: 1.0 for step in range(300)}, seed=seed
            )
        (group,) = curves_in(tmp_path).groups
        assert len(group.x) == 512
        assert (group.x[0], group.x[-1]) == (2, 897)
        assert group.y == pytest.approx([1.0] * 512)

    def test_of_two_lines_of_a_step_the_later_one_counts_and_what_is_not_finite_does_not(
        self, tmp_path: Path
    ) -> None:
        run = write_run(tmp_path / "a", {10: 1.0})
        more = [
            '{"global_step": 10, "eval_return_mean": 2.0}',
            '{"global_step": 20, "eval_return_mean": NaN}',
        ]
        (run / "metrics.jsonl").write_text(
            (run / "metrics.jsonl").read_text() + "\n".join(more) + "\n"
        )
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
        run = write_run(
            tmp_path / "a", {50: 1.0, 100: 1.0, last_step: 2.0}, algo=algo, algo_kwargs=algo_kwargs
        )
        found = curves_in(run)
        assert (found.x_label, found.groups[0].online_from) == (label, online_from)

    def test_without_settings_it_says_steps(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "a", {50: 1.0})
        (run / "config.yaml").unlink()
        assert curves_in(run).x_label == "steps"

    def test_runs_of_different_kinds_have_a_common_label(self, tmp_path: Path) -> None:
        write_run(tmp_path / "a", {50: 1.0})
        write_run(tmp_path / "b", {50: 1.0}, algo="iql")
        assert curves_in(tmp_path).x_label == "environment steps (offline runs: updates)"
        write_run(tmp_path / "iql" / "b", {50: 1.0}, algo="iql", algo_kwargs=ONLINE)
        write_run(
            tmp_path / "iql" / "c", {50: 1.0, 150: 1.0}, algo="iql", algo_kwargs=ONLINE, seed=1
        )
        assert curves_in(tmp_path / "iql").x_label == "updates, then environment steps"

    def test_time_and_updates(self, tmp_path: Path) -> None:
        run = write_run(
            tmp_path / "a", {50: 1.0, 100: 2.0, 150: 3.0}, algo="iql", algo_kwargs=ONLINE
        )
        timed, updates = curves_in(run, x_axis="time"), curves_in(run, x_axis="updates")
        assert (timed.groups[0].x, timed.groups[0].online_from) == ([25.0, 50.0, 75.0], 50.0)
        assert timed.x_label == "wall time (seconds)"
        assert (updates.groups[0].x, updates.groups[0].online_from) == ([100, 200, 300], 200)
        assert updates.x_label == "gradient steps"


class TestWhatIsNotShown:
    def test_an_unknown_metric_is_refused_with_the_nearest(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="did you mean 'eval_return_mean'"):
            curves_in(write_run(tmp_path / "a", {1: 1.0}), "eval_retrn_mean")

    def test_a_metric_that_only_some_runs_have_is_told(self, tmp_path: Path) -> None:
        write_run(tmp_path / "a", {1: 1.0})
        write_run(tmp_path / "b", {1: 1.0}, seed=1, metric="policy_loss")
        found = curves_in(tmp_path)
        assert found.messages == ("b is left out: it has not logged eval_return_mean",)
        assert found.num_runs == 1

    def test_runs_without_times_are_told(self, tmp_path: Path) -> None:
        write_run(tmp_path / "a", {1: 1.0})
        write_run(tmp_path / "b", {1: 1.0}, seed=1, seconds_per_step=None)
        assert curves_in(tmp_path, x_axis="time").messages == (
            "b is left out: it has not logged wall_time",
        )
        with pytest.raises(RLTrainingError, match="together with wall_time: use --x steps"):
            curves_in(tmp_path / "b", x_axis="time")

    def test_empty_and_damaged_runs_are_told(self, tmp_path: Path) -> None:
        for seed, name in enumerate("abc"):
            write_run(tmp_path / name, {1: 1.0}, seed=seed)
        (tmp_path / "b" / "metrics.jsonl").write_text("")
        with (tmp_path / "c" / "metrics.jsonl").open("a") as file:
            file.write("[]\n")
        empty, damaged = curves_in(tmp_path).messages
        assert empty == "b is left out: it has logged nothing yet"
        assert damaged.startswith("c is read up to its damage only: line 2 of ")
        with pytest.raises(RLTrainingError, match="has logged nothing yet"):
            curves_in(tmp_path / "b")

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
                write_run(tmp_path / f"{algo}{seed}", {1: 1.0}, seed=seed, algo=algo)
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
        write_run(run.run_dir, {10: number, 20: number + 1.0}, seed=run.config.seed)
    return study.path


class TestPictures:
    @pytest.fixture(autouse=True)
    def _matplotlib(self) -> None:
        pytest.importorskip("matplotlib")

    def test_one_run_shows_both_returns_and_where_it_went_online(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "a", {50: 1.0, 200: 2.0}, algo="iql", algo_kwargs=ONLINE)
        axes = axes_of(curves_in(run), find_groups([str(run)])[0].runs[0])
        assert axes.get_xlabel() == "updates, then environment steps"
        marks = [
            line.get_xdata()[0] for line in axes.lines if line.get_label() == "online from here"
        ]
        assert marks == [100]

    def test_a_run_that_was_not_evaluated_shows_its_training(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "a", {50: 1.0, 200: 2.0}, metric="train_return_mean")
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
        for seed, score in enumerate([0.0, 0.0, 0.0, 100.0]):
            write_run(tmp_path / str(seed), {1000: score, 2000: score}, seed=seed)
        axes = axes_of(collect_curves(find_groups([str(tmp_path)]), use_mean=True))
        assert axes.get_ylim() == pytest.approx((0.0, 105.0))
        axes.figure.canvas.draw()
        assert "1,000" in [label.get_text() for label in axes.get_xticklabels()]

    @pytest.mark.parametrize("seeds", [[0], [0, 1], [0, 1, 2, 3, 4]])
    def test_one_evaluation_per_run_is_a_mark(self, seeds: list[int], tmp_path: Path) -> None:
        for seed in seeds:
            write_run(tmp_path / str(seed), {10: float(seed)}, seed=seed)
        axes = axes_of(curves_in(tmp_path))
        assert all(line.get_marker() not in ("None", "", None) for line in axes.lines)
        assert len(axes.lines) == (1 if len(seeds) == 1 else len(seeds) + 1)

    @pytest.mark.parametrize(
        ("seconds", "unit", "last"), [(1, "seconds", 100), (60, "minutes", 100), (360, "hours", 10)]
    )
    def test_long_times_have_larger_units(
        self, tmp_path: Path, seconds: float, unit: str, last: float
    ) -> None:
        run = write_run(tmp_path / "a", {50: 1.0, 100: 2.0}, seconds_per_step=seconds)
        axes = axes_of(curves_in(run, x_axis="time"))
        assert axes.get_xlabel() == f"wall time ({unit})"
        assert axes.lines[0].get_xdata()[-1] == last

    def test_default_places_are_the_folders_of_a_run_and_of_a_whole_study(
        self, tmp_path: Path
    ) -> None:
        run, study = write_run(tmp_path / "a", {50: 1.0}), small_study(tmp_path)
        assert plot_learning_curve(run) == run / "learning_curve.png"
        assert plot_study(study) == study / "curves.png"
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
        groups, out = (
            find_groups([str(write_run(tmp_path / "a", {50: 1.0}))]),
            tmp_path / f"out{suffix}",
        )
        for _ in range(2):
            assert plot_runs(groups, out=out).path == out
        out.write_text("mine")
        with pytest.raises(ConfigError, match="did not make it"):
            plot_runs(groups, out=out)
        assert out.read_text() == "mine"

    def test_a_link_in_the_default_place_is_refused(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "a", {50: 1.0})
        (run / "learning_curve.png").symlink_to(tmp_path / "victim")
        with pytest.raises(RLTrainingError, match="is a link"):
            plot_learning_curve(run)
        assert not (tmp_path / "victim").exists()

    def test_an_error_leaves_no_file(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "a", {50: 1.0})
        with pytest.raises(ConfigError):
            plot_runs(find_groups([str(run)]), "nonsense", out=tmp_path / "x.png")
        assert not (tmp_path / "x.png").exists()


class TestTable:
    def test_its_rows_are_points_of_runs_and_summaries(self, tmp_path: Path) -> None:
        out = plot_runs(find_groups([str(small_study(tmp_path))]), out=tmp_path / "x.csv").path
        with out.open() as file:
            rows = list(csv.DictReader(file))
        points = [row for row in rows if row["kind"] == "run" and row["group"] == "gamma=0.9"]
        assert [(row["seed"], float(row["x"]), float(row["value"])) for row in points] == [
            ("0", 10, 0),
            ("0", 20, 1),
            ("1", 10, 2),
            ("1", 20, 3),
        ]
        medians = [row for row in rows if row["kind"] == "median" and row["group"] == "gamma=0.9"]
        assert [[float(row[key]) for key in ("low", "value", "high")] for row in medians] == [
            [0, 1, 2],
            [1, 2, 3],
        ]
        assert {(row["metric"], row["x_axis"]) for row in rows} == {(RETURN, "steps")}


class TestCommand:
    @pytest.fixture
    def here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.chdir(tmp_path)
        small_study(tmp_path / "runs", begun=3)
        return tmp_path

    @pytest.fixture
    def call(
        self, here: Path, capsys: pytest.CaptureFixture[str]
    ) -> Callable[..., tuple[int, str, str]]:
        def call_main(*words: str) -> tuple[int, str, str]:
            capsys.readouterr()
            code = main(["plot", *words])
            return code, *capsys.readouterr()

        return call_main

    def test_settings_of_a_study_into_a_table(
        self, call: Callable[..., tuple[int, str, str]]
    ) -> None:
        code, out, err = call(
            "small:gamma=0.9", "small:gamma=0.99", "--x", "time", "--out", "x.csv"
        )
        assert (code, out) == (0, "table=x.csv\n")
        assert "1 planned run of 'gamma=0.99' not begun" in err

    def test_json_says_what_was_drawn(self, call: Callable[..., tuple[int, str, str]]) -> None:
        values = json.loads(call("small", "--out", "x.csv", "--json")[1])
        assert (values["table"], values["metric"], values["x_label"]) == (
            "x.csv",
            RETURN,
            "environment steps",
        )
        assert [(group["name"], len(group["runs"])) for group in values["groups"]] == [
            ("gamma=0.9", 2),
            ("gamma=0.99", 1),
        ]
        last = {"x": 20, "mean": 2.0, "summary": "median", "value": 2.0, "low": 1.0, "high": 3.0}
        assert values["groups"][0]["last"] == last
        assert len(values["messages"]) == 1
        assert values["caption"].startswith("2 groups, 3 runs")

    def test_several_runs_into_a_picture(
        self, call: Callable[..., tuple[int, str, str]], here: Path
    ) -> None:
        pytest.importorskip("matplotlib")
        code, out, _ = call("runs/small/ppo*seed0*", "--out", "x.svg")
        assert (code, out) == (0, "picture=x.svg\n")
        assert "rl-training" in (here / "x.svg").read_text()


def test_a_picture_is_not_written_where_a_folder_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", {1: 2.0, 2: 3.0})
    assert main(["plot", str(run), "--out", f"{tmp_path}/picture.png/"]) == 2
    assert "names a folder" in capsys.readouterr().err
    assert not (tmp_path / "picture.png").exists()
