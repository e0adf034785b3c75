"""Models from strangers: zip files and pickles that are hostile or damaged are refused by name, and run nothing."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sb3_models import (
    PICKLE_OF_A_SHELL_COMMAND,
    adam_state,
    ppo_weights,
    settings_of,
    torch_bytes,
    write_members,
    write_model,
)

from rl_training.cli import main
from rl_training.errors import CheckpointError, RLTrainingError
from rl_training.importers.files import read_archive
from rl_training.importers.normalization import read_vecnormalize
from rl_training.importers.pickles import read_pickle
from rl_training.importers.sb3 import convert


class Command:
    """An object that runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        import os

        return os.system, ("touch hostile",)


GOOD = {
    "data": json.dumps(settings_of("ppo")).encode(),
    "policy.pth": torch_bytes(ppo_weights(4, 2)),
}


def compressed_inside() -> bytes:
    """Tensors as torch saves them, but compressed."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(GOOD["policy.pth"])) as source,
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for name in source.namelist():
            target.writestr(name, source.read(name))
    return buffer.getvalue()


COMMAND_AS_STATE = {"state": Command(), "param_groups": []}
HOSTILE_MEMBERS: list[tuple[str, bytes, str]] = [
    ("policy.pth", torch_bytes({"a": Command()}), "holds more than tensors"),
    ("policy.pth", PICKLE_OF_A_SHELL_COMMAND, "'policy.pth'"),
    ("policy.optimizer.pth", torch_bytes(COMMAND_AS_STATE), "'policy.optimizer.pth'"),
    ("policy.pth", torch_bytes([1, 2]), "not tensors by name"),
    ("policy.pth", torch_bytes({"a": "text"}), "not a tensor"),
    (
        "policy.pth",
        torch_bytes({"a": torch.zeros(1).expand(10**12)}),
        "more numbers than the file holds",
    ),
    ("policy.pth", torch_bytes({"a": torch.tensor([float("nan")])}), "NaN"),
    ("policy.pth", compressed_inside(), "compressed inside"),
    ("data", b"\x80\x04.", "'data'"),
    ("data", b"[" * 100_000, "'data'"),
    ("data", b"[]", "not a JSON object"),
    ("../escaped", b"x", "named '../escaped'"),
    ("/tmp/escaped", b"x", "named '/tmp/escaped'"),
]


@pytest.fixture(autouse=True)
def _nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / "hostile").exists()
    assert not (tmp_path.parent / "escaped").exists()


@pytest.mark.parametrize(
    ("name", "data", "message"), HOSTILE_MEMBERS, ids=[message for _, _, message in HOSTILE_MEMBERS]
)
def test_a_hostile_model_is_refused_and_leaves_nothing(
    name: str, data: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_members(tmp_path / "model.zip", {**GOOD, name: data})
    assert main(["import", "sb3", str(path), "--env", "CartPole-v1"]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "model.zip" in said
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.zip"]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({**GOOD, **{f"m{n}": b"" for n in range(200)}}, "members"),
        ({"data": b"{}"}, "no member 'policy.pth'"),
    ],
)
def test_too_many_and_missing_members_are_refused(
    members: dict[str, bytes], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_archive(write_members(tmp_path / "model.zip", members))


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    bomb = {"data": b" " * 60_000_000, "policy.pth": b""}
    path = write_members(tmp_path / "model.zip", bomb, zipfile.ZIP_DEFLATED)
    with pytest.raises(CheckpointError, match="would unpack to 60,000,000 bytes"):
        read_archive(path)


def test_doubled_and_encrypted_members_and_links_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", b"{}")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("data", b"{}")
    with pytest.raises(CheckpointError, match="two members named 'data'"):
        read_archive(path)
    data = bytearray(write_members(path, GOOD).read_bytes())
    for place in (data.find(b"PK\x01\x02") + 8, 6):
        data[place] |= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="encrypted"):
        read_archive(path)
    (tmp_path / "link.zip").symlink_to(path)
    with pytest.raises(CheckpointError, match="not a regular file"):
        read_archive(tmp_path / "link.zip")


def test_every_truncation_and_many_flipped_bits_are_refused_or_harmless(tmp_path: Path) -> None:
    optimizers = {"policy": adam_state([torch.zeros(1)], [torch.zeros(1)], 1)}
    path = write_model(tmp_path / "model.zip", settings_of("ppo"), ppo_weights(4, 2), optimizers)
    good = path.read_bytes()
    for end in range(0, len(good), 97):
        path.write_bytes(good[:end])
        with pytest.raises(CheckpointError):
            read_archive(path)
    rng = np.random.default_rng(0)
    for place in rng.integers(0, len(good), 300):
        damaged = bytearray(good)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:  # a flipped bit outside checksummed data may leave the model as it was
            archive = read_archive(path)
        except CheckpointError:
            continue
        assert archive.weights.keys() == ppo_weights(4, 2).keys()


@pytest.mark.parametrize(
    "changes",
    [
        {"policy_kwargs": [1]},
        {"policy_class": "text"},
        {"n_envs": 10**9},
        {"num_timesteps": 10**30},
        {"num_timesteps": -5},
        {"learning_rate": "1e-3"},
        {"observation_space": {"_shape": "__import__('os').system('touch hostile')"}},
        {"action_space": {"low": "[", "high": 3}},
        {"replay_buffer_class": {"__module__": 7}, "replay_buffer_kwargs": "x"},
        {"clip_range": {"value_schedule": {"a": 1}}},
        {"gradient_steps": 10**30},
        {"gae_lambda": None},
    ],
)
def test_settings_of_wrong_types_are_refused_or_left(changes: Any, tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.zip", settings_of("ppo", **changes), ppo_weights(4, 2))
    try:
        conversion = convert(read_archive(path), None, {"env_id": "CartPole-v1"})
    except RLTrainingError:
        return
    assert conversion.config.num_envs == 1
    assert 0 <= conversion.global_step <= 10**12


@pytest.mark.parametrize(
    "broken",
    [{"state": {}, "param_groups": [7]}, adam_state([torch.zeros(2)], [torch.zeros(2)], 1)],
)
def test_optimizers_of_wrong_shapes_are_left(broken: Any, tmp_path: Path) -> None:
    weights, optimizers = ppo_weights(4, 2), {"policy": broken}
    path = write_model(tmp_path / "model.zip", settings_of("ppo"), weights, optimizers)
    conversion = convert(read_archive(path), None, {"env_id": "CartPole-v1"})
    assert "optimizer of policy" in dict(conversion.report.left)


def test_layers_that_do_not_join_are_refused_before_memory_is_allocated(tmp_path: Path) -> None:
    weights = ppo_weights(4, 2)
    for number, shape in ((0, (400_000, 4)), (2, (400_000, 4))):
        weights[f"mlp_extractor.policy_net.{number}.weight"] = torch.zeros(shape)
    path = write_model(tmp_path / "model.zip", settings_of("ppo"), weights)
    with pytest.raises(CheckpointError, match="reads 4 of 400000 outputs"):
        convert(read_archive(path), None, {"env_id": "CartPole-v1"})


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_names_code_is_refused_by_its_name(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "v.pkl"
    path.write_bytes(pickle.dumps({"obs_rms": Command()}, protocol))
    with pytest.raises(CheckpointError, match=r"'v\.pkl' names '(posix|nt)\.system'.*not run"):
        read_vecnormalize(Path("v.pkl"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (PICKLE_OF_A_SHELL_COMMAND, "names 'os.system'"),
        (b"cbuiltins\neval\n(S'1'\ntR.", "names 'builtins.eval'"),
        (b"\x80\x04\x95", "not a readable pickle"),
        (b"", "not a readable pickle"),
        (b"]\x94h\x05.", "not a readable pickle"),
        (b"Pname\n.", "PERSID"),
        (b"\x80\x02\x82\x01.", "EXT1"),
        (b"cnumpy\nndarray\n(S'a'\ntR.", "not a file of VecNormalize"),
        (b"(i__main__\nX\n.", "INST"),
        (b"I5\n}b.", "something that is not an object"),
    ],
)
def test_hostile_opcodes_are_refused(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "v.pkl"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=message):
        read_vecnormalize(path)


def test_arrays_of_objects_and_of_false_sizes_are_refused() -> None:
    with pytest.raises(CheckpointError, match="only numbers are read"):
        read_pickle(pickle.dumps(np.array([None, None]), 4), "this")
    data = pickle.dumps(np.arange(4.0), 3)
    false_shape = data.replace(b"K\x04\x85", b"K\x7f\x85")
    assert false_shape != data
    with pytest.raises(CheckpointError, match="not a readable pickle"):
        read_pickle(false_shape, "this")


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("dtype", ["f8", "f4", "i4", "u2"])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_arrays_are_read_as_numpy_reads_them(order: str, dtype: str, protocol: int) -> None:
    array = np.asfortranarray(np.arange(6).reshape(2, 3).astype(order + dtype))
    np.testing.assert_array_equal(read_pickle(pickle.dumps(array, protocol), "this"), array)
    assert read_pickle(pickle.dumps(np.float64(0.25), 4), "this") == 0.25
