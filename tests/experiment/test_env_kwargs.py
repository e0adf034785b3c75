"""Arguments of an environment: JSON values, kept in config.yaml and in checkpoints; others are refused by name."""

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
from checkpoint_tools import forge_manifest
from conftest import small_config
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_tools import StopAt, assert_identical

from rl_training import TrainConfig
from rl_training.errors import ConfigError
from rl_training.experiment.checkpointing import load_checkpoint, resolve_checkpoint
from rl_training.experiment.config import json_copy, load_config_file, parse_overrides
from rl_training.experiment.yaml_text import dump_yaml, parse_yaml, sign
from rl_training.runtime.run import run_training
from rl_training.runtime.run_utils import serialize_train_config
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training

KWARGS: dict[str, Any] = {
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
    "numbers": [10, 1e-7, math.inf, -0.0, 1 << 70, True, None],
    "empty": [[], {}, ""],
    "long": [0.5] * 200,
    "$tuple": {"$int": [1, 2]},
}
GIVEN: list[dict[str, Any]] = []


class ArgumentsEnv(gym.Env[Any, Any]):
    """Keeps what it was made with."""

    def __init__(self, **kwargs: Any) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        GIVEN.append(kwargs)

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
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
    assert values == json.loads(json.dumps(values))


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=()), max_size=12),
    st.sampled_from(
        [
            "yes",
            "NO",
            "0x1",
            "1_0",
            ".5",
            "1.",
            "-",
            "- a",
            "a: b",
            "#",
            "&a",
            "*a",
            "<<",
            "!x",
            "? ",
            "\n",
            "2020-01-01",
        ]
    ),
)
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner)
)


@settings(
    max_examples=120,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
@given(TREES)
def test_whatever_a_configuration_takes_comes_back_from_yaml(tree: Any) -> None:
    values = {"env_kwargs": json_copy({"x": tree}, "env_kwargs")}
    assert_identical(parse_yaml(dump_yaml(values), "it"), values)


def test_a_run_of_an_older_version_gives_lists_for_its_tuples_and_sets(tmp_path: Path) -> None:
    config = small_config(
        "ppo", tmp_path, env_id=f"{__name__}:ArgumentsEnv", env_kwargs={"pair": [1, [2]], "day": ""}
    )
    run = run_training(config, callbacks=[StopAt(48, "collect")]).run_dir
    forge_manifest(
        resolve_checkpoint(run),
        lambda manifest: manifest["config"]["env_kwargs"].update(
            {"pair": {"$tuple": [1, {"$frozenset": [2]}]}, "day": {"$date": "2020-01-02"}}
        ),
    )
    stored = config.replace(env_kwargs={"pair": [1, [2]], "day": "2020-01-02"})
    text = dump_yaml(serialize_train_config(stored)).replace(
        "pair:\n  - 1\n  - - 2", "pair: !tuple [1, !frozenset [2]]"
    )
    assert "!tuple" in text
    (run / "config.yaml").write_text(sign(text.replace("'2020-01-02'", "2020-01-02")))
    GIVEN.clear()
    resume_training(run)
    evaluate_checkpoint(run, num_episodes=1)
    assert [kwargs for kwargs in GIVEN if kwargs != {"pair": [1, [2]], "day": "2020-01-02"}] == []


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
        ((1, 2), r"'env_kwargs\.a\.0' .* has type tuple, which JSON does not have: write a list"),
        (parse_yaml("!!set {x}", "it"), "has type set, .*: write a list"),
        (b"x", "has type bytes"),
        (datetime.date(2020, 1, 1), "has type datetime.date, .*: use numbers, text"),
        (np.zeros(3), r"'env_kwargs\.a\.0'.*numpy\.ndarray"),
        (np.float64(1.0), r"numpy\.float64"),
        (Path("x"), "Path"),
        (Colour.RED, "Colour"),
        (lambda: 1, "function"),
        (int, "type"),
        (1 << 5000, "1024 bits"),
        ({1: 2}, r"key 1 of 'env_kwargs\.a\.0' is not text: write it in quotes"),
        (LOOP, "nested deeper"),
        (SHARED, "more than 20,000 values"),
        ("x" * 2_000_000, "more than 20,000 values"),
    ],
    ids=[*"abcdefghijkl", "loop", "doubling", "text"],
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


# YAML

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
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
def test_a_text_that_grows_without_end_is_refused(name: str, tmp_path: Path) -> None:
    words = r"nested deeper|more than 50,000 values|a node that contains it|characters"
    with pytest.raises(ConfigError, match=words):
        parse_overrides([f"env_kwargs={BOMBS[name]}"])
    (tmp_path / "bomb.yaml").write_text(BOMBS[name])
    with pytest.raises(ConfigError, match=rf"bomb\.yaml.* ({words})"):
        load_config_file(tmp_path / "bomb.yaml")


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
        ("0", 0),
        ("0o10", 8),
        ("0x1F", 31),
        ("0b11", 3),
        ("1_000", 1000),
        ("1:30", "1:30"),
        ("190:20:30.15", "190:20:30.15"),
        ("1_000.5", 1000.5),
        ("1e6", 1e6),
        *((text, 1e-3) for text in ("1e-3", "1E-3", "1.0e-3", "0.001", ".001", "+1e-3")),
        ("_1", "_1"),
        (".inf", math.inf),
        ("TRUE", True),
        ("", None),
        ("no", False),
        ("'no'", "no"),
        ("2020-01-01", "2020-01-01"),
        ("{<<: {a: 1}, b: 2}", {"a": 1, "b": 2}),
        ("{1: a, '1': b}", {1: "a", "1": "b"}),
    ],
)
def test_numbers_and_words_are_read_as_documented(text: str, value: Any) -> None:
    assert_identical(parse_yaml(text, "it"), value)


@pytest.mark.parametrize("text", ["010", "-08", "00"])
def test_a_number_that_may_be_octal_is_asked_about(text: str) -> None:
    with pytest.raises(
        ConfigError,
        match="is octal to some readers and decimal to others: write it without the zero",
    ):
        parse_overrides([f"seed={text}"])


@pytest.mark.parametrize(
    "text",
    [
        "!!int x",
        "!!int ''",
        "!!timestamp x",
        "!!bool x",
        "!!float ''",
        "{0x1: a, 1: b}",
        "!tuple x",
        "!other 1",
        "{[x]: 1}",
    ],
)
def test_a_tag_that_does_not_fit_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not valid YAML"):
        parse_yaml(text, "it")
