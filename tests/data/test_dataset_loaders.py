"""Data sets from files: what is read, what is mapped, and the error each kind of bad file gives."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from dataset_tools import act_in, make_dataset, make_fields
from gymnasium.spaces import Box, Discrete, flatten
from toy_envs import NestedEnv

from rl_training.data.dataset_loaders import (
    load_transition_dataset,
    mix_datasets,
    save_transition_dataset,
)
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.errors import DatasetError
from rl_training.replay.transitions import FIELDS


def load(path: Path, kind: str = "npz") -> TransitionDataset:
    return load_transition_dataset(kind, dataset_path=path)


def refusal(path: Path, kind: str = "npz") -> str:
    """The message of the error that reading the file gives."""
    with pytest.raises(DatasetError) as error:
        load(path, kind)
    assert str(path) in str(error.value)
    return str(error.value)


def assert_equal(one: TransitionDataset, other: TransitionDataset) -> None:
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert getattr(one, name).dtype == getattr(other, name).dtype


class Bomb:
    """A pickle of this writes a file when it is opened."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.mark, "boom")


class TestNpz:
    def test_a_member_that_occurs_twice(self, tmp_path: Path) -> None:
        path = tmp_path / "data.npz"
        np.savez(path, **make_fields())
        with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            archive.writestr("rewards.npy", archive.read("rewards.npy"))
        assert "has the member 'rewards.npy' twice" in refusal(path)

    def test_a_saved_dataset_is_read_back(self, tmp_path: Path) -> None:
        dataset = make_dataset()
        path = save_transition_dataset(tmp_path / "new" / "data.npz", dataset)
        assert_equal(load(path), dataset)
        assert load(path).notes == ()
        assert load(path).fingerprint == dataset.fingerprint
        assert [file.name for file in path.parent.iterdir()] == ["data.npz"]

    def test_a_file_is_not_overwritten(self, tmp_path: Path) -> None:
        path = save_transition_dataset(tmp_path / "data.npz", make_dataset())
        before = path.read_bytes()
        with pytest.raises(DatasetError, match="exists already and is not overwritten"):
            save_transition_dataset(path, make_dataset(20))
        assert path.read_bytes() == before

    def test_a_place_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(DatasetError, match="cannot write"):
            save_transition_dataset(tmp_path / "file" / "data.npz", make_dataset())

    def test_uncompressed_data_is_mapped_and_not_read(self, tmp_path: Path) -> None:
        dataset = load(save_transition_dataset(tmp_path / "data.npz", make_dataset()))
        for name in FIELDS:
            owner = getattr(dataset, name)
            while isinstance(owner, np.ndarray) and not isinstance(owner, np.memmap):
                owner = owner.base
            assert isinstance(owner, np.memmap), name
            assert not owner.flags.writeable

    def test_compressed_data_is_read_and_the_notes_say_so(self, tmp_path: Path) -> None:
        np.savez_compressed(tmp_path / "data.npz", **make_fields())
        dataset = load(tmp_path / "data.npz")
        assert_equal(dataset, make_dataset())
        assert (
            "obs, actions, rewards, next_obs, terminated, truncated: read into memory"
            in dataset.notes[0]
        )

    def test_wide_types_and_column_order_are_converted(self, tmp_path: Path) -> None:
        fields = make_fields()
        fields["obs"] = np.asfortranarray(fields["obs"])
        fields["next_obs"] = fields["next_obs"].astype(">f8")
        fields["rewards"] = fields["rewards"].astype(np.float64)
        fields["terminated"] = fields["terminated"].astype(np.float32)
        np.savez(tmp_path / "data.npz", **fields)
        dataset = load(tmp_path / "data.npz")
        assert_equal(dataset, make_dataset())
        assert dataset.notes[0].startswith("obs, rewards, next_obs, terminated: read into memory")

    def test_a_file_of_empty_arrays(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "data.npz", **make_fields(0))
        assert "is empty: it has no transitions" in refusal(tmp_path / "data.npz")

    def test_a_renamed_pickle_is_not_opened(self, tmp_path: Path) -> None:
        path, mark = tmp_path / "data.npz", tmp_path / "mark"
        path.write_bytes(pickle.dumps(Bomb(mark)))
        assert "a pickle, which can run code and is not opened" in refusal(path)
        assert not mark.exists()

    def test_a_pickle_inside_an_object_array_is_not_opened(self, tmp_path: Path) -> None:
        path, mark = tmp_path / "data.npz", tmp_path / "mark"
        np.savez(path, **{**make_fields(), "obs": np.array([Bomb(mark)] * 60, object)})
        assert "object array" in refusal(path)
        assert not mark.exists()

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "is empty (0 bytes)"),
            (b"\x93NUMPY\x01\x00", "a single array"),
            (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
            (b"hello", "not an .npz file"),
        ],
    )
    def test_another_kind_of_file_is_told(
        self, tmp_path: Path, content: bytes, message: str
    ) -> None:
        (tmp_path / "data.npz").write_bytes(content)
        assert message in refusal(tmp_path / "data.npz")

    def test_a_torch_file(self, tmp_path: Path) -> None:
        torch.save({"obs": torch.zeros(3)}, tmp_path / "data.npz")
        assert "use dataset_kind 'pt'" in refusal(tmp_path / "data.npz")
        with (tmp_path / "data.pt").open("wb") as file:
            np.savez(file, obs=np.zeros(3))
        assert "use dataset_kind 'npz'" in refusal(tmp_path / "data.pt", "pt")

    @pytest.mark.parametrize("fraction", [0.05, 0.5, 0.95, 0.999])
    @pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
    def test_a_file_cut_off(
        self, tmp_path: Path, fraction: float, save: Callable[..., None]
    ) -> None:
        path = tmp_path / "data.npz"
        save(path, **make_fields())
        path.write_bytes(path.read_bytes()[: int(fraction * path.stat().st_size)])
        assert "is truncated or damaged" in refusal(path)

    @pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
    def test_a_flipped_bit_anywhere_gives_an_error_or_the_same_data(
        self, tmp_path: Path, save: Callable[..., None]
    ) -> None:
        path = tmp_path / "data.npz"
        save(path, **make_fields(20, 5))
        content, fingerprint = path.read_bytes(), make_dataset(20, 5).fingerprint
        num_refused = 0
        for position in range(0, len(content), 7):
            damaged = bytearray(content)
            damaged[position] ^= 1 << (position % 8)
            path.write_bytes(damaged)
            try:
                assert load(path).fingerprint == fingerprint, position
            except DatasetError:
                num_refused += 1
        assert num_refused > 0.5 * len(content) / 7

    def test_a_flipped_bit_deep_inside_mapped_data(self, tmp_path: Path) -> None:
        path = save_transition_dataset(tmp_path / "data.npz", make_dataset(20_000))
        content = bytearray(path.read_bytes())
        content[100_000] ^= 1
        path.write_bytes(content)
        assert "'obs' in" in refusal(path)

    @pytest.mark.parametrize("shape", [b"(99, 3)", b"(30, 3)"])
    def test_a_header_that_promises_another_size(self, tmp_path: Path, shape: bytes) -> None:
        np.savez(tmp_path / "good.npz", **make_fields())
        with (
            zipfile.ZipFile(tmp_path / "good.npz") as good,
            zipfile.ZipFile(tmp_path / "data.npz", "w") as bad,
        ):
            for info in good.infolist():
                bad.writestr(info.filename, good.read(info).replace(b"(60, 3)", shape))
        assert "'obs' in" in refusal(tmp_path / "data.npz")
        assert "its header announces" in refusal(tmp_path / "data.npz")

    def test_an_encrypted_member(self, tmp_path: Path) -> None:
        path = tmp_path / "data.npz"
        np.savez(path, **make_fields())
        content = bytearray(path.read_bytes())
        for magic, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            position = content.find(magic)
            while position >= 0:
                content[position + offset] |= 1
                position = content.find(magic, position + 1)
        path.write_bytes(content)
        assert "encrypted" in refusal(path)


class TestPt:
    def save(self, path: Path, **changes: Any) -> Path:
        tensors = {name: torch.from_numpy(array) for name, array in make_fields().items()}
        torch.save({**tensors, **changes}, path)
        return path

    @pytest.mark.parametrize("is_zip", [True, False])
    def test_a_dict_of_tensors_is_read(self, tmp_path: Path, is_zip: bool) -> None:
        tensors = {name: torch.from_numpy(array) for name, array in make_fields().items()}
        torch.save(tensors, tmp_path / "data.pt", _use_new_zipfile_serialization=is_zip)
        assert_equal(load(tmp_path / "data.pt", "pt"), make_dataset())

    def test_half_precision_becomes_float32(self, tmp_path: Path) -> None:
        path = self.save(tmp_path / "data.pt", rewards=torch.arange(60, dtype=torch.bfloat16))
        assert load(path, "pt").rewards.tolist() == list(range(60))

    def test_code_in_the_file_does_not_run(self, tmp_path: Path) -> None:
        path, mark = tmp_path / "data.pt", tmp_path / "mark"
        self.save(path, obs=Bomb(mark))
        assert "objects other than tensors; save a dict of tensors" in refusal(path, "pt")
        path.write_bytes(pickle.dumps(Bomb(mark)))
        refusal(path, "pt")
        assert not mark.exists()

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (torch.zeros(3), "contains a Tensor: save a dict of tensors"),
            ([1, 2], "contains a list: save a dict of tensors"),
            ({"obs": torch.zeros(3)}, "lacks actions"),
        ],
    )
    def test_another_content(self, tmp_path: Path, content: Any, message: str) -> None:
        torch.save(content, tmp_path / "data.pt")
        assert message in refusal(tmp_path / "data.pt", "pt")

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"rewards": [1.0] * 60}, "not a dense tensor"),
            ({"rewards": torch.ones(60).to_sparse()}, "not a dense tensor"),
            ({"rewards": torch.zeros(60, dtype=torch.complex64)}, "has dtype complex64"),
            ({"obs": torch.zeros(1, 1).expand(10**9, 10**3)}, "it is larger than the file"),
        ],
        ids=["list", "sparse", "complex", "larger than the file"],
    )
    def test_something_else_than_a_plain_tensor(
        self, tmp_path: Path, changes: dict[str, Any], message: str
    ) -> None:
        assert message in refusal(self.save(tmp_path / "data.pt", **changes), "pt")

    @pytest.mark.parametrize("fraction", [0.0, 0.3, 0.9])
    def test_a_file_cut_off(self, tmp_path: Path, fraction: float) -> None:
        path = self.save(tmp_path / "data.pt")
        path.write_bytes(path.read_bytes()[: int(fraction * path.stat().st_size)])
        refusal(path, "pt")


class TestArguments:
    def test_an_unknown_kind_is_answered_with_the_nearest(self) -> None:
        with pytest.raises(DatasetError, match=r"unknown dataset_kind 'npy': did you mean 'npz'\?"):
            load_transition_dataset("npy")

    @pytest.mark.parametrize(
        ("kind", "missing"),
        [
            ("npz", "dataset_path"),
            ("pt", "dataset_path"),
            ("minari", "dataset_id"),
            ("random", "env_id"),
        ],
    )
    def test_what_a_kind_needs_is_named(self, kind: str, missing: str) -> None:
        with pytest.raises(DatasetError) as error:
            load_transition_dataset(kind)
        assert missing in str(error.value)

    def test_a_path_without_a_file(self, tmp_path: Path) -> None:
        assert "does not exist (looked from" in refusal(tmp_path / "nothing.npz")
        assert "is not a file" in refusal(tmp_path)

    def test_random_data_follows_its_seed_and_its_size(self) -> None:
        first, same, other = (
            load_transition_dataset("random", env_id="Pendulum-v1", size=30, seed=seed)
            for seed in (1, 1, 2)
        )
        assert len(first) == 30
        assert first.fingerprint == same.fingerprint != other.fingerprint
        assert len(np.unique(first.actions)) > 20

    def test_random_data_of_an_environment_with_arguments(self) -> None:
        env_kwargs = {"lengths": [4], "continuous": True}
        dataset = load_transition_dataset(
            "random", env_id="toy_envs:CountingEnv", env_kwargs=env_kwargs, size=12
        )
        assert dataset.actions.dtype == np.float32
        assert dataset.dones.nonzero()[0].tolist() == [3, 7, 11]

    def test_no_step_of_random_data_is_refused(self) -> None:
        with pytest.raises(DatasetError, match="record at least 1 step"):
            load_transition_dataset("random", env_id="Pendulum-v1", size=0)

    def test_random_data_needs_nothing_but_the_loader_which_does_not_import_minari(self) -> None:
        code = (
            "import sys; from rl_training.data.dataset_loaders import load_transition_dataset as load;"
            "print('minari' in sys.modules, len(load('random', env_id='CartPole-v1', size=20, seed=0)))"
        )
        answer = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert answer.stdout.strip() == "False 20"


class TestMixing:
    def test_fractions_are_met_by_whole_episodes_and_the_scarcest_is_used_up(self) -> None:
        few, many = make_dataset(100), make_dataset(1000, offset=10_000.0)
        mixed = mix_datasets([few, many], [1, 3], seed=0)
        from_few = mixed.obs[:, 0] < 10_000
        assert (from_few.sum(), (~from_few).sum()) == (100, 300)
        assert len(mixed.episodes()) == 40
        assert len(np.unique(mixed.obs[:, 0])) == 400

    def test_a_mix_follows_its_seed(self) -> None:
        prints = [
            mix_datasets([make_dataset(100), make_dataset(300)], [1, 1], seed).fingerprint
            for seed in (0, 0, 1)
        ]
        assert prints[0] == prints[1] != prints[2]

    @pytest.mark.parametrize("weights", [[1], [1, 0], [1, -1], [1, np.nan], [1, np.inf], []])
    def test_impossible_weights_are_refused(self, weights: list[float]) -> None:
        with pytest.raises(DatasetError, match="one finite weight above 0 per dataset"):
            mix_datasets([make_dataset(), make_dataset()], weights, 0)

    def test_data_of_two_environments_is_refused(self) -> None:
        fields = make_fields()
        fields["actions"] = np.zeros(60, np.int64)
        with pytest.raises(DatasetError, match="actions of dataset 1 is int64"):
            mix_datasets([make_dataset(), TransitionDataset(**fields)], [1, 1], 0)


class TestMinari:
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("minari")
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))

    @pytest.mark.parametrize("data_format", ["hdf5", "arrow", "parquet"])
    def test_recorded_steps_come_back_one_by_one(self, data_format: str) -> None:
        env = gym.make("CartPole-v1", max_episode_steps=15)
        recorded = record(env, "cartpole/test-v0", data_format)
        dataset = minari_dataset("cartpole/test-v0")
        terminated, truncated = ({bool(step[flag]) for step in recorded} for flag in (4, 5))
        assert terminated == truncated == {True, False}
        assert_recorded(dataset, recorded, env.observation_space)
        assert dataset.actions.dtype == np.int64

    @pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
    @pytest.mark.parametrize("nested", [False, True])
    def test_what_minaris_own_recorder_wrote_comes_back(
        self, data_format: str, nested: bool
    ) -> None:
        pytest.importorskip("jax", reason="Minari's recorder needs it")
        import minari

        env = NestedEnv() if nested else gym.make("CartPole-v1", max_episode_steps=15)
        collector = minari.DataCollector(env, data_format=data_format)
        recorded = act_at_random(collector)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            collector.create_dataset("recorded/test-v0")
        assert_recorded(minari_dataset("recorded/test-v0"), recorded, env.observation_space)

    @pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
    def test_nested_observations_are_flattened_as_gymnasium_does(self, data_format: str) -> None:
        env = NestedEnv()
        recorded = record(env, "nested/test-v0", data_format)
        dataset = minari_dataset("nested/test-v0")
        assert_recorded(dataset, recorded, env.observation_space)
        (note,) = dataset.notes
        assert "flattened in this order: position (2), mode (3), parts.0 (2), parts.1 (4)" in note

    def test_an_episode_that_ends_without_a_flag_counts_as_truncated(self) -> None:
        from minari.data_collector import EpisodeBuffer

        steps = ([0] * 3, [0.0] * 3, [False] * 3, [False] * 3)
        open_ended = EpisodeBuffer(None, None, None, np.zeros((4, 1), np.float32), *steps)
        spaces = {"observation_space": Box(-1, 1, (1,)), "action_space": Discrete(2)}
        write_minari("open/test-v0", [open_ended, open_ended], **spaces)
        dataset = minari_dataset("open/test-v0")
        assert dataset.truncated.tolist() == [False, False, True] * 2
        assert dataset.notes == ("2 episodes end without a flag and are taken as truncated",)

    def test_a_dataset_that_is_not_there_is_answered_with_those_that_are(self) -> None:
        record(gym.make("CartPole-v1"), "cartpole/test-v0", "hdf5", num_steps=5)
        with pytest.raises(DatasetError) as error:
            minari_dataset("cartpole/other-v0")
        assert "set dataset_download to true (there: cartpole/test-v0)" in str(error.value)

    def test_a_failed_download_is_explained(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        import minari

        def fail(dataset_id: str) -> None:
            raise ConnectionError("no route to host\nand a long trace")

        monkeypatch.setattr(minari, "download_dataset", fail)
        with pytest.raises(DatasetError) as error:
            minari_dataset("D4RL/door/human-v2", download=True)
        message = str(error.value)
        assert message.startswith(
            "could not download 'D4RL/door/human-v2': ConnectionError: no route to host;"
        )
        assert str(tmp_path) in message

    @pytest.mark.parametrize("dataset_id", ["", "no version", "../../etc-v0/.."])
    def test_an_id_of_another_form(self, dataset_id: str) -> None:
        with pytest.raises(DatasetError, match="is not a Minari id"):
            minari_dataset(dataset_id)

    @pytest.mark.parametrize(
        ("key", "change", "message"),
        [
            # Without stored spaces Minari would import what the file names as the environment's code.
            ("action_space", lambda _: None, "lacks its action_space"),
            ("total_episodes", lambda count: count - 1, "it is damaged"),
        ],
    )
    def test_changed_metadata(self, tmp_path: Path, key: str, change: Any, message: str) -> None:
        record(gym.make("CartPole-v1"), "cartpole/test-v0", "hdf5")
        path = tmp_path / "cartpole" / "test-v0" / "data" / "metadata.json"
        metadata = json.loads(path.read_text())
        path.write_text(json.dumps({**metadata, key: change(metadata[key])}))
        with pytest.raises(DatasetError, match=message):
            minari_dataset("cartpole/test-v0")

    @pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
    def test_a_damaged_folder(self, tmp_path: Path, data_format: str) -> None:
        record(gym.make("CartPole-v1"), "cartpole/test-v0", data_format)
        for path in (tmp_path / "cartpole" / "test-v0" / "data").rglob("*"):
            if path.suffix in (".hdf5", ".arrow"):
                path.write_bytes(path.read_bytes()[:200])
        with pytest.raises(DatasetError, match="cartpole/test-v0' cannot be read"):
            minari_dataset("cartpole/test-v0")


def minari_dataset(dataset_id: str, **options: Any) -> TransitionDataset:
    return load_transition_dataset("minari", dataset_id=dataset_id, **options)


def assert_recorded(
    dataset: TransitionDataset, recorded: list[tuple[Any, ...]], space: gym.Space
) -> None:
    """The dataset has the recorded steps, with flat observations."""
    assert len(dataset) == len(recorded)
    for row, (obs, action, reward, next_obs, *endings) in enumerate(recorded):
        for name, value in (("obs", obs), ("next_obs", next_obs)):
            flat = flatten(space, value).astype(np.float32)
            np.testing.assert_array_equal(getattr(dataset, name)[row], flat)
        np.testing.assert_allclose(dataset.actions[row], action, rtol=1e-7)
        assert dataset.rewards[row] == np.float32(reward)
        assert [dataset.terminated[row], dataset.truncated[row]] == endings


def act_at_random(env: Any, num_steps: int = 60) -> list[tuple[Any, ...]]:
    """Steps as they were seen; the last one is marked truncated if its episode goes on."""
    steps = act_in(env, num_steps)
    steps[-1] = (*steps[-1][:5], steps[-1][5] or not steps[-1][4])
    return steps


def stack(values: list[Any]) -> Any:
    """A list of observations as Minari takes them: one list at each leaf."""
    if isinstance(values[0], dict):
        return {key: stack([value[key] for value in values]) for key in values[0]}
    if isinstance(values[0], tuple):
        return tuple(stack(list(part)) for part in zip(*values, strict=True))
    return values


def record(
    env: Any, dataset_id: str, data_format: str, num_steps: int = 60
) -> list[tuple[Any, ...]]:
    """Act at random, write a Minari dataset of it, and return each step as it was seen."""
    from minari.data_collector import EpisodeBuffer

    steps = act_at_random(env, num_steps)
    episodes, start = [], 0
    for stop in [row + 1 for row, step in enumerate(steps) if step[4] or step[5]]:
        obs, actions, rewards, next_obs, terminated, truncated = map(
            list, zip(*steps[start:stop], strict=True)
        )
        buffer = EpisodeBuffer(
            None, None, None, stack([*obs, next_obs[-1]]), actions, rewards, terminated, truncated
        )
        episodes.append(buffer)
        start = stop
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    write_minari(dataset_id, episodes, **spaces, data_format=data_format)
    return steps


def write_minari(dataset_id: str, episodes: list[Any], **options: Any) -> None:
    import minari

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about an author, a description and the like
        minari.create_dataset_from_buffers(dataset_id, episodes, **options)
