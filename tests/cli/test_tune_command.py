"""The command `tune`: plan, result, JSON, study files, and bad input."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from study_tools import write_study
from tune_tools import BASE, PAID, SMALL

from rl_training.cli import main
from rl_training.studies.tuning.tune_plan import open_tuning

DQN = ("tune", "dqn", "CartPole-v1")
Refuse = Show = Callable[..., str]


def write(**changes: Any) -> str:
    """Write `small.yaml`, a study file with a tune block; a value of None leaves its key out."""
    tune = {**SMALL, "space": {"env_kwargs.pay": [1.0, 1.5]}}
    no_study = {"vary": None, "seeds": None}
    return str(write_study(Path(), **{"base": BASE, "tune": tune, **no_study, **changes}))


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


@pytest.fixture
def refuse(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Refuse:
    """Run the command line; check exit code 2, one line, and no trace; returns the message."""

    def refuse(*words: str) -> str:
        before = sorted(tmp_path.rglob("*"))
        capfd.readouterr()
        code = main(list(words))
        out, err = capfd.readouterr()
        assert (code, out) == (2, ""), err
        assert sorted(tmp_path.rglob("*")) == before
        lines = [line for line in err.splitlines() if not line.startswith("using preset ")]
        assert len(lines) == 1, err
        return lines[0].removeprefix("error: ")

    return refuse


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--tune", "seed=1,2"],
            "'seed' cannot be tuned: a tuning chooses the seeds of its runs; --seeds-per-trial",
        ),
        (
            ["--tune", "output_dir=a,b"],
            "'output_dir' cannot be tuned: the runs of a tuning are in its own folder",
        ),
        (
            ["--tune", "total_timesteps"],
            "'total_timesteps' cannot be tuned: every trial has the same budget",
        ),
        (["--tune", "gamma=0.9"], "bad value '0.9' for --tune gamma"),
        (["--tune", "gamma=2..1"], "low should be less than high"),
        (["--tune", "gamma", "--tune", "algo_kwargs.gamma"], "given twice to --tune"),
        (["--tune", ""], "empty key"),
        (["--fix", "gamma"], "not of the form key=value"),
        (["--fix", "gamma=0.9", "--fix", "gamma=0.9"], "given twice to --fix"),
        (["--trials", "0"], "at least 1"),
        (["--pruner", "mean"], "bad value 'mean' for 'pruner' of the tuning"),
        (["--race-seeds", "5000"], "less than or equal to 1000"),
        (["--name", "a/b"], "use letters, digits"),
        (["--cpus-per-run", "2"], "needs --backend ray"),
        (["seed=3"], "give --seed"),
        (["taau=3"], "unknown key 'taau'"),
        (
            ["--tune", "learning_rat"],
            "unknown key 'learning_rat' to tune for dqn: did you mean 'learning_rate'?",
        ),
        (
            ["--tune", "eval_interval"],
            "'algo_kwargs.eval_interval' has no search space of its own: give one",
        ),
        (
            ["--tune", "gamma", "--fix", "gamma=0.9"],
            "'algo_kwargs.gamma' is given to --tune and to --fix",
        ),
        (["algo_kwargs.gamma=7"], "bad value 7 for 'gamma' of dqn"),
        (
            ["--tune", "gamma=0.9..2", "--dry-run"],
            "the search space of 'gamma' has an invalid value: bad value 2.0",
        ),
    ],
)
def test_bad_input_is_named_before_anything_is_written(
    refuse: Refuse, words: list[str], message: str
) -> None:
    assert message in refuse(*DQN, *words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "missing arguments: give ALGO ENV_ID (tune ppo CartPole-v1), a study FILE"),
        (["dqm", "CartPole-v1"], "unknown algorithm 'dqm'"),
        (["none.yaml"], "does not exist"),
    ],
)
def test_what_to_tune_is_asked_for(refuse: Refuse, words: list[str], message: str) -> None:
    assert message in refuse("tune", *words)


@pytest.fixture
def show(capfd: pytest.CaptureFixture[str]) -> Show:
    """Run the command line; returns what it prints."""

    def show(*words: str) -> str:
        assert main(list(words)) == 0
        return capfd.readouterr().out

    return show


def test_a_missing_extra_is_named(refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert refuse(*DQN) == 'tuning needs Optuna: pip install "rl-training[tune]"'


def test_a_study_with_a_tune_block_is_not_run_as_a_study(refuse: Refuse) -> None:
    assert "run it with `rl-training tune small.yaml`" in refuse("study", "run", write())


@pytest.mark.parametrize(
    ("changes", "words", "message"),
    [
        ({"tune": None}, [], "missing key 'tune'"),
        ({"seeds": "0..4"}, [], "'seeds' of the study has no effect in a tuning"),
        ({"tune": {"trails": 3}}, [], "'trails' for the tuning: did you mean 'trials'?"),
        ({"base": {**BASE, "seed": 3}}, [], "'seed' of the base has no effect: a tuning chooses"),
        ({"tune": {"space": 3}}, [], "bad value 3 for 'space'"),
        ({"tune": {"space": {"gamma": 3}}}, [], "bad value 3 for 'space.gamma'"),
        ({"tune": {"space": {"gamma": {}}}}, [], "bad value {} for 'space.gamma'"),
        ({"tune": {"space": {"gamma": {"lo": 0.9, "high": 1.0}}}}, [], "unknown key 'lo'"),
        ({"tune": {"space": {"gamma": None, "algo_kwargs.gamma": None}}}, [], "is given twice"),
        ({}, ["--num-envs", "2"], "--num-envs has no effect with a study file"),
        ({}, ["CartPole-v1"], "'CartPole-v1' has no effect with a study file"),
        (
            {},
            ["algo_kwargs.gamma=0.9"],
            "'algo_kwargs.gamma=0.9': KEY=VALUE is not supported with a study file: set algo_kwargs.gamma in the base",
        ),
    ],
)
def test_a_study_file_that_cannot_be_tuned_is_refused(
    refuse: Refuse, changes: dict[str, Any], words: list[str], message: str
) -> None:
    assert message in refuse("tune", write(**changes), *words)


def test_a_dry_run_lists_the_space_and_the_budget(show: Show) -> None:
    words = [*DQN, "--fix", "gamma=0.9", "--total-timesteps", "6000", "--trials", "6", "--dry-run"]
    out = show(*words)
    assert "learning_rate           0.0023      1e-05 to 0.01, log scale" in out
    assert "gamma" not in out
    assert "at most 36 runs, 216,000 steps; pruner median, not before step 2,000 of 6,000" in out
    values = json.loads(show(*words, "--json", "--tune", "batch_size=1..8"))
    assert values["warnings"] == []
    assert values["space"] == {"algo_kwargs.batch_size": {"low": 1, "high": 64, "default": 64}}
    assert values["num_runs"] == {"search": 6, "race": 20, "final": 10}
    assert list(Path().iterdir()) == []


def test_a_dry_run_wraps_choices_that_are_mappings_and_warns_of_few_final_seeds(show: Show) -> None:
    rates = "{kind: linear, start: 0.001, end: 0.0},{kind: cosine, start: 0.002, end: 0.0}"
    words = ["--tune", f"learning_rate=0.01,{rates}", "--total-timesteps", "1_000_000"]
    out = show(*DQN, *words, "--final-seeds", "3", "--dry-run")
    assert "0.01 | {kind: linear, start: 0.001, end: 0.0} |\n" in out
    assert "\n                        {kind: cosine, start: 0.002, end: 0.0}\n" in out
    assert "warning: 3 final seeds can decide nothing: the smallest possible p-value of 3\n" in out
    assert "is 0.1; give --final-seeds 4 or more\n" in out
    assert max(map(len, out.splitlines())) <= 80


def test_ctrl_c_during_the_check_of_settings_ends_the_worker_and_names_the_command_that_continues(
    capfd: pytest.CaptureFixture[str],
) -> None:
    Path("slow.py").write_text(
        "import os, signal, time\n"
        "def make(**arguments):\n"
        "    open('worker', 'w').write(str(os.getpid()))\n"
        f"    os.kill({os.getpid()}, signal.SIGINT)\n"
        "    time.sleep(600)\n"
    )
    assert main(["tune", "ppo", "slow.py:make", "--trials", "3", "--name", "mine"]) == 130
    out, err = capfd.readouterr()
    assert out == ""
    assert "Traceback" not in err
    assert "interrupted; to continue:\n" in err
    command = " ".join(err.rpartition("to continue:")[2].replace("\\\n", " ").split())
    assert command.endswith("tune ppo slow.py:make --trials 3 --name mine")
    with pytest.raises(ProcessLookupError):
        os.kill(int(Path("worker").read_text()), 0)
    assert not Path("runs").exists()


def test_tune_prints_the_result_and_writes_a_configuration_that_trains(
    capfd: pytest.CaptureFixture[str], show: Show
) -> None:
    block = {"trials": 2, "batch": 2, "finalists": 1, "race_seeds": 1, "final_seeds": 1}
    file = write(
        tune={**block, "space": {"env_kwargs.pay": [1.0, 1.5]}, "fix": {"gamma": 0.9}, "seed": 1}
    )
    assert main(["tune", file, "--jobs", "2"]) == 0
    out, err = capfd.readouterr()
    path = Path("runs/small")
    assert "trials 2 of 2: best " in err
    assert err.index("warning: 1 final seed can decide nothing") < err.index("trials 2 of 2")
    assert "optimistic: chosen among 2 settings" in out
    assert "final, on seeds that nobody used" in out
    # One final seed decides nothing.
    assert "written to runs/small/best.yaml: the default configuration" in out
    assert max(map(len, out.splitlines())) <= 80
    assert "to train with" not in err
    assert "Warning" not in err
    assert open_tuning(path).study.base["algo_kwargs"]["gamma"] == 0.9
    values = json.loads(show("tune", file, "--json"))  # continues: nothing is left to train
    assert [trial["state"] for trial in values["trials"]] == ["complete", "complete"]
    assert values["verdict"] in ("undecided", "default")
    assert values["search"]["is_optimistic"]
    assert values["num_settings"] == 2
    check_edited_best(file, path, show)
    for stage in ("search", "race", "final"):
        show("study", "status", str(path / stage))
    show("train", "--config", str(path / "best.yaml"), "--run-suffix", "again", "-q")
    assert PAID.rpartition(":")[2] in next(Path("runs").glob("*again")).name


def check_edited_best(file: str, path: Path, show: Show) -> None:
    """Continue a finished tuning whose `best.yaml` was edited: it is kept, and the result is written beside it."""
    best, beside = path / "best.yaml", path / "best-2.yaml"
    text = best.read_text()
    best.write_text(text.replace("gamma: 0.9", "gamma: 0.5"))
    edited = best.read_text()
    assert edited != text
    for _ in range(2):
        assert show("tune", file).endswith(
            f"{best} was edited and is kept as it is\nwritten to {beside}: the default configuration\n"
        )
        assert (best.read_text(), beside.read_text()) == (edited, text)
    assert not (path / "best-3.yaml").exists()


def test_algos_shows_the_search_spaces(show: Show) -> None:
    out = show("algos", "sac")
    assert "    tune: 1e-05 to 0.01, log scale\n" in out
    assert "    tune: auto | 0.05 | 0.1 | 0.2 (only if named: --tune KEY)\n" in out
    values = json.loads(show("algos", "sac", "--json"))
    assert values["learning_rate"]["tune"] == {"low": 1e-5, "high": 0.01, "log": True}
    assert values["eval_interval"]["tune"] is None
