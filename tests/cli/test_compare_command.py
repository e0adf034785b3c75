"""`rl-training compare`: what it prints, its JSON, planned looks that really train, and bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from finished_studies import write_finished_study
from study_tools import start
from warm import finish

from rl_training.cli import main
from rl_training.experiment.yaml_text import dump_yaml
from rl_training.studies.comparison.looks import PlannedComparison
from rl_training.studies.plan import open_study, read_study_file, store_plan

PPO = {"num_steps": 8, "minibatch_size": 8, "update_epochs": 1, "hidden_sizes": [8]}
BASE = {
    **{"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 64, "eval_episodes": 1},
    **{"num_threads": 1, "device": "cpu", "compile": False, "algo_kwargs": PPO},
}
KEYS = {
    *("verdict", "sentence", "a", "b", "scores", "difference", "interval", "p_value"),
    *("prob_a_beats_b", "prob_interval", "more_seeds", "measure", "metric", "mode", "margin"),
    *("alpha", "steps", "notes", "runs", "picture", "planned", "look", "times"),
}
COMPARE = ("compare", "low", "high")
ONE_LOOK = ("--until-decided", "--looks", "1", "--seeds-per-look", "6")
THREE_LOOKS = ("--until-decided", "--looks", "3", "--seeds-per-look", "2")
FOLDER = Path("runs/comparisons/low__vs__high")
PLANNED = Path("runs/comparisons/low__vs__high__planned")
Answer = Callable[..., Any]
Refuse = Callable[..., str]


def six(start: float) -> dict[int, float]:
    return {seed: start + seed for seed in range(6)}


@pytest.fixture
def studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two studies of six finished runs, `low` and `high`, in `runs` of the working directory."""
    monkeypatch.chdir(tmp_path)
    write_finished_study(Path("runs/low"), six(100))
    write_finished_study(Path("runs/high"), six(200))
    return tmp_path


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str]) -> Answer:
    """Run a command that must succeed; returns its result, parsed if it is JSON."""

    def run(*words: str) -> Any:
        assert main(list(words)) == 0, capsys.readouterr().err
        text = capsys.readouterr().out
        return json.loads(text) if "--json" in words else text

    return run


@pytest.fixture
def refuse(capsys: pytest.CaptureFixture[str]) -> Refuse:
    """Run a command that must be refused with one message; returns the message as one line."""

    def run(*words: str) -> str:
        assert main(list(words)) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("error: ")
        return " ".join(captured.err.split())

    return run


class TestResult:
    def test_the_screen_has_every_score_the_difference_and_the_verdict(
        self, studies: Path, answer: Answer
    ) -> None:
        text = answer(*COMPARE)
        assert text.startswith("high is better than low\n")
        for seed in range(6):
            assert f"seed {seed}: {100 + seed}.0" in text
            assert f"seed {seed}: {200 + seed}.0" in text
        assert "difference -100 [" in text
        assert "probability that low beats high: 0.00 [" in text
        assert "permutation" not in text  # terms of statistics are for --explain
        explained = " ".join(answer(*COMPARE, "--explain").split())
        for words in ("permutation test", "voids it", "Student's t", "the 95 % interval"):
            assert words in explained
        assert max(map(len, text.splitlines())) <= 80

    def test_the_json_has_the_promised_keys_and_is_stored_with_its_picture(
        self, studies: Path, answer: Answer
    ) -> None:
        values = answer(*COMPARE, "--margin", "20", "--alpha", "0.1", "--json")
        assert set(values) == KEYS
        assert values["verdict"] == "b_better"
        assert values["scores"]["a"]["ppo__CartPole-v1__seed3__run"] == 103
        assert values["difference"] == -100
        assert values["interval"][1] < 0
        assert values["more_seeds"] is None
        assert (values["measure"], values["margin"], values["alpha"]) == ("last", 20, 0.1)
        assert values["steps"] == {"CartPole-v1": [10_000, 10_000]}
        assert json.loads((FOLDER / "comparison.json").read_text()) == values
        assert Path(values["picture"]).read_bytes().startswith(b"\x89PNG")
        assert "compared 2 times" in answer(*COMPARE)

    def test_steps_are_those_that_the_runs_reached(self, studies: Path, answer: Answer) -> None:
        """A study of 12,000 steps with rollouts of 16,384 trains 16,384."""
        for file in Path("runs").glob("*/*/*s.jsonl"):
            text = file.read_text()
            file.write_text(text.replace('"global_step": 10000', '"global_step": 16384'))
        assert "  CartPole-v1, 16,384 steps (planned: 10,000)\n" in answer(*COMPARE)

    def test_the_picture_can_go_elsewhere(
        self, studies: Path, answer: Answer, refuse: Refuse
    ) -> None:
        answer(*COMPARE, "--out", "mine.svg")
        assert "<svg" in Path("mine.svg").read_text()
        Path("other.png").write_text("mine")
        refuse(*COMPARE, "--out", "other.png")
        assert Path("other.png").read_text() == "mine"

    def test_arms_may_be_folders_and_patterns(self, studies: Path, answer: Answer) -> None:
        """The result is stored beside their studies."""
        values = answer("compare", "runs/low/*", "runs/high/*seed[0-4]*", "--json")
        assert (len(values["scores"]["a"]), len(values["scores"]["b"])) == (6, 5)
        assert values["a"] != values["b"]
        assert not list(Path("runs/low").glob("comparisons"))
        assert len(list(Path("runs/comparisons").iterdir())) == 1

    def test_settings_of_one_study(self, studies: Path, answer: Answer) -> None:
        gammas = (0.9, 0.98, 0.99)
        scores = {
            f"gamma={gamma}": {seed: gamma * 100 + seed for seed in range(5)} for gamma in gammas
        }
        vary = [{"algo_kwargs.gamma": gamma} for gamma in gammas]
        write_finished_study(Path("runs/grid"), scores, vary=vary)  # type: ignore[arg-type]
        values = answer("compare", "grid:gamma=0.9", "grid:gamma=0.99", "--json")
        assert (values["a"], values["b"]) == ("gamma=0.9", "gamma=0.99")
        assert values["verdict"] == "b_better"
        many = answer("compare", "grid", "--json")
        assert [pair["verdict"] for pair in many["pairs"]] == ["b_better", "b_better", "undecided"]
        text = answer("compare", "grid", "--explain")
        assert text.startswith(
            "gamma=0.98 is better than gamma=0.9\ngamma=0.99 is better than gamma=0.9\n"
        )
        assert "gamma=0.9 - gamma=0.99: difference -9" in text
        assert "step-down by the maximum" in text

    def test_files_of_others_are_kept(self, studies: Path, answer: Answer) -> None:
        FOLDER.mkdir(parents=True)
        files = [FOLDER / name for name in ("comparison.json", "comparison.png")]
        for file in files:
            file.write_text("mine")
        assert answer(*COMPARE, "--json")["picture"] is None
        assert [file.read_text() for file in files] == ["mine", "mine"]

    def test_two_studies_of_one_name_are_told_apart(self, studies: Path, answer: Answer) -> None:
        write_finished_study(Path("other/low"), six(100))
        values = answer("compare", "runs/low", "other/low", "--json")
        assert (values["a"], values["b"]) == ("runs/low", "other/low")


class TestUntilDecided:
    def test_it_trains_the_missing_seeds_and_stops_when_decided(self, tmp_path: Path) -> None:
        """Takes more than ten seconds: eight runs of two studies."""
        for name, steps in (("short", 8), ("long", 256)):
            base = BASE | {"algo_kwargs": {**PPO, "num_steps": steps, "minibatch_size": steps}}
            values = {"name": name, "base": base, "seeds": "0,1", "output_dir": f"{tmp_path}/runs"}
            (tmp_path / f"{name}.yaml").write_text(dump_yaml(values))
        store_plan(*read_study_file(tmp_path / "long.yaml"))  # one has begun, the other not
        looks = ["--until-decided", "--looks", "2", "--seeds-per-look", "2", "--alpha", "0.1"]
        words = ["compare", "short.yaml", "long", *looks, "--json"]
        code, out, error = finish(start([*words, "--jobs", "2"], tmp_path))
        assert code == 0, error
        values = json.loads(out)
        assert values["planned"]
        assert values["look"] == 2  # 2 against 2 decides nothing
        assert {len(scores) for scores in values["scores"].values()} == {4}
        assert open_study(tmp_path / "runs" / "short").plan.seeds == (0, 1, 2, 3)
        folder = tmp_path / "runs" / "comparisons" / "short__vs__long__planned"
        assert len((folder / "looks.jsonl").read_text().splitlines()) == 2
        assert "look 1 of 2: 2 seeds each" in error
        # Again: nothing is trained, and the result is the same.
        again = json.loads(finish(start(words, tmp_path))[1])
        assert {**again, "times": 1, "picture": values["picture"]} == values

    def test_looks_use_the_runs_that_exist_and_a_torn_record_is_written_again(
        self, studies: Path, answer: Answer
    ) -> None:
        before = answer(*COMPARE, *THREE_LOOKS, "--json")
        assert (before["verdict"], before["look"]) == ("b_better", 3)
        plan = (PLANNED / "plan.yaml").read_text()
        assert "alpha: 0.05" in plan
        assert "measure: last" in plan
        record = PLANNED / "looks.jsonl"
        lines = record.read_text().splitlines(keepends=True)
        record.write_text(lines[0] + lines[1][:20] + "\n" + lines[2])
        assert answer(*COMPARE, *THREE_LOOKS, "--json")["p_value"] == before["p_value"]
        assert [json.loads(line)["look"] for line in record.read_text().splitlines()] == [1, 2, 3]

    def test_a_frozen_plan_is_not_changed(
        self, studies: Path, answer: Answer, refuse: Refuse
    ) -> None:
        answer(*COMPARE, *THREE_LOOKS)
        for option, value in (
            ("--alpha", "0.1"),
            ("--measure", "best"),
            ("--looks", "2"),
            ("--margin", "3"),
        ):
            message = refuse(*COMPARE, "--until-decided", option, value)
            assert "frozen when it began" in message
            assert f"leave {option} out" in message
        answer(*COMPARE, "--until-decided", "--looks", "3")
        assert answer(*COMPARE, *ONE_LOOK, "--name", "another", "--json")["look"] == 1
        assert Path("runs/comparisons/another/plan.yaml").is_file()

    def test_other_arms_are_refused(self, studies: Path, answer: Answer, refuse: Refuse) -> None:
        """Also the same arms in the other order, which means the same plan."""
        answer(*COMPARE, *ONE_LOOK)
        answer(*COMPARE, *ONE_LOOK, "--name", "mine")
        write_finished_study(Path("runs/third"), six(1))
        for words in (
            ("low", "third", "--name", "mine"),
            ("high", "low", "--name", "mine"),
            ("high", "low", "--alpha", "0.3"),
        ):
            message = refuse("compare", *words, "--until-decided")
            assert "compares 'low' with 'high', in this order" in message

    def test_settings_of_two_studies_have_plans_of_their_own(
        self, studies: Path, answer: Answer
    ) -> None:
        gammas = (0.9, 0.99)
        vary = [{"algo_kwargs.gamma": gamma} for gamma in gammas]
        for name, best in (("one", 0.9), ("two", 0.99)):
            scores = {f"gamma={gamma}": six(100.0 * (gamma == best)) for gamma in gammas}
            write_finished_study(Path("runs", name), scores, vary=vary)  # type: ignore[arg-type]
        for name, verdict in (("one", "a_better"), ("two", "b_better")):
            words = ("compare", f"{name}:gamma=0.9", f"{name}:gamma=0.99", "--json")
            assert answer(*words)["verdict"] == verdict
            assert answer(*words, *ONE_LOOK)["verdict"] == verdict
        assert len(list(Path("runs/comparisons").iterdir())) == 4

    def test_a_plan_is_frozen_before_its_first_look(
        self,
        studies: Path,
        answer: Answer,
        refuse: Refuse,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """While another process drives the comparison, and after it died within the first look."""
        words = (*COMPARE, *ONE_LOOK)
        unknown = refuse(*words, "--metric", "eval_return_men")
        assert "did you mean 'eval_return_mean'" in unknown
        assert not PLANNED.exists()
        seen: list[str] = []

        def look(*_: Any) -> Any:
            seen.extend([refuse(*words, "--alpha", "0.1", "--measure", "best"), refuse(*words)])
            raise KeyboardInterrupt

        monkeypatch.setattr(PlannedComparison, "look", look)
        assert main(list(words)) == 130
        monkeypatch.undo()
        monkeypatch.chdir(studies)
        capsys.readouterr()
        assert "measure is last there and best here, alpha is 0.05 there and 0.1 here" in seen[0]
        assert "leave --measure, --alpha out" in seen[0]
        assert f"comparison '{PLANNED}' is driven by process" in seen[1]
        assert "looks is 1 there and 2 here" in refuse(*words[:4], "--looks", "2")
        assert answer(*words, "--json")["look"] == 1

    def test_code_of_a_studys_folder_runs_only_if_it_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuse: Refuse
    ) -> None:
        """A folder that came from elsewhere may hold any code; a study file that is named means its own."""
        monkeypatch.chdir(tmp_path)
        Path("mine.py").write_text("open('ran', 'w')")
        base = {**BASE, "env_id": "theirs.py:Env"}
        for name, plugins in (("a", ["mine.py"]), ("b", [])):
            study = {"name": name, "base": base, "seeds": "0,1", "plugins": plugins}
            Path(f"{name}.yaml").write_text(dump_yaml(study))
            store_plan(*read_study_file(Path(f"{name}.yaml")))
        message = refuse("compare", "a", "b", *ONE_LOOK)
        assert "study 'runs/a' would run code that this command does not name" in message
        assert "--plugin mine.py --plugin theirs.py:Env" in message
        assert not Path("ran").exists()
        # Its own code is allowed, and missing.
        message = refuse("compare", "a.yaml", "b", *ONE_LOOK)
        assert "would run code" not in message
        assert "theirs.py" in message

    def test_an_edited_study_file_is_refused(
        self, studies: Path, answer: Answer, refuse: Refuse
    ) -> None:
        words = ("compare", "low.yaml", "high", *ONE_LOOK)
        base = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 10_000}
        study = {"name": "low", "base": base, "seeds": "0..2"}
        Path("low.yaml").write_text(dump_yaml(study))
        answer(*words)
        Path("low.yaml").write_text(dump_yaml(study | {"base": base | {"num_envs": 2}}))
        assert "began with another plan" in refuse(*words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("low",), "is one arm"),
        (("low", "hihg"), "did you mean 'high'"),
        (("low", "high", "--measure", "middle"), "for --measure: use last, best, auc"),
        (("low", "high", "--alpha", "2"), "for --alpha"),
        (("low", "high", "--looks", "3"), "no effect without --until-decided"),
        (("low", "high", "--jobs", "3"), "no effect without --until-decided"),
        (("low", "high", "--like-nodes"), "no effect without --until-decided"),
        (("low", "low"), "is in two arms"),
        (("low", "high", "x", "--until-decided"), "compares two arms"),
        (("runs/low/*", "high", "--until-decided"), "name a study"),
        (("low", "longer", "--until-decided"), "of the same environments and total_timesteps"),
        (("low", "high", "--until-decided", "--seeds-per-look", "1"), "for --seeds-per-look"),
        (
            ("low", "high", "--until-decided", "--looks", "1", "--seeds-per-look", "3"),
            "can decide nothing at 5 %",
        ),
        (("low", "high", "--name", "../x"), "for --name"),
        (("low", "high", "--out", "missing/x.png"), "there is no folder 'missing'"),
        (("low", "high", "--out", "x.csv"), "drawn as .png, .svg or .pdf"),
        (("low", "high", "--out", "x.bmp"), "should end in .png"),
    ],
)
def test_bad_input_is_refused_and_leaves_nothing(
    studies: Path, refuse: Refuse, words: tuple[str, ...], message: str
) -> None:
    write_finished_study(Path("runs/longer"), six(1), total_timesteps=20_000)
    assert message in refuse("compare", *words)
    assert not Path("runs/comparisons").exists()
