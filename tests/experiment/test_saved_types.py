"""Environment state is restored from a checkpoint type by type; unsavable state is an error before training."""

from __future__ import annotations

import datetime
import enum
import math
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import torch
from checkpoint_tools import forge_manifest
from conftest import small_config
from gymnasium.spaces import Box, Discrete
from run_tools import StopAt, assert_identical, assert_same_end

from rl_training.errors import CheckpointError, RLTrainingError
from rl_training.experiment import checkpointing, codec
from rl_training.experiment.checkpointing import CheckpointState, load_checkpoint, save_checkpoint
from rl_training.runtime.run import run_training
from rl_training.runtime.workflows import resume_training

LOOP: list[Any] = []
LOOP.append(LOOP)
TWICE: list[Any] = [0]
for _ in range(40):
    TWICE = [TWICE, TWICE]

VALUES = {
    "bytes": b"\x00\xff",
    "long bytes": bytes(range(256)) * 40,
    "bytearray": bytearray(b"ab"),
    "tuple": (1, (2.5, "x"), [3]),
    "empty": [(), [], {}, set(), frozenset(), b"", ""],
    "set": {3, 1, "a"},
    "frozenset": frozenset({(1, 2), b"x"}),
    "deque": deque([1, 2], maxlen=3),
    "int keys": {1: "a", -2: "b"},
    "plain keys": {None: 1, True: 2, 2.5: 3, b"k": 4, (1, 2): 5, "x": 6},
    "dollar key": {"$key": 1},
    "dollar tag": {"$tensor": "/x"},
    "path keys": {"a/b": np.arange(2), "a": {"b": np.arange(3)}},
    "strange names": {"\ud800": np.arange(2), "x" * 999: np.arange(3)},
    "ordered": OrderedDict([("b", 1), ("a", 2)]),
    "complex": complex(-0.0, math.inf),
    "large int": 1 << 20_000,
    "negative zero": -0.0,
    "none": None,
    "date": datetime.date(2020, 1, 2),
    "datetime": datetime.datetime(2020, 1, 2, 3, 4, 5, 6, datetime.timezone.utc),
    "floats": [0.1 * i for i in range(200)] + [math.inf, -0.0],
    "ints": list(range(-100, 100)),
    "large ints": [1 << 70] * 100,
    "bools": [True, False] * 50,
    "mixed": [1, 1.0, True] * 50,
    "tuple of floats": tuple(0.5 * i for i in range(100)),
    "float32": np.float32(0.1),
    "longdouble": np.longdouble(1) / 3,
    "numpy bool": np.bool_(True),
    "numpy words": [np.str_("ä"), np.bytes_(b"x"), np.datetime64("2020-01-01"), np.complex64(1j)],
    "big-endian": np.arange(4, dtype=">f8"),
    "big-endian ints": np.arange(4, dtype=">i2").reshape(2, 2),
    "array of longdouble": np.array([1, 3], np.longdouble) / 7,
    "array of complex": np.array([1 + 2j]),
    "array of words": np.array(["a", "bcd"]),
    "array of dates": np.array(["2020-01-01"], "M8[D]"),
    "array of uint64": np.array([2**64 - 1], np.uint64),
    "scalar array": np.array(5.0),
    "no array": np.zeros((0, 3)),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "strided": np.arange(10)[::-2],
    "tensor": torch.arange(3),
}


def through_a_file(value: Any, folder: Path) -> Any:
    save_checkpoint(folder / "c", CheckpointState({"value": value}, None, {}, {}))
    return load_checkpoint(folder / "c").algorithm_state["value"]


@pytest.mark.parametrize("name", VALUES)
def test_a_value_comes_back_with_its_type(name: str, tmp_path: Path) -> None:
    assert_identical(through_a_file(VALUES[name], tmp_path), VALUES[name])


class Point(NamedTuple):
    x: int


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "object"),
        (Point(1), "Point"),
        (Colour.RED, "Colour"),
        (np.array([object()]), "object"),
        (np.zeros(2, [("x", "i4")]), "dtype"),
        (np.ma.array([1, 2], mask=[0, 1]), "MaskedArray"),
        (np.random.default_rng(0), r"bit_generator\.state"),
        (torch.zeros(2).to_sparse(), "tensor"),
        (LOOP, "nested deeper than"),
        (TWICE, "more than [0-9,]+ values"),
    ],
)
def test_what_cannot_be_saved_is_named_with_its_place(
    value: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec, "MAX_VALUES", 10_000)
    with pytest.raises(CheckpointError, match=rf"'/algorithm/here.*{words}"):
        save_checkpoint(tmp_path / "c", CheckpointState({"here": value}, None, {}, {}))
    assert not (tmp_path / "c").exists()


def test_state_that_is_larger_than_a_manifest_may_be_is_read_again(tmp_path: Path) -> None:
    words = {f"key {index}": ["some text", index, {"x": 0.5}] for index in range(10_000)}
    assert_identical(through_a_file(words, tmp_path), words)
    assert (tmp_path / "c" / "manifest.json").stat().st_size < 10_000


def test_long_lists_are_not_in_the_manifest(tmp_path: Path) -> None:
    rows = [[index / 7] * 1000 for index in range(200)]
    assert_identical(through_a_file(rows, tmp_path), rows)
    assert (tmp_path / "c" / "manifest.json").stat().st_size < 100_000


def test_a_limit_holds_for_reading_as_for_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    through_a_file(["word"] * 60_000, tmp_path)
    monkeypatch.setattr(codec, "MAX_JSON_BYTES", 100_000)
    with pytest.raises(CheckpointError, match="bytes of JSON"):
        load_checkpoint(tmp_path / "c")


def test_what_would_not_be_read_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec, "MAX_JSON_BYTES", 100_000)
    with pytest.raises(CheckpointError, match=r"bytes.*NumPy arrays"):
        save_checkpoint(tmp_path / "c", CheckpointState({"x": ["word"] * 30_000}, None, {}, {}))
    monkeypatch.setattr(checkpointing, "MAX_MANIFEST_BYTES", 10_000)
    with pytest.raises(CheckpointError, match="manifest"):
        save_checkpoint(
            tmp_path / "c", CheckpointState({}, None, {}, {"env_kwargs": ["word"] * 10_000})
        )
    assert not (tmp_path / "c").exists()


BAD_TAGS: list[Any] = [
    {"$unknown": 1},
    {"$tuple": 1},
    {"$tuple": {"a": 1}},
    {"$set": [[1]]},
    {"$set": [{"$dict": []}]},
    {"$frozenset": "ab"},
    {"$dict": [1]},
    {"$dict": [[[], 1]]},
    {"$dict": [[1, 2, 3]]},
    {"$ordered": {"a": 1}},
    {"$deque": [1]},
    {"$deque": [-1, []]},
    {"$deque": [10**30, []]},
    {"$deque": [True, []]},
    {"$int": "0x"},
    {"$int": 5},
    {"$int": "5" * 5000},
    {"$complex": [1]},
    {"$complex": ["a", "b"]},
    {"$bytes": "é"},
    {"$bytes": "a"},
    {"$bytes": 5},
    {"$bytearray": [1]},
    {"$raw_bytes": "/missing"},
    {"$raw_bytes": "/floats"},
    {"$scalar": ["<f8", "AA=="]},
    {"$scalar": ["O", "AAAAAAAAAAA="]},
    {"$scalar": ["|V8", "AAAAAAAAAAA="]},
    {"$scalar": ["<f8,<f8", "AAAAAAAAAAA="]},
    {"$scalar": ["<U999999999", ""]},
    {"$scalar": [5, 5]},
    {"$raw_array": ["/bytes", "O", [1]]},
    {"$raw_array": ["/bytes", "<f4", [3]]},
    {"$raw_array": ["/bytes", "<f4", [-2, -1]]},
    {"$raw_array": ["/bytes", "<f4", [2**62, 2**62]]},
    {"$raw_array": ["/bytes", "<f4", [True, 2]]},
    {"$raw_array": ["/bytes", "<U0", [10**12]]},
    {"$raw_array": ["/floats", ">f4", [2]]},
    {"$raw_array": ["/bytes", ">M8[wrong]", [1]]},
    {"$raw_array": "/bytes"},
    {"$fortran": 5},
    {"$fortran": {"$fortran": {"$bytes": ""}}},
    {"$floats": "/bytes"},
    {"$floats": "/missing"},
    {"$ints": "/floats"},
    {"$bools": {"$floats": "/floats"}},
    {"$date": "2020-13-01"},
    {"$date": 5},
    {"$datetime": "now"},
    {"$json": "/bytes"},
    {"$float": "1"},
    {"$array": ["/bytes"]},
]


@pytest.mark.parametrize("tag", BAD_TAGS, ids=str)
def test_a_forged_value_is_refused(tag: Any, tmp_path: Path) -> None:
    state = {"bytes": np.zeros(8, np.uint8), "floats": np.zeros(2), "value": 1}
    save_checkpoint(tmp_path / "c", CheckpointState(state, None, {}, {}))
    forge_manifest(tmp_path / "c", lambda m: m["sections"]["algorithm"]["plain"].update(value=tag))
    with pytest.raises(CheckpointError, match=r"manifest|array"):
        load_checkpoint(tmp_path / "c")


@pytest.mark.parametrize(
    "plain",
    [{"$json": name} for name in ("/missing", "/floats", "/bytes", 5, "/list", "/deep")],
    ids=str,
)
def test_a_forged_large_state_is_refused(plain: Any, tmp_path: Path) -> None:
    texts = {"bytes": b"\xff{", "list": b"[1]", "deep": b"[" * 100_000}
    state = {name: np.frombuffer(text, np.uint8) for name, text in texts.items()} | {
        "floats": np.zeros(2)
    }
    save_checkpoint(tmp_path / "c", CheckpointState(state, None, {}, {}))
    forge_manifest(tmp_path / "c", lambda m: m["sections"]["algorithm"].update(plain=plain))
    with pytest.raises(CheckpointError):
        load_checkpoint(tmp_path / "c")


STATE = ("count", "big", "fine", "z", "raw", "seen", "$key", "rows", "by_number")


class RichEnv(gym.Env[Any, Any]):
    """Holds values of many types as attributes, or returns them from `get_state`; the reward depends on them all."""

    def __init__(self, own_state: bool = False) -> None:
        self.observation_space = Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = Discrete(2)
        self._clear()
        if own_state:
            self.get_state, self.set_state = self._get_state, self._set_state

    def _clear(self) -> None:
        self.count = 0
        self.big = np.zeros(3, ">f8")
        self.fine = np.longdouble(0)
        self.z = 0j
        self.raw = b""
        self.seen: Any = frozenset()
        vars(self)["$key"] = 0
        self.rows = [[0.0] * 1000 for _ in range(10)]
        self.by_number = {0: ("a", 1)}

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._clear()
        return self._obs(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.big.dtype.str == ">f8"
        assert type(self.by_number[0]) is tuple
        self.count += 1
        self.big += self.np_random.normal(size=3)
        self.fine = np.longdouble(self.fine + self.big[0] / 3)
        self.z = self.z * 0.5 + 1j
        self.raw = (self.raw + bytes([self.count]))[-4:]
        self.seen = frozenset({*self.seen, int(action), self.raw})
        vars(self)["$key"] += 1
        self.rows[self.count % 10][self.count % 7] += 0.1
        self.by_number[0] = ("b", self.count)
        reward = float(self.fine) + self.z.imag + len(self.raw) + len(self.seen)
        reward += vars(self)["$key"] + sum(self.rows[3])
        return self._obs(), reward, False, self.count >= 40, {}

    def _obs(self) -> np.ndarray:
        return np.array([self.count, self.big[1]], np.float32)

    def _get_state(self) -> Any:
        return tuple(vars(self)[name] for name in STATE)

    def _set_state(self, state: Any) -> None:
        assert type(state) is tuple
        vars(self).update(zip(STATE, state, strict=True))


@pytest.mark.parametrize("own_state", [False, True])
def test_a_run_in_an_environment_of_many_types_resumes_exactly(
    own_state: bool, tmp_path: Path
) -> None:
    kwargs = {
        "env_id": f"{__name__}:RichEnv",
        "env_kwargs": {"own_state": own_state},
        "num_envs": 2,
    }
    whole = run_training(small_config("ppo", tmp_path / "whole", **kwargs))
    stopped = run_training(
        small_config("ppo", tmp_path / "parts", **kwargs), callbacks=[StopAt(48, "collect")]
    )
    resumed = resume_training(stopped.run_dir)
    assert load_checkpoint(resumed.run_dir).metadata["exactness"] == "exact"
    assert_same_end(whole, resumed)


class ObjectEnv(RichEnv):
    """Returns an object from `get_state`."""

    def __init__(self) -> None:
        super().__init__(own_state=True)

    def step(self, action: Any) -> Any:
        raise AssertionError("no step is taken in an environment whose state cannot be saved")

    def _get_state(self) -> Any:
        return {"body": {"mass": Point(1)}}


class LateEnv(RichEnv):
    """Returns an object from `get_state` after some steps."""

    def __init__(self) -> None:
        super().__init__(own_state=True)

    def _get_state(self) -> Any:
        return {"body": Point(1) if self.count > 20 else 1}

    def _set_state(self, state: Any) -> None:
        pass


def test_state_that_can_no_longer_be_saved_is_named_and_what_was_saved_stays(
    tmp_path: Path,
) -> None:
    config = small_config("ppo", tmp_path, env_id=f"{__name__}:LateEnv", checkpoint_interval=16)
    with pytest.raises(RLTrainingError, match=r"environment 0.*get_state\(\).*'body'.*Point"):
        run_training(config)
    (run,) = tmp_path.iterdir()
    assert load_checkpoint(run).metadata["global_step"] == 16


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_state_that_cannot_be_saved_stops_the_run_before_its_first_step(
    algo: str, tmp_path: Path
) -> None:
    config = small_config(algo, tmp_path, env_id=f"{__name__}:ObjectEnv", num_envs=2)
    with pytest.raises(RLTrainingError, match=r"environment 0.*get_state\(\).*body/mass.*Point"):
        run_training(config)
