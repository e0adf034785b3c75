"""Resuming: refusals, changed settings, forks, rewinds, edited files, and repeated commands."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import small_config
from run_tools import StopAt, assert_same_checkpoint, assert_same_end

from rl_training import TrainConfig
from rl_training.cli import main
from rl_training.data.dataset_loaders import load_transition_dataset, save_transition_dataset
from rl_training.errors import CheckpointError, ConfigError, DatasetError
from rl_training.experiment.checkpoint_folder import list_checkpoints
from rl_training.experiment.checkpointing import load_checkpoint, resolve_checkpoint
from rl_training.experiment.config import load_config_file
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.logs import read_metrics
from rl_training.experiment.yaml_text import dump_yaml
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.controls import TrainingProgress
from rl_training.runtime.run import run_training
from rl_training.runtime.run_utils import serialize_train_config
from rl_training.runtime.trainer import TrainerState, TrainResult
from rl_training.runtime.workflows import resume_training


def short(output_dir: Path, algo: str = "ppo", **changes: Any) -> TrainConfig:
    algo_kwargs = {"eval_interval": 32, **changes.pop("algo_kwargs", {})}
    values = {"total_timesteps": 96, "checkpoint_interval": 32, "eval_episodes": 1, **changes}
    values["env_kwargs"] = {"max_episode_steps": 20}
    return small_config(algo, output_dir, algo_kwargs=algo_kwargs, **values)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def metadata_of(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "metadata.json").read_text())


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 96 steps."""
    return run_training(short(tmp_path_factory.mktemp("template"), keep="all")).run_dir


@pytest.fixture
def run(template: Path, tmp_path: Path) -> Path:
    return shutil.copytree(template, tmp_path / "runs" / template.name)


class FailOnce(Callback):
    def on_collect_end(self, trainer: TrainerState, result: object) -> None:
        raise ZeroDivisionError


class TestAnOlderCheckpoint:
    def test_is_refused_with_both_remedies_and_nothing_is_lost(
        self, run: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        older = run / "checkpoints" / "step_000000000032"
        before = contents(run)
        with pytest.raises(
            CheckpointError,
            match=r"step 32 of a run that continued to step 96.*--output-dir.*--rewind",
        ):
            resume_training(older)
        with pytest.raises(CheckpointError, match="--rewind"):
            DefaultExperimentManager().resume(older)
        assert main(["resume", str(older), "--total-timesteps", "128"]) == 2
        assert "--rewind" in capsys.readouterr().err
        assert contents(run) == before

    def test_with_rewind_discards_newer_checkpoints(self, run: Path, template: Path) -> None:
        result = resume_training(run / "checkpoints" / "step_000000000032", rewind=True)
        assert_same_end(result, TrainResult(template, resolve_checkpoint(template), {}))
        older = run / "checkpoints" / "step_000000000064"
        assert (
            DefaultExperimentManager().resume(older, rewind=True).train().metrics["global_step"]
            == 96
        )

    def test_into_another_folder_is_a_fork_that_names_its_parent(
        self, run: Path, tmp_path: Path
    ) -> None:
        before = contents(run)
        older = run / "checkpoints" / "step_000000000032"
        with pytest.raises(
            ConfigError, match=r"run_suffix 'b' names a new run folder.*add --output-dir"
        ):
            resume_training(older, run_suffix="b", rewind=True)
        forks = tmp_path / "forks"
        fork = resume_training(
            older, output_dir=forks, run_suffix="b", callbacks=[StopAt(48, "update")]
        )
        assert fork.run_dir == forks / "ppo__CartPole-v1__seed1__b"
        assert contents(run) == before
        parent = {"checkpoint": str(older.resolve()), "global_step": 32}
        assert metadata_of(fork.run_dir)["parent"] == parent
        assert_same_checkpoint(fork.run_dir / "checkpoints" / "step_000000000032", older)
        whole = resume_training(fork.run_dir)
        assert whole.run_dir == fork.run_dir
        assert_same_checkpoint(whole.checkpoint_path, resolve_checkpoint(run))
        assert metadata_of(fork.run_dir)["parent"] == parent

    def test_is_accepted_with_fall_back(self, run: Path) -> None:
        (run / "checkpoints" / "step_000000000096" / "algorithm.safetensors").write_bytes(b"")
        assert resume_training(run, fall_back=True).metrics["global_step"] == 96

    def test_is_accepted_if_all_newer_checkpoints_are_damaged(self, run: Path) -> None:
        (run / "checkpoints" / "step_000000000096" / "algorithm.safetensors").write_bytes(b"")
        assert (
            resume_training(run / "checkpoints" / "step_000000000064").metrics["global_step"] == 96
        )


class TestAnEndedRun:
    def test_reports_the_final_evaluation_that_was_logged(self, tmp_path: Path) -> None:
        first = run_training(short(tmp_path, total_timesteps=80))
        assert resume_training(first.run_dir).metrics == first.metrics
        (first.run_dir / "metrics.jsonl").unlink()
        assert resume_training(first.run_dir).metrics["global_step"] == 80

    def test_stopped_early_says_why_and_how_to_extend_it(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        controls = {"early_stopping": {"target_value": -1e6, "min_steps": 40}}
        first = run_training(short(tmp_path, total_timesteps=160, algo_kwargs=controls))
        assert first.metrics["global_step"] == 64
        before = contents(first.run_dir)
        again = resume_training(first.run_dir)
        assert (again.metrics, again.stop_reason) == (first.metrics, first.stop_reason)
        assert main(["resume", str(first.run_dir)]) == 0
        said = capsys.readouterr().err
        assert f"stopped at step 64: {first.stop_reason}" in said
        assert "--total-timesteps" in said
        assert "algo_kwargs.early_stopping" in said
        assert contents(first.run_dir) == before
        assert (
            main(["resume", str(first.run_dir), "algo_kwargs.early_stopping.target_value=1e9"]) == 0
        )
        assert metadata_of(first.run_dir)["status"] == "finished"
        assert list(read_metrics(first.run_dir / "metrics.jsonl"))[-1]["global_step"] == 160

    def test_stopped_by_a_callback_resumes_even_if_the_first_attempt_fails(
        self, tmp_path: Path
    ) -> None:
        class Fails:
            def on_collect_end(self, trainer: TrainerState, result: object) -> None:
                raise RuntimeError("no luck")

        run_dir = run_training(
            short(tmp_path, total_timesteps=96), callbacks=[StopAt(40, "update")]
        ).run_dir
        with pytest.raises(RuntimeError, match="no luck"):
            resume_training(run_dir, callbacks=[Fails()])
        assert resume_training(run_dir).metrics["global_step"] == 96

    def test_that_is_extended_starts_with_full_patience(self, tmp_path: Path) -> None:
        controls = {"early_stopping": {"patience": 2, "min_delta": 1e6}}
        first = run_training(short(tmp_path, total_timesteps=160, algo_kwargs=controls))
        assert first.metrics["global_step"] == 96
        second = resume_training(first.run_dir, total_timesteps=320)
        assert (second.metrics["global_step"], second.stop_reason) == (160, first.stop_reason)

    def test_whose_folder_was_copied_by_links_leaves_the_original_alone(
        self, run: Path, tmp_path: Path
    ) -> None:
        copy = shutil.copytree(run, tmp_path / "copy" / run.name, copy_function=os.link)
        before = contents(run)
        resume_training(copy, total_timesteps=128)
        assert contents(run) == before
        resume_training(copy / "checkpoints" / "step_000000000032", rewind=True)
        assert contents(run) == before


class TestChanges:
    def test_that_affect_the_results_are_applied_reported_and_recorded(
        self, run: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        rates = []

        class Rates(Callback):
            def on_update_end(self, trainer: TrainerState, result: object) -> None:
                rates.append(trainer.algorithm.optimizer._learning_rate.item())

        changes = {"algo_kwargs": {"learning_rate": 0.5}, "tags": ["x"], "keep": 1}
        result = resume_training(run, total_timesteps=128, changes=changes, callbacks=[Rates()])
        assert set(rates) == {0.5}
        said = capsys.readouterr().err
        assert "algo_kwargs.learning_rate changed from 0.0003 to 0.5 at step 96" in said
        assert "exactness: approximate" in said
        recorded = {change["key"]: change for change in metadata_of(run)["changes"]}
        assert recorded.keys() == {"algo_kwargs.learning_rate", "tags", "keep", "total_timesteps"}
        assert recorded["algo_kwargs.learning_rate"]["affects_results"]
        assert not recorded["tags"]["affects_results"]
        state = load_checkpoint(result.run_dir)
        assert state.metadata["exactness"] == "approximate"
        assert state.config["algo_kwargs"]["learning_rate"] == 0.5
        assert len(list_checkpoints(run / "checkpoints")) <= 2

    def test_without_effect_on_the_results_leave_them_exact(self, tmp_path: Path) -> None:
        config = short(tmp_path / "whole", algo="dqn")
        stopped = run_training(
            config.replace(output_dir=tmp_path / "stopped"), callbacks=[StopAt(40, "update")]
        )
        words = [
            "checkpoint_interval=16",
            "eval_episodes=2",
            "algo_kwargs.eval_interval=16",
            "tags=[x]",
        ]
        assert main(["resume", "--checkpoint", str(stopped.run_dir), *words]) == 0
        whole = load_checkpoint(run_training(config).run_dir)
        resumed = load_checkpoint(stopped.run_dir)
        assert resumed.metadata["exactness"] == "exact"
        assert resumed.config["algo_kwargs"]["eval_interval"] == 16
        for name, tensor in whole.algorithm_state["members"]["network"].items():
            assert (resumed.algorithm_state["members"]["network"][name] == tensor).all()

    @pytest.mark.parametrize(
        ("word", "reason"),
        [
            ("algo=a2c", "networks and optimizers"),
            ("env_id=Acrobot-v1", "simulator state of the old environment"),
            ("seed=5", "random generator"),
            ("num_envs=2", "state of each environment"),
            ("env_kwargs.max_episode_steps=5", "restored with their saved settings"),
            ("algo_kwargs.hidden_sizes=[4]", "saved networks have the old shape"),
            ("algo_kwargs.critic_hidden_sizes=[4]", "saved networks have the old shape"),
            ("algo_kwargs.layer_norm=true", "saved networks have the old shape"),
            (
                "algo_kwargs.critic_learning_rate=0.1",
                "saved as one network, with two as two networks",
            ),
            ("algo_kwargs.num_steps=8", "saved rollout"),
            ("algo_kwargs.normalize_obs=true", "normalizer"),
            ("algo_kwargs.normalize_advantage=false", "only schedules and coefficients can change"),
        ],
    )
    def test_of_fixed_keys_are_refused_with_the_reason(
        self, template: Path, word: str, reason: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        before = contents(template)
        assert main(["resume", str(template), "--total-timesteps", "128", word]) == 2
        said = capsys.readouterr().err
        assert f"'{word.partition('=')[0]}" in said
        assert reason in said
        assert "start a new run" in said
        assert contents(template) == before

    def test_of_a_buffer_a_dataset_or_the_kind_of_a_setting_are_refused(
        self, tmp_path: Path
    ) -> None:
        for algo, key, value in (
            ("sac", "buffer_capacity", 9),
            ("sac", "alpha", 0.1),
            ("iql", "dataset_size", 50),
        ):
            first = run_training(short(tmp_path, algo=algo, total_timesteps=36))
            with pytest.raises(ConfigError, match=f"algo_kwargs.{key}' cannot change"):
                resume_training(
                    first.run_dir, total_timesteps=40, changes={"algo_kwargs": {key: value}}
                )

    @pytest.mark.parametrize(
        ("algo", "old", "new"), [("sac", {"alpha": 0.2}, {"alpha": 0.1}), ("c51", {}, {"v_max": 5})]
    )
    def test_of_values_that_the_networks_hold_are_refused(
        self, algo: str, old: dict[str, Any], new: dict[str, Any], tmp_path: Path
    ) -> None:
        config = small_config(algo, tmp_path, total_timesteps=36, algo_kwargs=old)
        first = run_training(config)
        with pytest.raises(ConfigError, match=f"algo_kwargs.{next(iter(new))}' cannot change"):
            resume_training(first.run_dir, total_timesteps=40, changes={"algo_kwargs": new})

    def test_of_the_path_of_the_same_dataset_is_allowed(self, tmp_path: Path) -> None:
        dataset = load_transition_dataset("random", env_id="Pendulum-v1", size=64)
        old, new, other = (tmp_path / name for name in ("old.npz", "new.npz", "other.npz"))
        save_transition_dataset(old, dataset)
        save_transition_dataset(
            other, load_transition_dataset("random", env_id="Pendulum-v1", size=64, seed=9)
        )
        algo_kwargs = {"dataset_kind": "npz", "dataset_path": str(old)}
        first = run_training(
            small_config("iql", tmp_path / "runs", total_timesteps=36, algo_kwargs=algo_kwargs)
        )
        old.rename(new)
        with pytest.raises(DatasetError, match="correct the path, or record"):
            resume_training(first.run_dir, total_timesteps=40)
        with pytest.raises(DatasetError, match="fingerprint"):
            resume_training(
                first.run_dir,
                total_timesteps=40,
                changes={"algo_kwargs": {"dataset_path": str(other)}},
            )
        resumed = resume_training(
            first.run_dir, total_timesteps=40, changes={"algo_kwargs": {"dataset_path": str(new)}}
        )
        assert resumed.metrics["global_step"] == 40
        assert load_checkpoint(resumed.run_dir).metadata["exactness"] == "exact"

    def test_to_a_fork_of_a_finished_run_are_refused(self, run: Path, tmp_path: Path) -> None:
        finished = resume_training(run)
        with pytest.raises(ConfigError, match="so output_dir would have no effect"):
            resume_training(finished.run_dir, output_dir=tmp_path / "forks")

    def test_of_threads_are_applied(self, run: Path) -> None:
        result = resume_training(run, total_timesteps=128, changes={"num_threads": 2})
        assert load_checkpoint(result.run_dir).metadata["execution"]["num_threads"] == 2

    def test_survive_a_failure_before_the_next_checkpoint(self, run: Path) -> None:
        changes = {"algo_kwargs": {"clip_coef": 0.1}}
        with pytest.raises(ZeroDivisionError):
            resume_training(run, total_timesteps=128, changes=changes, callbacks=[FailOnce()])
        result = resume_training(run)
        assert result.metrics["global_step"] == 128
        assert load_checkpoint(run).config["algo_kwargs"]["clip_coef"] == 0.1
        assert [change["key"] for change in metadata_of(run)["changes"]] == [
            "total_timesteps",
            "algo_kwargs.clip_coef",
        ]


class TestAnEditedConfig:
    def edit(self, run: Path, **values: Any) -> None:
        path = run / "config.yaml"
        path.write_text(dump_yaml({**load_config_file(path), **values}))

    def test_is_refused_by_the_keys_that_differ(self, run: Path) -> None:
        self.edit(run, eval_episodes=7, total_timesteps=500)
        before = contents(run)
        with pytest.raises(
            ConfigError, match=r"eval_episodes is 7 there and 1 in the.*eval_episodes=7"
        ) as caught:
            resume_training(run)
        assert "total_timesteps=500" in str(caught.value)
        assert contents(run) == before

    def test_is_accepted_if_the_command_gives_the_same_values(self, run: Path) -> None:
        self.edit(run, total_timesteps=128, eval_episodes=2)
        result = resume_training(run, total_timesteps=128, eval_episodes=2)
        assert (result.metrics["global_step"], result.metrics["eval_episodes"]) == (128, 2)

    @pytest.mark.parametrize("text", ["", "algo: [", "algo: ppo\nenv_id: CartPole-v1\nseeed: 3\n"])
    def test_that_cannot_be_read_is_refused_until_it_is_removed(self, run: Path, text: str) -> None:
        (run / "config.yaml").write_text(text)
        with pytest.raises(ConfigError, match=r"config\.yaml', or delete it"):
            resume_training(run, total_timesteps=112)
        (run / "config.yaml").unlink()
        assert resume_training(run, total_timesteps=112).metrics["global_step"] == 112
        assert load_config_file(run / "config.yaml")["total_timesteps"] == 112

    def test_that_differs_in_spelling_only_is_accepted(self, run: Path) -> None:
        self.edit(run)
        assert resume_training(run, total_timesteps=112).metrics["global_step"] == 112


class TestResumeOrStart:
    def call(self, folder: Path, *words: str) -> int:
        config = short(folder / "runs", total_timesteps=64)
        path = folder / "config.yaml"
        path.write_text(dump_yaml(serialize_train_config(config)))
        return main(
            ["train", "--config", str(path), "--run-suffix", "job", "--resume-or-start", *words]
        )

    def test_starts_resumes_and_then_reports_the_finished_run(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        config = short(tmp_path / "runs", total_timesteps=64)
        stopped = run_training(config, run_suffix="job", callbacks=[StopAt(32, "update")])
        assert self.call(tmp_path) == 0
        assert metadata_of(stopped.run_dir)["status"] == "finished"
        whole = run_training(config.replace(output_dir=tmp_path / "whole"))
        assert_same_end(
            whole, TrainResult(stopped.run_dir, resolve_checkpoint(stopped.run_dir), {})
        )
        before = contents(stopped.run_dir)
        capsys.readouterr()
        assert self.call(tmp_path) == 0
        answer = capsys.readouterr()
        assert "finished at step 64" in answer.err
        assert f"run_dir={stopped.run_dir}" in answer.out
        assert contents(stopped.run_dir) == before

    def test_restarts_a_run_killed_before_its_first_checkpoint(self, tmp_path: Path) -> None:
        config = short(tmp_path / "runs", total_timesteps=64)
        with pytest.raises(ZeroDivisionError):
            run_training(config, run_suffix="job", callbacks=[FailOnce()])
        (run_dir,) = (tmp_path / "runs").iterdir()
        with pytest.raises(
            CheckpointError, match="ended before its first checkpoint; to start it again: `"
        ) as caught:
            resume_training(run_dir)
        assert main(shlex.split(str(caught.value).split("`")[1])[1:]) == 0
        assert [line["global_step"] for line in read_metrics(run_dir / "metrics.jsonl")] == [
            16,
            32,
            48,
            64,
        ]
        assert self.call(tmp_path) == 0
        (run_dir / "checkpoints").rename(run_dir / "notes")
        assert self.call(tmp_path) == 2

    def test_refuses_another_configuration_and_a_run_without_a_name(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.call(tmp_path) == 0
        assert self.call(tmp_path, "eval_episodes=3", "algo_kwargs.clip_coef=0.3") == 2
        said = capsys.readouterr().err
        assert "eval_episodes is 1 there and 3 here" in said
        assert "algo_kwargs.clip_coef is 0.2 there and 0.3 here" in said
        assert main(["train", "ppo", "CartPole-v1", "--resume-or-start"]) == 2
        assert "--resume-or-start needs --run-suffix" in capsys.readouterr().err


def test_the_number_of_checkpoints_to_keep_is_chosen(tmp_path: Path) -> None:
    for keep, expected in ((1, {96}), (3, {64, 80, 96}), ("all", {16, 32, 48, 64, 80, 96})):
        run_dir = run_training(short(tmp_path, keep=keep, checkpoint_interval=16)).run_dir
        best = resolve_checkpoint(run_dir / "checkpoints" / "best").name
        names = {path.name for path in list_checkpoints(run_dir / "checkpoints")}
        assert names == {f"step_{step:012d}" for step in expected} | {best}
    with pytest.raises(ConfigError, match="keep"):
        short(tmp_path, keep=0)


class TestSchedules:
    def test_of_an_extension_are_stretched_restarted_or_held(self) -> None:
        training_progress = TrainingProgress(100)
        assert [
            training_progress.extended(50, 150, "restart").progress(step) for step in (50, 100, 150)
        ] == [
            0.0,
            0.5,
            1.0,
        ]
        assert [
            training_progress.extended(50, 150, "hold").progress(step) for step in (50, 100, 150)
        ] == [
            0.5,
            0.5,
            0.5,
        ]
        held = training_progress.extended(50, 150, "hold")
        assert TrainingProgress(**held.state_dict()).extended(80, 150) == held

    def test_that_have_ended_say_so_and_can_be_restarted(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        schedule = {"kind": "linear", "start": 1e-2, "end": 0.0}
        config = short(tmp_path / "a", total_timesteps=64, algo_kwargs={"learning_rate": schedule})
        first = run_training(config)
        other = shutil.copytree(first.run_dir, tmp_path / "b" / first.run_dir.name)
        capsys.readouterr()
        resume_training(first.run_dir, total_timesteps=128)
        said = capsys.readouterr().err
        assert "learning_rate stays 0" in said
        assert "--schedules restart" in said
        assert (
            main(["resume", str(other), "--total-timesteps", "128", "--schedules", "restart"]) == 0
        )
        said = capsys.readouterr().err
        assert "each schedule starts again" in said
        assert "learning_rate is 0" not in said
        with pytest.raises(AssertionError):
            assert_same_checkpoint(first.run_dir, other)

    def test_chosen_are_kept_after_a_failure_before_the_next_checkpoint(
        self, tmp_path: Path
    ) -> None:
        runs = []
        for name in "ab":
            config = short(
                tmp_path / name,
                total_timesteps=64,
                algo_kwargs={"clip_coef": {"kind": "linear", "start": 1}},
            )
            runs.append(run_training(config).run_dir)
        with pytest.raises(ZeroDivisionError):
            resume_training(
                runs[0], total_timesteps=128, schedules="restart", callbacks=[FailOnce()]
            )
        assert_same_end(
            resume_training(runs[0]),
            resume_training(runs[1], total_timesteps=128, schedules="restart"),
        )

    def test_must_be_known(self, template: Path) -> None:
        with pytest.raises(ConfigError, match="should be stretch, restart, hold"):
            resume_training(template, schedules="later")  # type: ignore[arg-type]
