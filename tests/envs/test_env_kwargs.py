"""Arguments of an environment: kept with their types in config.yaml and in checkpoints, or refused by name."""

from __future__ import annotations

import datetime
import enum
import json
import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from conftest import small_config
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_tools import StopAt, assert_identical

from rl_training import TrainConfig
from rl_training.cli import main
from rl_training.errors import ConfigError
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.codec.storable_values import storable_copy
from rl_training.experiment.config import load_config_file, parse_overrides, resolve_config
from rl_training.experiment.yaml_text import dump_yaml, parse_yaml
from rl_training.runtime.run import run_training
from rl_training.runtime.run_utils import create_training_run, serialize_train_config
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training

KWARGS: dict[str, Any] = {
    "by_number": {1: "a", 2.5: "b", None: "d", -0.0: [1]},
    "by_bool": {True: "c", "true": "d"},
    "day": datetime.date(2020, 1, 2),
    "times": [
        datetime.datetime(2020, 1, 2, 3, 4, 5, 600),
        datetime.datetime(2020, 1, 2, 3, 4, tzinfo=datetime.timezone.utc),
        datetime.datetime(2020, 1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=-3, minutes=-30))),
    ],
    "set": {1, "a"},
    "frozen": frozenset({(1, 2)}),
    "raw": b"\x00\xff" * 50,
    "pair": (1, ("x", [2.0])),
    "by_pair": {(0, 1): "wall", frozenset({1}): b"x"},
    "words": [
        "yes",
        "no",
        "On",
        "010",
        "0o10",
        "1:30",
        "1_0",
        "1e3",
        "true",
        "null",
        "~",
        "=",
        "2020-01-01",
        "\ud800\x1b",
    ],
    "numbers": [10, 1e-7, math.inf, -0.0, 1 << 70],
    "empty": [[], {}, set(), (), "", b"", frozenset(), None],
    "long": [0.5] * 200,
}
GIVEN: list[dict[str, Any]] = []


class ArgumentsEnv(gym.Env[Any, Any]):
    """Keeps what it was made with."""

    def __init__(self, **kwargs: Any) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        GIVEN.append(kwargs)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), 0.0, False, bool(self.np_random.random() < 0.3), {}


def test_a_resumed_run_gives_the_environment_what_the_first_one_did(tmp_path: Path) -> None:
    config = small_config("ppo", tmp_path, env_id=f"{__name__}:ArgumentsEnv", env_kwargs=KWARGS)
    stopped = run_training(config, callbacks=[StopAt(48, "collect")])
    assert_identical(load_checkpoint(stopped.run_dir).config["env_kwargs"], KWARGS)
    assert_identical(load_config_file(stopped.run_dir / "config.yaml")["env_kwargs"], KWARGS)
    GIVEN.clear()
    resume_training(stopped.run_dir)
    evaluate_checkpoint(stopped.run_dir, num_episodes=1)
    assert len(GIVEN) >= 3
    for kwargs in GIVEN:
        assert_identical(kwargs, KWARGS)
    assert_identical(load_config_file(stopped.run_dir / "config.yaml")["env_kwargs"], KWARGS)


def test_a_configuration_serialized_twice_is_the_same(tmp_path: Path) -> None:
    config = small_config("ppo", tmp_path, env_kwargs=KWARGS)
    values = serialize_train_config(config)
    assert type(values["output_dir"]) is str
    assert type(values["tags"]) is list
    assert_identical(serialize_train_config(TrainConfig(**values)), values)


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=()), max_size=12),
    st.binary(max_size=12),
    st.dates(),
    st.datetimes(timezones=st.none() | st.just(datetime.timezone.utc)).map(lambda time: time.replace(fold=0)),
    st.sampled_from(
        ["yes", "NO", "0x1", "1_0", ".5", "1.", "-", "- a", "a: b", "#", "&a", "*a", "<<", "!x", "? ", "\n"]
    ),
)
KEYS = st.deferred(lambda: LEAVES | st.tuples(LEAVES, KEYS) | st.frozensets(LEAVES, max_size=2))
TREES = st.deferred(
    lambda: st.one_of(
        LEAVES,
        st.lists(TREES, max_size=3),
        st.tuples(TREES, TREES),
        st.dictionaries(KEYS, TREES, max_size=3),
        st.sets(KEYS, max_size=3),
        st.frozensets(KEYS, max_size=3),
    )
)


@settings(max_examples=120, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(TREES)
def test_whatever_a_configuration_takes_comes_back_from_yaml(tree: Any) -> None:
    values = {"env_kwargs": storable_copy({"x": tree}, "env_kwargs")}
    assert_identical(parse_yaml(dump_yaml(values), "it"), values)


class Colour(enum.IntEnum):
    RED = 1


SHARED: Any = [0]
for _ in range(16):
    SHARED = [SHARED, SHARED]
LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.zeros(3), r"'env_kwargs\.a\.0'.*numpy\.ndarray"),
        (np.float64(1.0), r"'env_kwargs\.a\.0'.*numpy\.float64"),
        (Path("x"), r"'env_kwargs\.a\.0'.*Path"),
        (Colour.RED, r"'env_kwargs\.a\.0'.*Colour"),
        (lambda: 1, r"'env_kwargs\.a\.0'.*function"),
        (int, r"'env_kwargs\.a\.0'.*type"),
        (1 << 5000, "1024 bits"),
        ({np.int64(1): 2}, r"'env_kwargs\.a\.0\.1'.*numpy\.int64"),
        (datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(seconds=1))), "datetime"),
        (LOOP, "nested deeper"),
        (SHARED, "more than 20,000 values"),
        ("x" * 2_000_000, "more than 20,000 values"),
    ],
    ids=["array", "float64", "path", "enum", "function", "class", "int", "key", "offset", "loop", "doubling", "text"],
)
def test_any_other_object_is_refused_by_name(value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        TrainConfig(algo="ppo", env_id="CartPole-v1", env_kwargs={"a": [value]})


def test_the_configuration_does_not_change_with_what_it_was_made_from() -> None:
    given: dict[str, Any] = {"a": [1]}
    config = TrainConfig(algo="ppo", env_id="CartPole-v1", env_kwargs=given)
    given["a"].append(2)
    serialize_train_config(config)["env_kwargs"]["a"].append(3)
    assert config.env_kwargs == {"a": [1]}


def test_keys_that_are_no_words_merge(tmp_path: Path) -> None:
    layers = [
        ("file", {"algo": "ppo", "env_id": "x", "env_kwargs": {"a": {1: "x", 2: "y"}}}),
        ("command line", parse_overrides(["env_kwargs.a={2: z, 3: w}"])),
    ]
    assert resolve_config(layers).config.env_kwargs == {"a": {1: "x", 2: "z", 3: "w"}}
    with pytest.raises(ConfigError, match="key 1 of file is not a string"):
        resolve_config([("file", {"env_kwargs": {1: 2}})])


def test_the_command_line_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["config", "ppo", "CartPole-v1", "env_kwargs.a={1: 2020-01-01, !!set {x}: !tuple [1]}"]
    assert main(words) == 2  # a set is no key
    words[-1] = "env_kwargs.a={1: 2020-01-01, [x]: 1}"
    assert main(words) == 2
    words[-1] = "env_kwargs.a={1: 2020-01-01, y: !!set {x}, !tuple [1, 2]: !!binary AA==}"
    assert main(words) == 0
    assert "2020-01-01" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    json.loads(capsys.readouterr().out)


# YAML

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {k: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 9)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
BOMBS = {
    "laughs": LAUGHS,
    "merges": MERGES,
    "long text": 'a: &a "' + "x" * 90_000 + '"\nb: [' + "*a, " * 9_000 + "]",
    "lists": "[" * 100_000,
    "dictionaries": "{a: " * 100_000,
    "dashes": "- " * 100_000,
    "keys": "? " * 100_000,
    "lines": "".join(" " * depth + "a:\n" for depth in range(500)),
    "itself": "a: &a [*a]",
    "large": "a: " + "x" * (1 << 20),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_text_that_grows_without_end_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = r"nested deeper|more than 50,000 values|a node that contains it|characters"
    with pytest.raises(ConfigError, match=words):
        parse_overrides([f"env_kwargs={BOMBS[name]}"])
    (tmp_path / "bomb.yaml").write_text(BOMBS[name])
    assert main(["train", "--config", str(tmp_path / "bomb.yaml")]) == 2
    assert "bomb.yaml" in capsys.readouterr().err


def test_a_bomb_in_a_strangers_run_folder_does_no_harm(tmp_path: Path) -> None:
    run = run_training(small_config("ppo", tmp_path), callbacks=[StopAt(48, "collect")]).run_dir
    metadata = json.loads((run / "metadata.json").read_text())
    (run / "metadata.json").write_text(json.dumps({**metadata, "status": "running"}))
    (run / "config.yaml").write_text(LAUGHS)
    with pytest.raises(ConfigError, match="more than 50,000 values"):
        resume_training(run, total_timesteps=160)
    (run / "config.yaml").unlink()
    assert resume_training(run, total_timesteps=160).metrics["global_step"] == 160


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("010", 10),
        ("-010", -10),
        ("0o10", 8),
        ("0x1F", 31),
        ("0b11", 3),
        ("1_000", 1000),
        ("1:30", "1:30"),
        ("190:20:30.15", "190:20:30.15"),
        ("1_000.5", 1000.5),
        ("08", 8),
        ("_1", "_1"),
        ("1__0", "1__0"),
        (".inf", math.inf),
        ("TRUE", True),
        ("y", "y"),
        ("'no'", "no"),
        ("{<<: {a: 1}, b: 2}", {"a": 1, "b": 2}),
        ("{1: a, '1': b}", {1: "a", "1": "b"}),
    ],
)
def test_numbers_and_words_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    assert_identical(parse_yaml(text, "it"), value)


@pytest.mark.parametrize("word", ["yes", "No", "ON", "off"])
def test_a_word_that_may_be_a_boolean_is_asked_about(word: str) -> None:
    with pytest.raises(ConfigError, match=f"write true or false, or '{word}' in quotes"):
        parse_overrides([f"env_kwargs.a={word}"])


@pytest.mark.parametrize(
    "text", ["!!int x", "!!int ''", "!!timestamp x", "!!bool x", "!!float ''", "{0x1: a, 1: b}", "!tuple x", "!other 1"]
)
def test_a_tag_that_does_not_fit_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not valid YAML"):
        parse_yaml(text, "it")


def test_a_seed_with_a_leading_zero_is_decimal(tmp_path: Path) -> None:
    config = resolve_config([("", {"algo": "ppo", "env_id": "x", **parse_overrides(["seed=010"])})]).config
    assert config.seed == 10
    assert create_training_run(config.replace(output_dir=tmp_path)).run_dir.name.startswith("ppo__x__seed10__")
