"""The configuration: defaults, errors, sources, and a round trip through a file."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from rl_training.algorithms.config import Schedule
from rl_training.errors import ConfigError
from rl_training.experiment.config import (
    TrainConfig,
    load_config_file,
    parse_overrides,
    resolve_config,
)
from rl_training.experiment.registry import get_algorithm_spec, list_algorithm_specs
from rl_training.runtime.run_utils import create_training_run, serialize_train_config
from rl_training.validation import nearest

RUN = "the configuration"


def make(**values: Any) -> TrainConfig:
    return TrainConfig(**{"algo": "ppo", "env_id": "CartPole-v1", **values})


def complaint(owner: str = RUN, **values: Any) -> str:
    """The message about settings of a run, or of the algorithm that is their owner."""
    with pytest.raises(ConfigError) as caught:
        make(**values) if owner == RUN else get_algorithm_spec(owner).parse_kwargs(values)
    return str(caught.value)


class TestTrainConfig:
    def test_defaults(self) -> None:
        assert make().model_dump() == {
            "algo": "ppo",
            "env_id": "CartPole-v1",
            "seed": 0,
            "total_timesteps": 100_000,
            "output_dir": Path("runs"),
            "device": "auto",
            "num_envs": 1,
            "eval_episodes": 5,
            "log_interval": None,
            "checkpoint_interval": None,
            "keep": 2,
            "tags": (),
            "loggers": ("tensorboard",),
            "num_threads": "auto",
            "compile": "auto",
            "init_from": None,
            "init_parts": "all",
            "algo_kwargs": {},
            "env_kwargs": {},
        }

    def test_every_key_has_a_meaning(self) -> None:
        for cls in (TrainConfig, *(spec.config_class() for spec in list_algorithm_specs())):
            assert all(field.description for field in cls.model_fields.values()), cls

    def test_is_frozen(self) -> None:
        config = make()
        with pytest.raises(ValueError, match="frozen"):
            config.seed = 3  # type: ignore[misc]
        assert config.seed == 0

    def test_is_keyword_only(self) -> None:
        with pytest.raises(TypeError):
            TrainConfig("ppo", "CartPole-v1")  # type: ignore[misc, call-arg]

    def test_replace_makes_a_new_one(self) -> None:
        config = make(algo="PPO", tags=("x",), algo_kwargs={"gamma": 0.9})
        assert config.replace(seed=2) == make(seed=2, tags=("x",), algo_kwargs={"gamma": 0.9})
        assert config.seed == 0
        with pytest.raises(ConfigError, match="bad value 0 for 'num_envs'"):
            config.replace(num_envs=0)


class TestIntervals:
    @pytest.mark.parametrize(
        ("total", "log", "checkpoint"), [(5, 1, 1), (1_000, 10, 100), (1_000_000, 10_000, 100_000)]
    )
    def test_defaults_scale_with_the_run(self, total: int, log: int, checkpoint: int) -> None:
        config = make(total_timesteps=total)
        assert (config.log_every_steps, config.checkpoint_every_steps) == (log, checkpoint)

    def test_given_values_stay(self) -> None:
        config = make(total_timesteps=1_000_000, log_interval=7, checkpoint_interval=9)
        assert (config.log_every_steps, config.checkpoint_every_steps) == (7, 9)

    def test_defaults_follow_a_replaced_length(self) -> None:
        config = make(total_timesteps=1_000).replace(total_timesteps=2_000)
        assert (config.log_every_steps, config.checkpoint_every_steps) == (20, 200)


POSITIVE, NOT_NEGATIVE = "should be greater than 0", "should be greater than or equal to 0"
MAPPING = "should be a mapping of keys to values"
INTEGER = "should be a valid integer"
IS_BOOL = "should not be true or false"


class TestComplaints:
    @pytest.mark.parametrize(
        ("owner", "key", "value", "reason"),
        [
            (RUN, "seed", -1, NOT_NEGATIVE),
            (RUN, "seed", 1.5, "should be a whole number"),
            (RUN, "seed", True, IS_BOOL),
            (RUN, "total_timesteps", 0, POSITIVE),
            (RUN, "total_timesteps", None, INTEGER),
            (RUN, "num_envs", -2, POSITIVE),
            (RUN, "eval_episodes", 0, POSITIVE),
            (RUN, "log_interval", 0, POSITIVE),
            (RUN, "checkpoint_interval", -1, POSITIVE),
            (RUN, "algo_kwargs", 3, MAPPING),
            (RUN, "env_kwargs", [1], MAPPING),
            (RUN, "tags", "one", "should be a list"),
            (RUN, "device", 1, "should be a valid string"),
            (RUN, "output_dir", 3, "is not a valid path for <class 'pathlib.Path'>"),
            ("ppo", "num_steps", 0, POSITIVE),
            ("ppo", "num_steps", True, IS_BOOL),
            ("ppo", "gamma", 1.5, "should be less than or equal to 1"),
            ("ppo", "gamma", True, IS_BOOL),
            ("ppo", "learning_rate", True, IS_BOOL),
            ("ppo", "vf_coef", float("nan"), "should be a finite number"),
            ("dqn", "batch_size", -1, POSITIVE),
            ("dqn", "buffer_capacity", -1, POSITIVE),
            ("dqn", "target_update_interval", 0, POSITIVE),
            ("sac", "learning_starts", -1, NOT_NEGATIVE),
            ("sac", "train_frequency", 0, POSITIVE),
            ("sac", "gradient_steps", 0, POSITIVE),
            ("sac", "hidden_sizes", 64, "should be a list"),
        ],
    )
    def test_a_bad_value(self, owner: str, key: str, value: Any, reason: str) -> None:
        message = f"bad value {value!r} for '{key}' of {owner}: {reason}"
        assert complaint(owner, **{key: value}) == message

    @pytest.mark.parametrize(
        ("owner", "values", "message"),
        [
            (
                RUN,
                {"totl_timesteps": 3},
                "unknown key 'totl_timesteps' for {}: did you mean 'total_timesteps'?",
            ),
            (RUN, {"Seed": 3}, "unknown key 'Seed' for {}: did you mean 'seed'?"),
            (
                RUN,
                {"total_timesteps": 10**400},
                "bad value of 1,329 bits for 'total_timesteps' of {}: should be less than"
                " 340,282,366,920,938,463,463,374,607,431,768,211,456",
            ),
            (RUN, {"tags": [1]}, "bad value 1 for 'tags.0' of {}: should be a valid string"),
            (RUN, {"env_id": None}, "missing key 'env_id' for {}"),
            ("sac", {"taau": 0.1}, "unknown key 'taau' for {}: did you mean 'tau'?"),
            (
                "ppo",
                {"clip_range": 3},
                "unknown key 'clip_range' for {}: did you mean 'clip_coef'?",
            ),
            ("dqn", {"n_steps": 3}, "unknown key 'n_steps' for {}: did you mean 'n_step'?"),
            (
                "dqn",
                {"hidden_sizes": [0]},
                "bad value 0 for 'hidden_sizes.0' of {}: should be greater than 0",
            ),
            (
                "ppo",
                {"early_stopping": {"patienc": 3}},
                "unknown key 'early_stopping.patienc' for {}: did you mean 'patience'?",
            ),
            (
                "ppo",
                {"early_stopping": {"mode": "most"}},
                "bad value 'most' for 'early_stopping.mode' of {}: should be 'max' or 'min'",
            ),
            (
                "sac",
                {"learning_rate": {"kind": "linaer", "start": 1.0}},
                "bad value 'linaer' for 'learning_rate.kind' of {}: should be 'linear' or 'cosine'",
            ),
            (
                "sac",
                {"learning_rate": {"kind": "linear"}},
                "missing key 'learning_rate.start' for {}",
            ),
            ("sac", {"learning_rate": {"start": 1.0}}, "missing key 'learning_rate.kind' for {}"),
            (
                "sac",
                {"learning_rate": {"kind": "linear", "start": -1.0}},
                "bad value -1.0 for 'learning_rate.start' of {}: should be greater than or equal to 0",
            ),
            (
                "sac",
                {"learning_rate": {"kind": "linear", "start": 1.0, "ennd": 0.0}},
                "unknown key 'learning_rate.ennd' for {}: did you mean 'end'?",
            ),
        ],
    )
    def test_a_wrong_or_missing_key_and_a_part_at_fault(
        self, owner: str, values: dict[str, Any], message: str
    ) -> None:
        assert complaint(owner, **values) == message.format(owner)

    def test_a_key_of_the_algorithm_is_shown_in_its_place(self) -> None:
        near = "did you mean algo_kwargs.eval_interval (in a file algo_kwargs: {eval_interval: …})?"
        assert complaint(eval_interval=3) == f"unknown key 'eval_interval' for {RUN}: {near}"

    @pytest.mark.parametrize(
        ("owner", "key", "value", "remedies"),
        [
            (RUN, "num_threads", 0, [POSITIVE]),
            (RUN, "num_threads", "many", ["integer", "'auto'"]),
            (RUN, "compile", "maybe", ["boolean", "'auto'"]),
            ("sac", "learning_rate", -1.0, [POSITIVE]),
            ("sac", "learning_rate", "high", ["number"]),
            ("sac", "learning_rate", None, ["number"]),
        ],
    )
    def test_a_value_of_several_kinds_is_complained_of_once(
        self, owner: str, key: str, value: Any, remedies: list[str]
    ) -> None:
        message = complaint(owner, **{key: value})
        assert message.startswith(f"bad value {value!r} for '{key}' of {owner}: ")
        assert message.count("bad value") == 1
        assert all(remedy in message for remedy in remedies)

    def test_missing_keys_and_a_key_that_is_no_name(self) -> None:
        with pytest.raises(ConfigError, match=r"^missing key 'algo' for the configuration$"):
            TrainConfig()
        with pytest.raises(ConfigError, match="key 1 of file is not a string"):
            resolve_config([("file", {"algo": "ppo", 1: 2})])  # type: ignore[dict-item]

    def test_unknown_key_without_a_near_one_lists_what_is_known(self) -> None:
        message = complaint(zzzz=1)
        assert message.startswith(
            "unknown key 'zzzz' for the configuration (known: algo, algo_kwargs, "
        )
        assert all(key in message for key in TrainConfig.model_fields)

    def test_each_mistake_has_its_line(self) -> None:
        assert complaint(sed=1, num_envs=0).splitlines() == [
            "bad value 0 for 'num_envs' of the configuration: should be greater than 0",
            "unknown key 'sed' for the configuration: did you mean 'seed'?",
        ]

    def test_unknown_algorithm(self) -> None:
        with pytest.raises(ConfigError, match=r"^unknown algorithm 'ppp': did you mean 'ppo'\?$"):
            get_algorithm_spec("ppp")


class TestSchedules:
    @pytest.mark.parametrize("algo", ["ppo", "dqn", "sac"])
    def test_is_accepted_where_a_number_is(self, algo: str) -> None:
        kwargs = {"learning_rate": {"kind": "linear", "start": 1e-3, "end": 1e-4}}
        rate = get_algorithm_spec(algo).parse_kwargs(kwargs).learning_rate
        assert rate == Schedule(kind="linear", start=1e-3, end=1e-4)

    def test_ends_at_zero_unless_told(self) -> None:
        rate = (
            get_algorithm_spec("ppo")
            .parse_kwargs({"learning_rate": {"kind": "cosine", "start": 1.0}})
            .learning_rate
        )
        assert isinstance(rate, Schedule)
        assert [round(rate.at(progress), 6) for progress in (0.0, 0.5, 1.0)] == [1.0, 0.5, 0.0]


class TestYaml:
    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"algo: [", ["is not valid YAML", "line 1"]),
            (b"seed: 1\nseed: 2\n", ["key 'seed' is given twice"]),
            (b"algo_kwargs:\n  gamma: 1\n  gamma: 2\n", ["key 'gamma' is given twice", "line 2"]),
            (b"- 1\n", ["must be a mapping of keys to values, not list"]),
            (b"", ["must be a mapping of keys to values"]),
            (b"\xff\xfe\x00", ["cannot be read"]),
            (b'algo: "a\x01b"\n', ["is not valid YAML"]),
        ],
        ids=["syntax", "twice", "twice nested", "list", "empty", "binary", "control"],
    )
    def test_a_bad_file_is_named_with_its_fault(
        self, tmp_path: Path, content: bytes, words: list[str]
    ) -> None:
        path = tmp_path / "bad.yaml"
        path.write_bytes(content)
        with pytest.raises(ConfigError) as caught:
            load_config_file(path)
        assert all(word in str(caught.value) for word in [f"config file '{path}'", *words])

    def test_a_missing_file_says_from_where_it_was_looked_for(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError) as caught:
            load_config_file(tmp_path / "none.yaml")
        assert (
            str(caught.value)
            == f"config file '{tmp_path / 'none.yaml'}' does not exist (looked from {Path.cwd()})"
        )


class TestOverrides:
    def test_dots_nest_and_values_are_yaml(self) -> None:
        words = [
            "seed=3",
            "algo_kwargs.learning_rate=1e-3",
            "hidden_sizes=[8, 8]",
            "replay.kind=her",
            "tags=[a, b]",
            "device=",
        ]
        assert parse_overrides(words) == {
            "seed": 3,
            "algo_kwargs": {
                "learning_rate": 1e-3,
                "hidden_sizes": [8, 8],
                "replay": {"kind": "her"},
            },
            "tags": ["a", "b"],
            "device": None,
        }

    def test_a_value_may_hold_an_equals_sign(self) -> None:
        assert parse_overrides(["env_kwargs.name=a=b"]) == {"env_kwargs": {"name": "a=b"}}

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["=3"], "'=3' is not of the form key=value"),
            (["seed"], "'seed' is not of the form key=value"),
            (["taau=3"], "unknown key 'taau' for the configuration: did you mean tau?"),
            (
                ["zzz=3"],
                "unknown key 'zzz' for the configuration (`rl-training algos NAME` lists the settings of an algorithm)",
            ),
            (["sed=3"], "unknown key 'sed' for the configuration: did you mean 'seed'?"),
            (["lr=3"], "unknown key 'lr' for the configuration: did you mean learning_rate?"),
            (
                ["net_arch=[8]"],
                "unknown key 'net_arch' for the configuration: did you mean hidden_sizes?",
            ),
            (
                ["tau=1", "algo_kwargs.tau=2"],
                "'algo_kwargs.tau' is given twice on the command line: remove one",
            ),
            (
                ["algo_kwargs=3", "algo_kwargs.gamma=1"],
                "'algo_kwargs.gamma=1' sets a key within one that already has a value",
            ),
        ],
    )
    def test_complaints(self, words: list[str], message: str) -> None:
        with pytest.raises(ConfigError) as caught:
            parse_overrides(words)
        assert str(caught.value) == message

    def test_a_bad_value_is_named_by_its_key(self) -> None:
        with pytest.raises(
            ConfigError, match=r"^the value of 'algo_kwargs\.hidden_sizes' is not valid YAML"
        ):
            parse_overrides(["algo_kwargs.hidden_sizes=[8"])


class TestResolve:
    BASE: tuple[str, dict[str, Any]] = ("base", {"algo": "ppo", "env_id": "CartPole-v1"})

    def test_later_layers_win_and_are_named(self) -> None:
        resolved = resolve_config(
            [self.BASE, ("file", {"seed": 1, "num_envs": 2}), ("command line", {"seed": 3})]
        )
        assert resolved.config == make(seed=3, num_envs=2)
        assert resolved.sources == {
            "algo": "base",
            "env_id": "base",
            "seed": "command line",
            "num_envs": "file",
        }

    @pytest.mark.parametrize(
        ("settings", "merged", "changed"),
        [
            (
                [
                    {"gamma": 0.9, "early_stopping": {"patience": 2, "mode": "min"}},
                    {"num_steps": 16, "early_stopping": {"patience": 7}},
                ],
                {"gamma": 0.9, "early_stopping": {"patience": 7, "mode": "min"}, "num_steps": 16},
                {"num_steps", "early_stopping.patience"},
            ),
            (  # a schedule is replaced, with all of its keys
                [
                    {"learning_rate": {"kind": "linear", "start": 1.0, "end": 0.5}},
                    {"learning_rate": {"kind": "cosine", "start": 2.0}},
                ],
                {"learning_rate": {"kind": "cosine", "start": 2.0}},
                {"learning_rate"},
            ),
            (  # or a part of it
                [
                    {"learning_rate": {"kind": "linear", "start": 1.0}},
                    {"learning_rate": {"start": 2.0}},
                ],
                {"learning_rate": {"kind": "linear", "start": 2.0}},
                {"learning_rate.start"},
            ),
            (  # a mapping that is replaced leaves no sources of its keys
                [
                    {"early_stopping": {"patience": 1}},
                    {"early_stopping": {"patience": 3}},
                    {"early_stopping": None},
                ],
                {"early_stopping": None},
                {"early_stopping"},
            ),
        ],
        ids=["keys", "schedule", "part", "null"],
    )
    def test_nested_keys_merge_one_by_one(
        self, settings: list[Any], merged: dict[str, Any], changed: set[str]
    ) -> None:
        names = ["preset", "file", "command line"][: len(settings)]
        layers = [
            self.BASE,
            *(
                (name, {"algo_kwargs": values})
                for name, values in zip(names, settings, strict=True)
            ),
        ]
        before = copy.deepcopy(layers)
        resolved = resolve_config(layers)
        assert layers == before
        assert resolved.config.algo_kwargs == merged
        sources = {key: name for key, name in resolved.sources.items() if name != "base"}
        last = {f"algo_kwargs.{key}" for key in changed}
        assert {key for key, name in sources.items() if name == names[-1]} == last
        if changed == set(merged):
            assert sources.keys() == last

    def test_an_environment_may_have_an_argument_called_kind(self) -> None:
        layers = [
            ("file", {"env_kwargs": {"size": 3}}),
            ("words", {"env_kwargs": {"kind": "hard"}}),
        ]
        assert resolve_config([self.BASE, *layers]).config.env_kwargs == {"size": 3, "kind": "hard"}


class TestSerialized:
    def test_is_plain(self) -> None:
        values = serialize_train_config(
            make(output_dir=Path("a/b"), tags=("x", "y"), total_timesteps=1_000)
        )
        assert values["output_dir"] == "a/b"
        assert type(values["output_dir"]) is str
        assert values["tags"] == ["x", "y"]
        assert (values["log_interval"], values["checkpoint_interval"]) == (10, 100)
        assert list(values) == list(TrainConfig.model_fields)


class TestConfigFileOfARun:
    @pytest.mark.parametrize(
        "values",
        [
            {},
            {"seed": 3, "num_envs": 2, "tags": ("a", "b"), "num_threads": 1, "compile": False},
            {
                "algo_kwargs": {
                    "learning_rate": {"kind": "linear", "start": 1e-5, "end": 0.0},
                    "hidden_sizes": [8],
                }
            },
            {
                "env_kwargs": {
                    "wrappers": {"reward": {"scale": 0.1, "clip": [-1, 1]}},
                    "max_episode_steps": 9,
                }
            },
            {"tags": ("1e3", "12", "true", "null", "2020-01-01", "a: b", "")},
        ],
        ids=[
            "defaults",
            "plain",
            "schedule",
            "wrappers",
            "tags like numbers",
        ],
    )
    def test_gives_an_equal_configuration(self, tmp_path: Path, values: dict[str, Any]) -> None:
        config = make(output_dir=tmp_path, log_interval=5, checkpoint_interval=50, **values)
        run = create_training_run(config, run_suffix="x")
        assert TrainConfig(**load_config_file(run.run_dir / "config.yaml")) == config

    def test_holds_the_intervals_that_were_derived(self, tmp_path: Path) -> None:
        config = make(output_dir=tmp_path, total_timesteps=1_000)
        run = create_training_run(config, run_suffix="x")
        loaded = TrainConfig(**load_config_file(run.run_dir / "config.yaml"))
        assert loaded == config.replace(log_interval=10, checkpoint_interval=100)


@pytest.mark.parametrize(("name", "found"), [("Corridor-v0", None), ("AirRade-v0", "AirRaid-v0")])
def test_names_that_are_unlike_are_not_suggested(name: str, found: str | None) -> None:
    assert nearest(name, ["AirRaid-v0", "CartPole-v1"]) == found
