"""Training from a file: with an environment to evaluate in and without, and what is refused before a run exists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import small_config

from rl_training import TrainConfig
from rl_training.algorithms.base import ActResult
from rl_training.cli import main
from rl_training.data.dataset_loaders import load_transition_dataset, save_transition_dataset
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.envs.factory import make_env
from rl_training.errors import ConfigError, DatasetError, NonFiniteError, RLTrainingError
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.logs import read_metrics
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime import recording
from rl_training.runtime.assembly import make_algorithm
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.recording import noisy_policy, record_random_actions, record_transitions
from rl_training.runtime.run import run_training
from rl_training.runtime.run_utils import RunSeeds
from rl_training.runtime.trainer import TrainerState
from rl_training.runtime.workflows import (
    evaluate_checkpoint,
    load_algorithm,
    predict_checkpoint,
    resume_training,
)
from rl_training.spaces.spec import describe_spaces


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = record_random_actions("Pendulum-v1", {}, 500, np.random.SeedSequence(0))
    return save_transition_dataset(tmp_path_factory.mktemp("data") / "pendulum.npz", data)


def from_file(algo: str, output_dir: Path, file: Path, **changes: Any) -> TrainConfig:
    own = {"dataset_kind": "npz", "dataset_path": file, **changes.pop("algo_kwargs", {})}
    return small_config(algo, output_dir, algo_kwargs=own, **changes)


def altered(file: Path, target: Path, **changes: Any) -> Path:
    """A copy of the file with some fields changed by functions."""
    arrays = {
        name: array.copy()
        for name, array in load_transition_dataset("npz", dataset_path=file).arrays().items()
    }
    for name, change in changes.items():
        arrays[name] = change(arrays[name])
    return save_transition_dataset(target, TransitionDataset(**arrays))


def test_a_run_from_a_file_counts_updates(file: Path, tmp_path: Path) -> None:
    options = {"eval_interval": 50}
    result = run_training(
        from_file("iql", tmp_path, file, total_timesteps=120, log_interval=30, algo_kwargs=options)
    )
    assert result.metrics["global_step"] == result.metrics["gradient_steps"] == 120
    lines = list(read_metrics(result.run_dir / "metrics.jsonl"))
    assert {line["global_step"] for line in lines} == {30, 50, 60, 90, 100, 120}
    assert [line["global_step"] for line in lines if "eval_episodes" in line] == [50, 100, 120]


def test_without_an_environment_there_is_a_policy_and_no_score(file: Path, tmp_path: Path) -> None:
    result = run_training(from_file("td3_bc", tmp_path, file, env_id=None))
    assert result.run_dir.name.startswith("td3_bc__offline__seed1")
    assert "eval_return_mean" not in result.metrics
    assert predict_checkpoint(result.run_dir, np.zeros((4, 3))).shape == (4, 1)
    with pytest.raises(ConfigError, match="env_id"):
        evaluate_checkpoint(result.run_dir)
    resumed = resume_training(result.run_dir, total_timesteps=160)
    assert resumed.metrics["global_step"] == 160


def test_data_that_nobody_named_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "iql", "MountainCarContinuous-v0", "--total-timesteps", "10"]) == 2
    message = capsys.readouterr().err
    assert "iql learns from recorded data, and dataset_kind is not set" in message
    assert "dataset_path" in message
    assert "dataset_id" in message
    example = "rl-training train iql MountainCarContinuous-v0 algo_kwargs.dataset_kind=npz algo_kwargs.dataset_path="
    assert example in message
    assert not list(tmp_path.iterdir())
    words = [
        "algo_kwargs.dataset_kind=random",
        "algo_kwargs.dataset_size=50",
        "algo_kwargs.hidden_sizes=[8]",
    ]
    assert (
        main(["train", "iql", "MountainCarContinuous-v0", "--total-timesteps", "10", *words]) == 0
    )
    assert (
        "WARNING: the dataset is 50 steps of random actions in MountainCarContinuous-v0"
        in capsys.readouterr().err
    )


def test_random_data_can_have_a_seed_of_its_own(tmp_path: Path) -> None:
    def fingerprint(seed: int, dataset_seed: int | None) -> str:
        own = {"dataset_size": 20, "dataset_seed": dataset_seed}
        folder = tmp_path / f"{seed} {dataset_seed}"
        result = run_training(
            small_config("iql", folder, seed=seed, total_timesteps=2, algo_kwargs=own)
        )
        return str(load_checkpoint(result.run_dir).buffer_state["fingerprint"])

    assert fingerprint(1, 7) == fingerprint(2, 7) != fingerprint(1, None) != fingerprint(2, None)
    data = load_transition_dataset("random", env_id="Pendulum-v1", size=20, seed=7)
    spaces = describe_spaces(
        make_env("Pendulum-v1").observation_space, make_env("Pendulum-v1").action_space
    )
    assert data.to_model_space(spaces).fingerprint == fingerprint(1, 7)


def test_an_online_algorithm_needs_an_environment() -> None:
    with pytest.raises(ConfigError, match="missing key 'env_id' for the configuration"):
        TrainConfig(algo="ppo")


def test_rewards_are_transformed_and_actions_brought_to_model_space(
    file: Path, tmp_path: Path
) -> None:
    seen: list[Any] = []

    class Watch(Callback):
        def on_train_start(self, trainer: TrainerState) -> None:
            update = trainer.algorithm.update
            trainer.algorithm.update = lambda batch: (seen.append(batch), update(batch))[1]  # type: ignore[method-assign]

    options = {"reward_scale": 0.1, "reward_shift": 1.0, "reward_clip_min": 0.0}
    run_training(from_file("awac", tmp_path, file, algo_kwargs=options), callbacks=[Watch()])
    rewards = torch.cat([batch.rewards for batch in seen])
    actions = torch.cat([batch.actions for batch in seen])
    assert rewards.min() == 0.0
    assert 0.8 < rewards.max() <= 1.0
    assert actions.abs().max() <= 1.0
    assert actions.abs().max() > 0.9  # Pendulum's own bound is 2


def test_the_scale_of_the_data_travels_with_the_policy(file: Path, tmp_path: Path) -> None:
    result = run_training(from_file("td3_bc", tmp_path, file))
    _, algorithm, _ = load_algorithm(result.run_dir)
    obs = load_transition_dataset("npz", dataset_path=file).obs
    normalizer = algorithm.preprocessor.normalizer
    np.testing.assert_allclose(normalizer.mean, obs.mean(0, dtype=np.float64), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(normalizer.variance, obs.var(0, dtype=np.float64), rtol=1e-4)


def test_other_data_is_refused_when_a_run_goes_on(file: Path, tmp_path: Path) -> None:
    mine = altered(file, tmp_path / "mine.npz")
    result = run_training(from_file("iql", tmp_path / "runs", mine))
    mine.unlink()
    altered(file, mine, rewards=lambda rewards: rewards + 1)
    with pytest.raises(
        RLTrainingError, match="the dataset differs from the one this run started with"
    ):
        resume_training(result.run_dir, total_timesteps=256)
    assert load_checkpoint(result.run_dir).metadata["global_step"] == 128


def poke(index: Any, value: float) -> Any:
    def change(array: np.ndarray) -> np.ndarray:
        array[index] = value
        return array

    return change


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"obs": poke((3, 1), np.nan)}, "obs"),
        ({"rewards": poke(7, np.inf)}, "rewards"),
        ({"actions": poke((5, 0), 9.0)}, "actions"),
    ],
)
def test_bad_data_is_refused_before_a_run_exists(
    changes: dict[str, Any], words: str, file: Path, tmp_path: Path
) -> None:
    bad = altered(file, tmp_path / "bad.npz", **changes)
    with pytest.raises(DatasetError, match=words):
        run_training(from_file("iql", tmp_path / "runs", bad))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"actions": poke((5, 0), 9.0)},
        {"next_obs": lambda next_obs: np.roll(next_obs, -1, 0)},
        {"truncated": lambda truncated: np.roll(truncated, -1)},
    ],
    ids=["action beyond its bound", "next_obs of other rows", "endings a row early"],
)
def test_told_to_warn_a_run_says_what_is_wrong_and_goes_on(
    changes: dict[str, Any], file: Path, tmp_path: Path, capsys: Any
) -> None:
    bad = altered(file, tmp_path / "bad.npz", **changes)
    with pytest.raises(DatasetError):
        run_training(from_file("iql", tmp_path / "runs", bad))
    result = run_training(
        from_file("iql", tmp_path / "runs", bad, algo_kwargs={"dataset_check": "warn"})
    )
    assert result.metrics["global_step"] == 128
    assert "error: " in capsys.readouterr().err


def test_told_to_warn_a_nan_that_is_drawn_ends_the_run(file: Path, tmp_path: Path) -> None:
    bad = altered(file, tmp_path / "bad.npz", rewards=poke(slice(None), np.nan))
    with pytest.raises(NonFiniteError, match="critic_loss is not finite at step 1"):
        run_training(
            from_file("iql", tmp_path / "runs", bad, algo_kwargs={"dataset_check": "warn"})
        )


def test_a_recording_goes_into_a_minari_data_set_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    words = ["data", "collect", "--env", "Pendulum-v1", "--steps", "450", "--seed", "3"]
    assert main([*words, "--minari", "pendulum/random-v0"]) == 0
    assert main([*words, "--out", str(tmp_path / "same.npz")]) == 0
    one = load_transition_dataset("minari", dataset_id="pendulum/random-v0")
    other = load_transition_dataset("npz", dataset_path=tmp_path / "same.npz")
    for name, array in other.arrays().items():
        np.testing.assert_array_equal(one.arrays()[name], array, err_msg=name)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (
            ["collect", "--env", "CartPole-v1", "--steps", "9", "--out", "a.npz", "--noise", "0.1"],
            "--noise have no effect with --env",
        ),
        (["collect", "--steps", "9", "--out", "a.npz"], "exactly one source of actions"),
        (["collect", "--env", "CartPole-v1", "--steps", "9"], "exactly one place to write to"),
        (
            ["collect", "--env", "CartPole-v1", "--steps", "9", "--out", "a.txt"],
            "give a file name that ends in .npz",
        ),
        (["check", __file__], "to end in .npz or .pt"),
        (["mix", "nothing.npz", "--out", "a.npz"], "'nothing.npz' does not exist"),
        (["check", "nothing.npz"], "'nothing.npz' does not exist"),
    ],
)
def test_a_data_command_that_makes_no_sense_is_refused(
    words: list[str], part: str, capsys: Any
) -> None:
    assert main(["data", *words]) == 2
    assert part in capsys.readouterr().err


@pytest.mark.parametrize(("value", "part"), [(10**9, "up to 1,000,000,000"), (-1, "up to -1")])
@pytest.mark.parametrize("name", ["obs", "actions"])
def test_integers_that_cannot_be_choices_are_refused(
    name: str, value: int, part: str, tmp_path: Path
) -> None:
    fields = {"obs": np.arange(20), "next_obs": np.arange(1, 21), "actions": np.arange(20) % 3}
    fields |= {key: np.full(20, value) for key in fields if name in key}
    endings = {"terminated": np.zeros(20, bool), "truncated": np.arange(20) == 19}
    np.savez(tmp_path / "a.npz", **fields, rewards=np.ones(20), **endings)
    with pytest.raises(DatasetError, match=f"{name} has integers {part}; without an env_id"):
        run_training(from_file("cql", tmp_path / "runs", tmp_path / "a.npz", env_id=None))
    assert not (tmp_path / "runs").exists()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"nothing\.npz' does not exist"):
        run_training(from_file("bc", tmp_path / "runs", tmp_path / "nothing.npz"))
    assert not (tmp_path / "runs").exists()


def test_a_file_goes_through_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        main(["data", "collect", "--env", "CartPole-v1", "--steps", "400", "--out", "a.npz"]) == 0
    )
    assert (
        main(
            [
                "data",
                "collect",
                "--env",
                "CartPole-v1",
                "--steps",
                "400",
                "--seed",
                "2",
                "--out",
                "b.npz",
            ]
        )
        == 0
    )
    assert main(["data", "mix", "a.npz", "b.npz", "--weights", "0.5", "0.5", "--out", "c.npz"]) == 0
    assert main(["data", "check", "c.npz", "--env", "CartPole-v1"]) == 0
    assert "no faults found" in capsys.readouterr().out
    words = [
        "algo_kwargs.dataset_kind=npz",
        "algo_kwargs.dataset_path=c.npz",
        "algo_kwargs.hidden_sizes=[8]",
    ]
    assert (
        main(["train", "bc", "CartPole-v1", "--total-timesteps", "40", "--run-suffix", "x", *words])
        == 0
    )
    run_dir = "runs/bc__CartPole-v1__seed0__x"
    record = ["data", "collect", "--checkpoint", run_dir, "--steps", "50", "--out", "d.npz"]
    assert main([*record, "--epsilon", "0.3"]) == 0
    assert len(load_transition_dataset("npz", dataset_path="d.npz")) == 50
    assert main([*record[:-1], "e.npz", "--noise", "0.1"]) == 2
    assert "noise is for Box actions" in capsys.readouterr().err


TAKEN = [["collect", "--steps", "9", "--env", "CartPole-v1"], ["mix", "a.npz"]]


@pytest.mark.parametrize("words", TAKEN)
def test_a_target_that_is_taken_is_refused_before_the_work(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def work(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("nothing should be recorded or read")

    monkeypatch.setattr(recording, "record_transitions", work)
    monkeypatch.setattr("rl_training.cli.data.load_source", work)
    (tmp_path / "taken.npz").touch()
    assert main(["data", *words, "--out", str(tmp_path / "taken.npz")]) == 2
    assert "not overwritten" in capsys.readouterr().err


@pytest.mark.parametrize("dataset_id", ["noversion", "pendulum/taken-v0"])
def test_a_minari_id_that_cannot_be_written_is_refused_before_the_recording(
    dataset_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    (tmp_path / "pendulum/taken-v0").mkdir(parents=True)
    steps = str(10**12)  # which would not fit into memory
    assert (
        main(["data", "collect", "--env", "Pendulum-v1", "--steps", steps, "--minari", dataset_id])
        == 2
    )
    assert (
        "not a Minari id" if dataset_id == "noversion" else "not overwritten"
    ) in capsys.readouterr().err


def test_mixing_tells_what_reading_the_files_brought_up(
    file: Path, tmp_path: Path, capsys: Any
) -> None:
    arrays = dict(np.load(file))
    arrays["dones"] = arrays.pop("terminated") | arrays.pop("truncated")
    np.savez(tmp_path / "dones.npz", **arrays)
    assert (
        main(
            [
                "data",
                "mix",
                str(file),
                str(tmp_path / "dones.npz"),
                "--out",
                str(tmp_path / "mixed.npz"),
            ]
        )
        == 0
    )
    assert "dones.npz: only 'dones' is given" in capsys.readouterr().err


def test_ctrl_c_in_a_recording_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(recording, "record_transitions", interrupt)
    words = ["--env", "Pendulum-v1", "--steps", "9", "--out", str(tmp_path / "a.npz")]
    assert main(["data", "collect", *words]) == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("check", ["error", "warn"])
def test_data_of_another_environment_is_refused_without_a_way_around(
    file: Path, tmp_path: Path, check: str
) -> None:
    narrow = {name: lambda array: array[:, :2] for name in ("obs", "next_obs")}
    other = altered(file, tmp_path / "narrow.npz", **narrow)
    with pytest.raises(DatasetError, match="recorded in another environment") as caught:
        run_training(
            from_file("iql", tmp_path / "runs", other, algo_kwargs={"dataset_check": check})
        )
    assert "trains anyway" not in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_damaged_data_exits_1(file: Path, tmp_path: Path, capsys: Any) -> None:
    bad = altered(file, tmp_path / "bad.npz", obs=poke((3, 1), np.nan))
    assert main(["data", "check", str(bad)]) == 1
    assert "obs" in capsys.readouterr().out
    assert main(["data", "check", str(tmp_path / "nothing.npz")]) == 2


def test_a_recording_repeats_with_its_seed_and_ends_marked() -> None:
    first, same, other = (
        record_random_actions("Pendulum-v1", {}, 250, np.random.SeedSequence(seed))
        for seed in (1, 1, 2)
    )
    assert first.fingerprint == same.fingerprint != other.fingerprint
    assert first.truncated[[199, 249]].all()
    assert first.truncated.sum() == 2


@pytest.mark.parametrize(
    ("env_id", "env_kwargs", "mean", "expected"),
    [
        (
            "toy_envs:ConstantRewardEnv",
            {"continuous": True},
            2.5,
            1.0,
        ),  # executed at the bound, then disturbed
        ("toy_envs:NoisyEnv", {"action": "unbounded"}, 2.5, 2.5),
    ],
)
def test_noise_is_added_to_the_action_that_is_executed(
    env_id: str, env_kwargs: dict[str, Any], mean: float, expected: float, tmp_path: Path
) -> None:
    config = small_config("ppo", tmp_path, env_id=env_id, env_kwargs=env_kwargs)
    env = make_env(env_id, env_kwargs)
    spaces = describe_spaces(env.observation_space, env.action_space)
    algorithm = make_algorithm(
        config,
        get_algorithm_spec("ppo").parse_kwargs(config.algo_kwargs),
        spaces,
        RunSeeds.from_seed(1),
    )
    fixed = torch.full((1, spaces.action.num_components), mean)
    algorithm.act = lambda obs, *_, **__: ActResult(fixed.expand(len(obs), -1))  # type: ignore[method-assign]
    act = noisy_policy(algorithm, epsilon=0.0, noise=0.2, seed=0)
    actions = record_transitions(env_id, env_kwargs, 200, 0, lambda spaces: act).dataset.actions
    # At a bound half of the noise is cut off.
    quantile = 1.645 if mean == expected else 1.28
    assert np.quantile(np.abs(actions - expected), 0.9) == pytest.approx(0.2 * quantile, rel=0.3)


def test_a_share_of_an_agents_actions_is_random(tmp_path: Path) -> None:
    config = small_config("dqn", tmp_path)
    env = make_env("CartPole-v1")
    spaces = describe_spaces(env.observation_space, env.action_space)
    algorithm = make_algorithm(
        config,
        get_algorithm_spec("dqn").parse_kwargs(config.algo_kwargs),
        spaces,
        RunSeeds.from_seed(1),
    )
    algorithm.act = lambda obs, *_, **__: ActResult(torch.ones(len(obs), dtype=torch.int64))  # type: ignore[method-assign]
    actions = {}
    for seed in (0, 0, 1):
        act = noisy_policy(algorithm, epsilon=0.4, noise=0.0, seed=seed)
        recording = record_transitions("CartPole-v1", {}, 300, 0, lambda spaces, act=act: act)
        assert recording.dataset.actions.mean() == pytest.approx(0.8, abs=0.08)
        assert (
            actions.setdefault(seed, recording.dataset.fingerprint) == recording.dataset.fingerprint
        )
    assert actions[0] != actions[1]
