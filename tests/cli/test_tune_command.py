"""The command `tune`: plan, result, JSON, study files, and bad input."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tune_tools import BASE, PAID, SMALL, open_journal

from rl_training.cli import main
from rl_training.experiment.yaml_text import dump_yaml
from rl_training.studies.tuning.tune_plan import open_tuning

DQN = ("tune", "dqn", "CartPole-v1")
Refuse = Callable[..., str]


def write(**changes: Any) -> str:
    """Write `small.yaml`, a study file with a tune block; a value of None leaves its key out."""
    values = {"name": "small", "base": BASE, "tune": {**SMALL, "space": {"env_kwargs.pay": [1.0, 1.5]}}, **changes}
    Path("small.yaml").write_text(dump_yaml({key: value for key, value in values.items() if value is not None}))
    return "small.yaml"


@pytest.fixture
def refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Refuse:
    """Run the command line in an empty folder; check exit code 2, one line, and no trace; returns the message."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

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


def test_bad_input_is_named_before_anything_is_written(refuse: Refuse) -> None:
    for words, message in [
        (["--tune", "seed=1,2"], "'seed' cannot be tuned"),
        (["--tune", "total_timesteps"], "'total_timesteps' cannot be tuned: every trial has the same budget"),
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
    ]:
        assert message in refuse(*DQN, *words)
    assert "missing arguments" in refuse("tune")
    assert "unknown algorithm 'dqm'" in refuse("tune", "dqm", "CartPole-v1")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tune", "learning_rat"], "unknown key 'learning_rat' to tune for dqn: did you mean 'learning_rate'?"),
        (["--tune", "eval_interval"], "'algo_kwargs.eval_interval' has no search space of its own: give one"),
        (["--tune", "gamma", "--fix", "gamma=0.9"], "'algo_kwargs.gamma' is given to --tune and to --fix"),
        (["algo_kwargs.gamma=7"], "bad value 7 for 'gamma' of dqn"),
        (["--tune", "gamma=0.9..2", "--dry-run"], "the search space of 'gamma' has an invalid value: bad value 2.0"),
    ],
)
def test_what_only_the_algorithm_knows_is_named_too(refuse: Refuse, words: list[str], message: str) -> None:
    assert message in refuse(*DQN, *words)


def test_a_missing_extra_is_named(refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert refuse(*DQN) == 'tuning needs Optuna: pip install "rl-training[tune]"'


def test_study_files(refuse: Refuse) -> None:
    assert "run it with `rl-training tune small.yaml`" in refuse("study", "run", write())
    assert "missing key 'tune'" in refuse("tune", write(tune=None))
    assert "'seeds' of the study has no effect in a tuning" in refuse("tune", write(seeds="0..4"))
    assert "unknown key 'trails' for the tuning: did you mean 'trials'?" in refuse("tune", write(tune={"trails": 3}))
    assert "--num-envs has no effect with a study file" in refuse("tune", write(), "--num-envs", "2")
    assert "does not exist" in refuse("tune", "none.yaml")
    assert "bad value 3 for 'space'" in refuse("tune", write(tune={"space": 3}))
    assert "unknown key 'lo'" in refuse("tune", write(tune={"space": {"gamma": {"lo": 0.9, "high": 1.0}}}))


def test_a_dry_run_lists_the_space_and_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*DQN, "--fix", "gamma=0.9", "--total-timesteps", "6000", "--trials", "6", "--dry-run"]
    assert main(words) == 0
    out = capfd.readouterr().out
    assert "learning_rate           0.0023      1e-05 to 0.01, log scale" in out
    assert "gamma" not in out
    assert "at most 36 runs, 216,000 steps; pruner median, not before step 2,000 of 6,000" in out
    assert main([*words, "--json", "--tune", "batch_size=1..8"]) == 0
    values = json.loads(capfd.readouterr().out)
    assert values["space"] == {"algo_kwargs.batch_size": {"low": 1, "high": 64, "default": 64}}
    assert values["num_runs"] == {"search": 6, "race": 20, "final": 10}
    assert list(tmp_path.iterdir()) == []


def test_tune_prints_the_result_and_writes_a_configuration_that_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    block = {"trials": 2, "batch": 2, "finalists": 1, "race_seeds": 1, "final_seeds": 1}
    file = write(tune={**block, "space": {"env_kwargs.pay": [1.0, 1.5]}, "fix": {"gamma": 0.9}, "seed": 1})
    assert main(["tune", file, "--jobs", "2"]) == 0
    out, err = capfd.readouterr()
    path = Path("runs/small")
    trials = open_journal(path).trials
    assert trials[0].params == {"env_kwargs.pay": 1.0}
    assert "trials 2 of 2: best " in err
    assert "optimistic: chosen among 2 trials" in out
    assert "final, on seeds that nobody used" in out
    assert "written to runs/small/best.yaml" in out
    assert max(map(len, out.splitlines())) <= 80
    assert "train --config runs/small/best.yaml" in err
    assert "Warning" not in err
    assert open_tuning(path).request.base["algo_kwargs"]["gamma"] == 0.9
    assert main(["tune", file, "--json"]) == 0  # continues: nothing is left to train
    values = json.loads(capfd.readouterr().out)
    assert [trial["state"] for trial in values["trials"]] == ["complete", "complete"]
    assert values["verdict"] in ("undecided", "default")
    assert values["search"]["is_optimistic"]
    assert main(["tune", file, "--trials", "3"]) == 2
    assert "--trials was 2 and is 3" in capfd.readouterr().err
    for stage in ("search", "race", "final"):
        assert main(["study", "status", str(path / stage)]) == 0
    assert main(["train", "--config", str(path / "best.yaml"), "--run-suffix", "again", "-q"]) == 0
    assert PAID.rpartition(":")[2] in next(Path("runs").glob("*again")).name


def test_algos_shows_the_search_spaces(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["algos", "sac"]) == 0
    out = capfd.readouterr().out
    assert "    tune: 1e-05 to 0.01, log scale\n" in out
    assert "    tune: auto | 0.05 | 0.1 | 0.2 (only if named: --tune KEY)\n" in out
    assert main(["algos", "sac", "--json"]) == 0
    values = json.loads(capfd.readouterr().out)
    assert values["learning_rate"]["tune"] == {"low": 1e-5, "high": 0.01, "log": True}
    assert values["eval_interval"]["tune"] is None
