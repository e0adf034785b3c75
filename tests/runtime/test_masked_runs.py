"""Whole runs in an environment that notes every invalid action in a file: none is ever taken."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import HELPERS, small_config
from run_tools import StopAt, assert_same_end

from rl_training.cli import main
from rl_training.data.dataset_loaders import load_transition_dataset, save_transition_dataset
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.envs.factory import EnvSource, make_env
from rl_training.errors import DatasetError, EnvError
from rl_training.evaluation.evaluator import Evaluator
from rl_training.evaluation.prediction import predict
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.runtime.recording import record_random
from rl_training.runtime.resuming.trust import read_config
from rl_training.runtime.run import run_training
from rl_training.runtime.workflows import (
    evaluate_algorithm,
    evaluate_checkpoint,
    evaluate_checkpoint_offline,
    load_algorithm,
    record_checkpoint,
    restore_algorithm,
    resume_training,
)

ENV = f"{HELPERS / 'masked_envs.py'}:RandomMasks"
ONLINE = ["ppo", "a2c", "dqn", "qrdqn", "c51", "sac"]
OFFLINE = ["bc", "cql"]
SETTINGS: dict[str, dict[str, Any]] = {
    "c51": {"num_atoms": 5},
    "qrdqn": {"num_quantiles": 5},
    "dqn": {"double": True, "n_step": 3, "prioritized": True},
}
FINE_TUNED = {
    "after_updates": 32,
    "buffer_capacity": 500,
    "learning_starts": 8,
    "train_frequency": 4,
    "gradient_steps": 2,
    "exploration": 0.5,
}


class World:
    """The environment's arguments, and the notes of all environments that were made with them."""

    def __init__(self, folder: Path, backend: str = "sync", **arguments: Any) -> None:
        self.notes = folder / "notes"
        self.kwargs = {"backend": backend, "notes": str(self.notes), "permitted": 0.2, **arguments}

    def check(self) -> None:
        assert not self.notes.exists(), self.notes.read_text()


def config_of(algo: str, folder: Path, world: World, **changes: Any) -> Any:
    algo_kwargs = {"eval_interval": 64, **SETTINGS.get(algo, {}), **changes.pop("algo_kwargs", {})}
    values = {"num_envs": 2, "total_timesteps": 128, "eval_episodes": 3, **changes}
    return small_config(
        algo,
        folder / "runs",
        env_id=ENV,
        env_kwargs=world.kwargs,
        algo_kwargs=algo_kwargs,
        **values,
    )


def record(folder: Path, world: World, steps: int = 200, **changes: Any) -> Path:
    dataset = record_random(
        ENV, {**world.kwargs, "backend": "sync"}, steps, np.random.SeedSequence(0)
    ).dataset
    fields = {
        name: array
        for name, array in dataset.arrays().items()
        if name not in changes.get("without", ())
    }
    np.savez(folder / "data.npz", **fields)
    return folder / "data.npz"


def offline_kwargs(path: Path) -> dict[str, Any]:
    return {"dataset_kind": "npz", "dataset_path": str(path)}


def use(run_dir: Path, world: World) -> None:
    """Evaluate, record with random actions, and predict along an episode."""
    evaluate_checkpoint(run_dir)
    recording = record_checkpoint(run_dir, 60, epsilon=0.5)
    assert recording.dataset.masks is not None
    _, algorithm, _ = load_algorithm(run_dir)
    arguments = {key: value for key, value in world.kwargs.items() if key != "backend"}
    with contextlib.closing(make_env(ENV, arguments)) as env:
        obs, info = env.reset(seed=0)
        for step in range(30):
            action = predict(algorithm, obs, mask=info["action_mask"], deterministic=bool(step % 2))
            obs, _, terminated, truncated, info = env.step(action)
            if terminated or truncated:
                obs, info = env.reset()


@pytest.mark.parametrize(
    ("algo", "backend"), [*((algo, "sync") for algo in ONLINE), ("dqn", "async"), ("ppo", "async")]
)
def test_no_invalid_action_is_taken_online(algo: str, backend: str, tmp_path: Path) -> None:
    world = World(tmp_path, backend)
    result = run_training(config_of(algo, tmp_path, world))
    assert result.metrics["global_step"] == 128
    if backend == "sync":
        use(result.run_dir, world)
    world.check()


def test_the_environment_notes_invalid_actions_of_a_run_that_does_not_read_masks(
    tmp_path: Path,
) -> None:
    """The check above can fail: also actions in worker processes are noted."""
    for backend in ("sync", "async"):
        world = World(tmp_path, backend)
        run_training(config_of("dqn", tmp_path, World(tmp_path, backend, action_masks=False)))
        assert len(world.notes.read_text().splitlines()) > 20
        world.notes.unlink()


@pytest.mark.parametrize(("algo", "backend"), [("bc", "sync"), ("cql", "sync"), ("cql", "async")])
def test_no_invalid_action_is_taken_offline(algo: str, backend: str, tmp_path: Path) -> None:
    world = World(tmp_path, backend)
    path = record(tmp_path, world)
    result = run_training(config_of(algo, tmp_path, world, algo_kwargs=offline_kwargs(path)))
    if backend == "sync":
        use(result.run_dir, world)
    world.check()


@pytest.mark.parametrize(
    ("without", "backend"),
    [((), "sync"), (("masks", "next_masks"), "sync"), ((), "async")],
    ids=str,
)
def test_no_invalid_action_is_taken_from_offline_to_online(
    without: Any, backend: str, tmp_path: Path
) -> None:
    world = World(tmp_path, backend)
    path = record(tmp_path, world, without=without)
    algo_kwargs = {**offline_kwargs(path), "online": FINE_TUNED}
    result = run_training(config_of("cql", tmp_path, world, algo_kwargs=algo_kwargs))
    assert result.metrics["global_step"] == 128
    world.check()


@pytest.mark.parametrize("action", ["multi_discrete", "multi_binary", "started"])
@pytest.mark.parametrize("source", ["method", "dict", "parts"])
def test_no_invalid_action_is_taken_in_other_spaces_and_from_other_sources(
    action: str, source: str, tmp_path: Path
) -> None:
    world = World(
        tmp_path,
        action=action,
        source="info" if source == "parts" and action == "started" else source,
    )
    run_training(config_of("ppo", tmp_path, world))
    path = record(tmp_path, world)
    run_training(config_of("bc", tmp_path, world, algo_kwargs=offline_kwargs(path)))
    world.check()


@pytest.mark.parametrize("algo", ["dqn", "ppo", "sac"])
def test_a_masked_run_that_is_stopped_and_resumed_equals_the_whole_one(
    algo: str, tmp_path: Path
) -> None:
    world = World(tmp_path)
    whole = run_training(config_of(algo, tmp_path / "whole", world))
    stopped = run_training(
        config_of(algo, tmp_path / "stopped", world), callbacks=[StopAt(71, "collect")]
    )
    assert stopped.metrics["global_step"] < 128
    assert_same_end(whole, resume_training(stopped.run_dir))
    world.check()


def test_looking_for_reports_of_success_takes_valid_actions(tmp_path: Path) -> None:
    world = World(tmp_path)
    evaluator = Evaluator(EnvSource.parse(ENV, world.kwargs), [1, 2])
    with contextlib.closing(evaluator):
        assert not evaluator.reports_success()
    world.check()


def test_data_collect_writes_masks_and_takes_valid_actions(tmp_path: Path) -> None:
    world, out = World(tmp_path), tmp_path / "collected.npz"
    result = run_training(config_of("dqn", tmp_path, world))
    allowed = ["--allow-path", str(HELPERS / "masked_envs.py"), "--allow-path", str(world.notes)]
    words = [
        "data",
        "collect",
        str(result.run_dir),
        "--steps",
        "80",
        "--epsilon",
        "0.5",
        "--out",
        str(out),
    ]
    assert main([*words, *allowed]) == 0
    world.check()
    dataset = load_transition_dataset("npz", dataset_path=out)
    assert dataset.masks.shape == dataset.next_masks.shape == (80, 5)
    assert dataset.masks[np.arange(80), dataset.actions].all()


def test_masks_survive_a_file(tmp_path: Path) -> None:
    dataset = record_random(ENV, {}, 50, np.random.SeedSequence(0)).dataset
    path = save_transition_dataset(tmp_path / "saved.npz", dataset)
    loaded = load_transition_dataset("npz", dataset_path=path)
    for name, array in dataset.arrays().items():
        assert np.array_equal(loaded.arrays()[name], array), name
    batch = loaded.sample(20)
    assert batch.masks.shape == batch.next_masks.shape == (20, 5)


def test_masks_of_next_observations_are_taken_from_the_next_row(tmp_path: Path) -> None:
    fields = record_random(ENV, {}, 60, np.random.SeedSequence(0)).dataset.arrays()
    dataset = TransitionDataset.from_dict(
        {name: array for name, array in fields.items() if name != "next_masks"}
    )
    goes_on = ~(fields["terminated"] | fields["truncated"])
    goes_on[-1] = False
    assert np.array_equal(dataset.next_masks[goes_on], fields["next_masks"][goes_on])
    assert dataset.next_masks[~goes_on].all()
    assert any(
        "'next_masks' is missing and was taken from the next row" in note for note in dataset.notes
    )


def test_a_next_row_that_does_not_follow_gives_no_mask() -> None:
    fields = dict(
        record_random(
            ENV, {"end_probability": 0.0, "length": 999}, 40, np.random.SeedSequence(0)
        ).dataset.arrays()
    )
    kept = np.r_[0:10, 20:40]  # a gap without a flag
    rows = {name: array[kept] for name, array in fields.items() if name != "next_masks"}
    dataset = TransitionDataset.from_dict(rows)
    assert dataset.next_masks[9].all()
    assert np.array_equal(dataset.next_masks[:9], fields["next_masks"][:9])


def test_next_masks_without_masks_are_refused() -> None:
    fields = record_random(ENV, {}, 20, np.random.SeedSequence(0)).dataset.arrays()
    with pytest.raises(
        DatasetError, match="has 'next_masks' and no 'masks': store both, or neither"
    ):
        TransitionDataset.from_dict(
            {name: array for name, array in fields.items() if name != "masks"}
        )


@pytest.mark.parametrize("algo", OFFLINE)
def test_a_dataset_without_masks_is_a_warning_and_trains(
    algo: str, tmp_path: Path, capsys: Any
) -> None:
    world = World(tmp_path)
    path = record(tmp_path, world, without=("masks", "next_masks"))
    run_training(
        config_of(algo, tmp_path, world, total_timesteps=32, algo_kwargs=offline_kwargs(path))
    )
    assert "the environment gives action masks and the dataset has none" in capsys.readouterr().err
    world.check()


@pytest.mark.parametrize("fault", ["forbidden", "nothing", "nothing_next"])
def test_masks_that_contradict_the_dataset_are_an_error(fault: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    path = record(tmp_path, world)
    fields = {name: np.array(array) for name, array in np.load(path).items()}
    goes_on = int(np.flatnonzero(~fields["terminated"])[3])
    if fault == "forbidden":
        fields["masks"][goes_on] = True
        fields["masks"][goes_on, fields["actions"][goes_on]] = False
    else:
        fields["masks" if fault == "nothing" else "next_masks"][goes_on] = False
    np.savez(path, **fields)
    with pytest.raises(DatasetError, match="mask"):
        run_training(config_of("bc", tmp_path, world, algo_kwargs=offline_kwargs(path)))


def test_fitted_q_evaluation_uses_the_masks_of_the_dataset(tmp_path: Path) -> None:
    world = World(tmp_path)
    path = record(tmp_path, world, steps=300)
    result = run_training(config_of("cql", tmp_path, world, algo_kwargs=offline_kwargs(path)))
    dataset = load_transition_dataset("npz", dataset_path=path)
    score = evaluate_checkpoint_offline(result.run_dir, dataset, num_updates=20)
    everything = {
        **dataset.arrays(),
        "masks": np.ones_like(dataset.masks),
        "next_masks": np.ones_like(dataset.masks),
    }
    other = evaluate_checkpoint_offline(
        result.run_dir, TransitionDataset(**everything), num_updates=20
    )
    assert score["fqe_return_mean"] != other["fqe_return_mean"]


@pytest.mark.parametrize("algo", ["dqn", "ppo", "cql"])
def test_a_run_without_masks_goes_on_without_them(algo: str, tmp_path: Path) -> None:
    """As one does that began before the environment gave masks, or before they were read."""
    world, silent = World(tmp_path), World(tmp_path, source="none")
    kwargs = offline_kwargs(record(tmp_path, silent)) if algo == "cql" else {}
    whole = run_training(config_of(algo, tmp_path / "whole", silent, algo_kwargs=kwargs))
    stopped = run_training(
        config_of(algo, tmp_path / "stopped", silent, algo_kwargs=kwargs),
        callbacks=[StopAt(71, "update" if algo == "cql" else "collect")],
    )
    resumed = resume_training(stopped.run_dir)
    assert_same_end(whole, resumed)
    state = load_checkpoint(resumed.checkpoint_path)
    config = read_config(state, env_kwargs=world.kwargs)  # the environment gives masks from now on
    algorithm = restore_algorithm(config, state.algorithm_state)
    assert (
        evaluate_algorithm(config, algorithm)["eval_return_mean"]
        == whole.metrics["eval_return_mean"]
    )
    longer = run_training(
        config.replace(total_timesteps=160, output_dir=tmp_path / "longer"), checkpoint_state=state
    )
    assert longer.metrics["global_step"] == 160
    assert world.notes.exists()


def test_a_policy_with_masks_is_not_evaluated_without_them(tmp_path: Path) -> None:
    world = World(tmp_path)
    result = run_training(config_of("dqn", tmp_path, world, total_timesteps=48))
    state = load_checkpoint(result.checkpoint_path)
    config = read_config(state, env_kwargs={**world.kwargs, "source": "none"})
    with pytest.raises(EnvError, match="the policy was trained with action masks, which"):
        evaluate_algorithm(config, restore_algorithm(config, state.algorithm_state))


def test_weights_of_a_run_without_masks_begin_one_with_masks(tmp_path: Path) -> None:
    first = run_training(
        config_of("dqn", tmp_path / "first", World(tmp_path, source="none"), total_timesteps=48)
    )
    world = World(tmp_path / "first")
    run_training(
        config_of(
            "dqn", tmp_path / "second", world, total_timesteps=48, init_from=str(first.run_dir)
        )
    )
    world.check()
