"""The folder of a study: begun once, continued, extended, never changed in silence, and found by name."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_tools import contents

from rl_training import files
from rl_training.errors import ConfigError, RLTrainingError
from rl_training.experiment import yaml_text
from rl_training.experiment.yaml_text import is_unedited, sign
from rl_training.studies import plan as plan_module
from rl_training.studies.launching.study import Study
from rl_training.studies.plan import (
    PLAN_FILE,
    Plan,
    StudyFolder,
    find_study,
    list_studies,
    make_plan,
    open_study,
    store_plan,
)

BASE = {"algo": "ppo", "env_id": "CartPole-v1"}
GAMMA = "algo_kwargs.gamma"
PATIENCE_SECONDS = 60.0

BEGIN = """
import sys
import time
from pathlib import Path
from rl_training.studies.plan import make_plan
from rl_training.studies.plan import store_plan

folder, rounds = Path(sys.argv[1]), int(sys.argv[2])
plan = make_plan("x", [{"algo": "ppo", "env_id": "CartPole-v1"}], seeds="0..3")
print("ready", flush=True)
for line, number in zip(sys.stdin, range(rounds)):
    while time.time() < float(line):
        pass
    try:
        store_plan(plan, folder / str(number) / "x")
        print("begun", flush=True)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
"""
"""A process that begins a study at each moment that it reads."""


def plan_of(seeds: Any = "0..1", vary: Any = (), **base: Any) -> Plan:
    return make_plan("x", [{**BASE, **base}], vary=vary, seeds=seeds)


def tree(folder: Path) -> set[Path]:
    """Every file and folder below a folder."""
    return set(folder.rglob("*"))


class TestBegin:
    def test_a_new_study_has_a_folder_with_its_plan_and_nothing_else(self, tmp_path: Path) -> None:
        plan = plan_of(vary={GAMMA: [0.9, 0.99]}, env_kwargs={"size": (1, 2)})
        stored = store_plan(plan, tmp_path / "runs" / "x")
        assert stored == StudyFolder(tmp_path / "runs" / "x", plan)
        assert contents(tmp_path).keys() == {f"runs/x/{PLAN_FILE}"}
        assert is_unedited((stored.path / PLAN_FILE).read_text())
        assert open_study(stored.path) == stored
        assert stored.name == "x"
        assert [run.run_dir.parent for run in stored.runs()] == [stored.path] * 4

    def test_an_empty_folder_is_used(self, tmp_path: Path) -> None:
        (tmp_path / "x").mkdir()
        assert store_plan(plan_of(), tmp_path / "x").plan == plan_of()

    def test_the_same_plan_again_continues_and_writes_nothing(self, tmp_path: Path) -> None:
        store_plan(plan_of(), tmp_path / "x")
        before = contents(tmp_path)
        assert store_plan(plan_of(), tmp_path / "x") == open_study(tmp_path / "x")
        assert store_plan(plan_of(), tmp_path / "x", is_extended=True).plan == plan_of()
        assert contents(tmp_path) == before

    def test_the_stored_number_of_threads_stays(self, tmp_path: Path) -> None:
        begun = make_plan("x", [BASE], seeds="0..1")
        store_plan(Plan(**{**vars(begun), "threads": (3,)}), tmp_path / "x")
        assert store_plan(begun, tmp_path / "x").plan.threads == (3,)

    def test_code_that_moved_is_imported_from_its_new_place(self, tmp_path: Path) -> None:
        old = make_plan("x", [BASE], plugins=["old.py"], callbacks=["old.py:C"])
        new = make_plan("x", [BASE], plugins=["new.py"], callbacks=["new.py:C"])
        store_plan(old, tmp_path / "x")
        plan = store_plan(new, tmp_path / "x").plan
        assert (plan.plugins, plan.callbacks) == (("new.py",), ("new.py:C",))

    @pytest.mark.parametrize("name", ["notes.txt", "run.log"])
    def test_a_folder_of_something_else_is_refused_and_left_as_it_is(
        self, tmp_path: Path, name: str
    ) -> None:
        (tmp_path / "x").mkdir()
        (tmp_path / "x" / name).write_text("mine")
        before = contents(tmp_path)
        with pytest.raises(
            ConfigError,
            match=r"x' exists and is not a study: move it away, or give the study another",
        ):
            store_plan(plan_of(), tmp_path / "x")
        assert contents(tmp_path) == before

    def test_a_file_in_place_of_the_folder_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_text("mine")
        with pytest.raises(RLTrainingError, match="x'"):
            store_plan(plan_of(), tmp_path / "x")
        assert contents(tmp_path) == {"x": b"mine"}


class TestChangedPlan:
    @pytest.mark.parametrize(
        ("new", "difference"),
        [
            (
                plan_of("0..1", {GAMMA: [0.9, 0.99]}, num_envs=4),
                "base.num_envs was not set and is 4",
            ),
            (
                plan_of("0..1", {GAMMA: [0.9, 0.95]}),
                "vary changed: removed gamma=0.99, added gamma=0.95",
            ),
            (plan_of("1..5", {GAMMA: [0.9, 0.99]}), r"seeds was 0\.\.1 and is 1\.\.5"),
        ],
    )
    @pytest.mark.parametrize("is_extended", [False, True])
    def test_it_is_refused_with_the_difference_and_the_remedies(
        self, tmp_path: Path, new: Plan, difference: str, is_extended: bool
    ) -> None:
        store_plan(plan_of("0..1", {GAMMA: [0.9, 0.99]}), tmp_path / "x")
        before = contents(tmp_path)
        with pytest.raises(
            ConfigError, match=f"study 'x' began with another plan .*{difference}. Give --fork NAME"
        ):
            store_plan(new, tmp_path / "x", is_extended=is_extended)
        assert contents(tmp_path) == before

    def test_for_a_plan_with_further_runs_extend_is_proposed_too(self, tmp_path: Path) -> None:
        store_plan(plan_of("0..1"), tmp_path / "x")
        with pytest.raises(
            ConfigError,
            match=r"seeds was 0\.\.1 and is 0\.\.4\. Give --extend .* to add .* or --fork NAME",
        ):
            store_plan(plan_of("0..4"), tmp_path / "x")

    def test_extending_adds_the_new_runs_and_keeps_the_old(self, tmp_path: Path) -> None:
        old = store_plan(plan_of("0..1", {GAMMA: [0.9, 0.99]}), tmp_path / "x")
        new = store_plan(
            plan_of("0..2", {GAMMA: [0.9, 0.99, 0.5]}), tmp_path / "x", is_extended=True
        )
        assert open_study(tmp_path / "x") == new
        assert is_unedited((tmp_path / "x" / PLAN_FILE).read_text())
        assert {run.run_dir for run in old.runs()} < {run.run_dir for run in new.runs()}
        assert len(new.runs()) == 9
        assert contents(tmp_path).keys() == {f"x/{PLAN_FILE}"}

    def test_a_fork_begins_beside_the_study(self, tmp_path: Path) -> None:
        study = Study(BASE, seeds="0..1", name="x", output_dir=tmp_path)
        store_plan(study.plan, study.path)
        forked = study.fork("y")
        store_plan(forked.plan, forked.path)
        assert [path.name for path in list_studies(tmp_path)] == ["x", "y"]
        assert open_study(tmp_path / "y").name == "y"
        with pytest.raises(ConfigError, match=r"bad value '\.\./y' for --fork"):
            study.fork("../y")


class TestStoredFile:
    @pytest.mark.parametrize(
        "edit",
        [
            lambda text: text.replace("0..1", "0..9"),
            lambda text: f"{text}# a note\n",
            lambda text: text.rpartition("# as written")[0],
        ],
    )
    def test_an_edited_plan_is_refused_and_fork_proposed(
        self, tmp_path: Path, edit: Callable[[str], str]
    ) -> None:
        store_plan(plan_of(), tmp_path / "x")
        path = tmp_path / "x" / PLAN_FILE
        path.write_text(edit(path.read_text()))
        for refused in (
            lambda: open_study(tmp_path / "x"),
            lambda: store_plan(plan_of(), tmp_path / "x"),
        ):
            with pytest.raises(
                ConfigError, match=r"study\.yaml' was edited, .*restore the file, or .* --fork NAME"
            ):
                refused()

    @pytest.mark.parametrize("text", ["", "[1]", "{", "\x00", "name: x\n"])
    def test_a_damaged_plan_is_refused(self, tmp_path: Path, text: str) -> None:
        store_plan(plan_of(), tmp_path / "x")
        (tmp_path / "x" / PLAN_FILE).write_text(text)
        with pytest.raises(ConfigError, match=r"study\.yaml'"):
            open_study(tmp_path / "x")

    def test_a_folder_without_a_plan_is_no_study(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"study\.yaml' does not exist"):
            open_study(tmp_path)

    def test_a_plan_that_could_not_be_opened_is_not_stored(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Unpatched: 8,000 settings of two keys are 40,000 values and 420 kB; 12,000 can be stored, but not opened.
        monkeypatch.setattr(yaml_text, "MAX_VALUES", 500)
        settings = [{GAMMA: number / 1000, "num_envs": 1} for number in range(200)]
        with pytest.raises(ConfigError, match="the plan of study 'x'"):
            store_plan(plan_of(0, settings), tmp_path / "x")
        assert tree(tmp_path) == set()

    @pytest.mark.parametrize(
        ("base", "vary"),
        [
            ({}, {GAMMA: list(np.linspace(0.9, 0.99, 2))}),
            (
                {
                    "algo": "bc",
                    "algo_kwargs": {"dataset_kind": "npz", "dataset_path": Path("data.npz")},
                },
                (),
            ),
        ],
    )
    def test_values_that_a_single_run_accepts_can_be_stored(
        self, tmp_path: Path, base: Any, vary: Any
    ) -> None:
        study = Study({**BASE, **base}, vary=vary, name="x", output_dir=tmp_path)
        store_plan(study.plan, study.path)
        assert open_study(study.path).runs() == study.runs()

    def test_a_value_that_cannot_be_stored_is_refused_and_leaves_nothing_behind(
        self, tmp_path: Path
    ) -> None:
        plan = make_plan("x", [{**BASE, "algo_kwargs": {"net": object()}}])
        with pytest.raises(RLTrainingError):
            store_plan(plan, tmp_path / "runs" / "x")
        assert tree(tmp_path) == set()


def no_space() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class TestFailure:
    def test_a_file_in_place_of_the_parent_is_refused_and_nothing_left_behind(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "runs").write_text("mine")
        with pytest.raises(RLTrainingError, match=r"cannot write '.*study\.yaml': Not a directory"):
            store_plan(plan_of(), tmp_path / "runs" / "x")
        assert contents(tmp_path) == {"runs": b"mine"}

    @pytest.mark.skipif(
        not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere"
    )
    def test_a_parent_that_cannot_be_written_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "runs").mkdir()
        (tmp_path / "runs").chmod(0o500)
        with pytest.raises(
            RLTrainingError, match=r"cannot write '.*study\.yaml': Permission denied"
        ):
            store_plan(plan_of(), tmp_path / "runs" / "x")
        assert tree(tmp_path) == {tmp_path / "runs"}

    @pytest.mark.parametrize("is_partial", [False, True])
    def test_a_failed_write_removes_what_was_made(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_partial: bool
    ) -> None:
        def fail(path: Path, data: bytes) -> None:
            if is_partial:
                path.write_bytes(data[:10])
            no_space()

        monkeypatch.setattr(files, "write_new", fail)
        (tmp_path / "kept").mkdir()
        with pytest.raises(RLTrainingError, match=r"cannot write '.*': No space left on device"):
            store_plan(plan_of(), tmp_path / "kept" / "a" / "b" / "x")
        assert tree(tmp_path) == {tmp_path / "kept"}

    def test_without_hard_links_the_plan_is_stored_all_the_same(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*paths: object) -> None:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

        monkeypatch.setattr(os, "link", refuse)
        stored = store_plan(plan_of(), tmp_path / "x")
        assert open_study(tmp_path / "x") == stored
        assert contents(tmp_path).keys() == {f"x/{PLAN_FILE}"}

    def test_a_failed_extension_leaves_the_plan_as_it_was(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store_plan(plan_of("0..1"), tmp_path / "x")
        before = contents(tmp_path)
        monkeypatch.setattr(plan_module, "replace_synced", lambda path, data: no_space())
        with pytest.raises(RLTrainingError, match="No space left on device"):
            store_plan(plan_of("0..2"), tmp_path / "x", is_extended=True)
        assert contents(tmp_path) == before


class TestAtTheSameMoment:
    @pytest.mark.parametrize("is_complete", [True, False])
    def test_a_process_that_comes_second_continues(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_complete: bool
    ) -> None:
        """Whether the first has stored the plan already, or only its draft."""
        link = os.link

        def link_late(draft: Path, path: Path) -> None:
            if is_complete:
                monkeypatch.setattr(os, "link", link)
                store_plan(plan_of(), tmp_path / "x")
            else:
                path.with_name(f".{PLAN_FILE}-1").write_text("name: x")
            link(draft, path)

        monkeypatch.setattr(os, "link", link_late)
        assert store_plan(plan_of(), tmp_path / "x") == open_study(tmp_path / "x")
        drafts = [] if is_complete else [f"x/.{PLAN_FILE}-1"]
        assert contents(tmp_path).keys() == {f"x/{PLAN_FILE}", *drafts}

    def test_processes_that_begin_at_once_all_succeed(self, tmp_path: Path) -> None:
        rounds = 200
        words = [sys.executable, "-c", BEGIN, str(tmp_path), str(rounds)]
        processes = [
            subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        try:
            for process in processes:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
            answers: list[str] = []
            for number in range(rounds):
                moment = time.time() + 0.002
                late = (
                    number % 100 * 5e-6
                )  # the second begins within half a millisecond after the first
                for process, delay in zip(processes, (0.0, late), strict=True):
                    assert process.stdin is not None
                    process.stdin.write(f"{moment + delay}\n")
                    process.stdin.flush()
                for process in processes:
                    assert process.stdout is not None
                    answers.append(process.stdout.readline().strip())
        finally:
            for process in processes:
                process.kill()
                process.communicate(timeout=PATIENCE_SECONDS)
        assert {*answers} == {"begun"}
        assert contents(tmp_path).keys() == {f"{number}/x/{PLAN_FILE}" for number in range(rounds)}


class TestFind:
    @pytest.fixture
    def runs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """The folder `runs` of the working directory with two studies and a plain run."""
        monkeypatch.chdir(tmp_path)
        for name in ("grid", "arms"):
            store_plan(plan_of(), tmp_path / "runs" / name)
        (tmp_path / "runs" / "ppo__CartPole-v1__seed0__x" / "checkpoints").mkdir(parents=True)
        return tmp_path / "runs"

    def test_a_study_is_found_by_its_name_or_path(self, runs: Path) -> None:
        assert find_study("grid") == Path("runs", "grid")
        assert find_study("runs/grid") == Path("runs", "grid")
        assert find_study(str(runs / "grid")) == runs / "grid"
        assert find_study("grid", runs) == runs / "grid"

    def test_studies_are_listed_by_name_without_plain_runs(self, runs: Path) -> None:
        assert list_studies() == [Path("runs", "arms"), Path("runs", "grid")]
        assert list_studies(runs / "grid") == []
        assert list_studies(runs / "missing") == []

    def test_an_unknown_name_meets_the_nearest_one(self, runs: Path) -> None:
        with pytest.raises(
            ConfigError, match="there is no study 'gird' here or in 'runs': did you mean 'grid'"
        ):
            find_study("gird")
        with pytest.raises(
            ConfigError, match=r"there is no study 'zzz' here or in 'runs' \(known: arms, grid\)"
        ):
            find_study("zzz")

    def test_a_folder_that_is_no_study_is_not_found(self, runs: Path) -> None:
        with pytest.raises(ConfigError, match="there is no study 'ppo__CartPole-v1__seed0__x'"):
            find_study("ppo__CartPole-v1__seed0__x")


def test_the_runs_of_an_older_study_with_tuples_keep_their_folders(tmp_path: Path) -> None:
    sizes = "".join(
        f"- algo_kwargs.hidden_sizes: !tuple\n  - {size}\n  - {size}\n" for size in (8, 16)
    )
    rest = "seeds: '0'\nplugins: []\ncallbacks: []\nthreads: []\nworking_dir: ''\n"
    text = f"name: old\nbase:\n  algo: ppo\n  env_id: CartPole-v1\nvary:\n{sizes}{rest}"
    (tmp_path / PLAN_FILE).write_text(sign(text))
    names = [run.run_dir.name.partition("seed0__")[2] for run in open_study(tmp_path).runs()]
    assert names == ["hidden_sizes-8-8-315af4f6", "hidden_sizes-16-16-e8009894"]
    vary = {"algo_kwargs.hidden_sizes": [(8, 8), (16, 16)]}
    again = make_plan("old", [{"algo": "ppo", "env_id": "CartPole-v1"}], vary=vary)
    assert [
        run.suffix for run in store_plan(again, tmp_path).runs()
    ] == names  # the same study continues
