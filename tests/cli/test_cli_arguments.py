"""How commands are written: the run they name, numbers of steps, keys given twice, and completion by the shell."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_cli import Call, call, finished_run, run

from rl_training import TrainConfig
from rl_training.experiment.config import load_config_file, parse_overrides

__all__ = ["call", "finished_run", "run"]

COMMANDS = ("train", "eval", "resume", "config", "presets", "algos", "doctor", "plot", "demo")


class TestRun:
    def test_eval_and_resume_take_the_run_by_position(self, call: Call, run: Path) -> None:
        assert call("eval", run, "--json").out == call("eval", "--checkpoint", run, "--json").out
        assert (
            call("resume", run / "checkpoints" / "best", "--total-timesteps", "80").metrics[
                "global_step"
            ]
            == 80
        )

    def test_collect_takes_the_run_by_position(self, call: Call, run: Path) -> None:
        answer = call("data", "collect", run, "--steps", "1e1", "--out", "a.npz")
        assert answer.code == 0, answer.err
        assert "transitions=10 " in answer.out

    def test_plot_takes_a_checkpoint_too(self, call: Call, run: Path) -> None:
        pytest.importorskip("matplotlib")
        for words in ([run], ["--checkpoint", run], [run / "checkpoints" / "step_000000000064"]):
            assert call("plot", *words).out == f"picture={run / 'learning_curve.png'}\n"

    @pytest.mark.parametrize(
        "command",
        [["eval"], ["resume"], ["plot"], ["data", "collect", "--steps", "9", "--out=a.npz"]],
    )
    def test_none_is_a_named_error(self, call: Call, command: list[str]) -> None:
        answer = call(*command)
        assert answer.code == 2
        assert "RUN" in answer.err

    @pytest.mark.parametrize(
        "command", [["eval"], ["resume"], ["data", "collect", "--steps", "9", "--out=a.npz"]]
    )
    def test_both_is_a_named_error(self, call: Call, run: Path, command: list[str]) -> None:
        answer = call(*command, run, "--checkpoint", run)
        assert answer.code == 2
        assert f"the run is given twice, as RUN '{run}' and as --checkpoint '{run}'" in answer.err


class TestNumbersOfSteps:
    @pytest.mark.parametrize("text", ["1e3", "1E3", "1_000", "1.0e3", "1000.0"])
    def test_every_spelling_everywhere(self, call: Call, tmp_path: Path, text: str) -> None:
        for words in (["--total-timesteps", text], [f"total_timesteps={text}"]):
            rows = json.loads(call("config", "ppo", "CartPole-v1", *words, "--json").out)
            assert repr(rows["total_timesteps"]["value"]) == "1000", words
        (tmp_path / "c.yaml").write_text(
            f"total_timesteps: {text}\nalgo_kwargs: {{num_steps: {text}}}\n"
        )
        config = TrainConfig(
            algo="ppo", env_id="CartPole-v1", **load_config_file(tmp_path / "c.yaml")
        )
        assert config.total_timesteps == 1000

    @pytest.mark.parametrize(
        ("text", "message"),
        [("1.5", "whole number"), ("1e-3", "whole number"), ("1.5M", "write 1500000")],
    )
    def test_a_part_of_a_step_and_a_letter_are_refused(
        self, call: Call, text: str, message: str
    ) -> None:
        for words in (["--total-timesteps", text], [f"total_timesteps={text}"]):
            answer = call("config", "ppo", "CartPole-v1", *words)
            assert (answer.code, message in answer.err) == (2, True)

    @pytest.mark.parametrize("text", ["1e400", "nan", "", "0", "1.5"])
    def test_no_number_is_refused(self, call: Call, text: str) -> None:
        answer = call("doctor", "--env", "CartPole-v1", "--steps", text)
        assert (answer.code, "--steps" in answer.err) == (2, True)


class TestGivenTwice:
    @pytest.mark.parametrize(
        ("words", "key"),
        [
            (["--seed", "0", "--seed", "1"], "--seed"),
            (["--seed", "0", "--seed", "0"], "--seed"),
            (["--seed=0", "--json", "--seed=1"], "--seed"),
            (["--output-dir", "a", "--output-dir", "b"], "--output-dir"),
            (["seed=1", "seed=2"], "seed"),
            (["--seed", "1", "seed=2"], "seed"),
            (["algo_kwargs.gamma=0.9", "algo_kwargs.gamma=0.8"], "algo_kwargs.gamma"),
            (["algo_kwargs={gamma: 0.9}", "algo_kwargs.gamma=0.8"], "algo_kwargs.gamma"),
            (["algo_kwargs.gamma=0.8", "algo_kwargs={gamma: 0.9}"], "algo_kwargs"),
        ],
    )
    def test_is_an_error(self, call: Call, words: list[str], key: str) -> None:
        answer = call("config", "ppo", "CartPole-v1", *words)
        assert answer.code == 2
        assert f"'{key}' is given twice on the command line" in answer.err

    def test_two_keys_of_one_mapping_are_two_keys(self) -> None:
        words = ["algo_kwargs={gamma: 0.9}", "algo_kwargs.tau=0.8"]
        assert parse_overrides(words) == {"algo_kwargs": {"gamma": 0.9, "tau": 0.8}}

    def test_quiet_stands_anywhere(self, call: Call) -> None:
        for words in (["-q", "config"], ["config", "-q"]):
            answer = call(*words, "ppo", "CartPole-v1")
            assert (answer.code, answer.err) == (0, "")
        assert "using preset" in call("config", "ppo", "CartPole-v1").err

    def test_an_option_that_is_a_list_may_be_repeated(self, call: Call, tmp_path: Path) -> None:
        for name in ("a", "b"):
            (tmp_path / f"{name}.py").write_text("")
        assert call("algos", "--plugin", "a.py", "--plugin", "b.py", "--json", "--json").code == 0

    @pytest.mark.parametrize("command", [["eval"], ["resume"], ["data", "collect"]])
    def test_other_commands(self, call: Call, command: list[str]) -> None:
        answer = call(*command, "--checkpoint", "a", "--checkpoint", "b")
        assert (answer.code, "'--checkpoint' is given twice" in answer.err) == (2, True)


class TestCompletion:
    @staticmethod
    def complete(folder: Path, line: str) -> list[str]:
        words = line.split(" ")
        variables = {
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
            "_RL_TRAINING_COMPLETE": "complete_bash",
        }
        program = "import sys; from rl_training.cli import run\ntry: run()\nfinally: assert 'torch' not in sys.modules"
        answer = subprocess.run(
            [sys.executable, "-c", f"import sys; sys.argv[0] = 'rl-training'\n{program}"],
            cwd=folder,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Error" not in answer.stderr, answer.stderr
        return answer.stdout.split()

    def test_offers_what_may_come_next(self, tmp_path: Path, finished_run: Path) -> None:
        shutil.copytree(finished_run, tmp_path / "runs" / finished_run.name)
        (tmp_path / "runs" / "no_run").mkdir()
        own = f"runs/{finished_run.name}"
        assert {"train", "eval", "resume", "data"} <= set(self.complete(tmp_path, "rl-training "))
        assert self.complete(tmp_path, "rl-training train pp") == ["ppo"]
        assert "CartPole-v1" in self.complete(tmp_path, "rl-training train ppo ")
        assert self.complete(tmp_path, "rl-training algos td3_") == ["td3_bc"]
        assert self.complete(tmp_path, "rl-training eval ") == [own]
        assert self.complete(tmp_path, "rl-training resume runs/pp") == [own]

    def test_the_script_can_be_shown(self, tmp_path: Path) -> None:
        program = "import sys; sys.argv[0] = 'rl-training'; from rl_training.cli import run; run()"
        environment = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
        answer = subprocess.run(
            [sys.executable, "-c", program, "--show-completion", "bash"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode == 0, answer.stderr
        assert "_RL_TRAINING_COMPLETE" in answer.stdout


class TestHelp:
    @pytest.mark.parametrize(
        "command", [*COMMANDS, *(f"data {name}" for name in ("collect", "mix", "check"))]
    )
    def test_has_no_python_types(
        self, call: Call, monkeypatch: pytest.MonkeyPatch, command: str
    ) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        out = call(*command.split(), "--help").out
        assert "<" not in out.replace("<=", "")
        assert "[[" not in out
        usage = out.splitlines()[0]
        if command in ("eval", "resume", "plot"):
            assert " RUN" in usage
            assert "Needed unless --checkpoint is given." in " ".join(out.split())

    def test_lists_commands_with_whole_sentences(
        self, call: Call, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        for words in ([], ["data"]):
            lines = call(*words, "--help").out.split("Commands:\n")[1].splitlines()
            assert not any("..." in line for line in lines)
        assert 'pip install "rl-training[plot]"' in call("plot", "--help").out

    def test_texts_fit_the_command(self, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        assert "resume" not in call("demo", "--help").out
        assert "environment" not in call("data", "mix", "--help").out
        assert "new run in this folder" in " ".join(call("resume", "--help").out.split())
        assert "checkpoint" not in call("algos", "--help").out


class TestHelpOnTerminals:
    def test_lists_fit_eighty_columns(self, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        algos, presets = call("algos"), call("presets")
        for line in [*algos.out.splitlines(), *presets.out.splitlines(), *presets.err.splitlines()]:
            assert len(line) <= 80
        assert all(line[:20].strip() == "" or line[19] == " " for line in algos.out.splitlines())

    def test_uses_the_width_of_the_terminal(
        self, call: Call, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for width in (60, 80, 140):
            monkeypatch.setenv("COLUMNS", str(width))
            longest = max(len(line) for line in call("train", "--help").out.splitlines())
            assert longest <= width
            assert longest > width - 25, width
