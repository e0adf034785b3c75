"""The commands for many runs: `train --seeds`, `study run`, `study status` and `runs`; results, JSON, and bad input."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_tools import contents

from rl_training.cli import main
from rl_training.cli.studies import StudyOptions, launch_words
from rl_training.experiment.yaml_text import dump_yaml
from rl_training.studies.plan import open_study, read_study_file, store_plan
from rl_training.studies.statistics import mean_interval
from rl_training.studies.variation import ARRAYS

PAIR = ("ppo", "CartPole-v1")
PPO = {"num_steps": 8, "minibatch_size": 8, "update_epochs": 1, "hidden_sizes": [8]}
BASE = {
    "algo": "ppo",
    "env_id": "CartPole-v1",
    "total_timesteps": 64,
    "eval_episodes": 1,
    "num_threads": 1,
    "device": "cpu",
    "compile": False,
    "algo_kwargs": PPO,
}
GRID = {"name": "grid", "base": BASE, "vary": {"algo_kwargs.gamma": [0.9, 0.99]}, "seeds": "0..1"}
GAMMA = "algo_kwargs.gamma"
RUN_KEYS = {"run_dir", "state", "algo", "env_id", "seed", "step", "total", "last_eval", "best_eval"}
NAMES = [f"ppo__CartPole-v1__seed{seed}__gamma-{gamma}" for seed in (0, 1) for gamma in (0.9, 0.99)]
"""Run folders of the grid, in the order of the plan."""

Refuse = Callable[..., str]
Answer = Callable[..., Any]


def write(**changes: Any) -> str:
    """Write `grid.yaml` to the working directory; a value of None leaves its key out. Returns its name."""
    values = {key: value for key, value in {**GRID, **changes}.items() if value is not None}
    Path("grid.yaml").write_text(dump_yaml(values))
    return "grid.yaml"


def begin(**changes: Any) -> Path:
    """Begin a study in `runs` as `study run` does, without training it."""
    return store_plan(*read_study_file(Path(write(**changes)))).path


def tree(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.fixture(autouse=True)
def _outside_of_job_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    for names in ARRAYS:
        monkeypatch.delenv(names[0], raising=False)


@pytest.fixture
def refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Refuse:
    """Run the command line in an empty folder; check exit code 2, one line, and no trace; returns the message."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def refuse(*words: str) -> str:
        before = tree(tmp_path)
        capfd.readouterr()
        code = main(list(words))
        out, err = capfd.readouterr()
        assert code == 2, err
        assert out == ""
        assert tree(tmp_path) == before
        lines = [line for line in err.splitlines() if " preset ppo/" not in line]
        assert len(lines) == 1, err
        assert lines[0].startswith("error: ")
        return lines[0].removeprefix("error: ")

    return refuse


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the study `grid`, trained by `study run`, and what that printed as JSON."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch, (folder / "out.json").open("w") as file:
        patch.chdir(folder)
        for names in ARRAYS:
            patch.delenv(names[0], raising=False)
        patch.setattr(sys, "stdout", file)
        assert main(["study", "run", write(), "--json", "--quiet"]) == 0
    return folder


@pytest.fixture
def answer(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Answer:
    """Run the command line in the folder of the trained study, which stays as it is; returns its answer."""
    monkeypatch.chdir(trained)

    def answer(*words: str) -> Any:
        before = contents(trained)
        capfd.readouterr()
        assert main(list(words)) == 0
        out = capfd.readouterr().out
        assert contents(trained) == before
        return json.loads(out) if "--json" in words else out

    return answer


class TestTrainSeeds:
    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["--seeds", "4..0"], "bad value '4..0' for seeds: write a range such as 0..4 (both"),
            (["--seeds", "0", "--seed", "3"], "the seed is given twice, by --seeds and by --seed"),
            (["--seeds", "0", "seed=3"], "the seed is given twice, by --seeds and by --seed or se"),
            (["--seeds", "0", "--seeds", "1"], "'--seeds' is given twice on the command line: rem"),
            (["--jobs", "2"], "--jobs has no effect on a single run: add --seeds, such as --seed"),
            (["--backend", "ray"], "--backend has no effect on a single run"),
            (["--like-nodes"], "--like-nodes has no effect on a single run"),
            (["--seeds", "0", "--jobs", "0"], "Invalid value for '--jobs': 0 should be at least 1"),
            (["--seeds", "0", "--jobs", "x"], "Invalid value for '--jobs'"),
            (
                ["--seeds", "0", "--resume-or-start"],
                "--resume-or-start needs --run-suffix NAME, which identifies the runs: add it",
            ),
            (["--seeds", "0", "--run-suffix", " "], "the run suffix is empty"),
            (["--seeds", "0", "gama=0.9"], "unknown key 'gama' for the configuration: did you me"),
            (["--seeds", "0", "--address", "auto"], "--address needs --backend ray: add it, or"),
        ],
    )
    def test_mistakes_are_refused_in_one_line(
        self, refuse: Refuse, words: list[str], message: str
    ) -> None:
        assert refuse("train", *PAIR, *words).startswith(message)

    def test_an_existing_study_is_refused_and_the_way_to_continue_named(
        self, refuse: Refuse
    ) -> None:
        Path("runs", "ppo__CartPole-v1__night").mkdir(parents=True)
        message = refuse("train", *PAIR, "--seeds", "0..1", "--run-suffix", "night")
        assert message.startswith(
            "study 'runs/ppo__CartPole-v1__night' exists already: choose another --run-suffix"
        )
        assert "--resume-or-start" in message

    def test_two_seeds_are_two_runs_in_a_study_and_are_not_trained_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("one.yaml").write_text(dump_yaml({**BASE, "seed": 4}))  # which --seeds replaces
        words = [
            "train",
            "--config",
            "one.yaml",
            "--seeds",
            "3,5",
            "--run-suffix",
            "night",
            "--json",
        ]
        assert main(words) == 0
        first = json.loads(capfd.readouterr().out)
        assert (first["complete"], first["study_dir"]) == (True, "runs/ppo__CartPole-v1__night")
        names = [Path(run["run_dir"]).name for run in first["runs"]]
        assert names == [f"ppo__CartPole-v1__seed{seed}__night" for seed in (3, 5)]
        assert first["settings"][0]["scores"].keys() == {"3", "5"}
        metrics = [Path(run["run_dir"], "metrics.jsonl") for run in first["runs"]]
        before = [path.stat().st_mtime_ns for path in metrics]
        assert main([*words, "--resume-or-start"]) == 0
        assert json.loads(capfd.readouterr().out) == first
        assert [path.stat().st_mtime_ns for path in metrics] == before


class TestStudyRun:
    def test_a_wrong_cell_names_its_setting_and_leaves_nothing_behind(self, refuse: Refuse) -> None:
        file = write(vary={GAMMA: [0.9, 1.5], "num_envs": [1, 2]})
        message = refuse("study", "run", file, "--jobs", "1")
        assert message.startswith(
            "setting gamma=1.5 num_envs=1: bad value 1.5 for 'gamma' of ppo: "
        )
        assert "(1 more of 4 settings wrong)" in message

    def test_a_wrong_cell_is_found_by_a_dry_run_too(self, refuse: Refuse) -> None:
        file = write(vary={"env_id": ["CartPole-v1", "Unheard-v0"]})
        message = refuse("study", "run", file, "--dry-run", "--json")
        assert message.startswith("setting Unheard-v0: unknown environment 'Unheard-v0'")

    @pytest.mark.parametrize(
        ("changes", "options", "message"),
        [
            ({"name": None}, (), "missing key 'name' for the study"),
            ({}, ("--shard", "3/2"), "bad value '3/2' for --shard: write K/N"),
            ({}, ("--fork", "a/b"), "bad value 'a/b' for --fork: use letters, digits and . _ -"),
            ({}, ("--fork", ""), "bad value '' for --fork"),
            ({}, ("--gpus-per-run", "1"), "--gpus-per-run needs --backend ray: add it, or remo"),
            ({}, ("--like-nodes",), "--like-nodes needs --backend ray: add it, or remove the op"),
            ({}, ("--backend", "slurm"), "bad value 'slurm' for backend: use local or ray"),
            ({}, ("--plugin", "missing.py"), "file 'missing.py' does not exist (looked from "),
            ({"plugins": ["missing.py"]}, ("--dry-run",), "file 'missing.py' does not exist (loo"),
            ({"callbacks": ["missing.py:Stop"]}, ("--dry-run",), "file 'missing.py' does not ex"),
        ],
    )
    def test_mistakes_are_refused_in_one_line(
        self, refuse: Refuse, changes: dict[str, Any], options: tuple[str, ...], message: str
    ) -> None:
        assert refuse("study", "run", write(**changes), *options).startswith(message)

    def test_a_missing_file_is_named_with_the_folder(self, refuse: Refuse) -> None:
        message = refuse("study", "run", "missing.yaml")
        assert message == f"study file 'missing.yaml' does not exist (looked from {Path.cwd()})"

    @pytest.mark.parametrize("command", ["run", "status"])
    def test_an_unknown_study_meets_the_nearest_name(self, refuse: Refuse, command: str) -> None:
        begin(output_dir="out")
        assert (
            refuse("study", command, "gird", "--output-dir", "out")
            == "there is no study 'gird' here or in 'out': did you mean 'grid'?"
        )

    @pytest.mark.parametrize("words", [("study", "run"), ("study", "status"), ("runs", "show")])
    def test_a_name_longer_than_any_file_is_refused(
        self, refuse: Refuse, words: tuple[str, ...]
    ) -> None:
        assert refuse(*words, "x" * 300)

    @pytest.mark.parametrize("options", [("--fork", "new"), ("--extend",)])
    def test_fork_and_extend_need_a_file(self, refuse: Refuse, options: tuple[str, ...]) -> None:
        begin()
        assert refuse("study", "run", "grid", *options).startswith(
            f"{options[0]} needs a study file: rl-training"
        )

    @pytest.mark.parametrize("options", [(), ("--dry-run",)])
    def test_a_changed_file_is_refused_with_the_difference_and_the_remedies(
        self, refuse: Refuse, options: tuple[str, ...]
    ) -> None:
        begin()
        assert refuse("study", "run", write(seeds="0..4"), *options).startswith(
            "study 'grid' began with another plan ('runs/grid'): seeds was 0..1 and is 0..4. Give"
            " --extend (in Python: extend=True) to add the new runs, or --fork NAME"
        )

    def test_the_output_folder_of_the_command_replaces_that_of_the_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert main(["study", "run", write(), "--output-dir", "out", "--dry-run", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["study_dir"] == "out/grid"


class TestTrainedStudy:
    def test_its_result_as_json_has_every_runs_score_and_the_means(self, trained: Path) -> None:
        result = json.loads((trained / "out.json").read_text())
        assert result["complete"] is True
        assert result["study_dir"] == "runs/grid"
        assert [Path(run["run_dir"]).name for run in result["runs"]] == NAMES
        for run in result["runs"]:
            assert run.keys() >= {*RUN_KEYS, "setting"}
            assert (run["state"], run["outcome"], run["step"]) == ("finished", "done", 64)
        scores = {(run["setting"], str(run["seed"])): run["last_eval"] for run in result["runs"]}
        for setting in result["settings"]:
            own = {seed: scores[setting["setting"], seed] for seed in ("0", "1")}
            found = mean_interval([*own.values()])
            assert setting == {
                "setting": setting["setting"],
                "scores": own,
                "mean": found.mean,
                "interval": [found.low, found.high],
                "num_runs": 2,
            }

    def test_it_can_be_told_from_its_folder_alone(self, trained: Path) -> None:
        plan = open_study(trained / "runs" / "grid").plan
        assert (plan.seeds, plan.threads) == ((0, 1), (1, 1))
        names = {path.name for path in (trained / "runs" / "grid").iterdir()}
        assert names >= {*NAMES, "logs", "study.yaml"}

    @pytest.mark.parametrize("name", ["grid", "runs/grid", "grid.yaml"])
    def test_running_it_again_trains_nothing_and_gives_the_same(
        self, answer: Answer, trained: Path, name: str
    ) -> None:
        first = json.loads((trained / "out.json").read_text())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("rl_training.views.studies._draw", lambda path: first["picture"])
            assert answer("study", "run", name, "--json") == first

    def test_its_status_counts_the_states(self, answer: Answer) -> None:
        status = answer("study", "status", "grid", "--json")
        assert (status["name"], status["study_dir"]) == ("grid", "runs/grid")
        assert status["counts"] == {"finished": 4}
        assert [Path(run["run_dir"]).name for run in status["runs"]] == NAMES
        assert all(run.keys() >= {*RUN_KEYS, "setting"} for run in status["runs"])
        text = answer("study", "status", "grid")
        assert text.startswith("study runs/grid: 4 runs: 4 finished\n")
        assert [line.split("  ")[0] for line in text.splitlines()[2:]] == [
            f"gamma={gamma} seed {seed}" for seed in (0, 1) for gamma in (0.9, 0.99)
        ]

    def test_studies_are_listed(self, answer: Answer) -> None:
        assert answer("study", "status") == "runs/grid\n"
        assert answer("study", "status", "--json") == ["runs/grid"]
        assert answer("study", "status", "--output-dir", "out") == "there is no study in 'out'\n"

    def test_a_dry_run_tells_memory_and_time_and_starts_nothing(
        self, answer: Answer, trained: Path
    ) -> None:
        plan = answer("study", "run", "grid", "--dry-run", "--json")
        assert (plan["study_dir"], plan["num_runs"]) == ("runs/grid", 4)
        assert [setting["setting"] for setting in plan["settings"]] == ["gamma=0.9", "gamma=0.99"]
        assert sorted(
            Path(run).name for setting in plan["settings"] for run in setting["runs"]
        ) == sorted(NAMES)
        for setting in plan["settings"]:
            assert setting["num_threads"] == 1
            assert setting["memory_bytes"] > 0
            assert setting["seconds"] > 0

    def test_settings_that_end_late_are_told_before_training(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        base = "{algo: ppo, env_id: CartPole-v1, total_timesteps: 100}"
        vary = "{algo_kwargs.num_steps: [10, 64, 90]}"
        Path("late.yaml").write_text(
            f"name: late\nbase: {base}\nvary: {vary}\nseeds: 0..1\npreset: false\n"
        )
        assert main(["study", "run", "late.yaml", "--dry-run"]) == 0
        warnings = [line for line in capsys.readouterr().err.splitlines() if "WARNING" in line]
        assert len(warnings) == 2
        assert "ends at step 128 instead of total_timesteps 100" in warnings[0]
        assert "(settings num_steps=64)" in warnings[0]
        assert "ends at step 180" in warnings[1]

    def test_the_shares_of_a_dry_run_are_the_whole_plan(
        self, answer: Answer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        share = answer("study", "run", "grid", "--dry-run", "--shard", "1/3")
        first = [line for line in share.splitlines() if line.startswith("runs/grid/")]
        assert [Path(line).name for line in first] == [NAMES[0], NAMES[3]]
        for name, value in zip(ARRAYS[0], ("5", "4", "6", "1"), strict=True):
            monkeypatch.setenv(name, value)
        plan = answer("study", "run", "grid", "--dry-run", "--json")
        assert [run for setting in plan["settings"] for run in setting["runs"]] == [
            f"runs/grid/{NAMES[1]}"
        ]


class TestPlannedStudy:
    def test_a_study_says_that_there_is_a_preset(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert main(["study", "run", write(), "--dry-run"]) == 0
        hint = "study 'grid' does not use preset ppo/cartpole.yaml"
        assert hint in capfd.readouterr().err

    def test_runs_that_have_not_begun_are_planned(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        begin()
        assert main(["study", "status", "grid", "--json"]) == 0
        status = json.loads(capsys.readouterr().out)
        assert status["counts"] == {"planned": 4}
        first = status["runs"][0]
        assert (first["state"], first["seed"], first["setting"]) == ("planned", 0, "gamma=0.9")
        assert main(["study", "status", "grid"]) == 0
        assert capsys.readouterr().out.startswith("study runs/grid: 4 runs: 4 planned\n")


class TestRuns:
    def test_runs_are_listed_with_their_state_and_scores(self, answer: Answer) -> None:
        infos = answer("runs", "--json")
        assert sorted(info["name"] for info in infos) == sorted(NAMES)
        assert infos == sorted(infos, key=lambda info: info["created"], reverse=True)
        assert all(info.keys() >= RUN_KEYS for info in infos)
        line = answer("runs").splitlines()[1].split()
        assert line[:5] == ["grid/", "(4", "runs)", "finished", "100%"]
        assert line[6] == f"{max(info['best_eval'] for info in infos):.1f}"
        infos = answer("runs", "--sort", "name", "--json")
        lines = answer("runs", "--sort", "name", "--all").splitlines()
        assert lines[0].split() == ["run", "state", "done", "last", "best", "steps/s", "age"]
        assert [line.split()[:3] for line in lines[1:]] == [
            [f"grid/{name}", "finished", "100%"] for name in sorted(NAMES)
        ]
        for info, line in zip(infos, lines[1:], strict=True):
            assert line.split()[3:5] == [f"{info['last_eval']:.1f}", f"{info['best_eval']:.1f}"]

    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            (["list"], NAMES),
            ([f"runs/grid/{NAMES[0]}"], NAMES[:1]),
            (["list", "runs", "seed=1", f"{GAMMA}=0.9"], [NAMES[2]]),
            (["state=finished", "algo=ppo", "seed0"], NAMES[:2]),
            (["algo=dqn"], []),
        ],
    )
    def test_a_folder_and_filters_choose_runs(
        self, answer: Answer, words: list[str], expected: list[str]
    ) -> None:
        infos = answer("runs", *words, "--sort", "name", "--json")
        assert [info["name"] for info in infos] == sorted(expected)

    def test_the_order_and_number_of_lines_are_chosen(self, answer: Answer) -> None:
        best = [info["best_eval"] for info in answer("runs", "--sort", "best", "--json")]
        assert best == sorted(best, reverse=True)
        assert len(answer("runs", "--limit", "3", "--json")) == 3
        assert answer("runs", "--all", "--limit", "3").endswith("\n1 more: leave out --limit\n")

    def test_no_such_run_is_said_and_is_an_empty_list(self, answer: Answer) -> None:
        assert answer("runs", "state=dead") == "there is no such run in 'runs'\n"
        assert answer("runs", "state=dead", "--json") == []

    def test_one_run_is_shown_with_its_settings(self, answer: Answer) -> None:
        name = "@last"
        values = answer("runs", "show", name, "--json")
        assert values.keys() >= {*RUN_KEYS, "settings", "metadata", "owner", "inexact_reasons"}
        assert values["settings"]["algo_kwargs"]["num_steps"] == 8
        assert values["metadata"]["versions"]["torch"]
        text = answer("runs", "show", name)
        assert text.splitlines()[0] == values["run_dir"]
        facts = {
            line.split()[0]: line.split()[1:] for line in text.splitlines()[1:] if line.split()[1:]
        }
        assert facts["state"] == ["finished"]
        assert facts["step"] == ["64", "of", "64"]
        assert facts["algo_kwargs.num_steps"] == ["8"]

    def test_the_settings_in_which_two_runs_differ_are_shown(self, answer: Answer) -> None:
        pair = [f"runs/grid/{NAMES[0]}", f"runs/grid/{NAMES[3]}"]
        assert answer("runs", "diff", *pair, "--json") == {
            "seed": [0, 1],
            GAMMA: [0.9, 0.99],
        }
        lines = [line.split() for line in answer("runs", "diff", *pair).splitlines()]
        assert lines == [
            ["setting", NAMES[0], NAMES[3]],
            ["seed", "0", "1"],
            [GAMMA, "0.9", "0.99"],
        ]
        assert answer("runs", "diff", pair[0], pair[0]) == "the settings are the same\n"
        assert answer("runs", "diff", pair[0], pair[0], "--json") == {}

    def test_damaged_versions_do_not_hide_the_run(
        self, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run_dir = shutil.copytree(trained / "runs" / "grid" / NAMES[0], tmp_path / "run")
        metadata = json.loads((run_dir / "metadata.json").read_text())
        (run_dir / "metadata.json").write_text(json.dumps({**metadata, "versions": [1]}))
        assert main(["runs", "show", str(run_dir)]) == 0
        assert "finished" in capsys.readouterr().out


class TestWrongRuns:
    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (
                ("runs", "state=done"),
                "bad value 'done' for the filter state: use running, finished, stopped, failed, de",
            ),
            (
                ("runs", "--sort", "seed"),
                "bad value 'seed' for --sort: use age, name, state, done, last, best",
            ),
            (("runs", "missing/"), "folder 'missing/' does not exist (looked from "),
            (("runs", "show", "unheard"), "'unheard' does not exist (looked from "),
            (("runs", "show", "@last"), "@last: there is no run in 'runs' (looked from "),
            (
                ("runs", "show", "."),
                "'.' is not a run folder: it has no config.yaml and checkpoints",
            ),
            (("runs", "diff", "a"), "Missing argument 'OTHER'."),
            (("runs", "diff", "a", "b"), "'a' does not exist (looked from "),
            (("runs", "--nonsense"), "No such option: --nonsense"),
            (("study",), "Missing command."),
            (("study", "stat"), "No such command 'stat'."),
        ],
    )
    def test_mistakes_are_refused_in_one_line(
        self, refuse: Refuse, words: tuple[str, ...], message: str
    ) -> None:
        assert refuse(*words).startswith(message)


def test_the_command_to_continue_has_the_options_of_the_launch_and_the_share() -> None:
    options = StudyOptions(jobs=2, backend="ray", shard="1/2", output_dir=Path("out"))
    assert launch_words(options) == ["--jobs", "2", "--backend", "ray", "--shard", "1/2"]
