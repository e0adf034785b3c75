"""The progress of a run: on terminals of several widths, without a terminal, and quiet."""

from __future__ import annotations

from typing import Any

import pytest
from terminals import use_terminal

from rl_training.terminal.progress import (
    LiveView,
    Pace,
    ProgressView,
    collapsed,
    counter,
    counting,
    format_seconds,
    make_view,
)
from rl_training.terminal.streams import quieted, tell

EVALUATION = {"eval_return_mean": -1234.56, "eval_return_std": 210.0, "eval_episodes": 10}
METRICS = {"train_return_mean": -1500.0, "actor_loss": 0.0123, **EVALUATION}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class TestPace:
    def test_the_rate_is_of_the_last_seconds(self) -> None:
        clock = Clock()
        pace = Pace(0, clock)
        step = 0
        for rate in (100, 10):
            for _ in range(20):
                clock.now += 1
                step += rate
                pace.mark(step)
        assert pace.rate == pytest.approx(10, rel=0.15)
        assert pace.seconds_left(step, step + 100) == pytest.approx(10, rel=0.15)

    def test_a_slow_run_has_a_rate(self) -> None:
        clock = Clock()
        pace = Pace(1000, clock)
        assert pace.rate is None
        for step in (1010, 1020, 1030):
            clock.now += 60
            pace.mark(step)
        assert pace.rate == pytest.approx(1 / 6)

    def test_evaluations_and_the_compiler_do_not_slow_the_rate(self) -> None:
        clock = Clock()
        pace = Pace(0, clock)
        clock.now += 1
        pace.mark(10)
        for was_evaluation in (False, True):
            pace.pause()
            clock.now += 50
            pace.resume(was_evaluation=was_evaluation)
        clock.now += 1
        pace.mark(20)
        assert pace.rate == 10
        assert pace.seconds_left(20, 40) == 2 * (1 + 50 / 2), (
            "evaluations come again, compiling does not"
        )

    @pytest.mark.parametrize(
        ("seconds", "text"), [(0, "0:00"), (4.4, "0:04"), (75, "1:15"), (4000, "1:06:40")]
    )
    def test_times_are_short(self, seconds: float, text: str) -> None:
        assert format_seconds(seconds) == text


class TestLive:
    @pytest.mark.parametrize("width", [60, 80, 120])
    def test_bar_rate_time_left_and_score_fit_the_width(
        self, width: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        terminal = use_terminal(monkeypatch, width)
        view = make_view()
        assert isinstance(view, LiveView)
        clock = view._pace._clock = Clock()
        view._pace._start = clock.now
        clock.now += 10
        view.update(1_234_567, 10_000_000, METRICS)
        view.close()
        drawn = [line for line in terminal.lines() if "12%" in line]
        assert drawn
        for line in terminal.lines():
            assert len(line) <= width - 2, "^C behind it would wrap the line"
        assert drawn[-1][0] in "━╸"
        parts = ["1,234,567/10,000,000", "123,457 steps/s"]
        parts += ["1:11 left"] if width >= 80 else []
        parts += ["eval -1234.6"] if width >= 80 else []
        parts += ["return -1500.0"] if width >= 120 else []
        assert all(part in drawn[-1] for part in parts), drawn[-1]

    def test_an_evaluation_moves_and_leaves_a_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        terminal = use_terminal(monkeypatch)
        view = make_view()
        view.update(5_000, 10_000, {})
        for num_done, seconds in ((0, 0), (0, 75), (1, 80)):
            monkeypatch.setattr(
                "rl_training.terminal.progress.time.monotonic", lambda now=1000.0 + seconds: now
            )
            view.evaluating(num_done, 10)
        monkeypatch.undo()
        monkeypatch.setattr("sys.stderr", terminal)
        view.evaluated(5_000, EVALUATION, is_best=True)
        view.close()
        text = "\n".join(terminal.lines())
        for progress in (
            "0 of 10 episodes, 0:00",
            "0 of 10 episodes, 1:15",
            "1 of 10 episodes, 1:20",
        ):
            assert progress in text
        assert "step 5,000  eval -1234.6 ± 210.0 over 10 episodes  best so far" in terminal.lines()

    def test_a_signal_shows_at_once_behind_the_bar_and_leaves_one_line(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        terminal = use_terminal(monkeypatch)
        view = make_view()
        view.update(5_000, 10_000, {})
        view.stopping()
        view._live.refresh()
        assert terminal.lines()[-1].endswith("5,000/10,000  stopping after this step; saving…")
        view.stopped()
        view.close()
        assert terminal.lines().count("stopping after this step; saving…") == 1
        assert "stopping" not in terminal.lines()[-1]

    def test_compiling_shows_while_it_happens(self, monkeypatch: pytest.MonkeyPatch) -> None:
        terminal = use_terminal(monkeypatch)
        view = make_view()
        view.compiling(True)
        assert "compiling the update…" in terminal.lines()[-1]
        view.compiling(False)
        view.close()
        assert "compiling" not in terminal.lines()[-1]

    def test_an_evaluation_by_itself_moves(self, monkeypatch: pytest.MonkeyPatch) -> None:
        terminal = use_terminal(monkeypatch)
        with counter(3, "evaluating", "episodes", shows_time=True) as show:
            show(0)
        assert "evaluating 0 of 3 episodes, 0:00" in "\n".join(terminal.lines())


class TestPlain:
    def test_lines_fit_eighty_columns_and_nothing_is_redrawn(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        view = make_view()
        assert type(view) is ProgressView
        view.update(1_234_567, 10_000_000, METRICS)
        view.compiling(True)
        view.compiling(False)
        for _ in range(1000):
            view.evaluating(0, 10)
        view.evaluated(2_000_000, {**EVALUATION, "eval_success_rate": 0.25}, is_best=False)
        view.update(10_000_000, 10_000_000, {**METRICS, "actor_loss": 1.0})
        lines = capsys.readouterr().err.splitlines()
        assert max(map(len, lines)) <= 80
        assert lines[1:3] == [
            "compiling the update…",
            "step 2,000,000  eval -1234.6 ± 210.0 over 10 episodes  success 25%",
        ]
        assert len(lines) == 4, "an evaluation that is short is one line"

    def test_a_count_is_lines(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert list(counting(3, "fitted Q evaluation")) == [0, 1, 2]
        assert capsys.readouterr().err == "", "what takes a moment needs no lines"
        monkeypatch.setattr("rl_training.terminal.progress.SECONDS_BETWEEN_COUNTS", 0.0)
        list(counting(2, "fitted Q evaluation"))
        assert capsys.readouterr().err == "fitted Q evaluation 1 of 2\nfitted Q evaluation 2 of 2\n"

    def test_a_long_number_is_cut(self, capsys: pytest.CaptureFixture[str]) -> None:
        tell(f"seed {'7' * 3000} of {'8' * 79}")
        assert capsys.readouterr().err == f"seed {'7' * 20}… (3,000 digits) of {'8' * 79}\n"

    def test_quiet_is_silent(self, capsys: pytest.CaptureFixture[str]) -> None:
        with quieted():
            view = make_view()
            view.update(1, 10, METRICS)
            view.evaluating(0, 10)
            view.evaluated(1, EVALUATION, is_best=True)
            view.compiling(True)
            view.message("a note")
            tell("another")
        assert capsys.readouterr().err == ""
        tell("heard")
        assert capsys.readouterr().err == "heard\n"


@pytest.mark.parametrize(
    ("notes", "shown"),
    [
        ([f"environment {n}: it is odd" for n in range(64)], ["64 environments: it is odd"]),
        (["environment 3: it is odd"], ["environment 3: it is odd"]),
        (
            ["a", "environment 0: x", "environment 1: y", "environment 2: x"],
            ["a", "2 environments: x", "environment 1: y"],
        ),
        (["the same", "the same"], ["the same"]),
    ],
)
def test_the_same_note_of_many_environments_is_one(notes: list[str], shown: list[Any]) -> None:
    assert collapsed(notes) == shown
