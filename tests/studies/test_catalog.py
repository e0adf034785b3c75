"""The catalog of runs: each run's state, scores and settings from its folder alone, filters, and runs found by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from conftest import small_config
from finished_studies import own, release
from run_tools import StopAt

from rl_training.cli import main
from rl_training.errors import ConfigError
from rl_training.experiment.ownership import process_status, this_machine
from rl_training.experiment.yaml_text import dump_yaml
from rl_training.runtime.run import run_training
from rl_training.studies.catalog import (
    TAIL_BYTES,
    find_run,
    find_run_folders,
    format_age,
    is_run_folder,
    last_line,
    list_runs,
    read_run,
)

NAME = "ppo__CartPole-v1__seed1__x"
CONFIG = {
    "algo": "ppo",
    "env_id": "CartPole-v1",
    "seed": 1,
    "total_timesteps": 100,
    "algo_kwargs": {"gamma": 0.99},
}
HUGE = 10**400
"""A number that JSON holds and a float does not."""


def make_run(
    folder: Path, name: str = NAME, *, config: dict[str, Any] | None = None, **metadata: Any
) -> Path:
    """The folder of a run as its first process leaves it, with `metadata`; no owner."""
    run_dir = folder / name
    (run_dir / "checkpoints").mkdir(parents=True)
    (run_dir / "config.yaml").write_text(dump_yaml({**CONFIG, **(config or {})}))
    (run_dir / "metadata.json").write_text(json.dumps(metadata))
    return run_dir


def make_stale(workspace: Path) -> None:
    for path in (workspace / "heartbeat", workspace.with_suffix(".json")):
        os.utime(path, (0, 0))


LEAVE: dict[str, Callable[[Path, int], object]] = {
    "lives": own,
    "is stale": lambda run_dir, attempt: make_stale(own(run_dir, attempt)),
    "has ended": lambda run_dir, attempt: release(own(run_dir, attempt)),
    "never was": lambda run_dir, attempt: None,
}
"""What can have become of an owner."""


class TestState:
    @pytest.mark.parametrize(
        ("status", "recorded_by", "owner", "state"),
        [
            ("finished", 2, "has ended", "finished"),
            ("stopped", 2, "has ended", "stopped"),
            ("failed", 2, "has ended", "failed"),
            ("running", 2, "has ended", "dead"),
            ("finished", 1, "has ended", "dead"),  # by an earlier process
            ("finished", 1, "is stale", "dead"),
            ("running", 2, "is stale", "dead"),
            ("finished", 2, "lives", "running"),
            ("running", 2, "lives", "running"),
            (None, 2, "lives", "running"),
            # of an older form, without owners
            ("finished", None, "never was", "finished"),
            ("stopped", None, "never was", "stopped"),
            ("failed", None, "never was", "failed"),
            ("running", None, "never was", "dead"),
        ],
    )
    def test_a_recorded_end_counts_if_the_last_owner_recorded_it_and_is_gone(
        self, tmp_path: Path, status: str | None, recorded_by: int | None, owner: str, state: str
    ) -> None:
        run_dir = make_run(tmp_path, status=status, attempt=recorded_by, stop_reason="why")
        LEAVE[owner](run_dir, 2)
        info = read_run(run_dir)
        assert info.state == state
        assert info.reason == ("why" if state in ("stopped", "failed") else None)
        assert (info.attempt, info.owner is None) == (
            (0, True) if owner == "never was" else (2, False)
        )
        assert (info.algo, info.env_id, info.seed, info.total) == ("ppo", "CartPole-v1", 1, 100)

    def test_a_run_whose_process_is_gone_is_dead(self, tmp_path: Path) -> None:
        run_dir = make_run(tmp_path, status="running", attempt=1)
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        started = process_status(process.pid)[1]
        own(run_dir, pid=process.pid, started=started, machine=this_machine())
        assert read_run(run_dir).state == "running"
        process.communicate(b"\n")
        assert read_run(run_dir).state == "dead"

    def test_what_the_heartbeat_tells_counts_only_while_the_run_lives(self, tmp_path: Path) -> None:
        run_dir = make_run(tmp_path, attempt=1, steps_per_second=3.0, total_timesteps=100)
        workspace = own(run_dir, beat={"step": 40, "total": 100, "rate": 10.0})
        info = read_run(run_dir)
        assert (info.step, info.rate, info.share, info.seconds_left) == (40, 10.0, 0.4, 6.0)
        make_stale(workspace)
        info = read_run(run_dir)
        assert (info.step, info.rate, info.share, info.seconds_left) == (0, 3.0, 0.0, None)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, one stopped by a callback, and one that failed."""
    folder = tmp_path_factory.mktemp("trained")

    class Fail(StopAt):
        def _check(self, trainer, event):  # type: ignore[no-untyped-def]
            if event == self.event:
                raise ValueError("on purpose")

    config = small_config("ppo", folder)
    run_training(config, run_suffix="finished")
    run_training(config, run_suffix="stopped", callbacks=[StopAt(64, "collect")])
    with pytest.raises(ValueError, match="on purpose"):
        run_training(config, run_suffix="failed", callbacks=[Fail(64, "update")])
    return folder


class TestTrainedRuns:
    def test_their_states_steps_and_reasons(self, trained: Path) -> None:
        failed, finished, stopped = list_runs(trained)
        assert (failed.state, finished.state, stopped.state) == ("failed", "finished", "stopped")
        assert (finished.step, finished.share, finished.reason) == (128, 1.0, None)
        assert (stopped.step, stopped.reason) == (64, "test")
        assert "on purpose" in (failed.reason or "")

    def test_their_scores_are_those_of_the_files(self, trained: Path) -> None:
        info = read_run(trained / "ppo__CartPole-v1__seed1__finished")
        lines = (info.run_dir / "evaluations.jsonl").read_text().splitlines()
        means = [
            sum(returns) / len(returns)
            for returns in (json.loads(line)["returns"] for line in lines)
        ]
        assert info.last_eval == pytest.approx(means[-1])
        assert info.best_eval == pytest.approx(max(means))
        assert (
            info.rate
            == json.loads((info.run_dir / "metadata.json").read_text())["steps_per_second"]
        )
        assert (info.algo, info.env_id, info.seed, info.attempt) == ("ppo", "CartPole-v1", 1, 1)
        assert info.has_checkpoint
        assert info.exactness == "exact"
        assert info.age_seconds is not None


class TestDamagedFiles:
    @pytest.mark.parametrize(
        "text", ["", "{", "[]", "5", "\x00", "[" * 100_000, '{"status": 5, "seed": [1], "algo": 3}']
    )
    def test_damaged_metadata_leave_what_the_configuration_says(
        self, tmp_path: Path, text: str
    ) -> None:
        run_dir = make_run(tmp_path)
        (run_dir / "metadata.json").write_text(text)
        info = read_run(run_dir)
        assert info.state == "dead"
        assert info.total == 100
        assert json.loads(json.dumps(info.as_dict()))["state"] == "dead"

    @pytest.mark.parametrize(
        "metadata",
        [
            {"created": 5, "exactness": 3, "stop_reason": [1], "status": "failed"},
            {"created": "yesterday"},
            {"created": "2026-01-02"},
            {"steps_per_second": "fast"},
            {"steps_per_second": float("inf")},
            {"steps_per_second": None},
            {"total_timesteps": 0},
            {"total_timesteps": HUGE},
            {"steps_per_second": HUGE},
            {"seed": HUGE, "attempt": HUGE},
        ],
    )
    def test_metadata_of_other_types_do_not_hide_the_run(
        self, tmp_path: Path, metadata: dict[str, Any]
    ) -> None:
        make_run(tmp_path, **metadata)
        make_run(tmp_path, "another", status="finished")
        infos = list_runs(tmp_path)
        assert [info.name for info in infos] == ["another", NAME]
        for info in infos:
            assert info.share is None or 0 <= info.share <= 1
            assert info.age_seconds is None or info.age_seconds >= 0

    @pytest.mark.parametrize(
        "line",
        [
            *("", "{}", "[]", "5", '{"returns": []}', '{"returns": 5}', '{"returns": ["a"]}'),
            *('{"returns": [null]}', f'{{"returns": [{HUGE}]}}', '{"returns": [NaN]}'),
        ],
    )
    def test_a_damaged_evaluation_is_no_score(self, tmp_path: Path, line: str) -> None:
        run_dir = make_run(tmp_path)
        (run_dir / "evaluations.jsonl").write_text(f"{line}\n")
        assert read_run(run_dir).last_eval is None

    @pytest.mark.parametrize(
        "name", ["config.yaml", "metadata.json", "metrics.jsonl", "evaluations.jsonl"]
    )
    @pytest.mark.parametrize(
        "data",
        [b"", b"\xff\xfe\x00", b"{" * 1000, b"\n\n\n", f'{{"global_step": {HUGE}}}\n'.encode()],
    )
    def test_any_damaged_file_leaves_the_run_listed(
        self, tmp_path: Path, name: str, data: bytes
    ) -> None:
        (make_run(tmp_path, algo="ppo", seed=1) / name).write_bytes(data)
        (info,) = list_runs(tmp_path)
        assert (info.name, info.step) == (NAME, 0)

    @pytest.mark.parametrize(
        "beat",
        [
            *([], 5, {"step": "x", "rate": "y"}, {"step": None, "rate": None}),
            *({"rate": float("nan")}, {"step": HUGE, "rate": HUGE}, {"step": -HUGE, "rate": -HUGE}),
        ],
    )
    def test_a_damaged_heartbeat_tells_nothing(self, tmp_path: Path, beat: Any) -> None:
        run_dir = make_run(tmp_path)
        own(run_dir, beat=beat)
        info = read_run(run_dir)
        assert (info.state, info.step, info.rate) == ("running", 0, None)

    @pytest.mark.parametrize(
        "text", ["", "step_5", "../../x", "step_000000000005 1.0 wrong\n", "step_000000000005 x\n"]
    )
    def test_a_damaged_pointer_is_no_score(self, tmp_path: Path, text: str) -> None:
        run_dir = make_run(tmp_path)
        (run_dir / "checkpoints" / "best").write_text(text)
        assert read_run(run_dir).best_eval is None

    def test_pointers_written_by_hand_are_read(self, tmp_path: Path) -> None:
        run_dir = make_run(tmp_path)
        (run_dir / "checkpoints" / "best").write_text("step_000000000005 7.5\n")
        (run_dir / "checkpoints" / "last").write_text("step_000000000064\n")
        info = read_run(run_dir)
        assert (info.best_eval, info.step, info.has_checkpoint) == (7.5, 64, True)


class TestLastLine:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ('{"a": 1}\n', {"a": 1}),
            ('{"a": 1}\n{"a": 2}\n', {"a": 2}),
            ('{"a": 1}\n{"a": 2}', {"a": 1}),
            ('{"a": 1}\n{"a": ', {"a": 1}),
            ('{"a": 1}', {}),
            ("", {}),
            ("\n", {}),
            ('{"a": 1}\nnot json\n', {}),
            ('{"a": 1}\n[1]\n', {}),
            ('{"a": 1}\n\x00\x00\n', {}),
        ],
    )
    def test_the_last_complete_line_counts(
        self, tmp_path: Path, text: str, expected: dict[str, int]
    ) -> None:
        (tmp_path / "lines").write_text(text)
        assert last_line(tmp_path / "lines") == expected

    @pytest.mark.parametrize(
        "lengths",
        [
            *((10, 10), (TAIL_BYTES, 10), (10, TAIL_BYTES), (10, 3 * TAIL_BYTES)),
            (3 * TAIL_BYTES,),
        ],
    )
    @pytest.mark.parametrize("rest", ["", '{"cut', '{"cut": "' + "x" * 2 * TAIL_BYTES])
    def test_long_lines_and_long_files_are_read_too(
        self, tmp_path: Path, lengths: tuple[int, ...], rest: str
    ) -> None:
        lines = [
            json.dumps({"number": number, "text": "x" * length})
            for number, length in enumerate(lengths)
        ]
        (tmp_path / "lines").write_text("".join(f"{line}\n" for line in lines) + rest)
        found = last_line(tmp_path / "lines")
        assert (found["number"], len(found["text"])) == (len(lengths) - 1, lengths[-1])

    @pytest.mark.parametrize("length", range(TAIL_BYTES - 3, TAIL_BYTES + 4))
    def test_a_line_that_begins_at_the_edge_of_what_is_read_is_whole(
        self, tmp_path: Path, length: int
    ) -> None:
        line = json.dumps({"text": "x" * (length - len('{"text": ""}'))})
        (tmp_path / "lines").write_text(f'{{"text": ""}}\n{line}\n')
        assert json.dumps(last_line(tmp_path / "lines")) == line

    def test_what_is_no_file_has_no_line(self, tmp_path: Path) -> None:
        (tmp_path / "folder").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "lines")
        for name in ("missing", "folder", "link"):
            assert last_line(tmp_path / name) == {}


class TestFolders:
    def test_runs_are_found_in_the_folder_and_below(self, tmp_path: Path) -> None:
        expected = [
            make_run(tmp_path, "b"),
            make_run(tmp_path, "a"),
            make_run(tmp_path / "study", "c"),
            make_run(tmp_path / "d" / "e" / "f", "g"),
        ]
        assert find_run_folders(tmp_path) == sorted(expected)
        assert find_run_folders(tmp_path / "a") == [tmp_path / "a"]

    def test_what_is_no_run_is_passed_over(self, tmp_path: Path) -> None:
        make_run(tmp_path / ".hidden")
        make_run(tmp_path / "1" / "2" / "3" / "4" / "5")
        (tmp_path / "notes.txt").write_text("")
        (tmp_path / "checkpoints").mkdir()
        (tmp_path / "only-config").mkdir()
        (tmp_path / "only-config" / "config.yaml").write_text("algo: ppo\n")
        (tmp_path / "loop").symlink_to(tmp_path)
        assert find_run_folders(tmp_path) == []
        assert find_run_folders(tmp_path / "missing") == []
        assert not is_run_folder(tmp_path / "only-config")

    def test_what_lies_within_a_run_is_no_other_run(self, tmp_path: Path) -> None:
        run_dir = make_run(tmp_path)
        make_run(run_dir / "copies", "inner")
        assert find_run_folders(tmp_path) == [run_dir]


class TestFilters:
    @pytest.fixture
    def runs(self, tmp_path: Path) -> Path:
        """Three runs that differ in what filters ask for."""
        make_run(tmp_path, "ppo__A__seed1", algo="ppo", seed=1, status="finished")
        make_run(
            tmp_path, "ppo__B__seed2", algo="ppo", seed=2, status="failed", config={"compile": True}
        )
        dqn = {
            "algo_kwargs": {"gamma": 0.9, "replay": {"kind": "uniform"}, "hidden_sizes": [8, 8]},
            "num_envs": 4,
        }
        make_run(tmp_path, "dqn__A__seed1", algo="dqn", seed=1, status="stopped", config=dqn)
        return tmp_path

    @pytest.mark.parametrize(
        ("filters", "expected"),
        [
            ([], ["dqn__A__seed1", "ppo__A__seed1", "ppo__B__seed2"]),
            (["ppo"], ["ppo__A__seed1", "ppo__B__seed2"]),
            (["__A__", "ppo"], ["ppo__A__seed1"]),
            (["algo=dqn"], ["dqn__A__seed1"]),
            (["state=failed"], ["ppo__B__seed2"]),
            (["state=running"], []),
            (["seed=1"], ["dqn__A__seed1", "ppo__A__seed1"]),
            (["seed=1.0", "algo=ppo"], ["ppo__A__seed1"]),
            (["seed=x"], []),
            (["algo_kwargs.gamma=0.99"], ["ppo__A__seed1", "ppo__B__seed2"]),
            (["algo_kwargs.gamma=.9"], ["dqn__A__seed1"]),
            (["gamma=.9"], ["dqn__A__seed1"]),
            (["replay.kind=uniform"], ["dqn__A__seed1"]),
            (["algo_kwargs.replay.kind=uniform"], ["dqn__A__seed1"]),
            (["algo_kwargs.hidden_sizes=[8, 8]"], ["dqn__A__seed1"]),
            (["num_envs=4"], ["dqn__A__seed1"]),
            (["compile=true"], ["ppo__B__seed2"]),
            (["last_eval=null"], ["dqn__A__seed1", "ppo__A__seed1", "ppo__B__seed2"]),
            (["name=ppo__B__seed2"], ["ppo__B__seed2"]),
        ],
    )
    def test_a_run_is_listed_if_every_filter_matches(
        self, runs: Path, filters: list[str], expected: list[str]
    ) -> None:
        assert [info.name for info in list_runs(runs, filters)] == expected

    def test_a_state_that_does_not_exist_is_refused(self) -> None:
        with pytest.raises(
            ConfigError,
            match="bad value 'done' for the filter state: use running, finished, stopped",
        ):
            list_runs(Path(), ["algo=ppo", "state=done"])

    @pytest.mark.parametrize(
        ("text", "hint"),
        [
            ("alog=ppo", "'algo'"),
            ("kind=uniform", "'algo_kwargs.replay.kind'"),
            ("zzz=1", "runs show RUN"),
        ],
    )
    def test_a_key_that_no_run_has_is_refused(self, tmp_path: Path, text: str, hint: str) -> None:
        run_dir = make_run(tmp_path, algo="ppo")
        (run_dir / "config.yaml").write_text(
            "algo: ppo\nalgo_kwargs: {gamma: 0.8, replay: {kind: her}}\n"
        )
        with pytest.raises(ConfigError, match=f"no run has a setting .*{hint}"):
            list_runs(tmp_path, [text])

    def test_large_seeds_are_told_apart(self, tmp_path: Path) -> None:
        for seed in (2**53, 2**53 + 1):
            make_run(tmp_path, f"seed{seed}", seed=seed)
        assert [info.seed for info in list_runs(tmp_path, [f"seed={2**53 + 1}"])] == [2**53 + 1]


class TestFindRun:
    @pytest.fixture
    def runs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """The folder `runs` of the working directory with three runs, one of them in a study; `out` has another."""
        monkeypatch.chdir(tmp_path)
        start = datetime(2026, 1, 1, tzinfo=timezone.utc)
        places = [
            ("runs", "ppo__A__seed1__x"),
            ("runs", "ppo__A__seed2__x"),
            ("runs/study", "dqn__B__seed1__x"),
        ]
        for number, (place, name) in enumerate([*places, ("out", "sac__C__seed1__x")]):
            make_run(Path(place), name, created=(start + timedelta(hours=number)).isoformat())
        (tmp_path / "runs/study/dqn__B__seed1__x/checkpoints/best").touch()
        return tmp_path / "runs"

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("runs/ppo__A__seed1__x", "runs/ppo__A__seed1__x"),
            ("runs/ppo__A__seed1__x/checkpoints", "runs/ppo__A__seed1__x/checkpoints"),
            ("ppo__A__seed1__x", "runs/ppo__A__seed1__x"),
            ("ppo__A__seed2", "runs/ppo__A__seed2__x"),
            ("dqn", "runs/study/dqn__B__seed1__x"),
            ("@last", "runs/study/dqn__B__seed1__x"),
            ("@last/checkpoints/best", "runs/study/dqn__B__seed1__x/checkpoints/best"),
            ("@last:best", "runs/study/dqn__B__seed1__x/checkpoints/best"),
            ("dqn:best", "runs/study/dqn__B__seed1__x/checkpoints/best"),
            ("runs/study/d/checkpoints/best", "runs/study/dqn__B__seed1__x/checkpoints/best"),
            ("@last/", "runs/study/dqn__B__seed1__x"),
            ("out/sac", "out/sac__C__seed1__x"),
            ("./out/s", "out/sac__C__seed1__x"),
            ("runs/study/d", "runs/study/dqn__B__seed1__x"),
        ],
    )
    def test_a_run_is_named_by_its_path_the_beginning_of_its_name_or_last(
        self, runs: Path, name: str, expected: str
    ) -> None:
        assert find_run(name) == Path(expected)

    def test_the_folder_can_be_another(self, runs: Path) -> None:
        assert (
            find_run("sac", Path("out"))
            == find_run("@last", Path("out"))
            == Path("out/sac__C__seed1__x")
        )
        assert find_run(str(runs / "dqn")) == runs / "study" / "dqn__B__seed1__x"

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("out/sac:last", "'out/sac:last': run 'out/sac__C__seed1__x' has no checkpoints/last"),
            ("@last:worst", "write @last:best or @last:last, or @last/checkpoints/NAME"),
            ("ppo", "'ppo' is the beginning of 2 run folders' names in 'runs': 'runs/ppo__A__seed"),
            ("many", r"of 5 run folders' names in 'runs': 'runs/many0', .*'runs/many3', …"),
            *(
                (name, rf"'{name}' .*`rl-training runs` lists the runs")
                for name in ("sac", "@lost", "out/ppo", "missing/ppo", "runs/x", "seed1")
            ),
            ("x" * 300, "does not exist"),
        ],
    )
    def test_a_name_of_no_run_or_several_is_refused(
        self, runs: Path, name: str, message: str
    ) -> None:
        for number in range(5):
            make_run(runs, f"many{number}")
        with pytest.raises(ConfigError, match=message):
            find_run(name)

    def test_without_runs_there_is_no_last_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(ConfigError, match=r"@last: there is no run in 'runs' \(looked from"):
            find_run("@last")

    def test_the_last_run_is_the_one_created_last_even_if_another_was_resumed_since(
        self, runs: Path
    ) -> None:
        os.utime(runs / "ppo__A__seed1__x" / "config.yaml")
        os.utime(runs / "study" / "dqn__B__seed1__x" / "config.yaml", (0, 0))
        assert find_run("@last").name == "dqn__B__seed1__x"

    def test_of_runs_created_in_the_same_second_the_later_file_decides(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        for seconds, name in enumerate("bca"):
            os.utime(
                make_run(Path("runs"), name, created="2026-01-01T00:00:00+00:00") / "config.yaml",
                (seconds, seconds),
            )
        assert find_run("@last") == Path("runs/a")

    def test_a_complete_name_wins_over_longer_ones(self, runs: Path) -> None:
        make_run(runs, "ppo__A__seed1__x-1")
        assert find_run("ppo__A__seed1__x") == Path("runs/ppo__A__seed1__x")


class TestInfo:
    def test_as_json_has_what_scripts_read(self, tmp_path: Path) -> None:
        run_dir = make_run(tmp_path, status="finished", attempt=3)
        release(own(run_dir, 3))
        values = json.loads(json.dumps(read_run(run_dir).as_dict()))
        assert values["run_dir"] == str(run_dir)
        assert values["owner"]["host"] == "elsewhere"
        assert (values["name"], values["share"], values["attempt"]) == (NAME, 0.0, 3)
        assert values.keys() >= {"state", "algo", "env_id", "seed", "step", "total", "last_eval"}

    def test_a_run_beyond_its_total_is_done(self, tmp_path: Path) -> None:
        run_dir = make_run(tmp_path)
        (run_dir / "metrics.jsonl").write_text('{"global_step": 104}\n')
        info = read_run(run_dir)
        assert (info.step, info.share) == (104, 1.0)

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (None, "-"),
            (0, "0s"),
            (5.4, "5s"),
            (59, "59s"),
            (60, "1m"),
            (720, "12m"),
            (3600, "1h"),
            (200_000, "2d"),
        ],
    )
    def test_ages_are_written_in_their_largest_unit(self, seconds: float | None, text: str) -> None:
        assert format_age(seconds) == text

    def test_the_age_counts_from_the_creation(self, tmp_path: Path) -> None:
        created = datetime.now(timezone.utc) - timedelta(days=3)
        info = read_run(make_run(tmp_path, created=created.isoformat()))
        assert info.age_seconds == pytest.approx(3 * 86_400, abs=600)


def test_a_finished_run_has_no_score_but_that_of_its_last_step(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, status="finished")
    (run_dir / "metrics.jsonl").write_text('{"global_step": 200}\n')
    lines = [f'{{"global_step": {step}, "returns": [{step}.0]}}\n' for step in (100, 200)]
    (run_dir / "evaluations.jsonl").write_text("".join(lines))
    assert read_run(run_dir).last_eval == 200.0
    (run_dir / "evaluations.jsonl").write_text("".join(lines)[:-5])
    assert read_run(run_dir).last_eval is None


class TestRemoving:
    @pytest.fixture
    def runs(self, tmp_path: Path) -> Path:
        """Runs with and without a checkpoint, one that is trained, and a study of two."""
        for name, status in (("kept", "finished"), ("begun", "failed"), ("alive", "running")):
            make_run(tmp_path / "runs", name, status=status)
        (tmp_path / "runs/kept/checkpoints/last").write_text("step_000000000005\n")
        own(tmp_path / "runs/alive")
        for number in range(2):
            make_run(tmp_path / "runs" / "study", f"part{number}", status="failed")
        (tmp_path / "runs/study/study.yaml").touch()
        return tmp_path / "runs"

    def left(self, runs: Path) -> list[str]:
        return sorted(path.name for path in runs.iterdir())

    def test_prune_removes_what_never_had_a_checkpoint(
        self, runs: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["runs", "prune", str(runs)]) == 2
        assert (
            f"1 folder would be removed, the first '{runs / 'begun'}': add --yes"
            in capsys.readouterr().err
        )
        assert main(["runs", "prune", str(runs), "--yes"]) == 0
        assert capsys.readouterr().out == f"removed {runs / 'begun'}\n"
        assert self.left(runs) == ["alive", "kept", "study"]
        assert main(["runs", "prune", str(runs), "state=finished", "--yes"]) == 0
        assert self.left(runs) == ["alive", "study"]
        assert main(["runs", "prune", str(runs)]) == 0
        assert "nothing to remove" in capsys.readouterr().out

    def test_rm_removes_runs_and_studies_that_are_not_trained(
        self, runs: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["runs", "rm", str(runs / "kept"), str(runs / "alive"), "--yes"]) == 2
        assert "which is still alive" in capsys.readouterr().err
        assert main(["runs", "rm", str(runs), "--yes"]) == 2
        assert "is not a run folder" in capsys.readouterr().err
        assert main(["runs", "rm", str(runs / "kept"), str(runs / "study"), "--yes"]) == 0
        assert self.left(runs) == ["alive", "begun"]

    def test_a_study_is_removed_by_the_name_that_the_list_shows(
        self, runs: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(runs.parent)
        assert main(["runs", "rm", "study/", "--yes"]) == 0
        assert self.left(runs) == ["alive", "begun", "kept"]

    def test_a_terminal_is_asked(self, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        for answer, is_left in ((False, True), (True, False)):
            monkeypatch.setattr("typer.confirm", lambda text, err, answer=answer: answer)
            assert main(["runs", "rm", str(runs / "begun")]) == 0
            assert (runs / "begun").exists() == is_left
