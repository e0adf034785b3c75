"""`rl-training compare`: what it prints, its JSON, planned looks that really train, and bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TRY_ALL
from finished_studies import write_finished_study
from study_tools import start
from warm import finish

from rl_training.cli import main
from rl_training.experiment.yaml_text import dump_yaml
from rl_training.studies.comparison.looks import PlannedComparison
from rl_training.studies.plan import open_study, read_study_file, store_plan

PPO = {"num_steps": 8, "minibatch_size": 8, "update_epochs": 1, "hidden_sizes": [8]}
BASE = {
    **{
        "algo": "ppo",
        "env_id": "CartPole-v1",
        "total_timesteps": 64,
        "eval_episodes": 1,
        "num_threads": 1,
    },
    **{"device": "cpu", "compile": False, "algo_kwargs": PPO},
}
KEYS = {
    *(
        "verdict",
        "scores",
        "difference",
        "interval",
        "p_value",
        "prob_a_beats_b",
        "more_seeds",
        "measure",
    ),
    *(
        "sentence",
        "a",
        "b",
        "metric",
        "mode",
        "margin",
        "alpha",
        "notes",
        "runs",
        "picture",
        "planned",
        "look",
    ),
    *("prob_interval", "times", "steps"),
}


@pytest.fixture
def studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two studies of six finished runs, `low` and `high`, in `runs` of the working directory."""
    monkeypatch.chdir(tmp_path)
    write_finished_study(Path("runs/low"), {seed: 100.0 + seed for seed in range(6)})
    write_finished_study(Path("runs/high"), {seed: 200.0 + seed for seed in range(6)})
    return tmp_path


Answer = Callable[..., Any]


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str]) -> Answer:
    """Run a command that must succeed; returns its result, parsed if it is JSON."""

    def run(*words: str) -> Any:
        assert main(list(words)) == 0, capsys.readouterr().err
        text = capsys.readouterr().out
        return json.loads(text) if "--json" in words else text

    return run


@pytest.fixture
def refuse(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must be refused with one message; returns the message."""

    def run(*words: str) -> str:
        assert main(list(words)) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("error: ")
        return captured.err

    return run


class TestResult:
    def test_the_screen_has_every_score_the_difference_and_the_verdict(
        self, studies: Path, answer: Answer
    ) -> None:
        text = answer("compare", "low", "high")
        assert text.startswith("high is better than low\n")
        for seed in range(6):
            assert f"seed {seed}: {100 + seed}.0" in text
            assert f"seed {seed}: {200 + seed}.0" in text
        assert "difference -100 [" in text
        assert "probability that low beats high: 0.00 [" in text
        assert "permutation" not in text  # terms of statistics are for --explain
        explained = " ".join(answer("compare", "low", "high", "--explain").split())
        for words in ("permutation test", "voids it", "Student's t", "the 95 % interval"):
            assert words in explained
        assert max(map(len, text.splitlines())) <= 80

    def test_the_json_has_the_promised_keys(self, studies: Path, answer: Answer) -> None:
        values = answer("compare", "low", "high", "--json")
        assert set(values) == KEYS
        assert values["verdict"] == "b_better"
        assert values["scores"]["a"]["ppo__CartPole-v1__seed3__run"] == 103
        assert values["difference"] == -100
        assert values["interval"][1] < 0
        assert values["more_seeds"] is None
        assert values["measure"] == "last"
        assert values["steps"] == {"CartPole-v1": [10_000, 10_000]}

    def test_steps_are_those_that_the_runs_reached(self, studies: Path, answer: Answer) -> None:
        """A study of 12,000 steps with rollouts of 16,384 trains 16,384."""
        for name in ("low", "high"):
            for file in Path("runs", name).glob("*/*s.jsonl"):
                file.write_text(
                    file.read_text().replace('"global_step": 10000', '"global_step": 16384')
                )
        assert "  CartPole-v1, 16,384 steps (planned: 10,000)\n" in answer("compare", "low", "high")

    def test_the_result_and_its_picture_are_stored_beside_the_studies(
        self, studies: Path, answer: Answer
    ) -> None:
        values = answer("compare", "low", "high", "--json")
        folder = studies / "runs" / "comparisons" / "low__vs__high"
        assert json.loads((folder / "comparison.json").read_text()) == values
        assert (studies / values["picture"]).read_bytes().startswith(b"\x89PNG")
        assert "compared 2 times" in answer("compare", "low", "high")

    def test_the_picture_can_go_elsewhere(self, studies: Path, answer: Answer) -> None:
        answer("compare", "low", "high", "--out", "mine.svg")
        assert "<svg" in Path("mine.svg").read_text()
        Path("other.png").write_text("mine")
        assert main(["compare", "low", "high", "--out", "other.png"]) == 2
        assert Path("other.png").read_text() == "mine"

    def test_arms_may_be_folders_and_patterns(self, studies: Path, answer: Answer) -> None:
        values = answer("compare", "runs/low/*", "runs/high/*seed[0-4]*", "--json")
        assert (len(values["scores"]["a"]), len(values["scores"]["b"])) == (6, 5)
        assert values["a"] != values["b"]

    def test_settings_of_one_study(self, studies: Path, answer: Answer) -> None:
        vary = [{"algo_kwargs.gamma": gamma} for gamma in (0.9, 0.98, 0.99)]
        scores = {
            f"gamma={gamma}": {seed: gamma * 100 + seed for seed in range(5)}
            for gamma in (0.9, 0.98, 0.99)
        }
        write_finished_study(Path("runs/grid"), scores, vary=vary)  # type: ignore[arg-type]
        values = answer("compare", "grid:gamma=0.9", "grid:gamma=0.99", "--json")
        assert (values["a"], values["b"]) == ("gamma=0.9", "gamma=0.99")
        assert values["verdict"] == "b_better"
        many = answer("compare", "grid", "--json")
        assert [pair["verdict"] for pair in many["pairs"]] == ["b_better", "b_better", "undecided"]
        text = answer("compare", "grid")
        assert text.startswith(
            "gamma=0.98 is better than gamma=0.9\ngamma=0.99 is better than gamma=0.9\n"
        )
        assert "gamma=0.9 - gamma=0.99: difference -9" in text
        assert "step-down by the maximum" in answer("compare", "grid", "--explain")

    def test_files_of_others_are_kept(
        self, studies: Path, answer: Answer, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = studies / "runs" / "comparisons" / "low__vs__high"
        folder.mkdir(parents=True)
        for name in ("comparison.json", "comparison.png"):
            (folder / name).write_text("mine")
        assert answer("compare", "low", "high", "--json")["picture"] is None
        assert [(folder / name).read_text() for name in ("comparison.json", "comparison.png")] == [
            "mine",
            "mine",
        ]

    def test_patterns_within_a_study_are_stored_beside_it(
        self, studies: Path, answer: Answer
    ) -> None:
        answer("compare", "runs/low/*", "runs/high/*")
        assert not list(Path("runs/low").glob("comparisons"))
        assert len(list(Path("runs/comparisons").iterdir())) == 1

    def test_two_studies_of_one_name_are_told_apart(self, studies: Path, answer: Answer) -> None:
        write_finished_study(Path("other/low"), {seed: 100.0 + seed for seed in range(6)})
        values = answer("compare", "runs/low", "other/low", "--json")
        assert (values["a"], values["b"]) == ("runs/low", "other/low")

    def test_an_equal_pair_is_equal_within_a_margin(self, studies: Path, answer: Answer) -> None:
        write_finished_study(Path("runs/same"), {seed: 101.0 + seed for seed in range(6)})
        assert answer("compare", "low", "same", "--margin", "20").startswith(
            "low and same are equal within 20\n"
        )
        undecided = answer("compare", "low", "same", "--json")
        assert undecided["verdict"] == "undecided"
        assert undecided["more_seeds"] > 0


class TestUntilDecided:
    def test_it_trains_the_missing_seeds_and_stops_when_decided(self, tmp_path: Path) -> None:
        """Takes more than ten seconds: eight runs of two studies."""
        for name, steps in (("short", 1), ("long", 32)):
            kwargs = {**PPO, "num_steps": steps * 8, "minibatch_size": steps * 8}
            values = {"name": name, "base": {**BASE, "algo_kwargs": kwargs}, "seeds": "0,1"}
            (tmp_path / f"{name}.yaml").write_text(
                dump_yaml({**values, "output_dir": str(tmp_path / "runs")})
            )
        store_plan(*read_study_file(tmp_path / "long.yaml"))  # one has begun, the other not
        words = [
            "compare",
            "short.yaml",
            "long",
            "--until-decided",
            "--looks",
            "2",
            "--seeds-per-look",
            "2",
            "--json",
        ]
        words += ["--alpha", "0.1"]
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

    def test_looks_without_training_use_the_runs_that_exist(
        self, studies: Path, answer: Answer
    ) -> None:
        values = answer(
            "compare",
            "low",
            "high",
            "--until-decided",
            "--looks",
            "3",
            "--seeds-per-look",
            "2",
            "--json",
        )
        assert values["verdict"] == "b_better"
        assert values["look"] == 3
        plan = (studies / "runs/comparisons/low__vs__high__planned/plan.yaml").read_text()
        assert "alpha: 0.05" in plan
        assert "measure: last" in plan

    def test_a_frozen_plan_is_not_changed(
        self, studies: Path, answer: Answer, refuse: Callable[..., str]
    ) -> None:
        words = ["compare", "low", "high", "--until-decided"]
        answer(*words, "--looks", "3", "--seeds-per-look", "2")
        for option, value in (
            ("--alpha", "0.1"),
            ("--measure", "best"),
            ("--looks", "2"),
            ("--margin", "3"),
        ):
            message = refuse(*words, option, value)
            assert "frozen when it began" in message
            assert f"leave {option} out" in " ".join(message.split())
        mirrored = refuse("compare", "high", "low", "--until-decided", "--alpha", "0.3")
        assert "compares 'low' with 'high', in this order" in " ".join(mirrored.split())
        answer(*words, "--looks", "3")
        values = answer(
            *words, "--name", "another", "--looks", "1", "--seeds-per-look", "6", "--json"
        )
        assert values["look"] == 1
        assert Path("runs/comparisons/another/plan.yaml").is_file()

    def test_other_arms_are_refused(
        self, studies: Path, answer: Answer, refuse: Callable[..., str]
    ) -> None:
        size = ["--until-decided", "--looks", "1", "--seeds-per-look", "6"]
        answer("compare", "low", "high", *size, "--name", "mine")
        write_finished_study(Path("runs/third"), {seed: 1.0 + seed for seed in range(6)})
        for words in (["low", "third"], ["high", "low"]):
            message = " ".join(
                refuse("compare", *words, "--until-decided", "--name", "mine").split()
            )
            assert "compares 'low' with 'high', in this order" in message

    def test_settings_of_two_studies_have_plans_of_their_own(
        self, studies: Path, answer: Answer
    ) -> None:
        vary = [{"algo_kwargs.gamma": gamma} for gamma in (0.9, 0.99)]
        for name, best in (("one", 0.9), ("two", 0.99)):
            scores = {
                f"gamma={gamma}": {seed: 100.0 * (gamma == best) + seed for seed in range(6)}
                for gamma in (0.9, 0.99)
            }
            write_finished_study(Path("runs", name), scores, vary=vary)  # type: ignore[arg-type]
        for options in ([], ["--until-decided", "--looks", "1", "--seeds-per-look", "6"]):
            found = [
                answer("compare", f"{name}:gamma=0.9", f"{name}:gamma=0.99", *options, "--json")[
                    "verdict"
                ]
                for name in ("one", "two")
            ]
            assert found == ["a_better", "b_better"]
        assert len(list(Path("runs/comparisons").iterdir())) == 4

    def test_a_plan_is_frozen_before_its_first_look(
        self,
        studies: Path,
        answer: Answer,
        refuse: Callable[..., str],
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """While another process drives the comparison, and after it died within the first look."""
        words = [
            "compare",
            "low",
            "high",
            "--until-decided",
            "--looks",
            "1",
            "--seeds-per-look",
            "6",
        ]
        assert "did you mean 'eval_return_mean'" in refuse(
            *words, "--metric", "eval_return_men"
        )  # nothing is stored
        folder = Path("runs/comparisons/low__vs__high__planned")
        assert not folder.exists()
        seen: list[str] = []

        def look(planned: PlannedComparison, number: int) -> Any:
            seen.extend([refuse(*words, "--alpha", "0.1", "--measure", "best"), refuse(*words)])
            raise KeyboardInterrupt

        monkeypatch.setattr(PlannedComparison, "look", look)
        assert main(words) == 130
        monkeypatch.undo()
        monkeypatch.chdir(studies)
        capsys.readouterr()
        assert "measure is last there and best here, alpha is 0.05 there and 0.1 here" in seen[0]
        assert "leave --measure, --alpha out" in seen[0]
        assert (
            "comparison 'runs/comparisons/low__vs__high__planned' is driven by process" in seen[1]
        )
        assert "looks is 1 there and 2 here" in refuse(*words[:4], "--looks", "2")
        assert answer(*words, "--json")["look"] == 1

    def test_code_of_a_studys_folder_runs_only_if_it_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuse: Callable[..., str]
    ) -> None:
        """A folder that came from elsewhere may hold any code; a study file that is named means its own."""
        monkeypatch.chdir(tmp_path)
        Path("mine.py").write_text("open('ran', 'w')")
        for name, plugins in (("a", ["mine.py"]), ("b", [])):
            study = {
                "name": name,
                "base": {**BASE, "env_id": "theirs.py:Env"},
                "seeds": "0,1",
                "plugins": plugins,
            }
            Path(f"{name}.yaml").write_text(dump_yaml(study))
            store_plan(*read_study_file(Path(f"{name}.yaml")))
        words = ["--until-decided", "--looks", "1", "--seeds-per-look", "4"]
        message = refuse("compare", "a", "b", *words)
        assert "study 'runs/a' would run code that this command does not name" in message
        assert "--plugin mine.py --plugin theirs.py:Env" in message
        assert not Path("ran").exists()
        message = refuse("compare", "a.yaml", "b", *words)  # its own code is allowed, and missing
        assert "would run code" not in message
        assert "theirs.py" in message

    def test_an_edited_study_file_is_refused(
        self, studies: Path, answer: Answer, refuse: Callable[..., str]
    ) -> None:
        size = ["--until-decided", "--looks", "1", "--seeds-per-look", "6"]
        base = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 10_000}
        Path("low.yaml").write_text(dump_yaml({"name": "low", "base": base, "seeds": "0..2"}))
        answer("compare", "low.yaml", "high", *size)
        Path("low.yaml").write_text(
            dump_yaml({"name": "low", "base": base | {"num_envs": 2}, "seeds": "0..2"})
        )
        assert "began with another plan" in refuse("compare", "low.yaml", "high", "--until-decided")

    def test_a_torn_record_of_looks_is_written_again(self, studies: Path, answer: Answer) -> None:
        words = [
            "compare",
            "low",
            "high",
            "--until-decided",
            "--looks",
            "3",
            "--seeds-per-look",
            "2",
            "--json",
        ]
        before = answer(*words)
        record = Path("runs/comparisons/low__vs__high__planned/looks.jsonl")
        lines = record.read_text().splitlines(keepends=True)
        record.write_text(lines[0] + lines[1][:20] + "\n" + lines[2])
        assert answer(*words)["p_value"] == before["p_value"]
        assert [json.loads(line)["look"] for line in record.read_text().splitlines()] == [1, 2, 3]

    def test_equal_arms_are_rarely_called_different(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The whole command on random halves of one sample; a boundary that is compared with the sign only errs."""
        monkeypatch.chdir(tmp_path)
        generator = np.random.default_rng(11)
        wrong = 0
        for trial in range(12 if TRY_ALL else 4):
            scores = generator.permutation(np.linspace(300, 500, 16))
            for name, half in (("a", scores[:8]), ("b", scores[8:])):
                write_finished_study(Path(f"{trial}/{name}"), dict(enumerate(map(float, half))))
            words = [
                "compare",
                f"{trial}/a",
                f"{trial}/b",
                "--until-decided",
                "--looks",
                "2",
                "--seeds-per-look",
                "4",
            ]
            assert main([*words, "-q"]) == 0
            result = json.loads(
                Path(f"{trial}/comparisons/a__vs__b__planned/comparison.json").read_text()
            )
            wrong += result["verdict"] != "undecided"
        assert wrong <= (3 if TRY_ALL else 1)  # 5 % each: more have a probability of 0.2 or 1.4 %


class TestBadInput:
    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("low",), "is one arm"),
            (("low", "hihg"), "did you mean 'high'"),
            (
                ("low", "high", "--measure", "middle"),
                "bad value 'middle' for --measure: use last, best, auc",
            ),
            (("low", "high", "--alpha", "2"), "for --alpha"),
            (("low", "high", "--margin", "0"), "for --margin"),
            (("low", "high", "--metric", "eval_return_men"), "did you mean 'eval_return_mean'"),
            (("low", "high", "--looks", "3"), "no effect without --until-decided"),
            (("low", "high", "--jobs", "3"), "no effect without --until-decided"),
            (("low", "high", "--like-nodes"), "no effect without --until-decided"),
            (("low", "low"), "is in two arms"),
            (("low", "high", "x", "--until-decided"), "compares two arms"),
            (("runs/low/*", "high", "--until-decided"), "name a study"),
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
    def test_it_is_refused_and_leaves_nothing(
        self, studies: Path, refuse: Callable[..., str], words: tuple[str, ...], message: str
    ) -> None:
        assert message in " ".join(refuse("compare", *words).split())
        assert not (studies / "runs" / "comparisons").exists()

    def test_other_budgets_cannot_be_planned(
        self, studies: Path, refuse: Callable[..., str]
    ) -> None:
        write_finished_study(
            Path("runs/longer"), dict.fromkeys(range(6), 1.0), total_timesteps=20_000
        )
        message = refuse("compare", "low", "longer", "--until-decided")
        assert "plan studies of the same environments and total_timesteps" in message
