"""Reports of commands, and warnings of runs that would not learn: lines for scripts, a table for people."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from conftest import small_config
from terminals import Terminal
from test_cli import OFF_POLICY, PPO, WALK, Answer, Call, call, finished_run, logged, run

from rl_training.cli import output, training
from rl_training.runtime.run import run_training
from rl_training.runtime.trainer import TrainResult

__all__ = ["call", "finished_run", "run"]


def table_of(answer: Answer) -> list[str]:
    """The lines from the one that says how the run ended."""
    lines = answer.err.splitlines()
    start = next(number for number, line in enumerate(lines) if line.endswith("gradient steps)"))
    return lines[start:]


def next_commands(answer: Answer) -> dict[str, list[str]]:
    """The commands that a run proposes, as words, by their verb."""
    text = answer.err.split("  next ")[1].replace("\\\n", " ")
    return {words[1]: words for words in map(shlex.split, text.splitlines())}


@pytest.fixture(autouse=True)
def _short_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["rl-training"])


class TestTrain:
    def test_scripts_get_three_lines_and_people_a_table_of_eighty_columns(self, call: Call) -> None:
        answer = call("train", *PPO, "--run-suffix", "20261118-002458")
        metrics, table, final = answer.metrics, table_of(answer), logged(answer.run_dir)[-1]
        assert list(answer.lines) == ["run_dir", "checkpoint_path", "metrics"]
        names = [name for name in final if name.startswith(("global_", "gradient_", "eval_"))]
        assert list(metrics) == [*names, "eval_step", "best_eval_return_mean"]
        assert metrics["eval_step"] == final["global_step"]
        for name in names:
            assert metrics[name] == float(f"{final[name]:.6g}")
        assert max(map(len, table)) <= 80
        assert table[0] == "ppo on CartPole-v1, seed 0: finished at step 64 (4 gradient steps)"
        rows = {line.split()[0]: line for line in table[1:]}
        score = f"{metrics['eval_return_mean']:.1f} ± {metrics['eval_return_std']:.1f}"
        assert f"{score} (mean ± standard deviation of 1 ep" in rows["score"]
        assert f"{metrics['best_eval_return_mean']:.1f} at step " in rows["best"]
        assert rows["run"].split()[1] == str(answer.run_dir)

    def test_what_it_proposes_works(self, call: Call) -> None:
        answer = call("train", "dqn", "CartPole-v1", *OFF_POLICY, "--run-suffix", "20261118-002458")
        commands = next_commands(answer)
        assert list(commands) == ["eval", "resume"]
        for program, *words in commands.values():
            assert program == "rl-training"
            assert call(*words).code == 0

    def test_schedules_that_have_ended_are_restarted_by_the_resume_it_proposes(
        self, call: Call
    ) -> None:
        answer = call("train", *PPO)  # the preset's learning rate ends at 0
        words = next_commands(answer)["resume"]
        assert words[-2:] == ["--schedules", "restart"]
        resumed = call(*words[1:])
        assert (resumed.code, resumed.metrics["global_step"]) == (0, 128)

    def test_a_run_that_stopped_early_says_why_and_how_to_go_on(self, call: Call) -> None:
        words = ["algo_kwargs.early_stopping.target_value=1", "algo_kwargs.eval_interval=16"]
        answer = call("train", *PPO, *words)
        table = "\n".join(table_of(answer))
        assert "stopped at step 16" in table
        assert "reached the target 1" in table
        program, *words = next_commands(answer)["resume"]
        assert program == "rl-training"
        assert words == ["resume", str(answer.run_dir), "algo_kwargs.early_stopping=null"]
        assert call(*words).metrics["global_step"] == 64

    def test_json_has_everything_and_no_table(self, call: Call) -> None:
        answer = call("train", *PPO, "--json")
        assert {"policy_loss", "eval_return_mean"} <= json.loads(answer.out)["metrics"].keys()
        assert "gradient steps" not in answer.err


class TestInterrupted:
    CALLBACK = """
import signal

def stop_at_32():
    return Stopper()

class Stopper:
    def on_collect_end(self, trainer, result):
        if trainer.global_step == 32:
            signal.raise_signal(signal.SIGINT)
"""

    def test_the_score_is_that_of_the_step_it_was_evaluated_at(self, call: Call) -> None:
        Path("stop.py").write_text(self.CALLBACK)
        words = ["algo_kwargs.eval_interval=16", "--callback", "stop.py:stop_at_32"]
        answer = call("train", *PPO, *words)
        assert answer.code == 130
        assert (answer.metrics["global_step"], answer.metrics["eval_step"]) == (32, 16)
        score = f"{answer.metrics['eval_return_mean']:.1f} ± 0.0"
        assert f"{score} at step 16 (not evaluated since)\n" in answer.err
        assert answer.err.count("stopping after this step; saving…") == 1
        resumed = call("resume", answer.run_dir)
        assert resumed.metrics["eval_step"] == 64
        assert "not evaluated since" not in resumed.err
        assert "resumed at step 32 of 64\n" in resumed.err
        again = call("resume", answer.run_dir)
        assert again.metrics["eval_step"] == 64, "also where no step is left"


class TestCommands:
    def test_are_short_where_the_shell_finds_them(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program, other = tmp_path / "bin" / "rl-training", tmp_path / "other" / "rl-training"
        for path in (program, other):
            path.parent.mkdir()
            path.write_text("")
            path.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent))
        for started, word in ((program, "rl-training"), (other, str(other))):
            monkeypatch.setattr(sys, "argv", [str(started)])
            assert output.program_command("algos") == f"{word} algos"

    def test_are_broken_between_words_and_not_from_their_values(self) -> None:
        folder = f"runs/a folder/{'x' * 60}"
        words = f"rl-training resume '{folder}' --plugin mine.py --total-timesteps 9"
        lines = output.wrap_command(words, 11)
        assert max(map(len, lines[2:])) <= 69
        assert all(line.endswith(" \\") for line in lines[:-1])
        assert any("--total-timesteps 9" in line for line in lines)
        assert shlex.split("".join(lines).replace("\\", "")) == shlex.split(words)

    def test_of_the_packages_own_environments_need_no_plugin(self, call: Call) -> None:
        answer = call(
            "train", "her", "rl_training.envs.goals:BitFlipEnv", *OFF_POLICY, "--no-preset"
        )
        assert answer.code == 0, answer.err
        assert "--plugin" not in answer.err
        assert call("eval", answer.run_dir).code == 0

    def test_evaluate_the_best_checkpoint_where_it_is_better(self, tmp_path: Path) -> None:
        config = small_config("ppo", tmp_path)
        for best, place in ((3.0, tmp_path / "checkpoints" / "best"), (2.0, tmp_path)):
            metrics = {"eval_return_mean": 2.0, "best_eval_return_mean": best}
            result = TrainResult(tmp_path, tmp_path / "checkpoints" / "x", metrics)
            assert training._evaluations(result, config) == [["eval", str(place)]]

    def test_of_a_run_without_environment_estimate_from_its_data(self, call: Call) -> None:
        data = ["--env", "CartPole-v1", "--steps", "200", "--out", "a.npz"]
        assert call("data", "collect", *data).code == 0
        words = ["dataset_kind=npz", "dataset_path=a.npz", "batch_size=8", "hidden_sizes=[8]"]
        settings = [f"algo_kwargs.{word}" for word in words]
        answer = call("train", "bc", "total_timesteps=4", *settings)
        proposed = next_commands(answer)["eval"]
        assert proposed[:3] == ["rl-training", "eval", str(answer.run_dir)]
        assert proposed[3:5] == ["--dataset", "a.npz"]
        refused = call("eval", answer.run_dir)
        assert refused.code == 2
        assert "has no env_id to evaluate in" in refused.err
        assert "eval RUN --dataset FILE" in refused.err
        estimated = call("eval", answer.run_dir, "--dataset", "a.npz", "--fqe-updates", "5")
        metrics, lines = estimated.metrics, estimated.err.splitlines()
        rows = {line[2:12].strip(): line[12:] for line in lines if line.startswith("  ")}
        estimate = f"{metrics['fqe_return_mean']:.4g} (95 % bootstrap interval "
        assert rows["estimate"].startswith(estimate)
        assert rows["dataset"].startswith(f"{metrics['behaviour_return_mean']:.4g} (mean of ")
        assert rows[""] == "both are returns discounted by gamma 0.99"
        end = ": converged" if metrics["fqe_converged"] else " not converged"
        assert rows["drift"].endswith(end)
        assert "best" not in estimated.err


class TestTerminal:
    def test_people_get_the_table_alone(
        self, call: Call, run: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        terminal = Terminal()
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("COLUMNS", "80")
        call("eval", run)
        assert "  score " in terminal.getvalue()
        assert "metrics=" not in terminal.getvalue()
        call("eval", run, "-q")
        assert "metrics=" in terminal.getvalue()


class TestEval:
    def test_says_which_checkpoint_and_how_well(self, call: Call, run: Path) -> None:
        values = json.loads(call("eval", run, "--json").out)
        assert values["run_dir"] == str(run)
        assert values["checkpoint_path"] == str(run / "checkpoints" / "step_000000000064")
        assert values["eval_episodes"] == 1
        answer = call("eval", run / "checkpoints" / "best", "--eval-episodes", "3")
        assert list(answer.lines) == ["run_dir", "checkpoint_path", "metrics"]
        assert answer.run_dir == run
        assert answer.metrics["eval_episodes"] == 3
        assert "(mean ± standard deviation of 3 episodes)" in answer.err


class TestQuiet:
    def test_nothing_but_the_result(self, call: Call, run: Path) -> None:
        loud = call("eval", run)
        assert loud.err
        for flag in ("-q", "--quiet"):
            assert call("eval", run, flag) == Answer(0, loud.out, "")

    def test_of_every_command_that_runs(self, call: Call, run: Path) -> None:
        for words in (
            ["train", *PPO],
            ["resume", run, "--total-timesteps", "80"],
            ["demo", "--total-timesteps", "64"],
        ):
            answer = call(*words, "-q")
            assert (answer.code, answer.err) == (0, ""), words
            assert "metrics=" in answer.out

    def test_errors_are_heard_and_the_next_command_is_loud(self, call: Call) -> None:
        assert "error: unknown algorithm" in call("train", "ppp", "CartPole-v1", "-q").err
        assert "using preset" in call("config", "ppo", "CartPole-v1").err


class TestDemo:
    def test_shows_the_score_without_matplotlib(
        self, call: Call, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        answer = call("demo", "--total-timesteps", "64")
        assert answer.code == 0, answer.err
        assert "The trained policy scores " in answer.out
        assert "of 500 over 20 evaluation episodes." in answer.out
        (line,) = [line for line in answer.out.splitlines() if "picture" in line]
        assert 'pip install "rl-training[plot]"' in line
        assert not list(Path().rglob("*.png"))

    def test_proposes_only_what_works(self, call: Call) -> None:
        answer = call("demo", "--total-timesteps", "64")
        assert "  next " not in answer.err
        tail = answer.err.split("Try next:")[1].replace("\\\n", "")
        commands = [shlex.split(line)[1:] for line in tail.splitlines() if line]
        assert "resume" not in [words[0] for words in commands], "the preset's schedules have ended"
        for words in commands:
            answer = call(*(["config", *words[1:]] if words[0] == "train" else words))
            assert answer.code == 0, answer.err
            assert words[0] != "train" or "using preset" in answer.err


class TestNothingLearned:
    @pytest.mark.parametrize(("starts", "num_updates"), [(40, 0), (36, 1)])
    def test_is_said_before_and_after(
        self, call: Call, tmp_path: Path, starts: int, num_updates: int
    ) -> None:
        (tmp_path / "walk.py").write_text(WALK)
        words = [word for word in OFF_POLICY if "learning_starts" not in word]
        answer = call(
            "train", "dqn", "walk.py:Walk", *words, f"algo_kwargs.learning_starts={starts}"
        )
        assert answer.metrics["gradient_steps"] == num_updates
        warnings = [line for line in answer.err.splitlines() if line.startswith("WARNING")]
        if num_updates:
            assert warnings == []
        else:
            first, last = warnings
            assert "learning_starts 40" in first
            assert "lower algo_kwargs.learning_starts or raise total_timesteps" in first
            assert last == "WARNING: nothing was learned: this run took 0 gradient steps"

    @pytest.mark.parametrize(
        ("algo", "batch_size", "size", "where"),
        [
            ("dqn", 64, {"buffer_capacity": 50}, "the replay buffer, which holds at most 50"),
            ("dqn", 256, {}, "the replay buffer, which holds at most 128"),
            ("bc", 64, {"dataset_size": 50}, "the dataset, which holds at most 50"),
        ],
    )
    def test_a_batch_larger_than_what_is_stored(
        self,
        algo: str,
        batch_size: int,
        size: dict[str, int],
        where: str,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        kwargs = {"hidden_sizes": [8], "eval_interval": 1000, "batch_size": batch_size, **size}
        run_training(small_config(algo, tmp_path, algo_kwargs=kwargs))
        warning = f"WARNING: batch_size {batch_size} is larger than {where} transitions"
        assert warning in capsys.readouterr().err
