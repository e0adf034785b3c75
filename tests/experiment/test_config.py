"""The configuration: defaults, errors, sources, and a round trip through a file."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import rl_training
from rl_training.algorithms.config import Schedule
from rl_training.errors import ConfigError
from rl_training.experiment.config import (
    TrainConfig,
    load_config_file,
    parse_overrides,
    parse_yaml,
    resolve_config,
)
from rl_training.experiment.presets import list_presets
from rl_training.experiment.registry import get_algorithm_spec, list_algorithm_specs
from rl_training.runtime.run_utils import create_training_run, serialize_train_config
from rl_training.validation import nearest


def make(**values: Any) -> TrainConfig:
    return TrainConfig(**{"algo": "ppo", "env_id": "CartPole-v1", **values})


def complaint(**values: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        make(**values)
    return str(caught.value)


def algo_complaint(algo: str, **algo_kwargs: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        get_algorithm_spec(algo).parse_kwargs(algo_kwargs)
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

    def test_is_the_class_the_package_exports(self) -> None:
        assert rl_training.TrainConfig is TrainConfig

    def test_every_key_has_a_meaning(self) -> None:
        assert [
            key for key, field in TrainConfig.model_fields.items() if not field.description
        ] == []

    @pytest.mark.parametrize("spec", list_algorithm_specs(), ids=lambda spec: spec.name)
    def test_every_key_of_every_algorithm_has_a_meaning(self, spec: Any) -> None:
        assert [
            key for key, field in spec.config_class().model_fields.items() if not field.description
        ] == []

    def test_is_frozen(self) -> None:
        config = make()
        with pytest.raises(ValueError, match="frozen"):
            config.seed = 3  # type: ignore[misc]
        assert config.seed == 0

    def test_is_keyword_only(self) -> None:
        with pytest.raises(TypeError):
            TrainConfig("ppo", "CartPole-v1")  # type: ignore[misc, call-arg]

    def test_two_configs_share_no_dictionaries(self) -> None:
        first, second = make(), make()
        first.algo_kwargs["gamma"] = 0.5
        assert second.algo_kwargs == {}

    def test_takes_plain_values(self) -> None:
        config = make(output_dir="some/where", tags=["a", "b"])
        assert config.output_dir == Path("some/where")
        assert config.tags == ("a", "b")

    def test_algorithm_name_is_lower_cased(self) -> None:
        assert make(algo="PPO").algo == "ppo"

    def test_replace_makes_a_new_one(self) -> None:
        config = make(seed=1, tags=("x",), algo_kwargs={"gamma": 0.9})
        changed = config.replace(seed=2)
        assert (config.seed, changed.seed) == (1, 2)
        assert changed == make(seed=2, tags=("x",), algo_kwargs={"gamma": 0.9})

    def test_replace_validates(self) -> None:
        with pytest.raises(ConfigError, match="bad value 0 for 'num_envs'"):
            make().replace(num_envs=0)
        with pytest.raises(ConfigError, match=r"unknown key 'sed' .*did you mean 'seed'\?"):
            make().replace(sed=2)


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


class TestComplaints:
    @pytest.mark.parametrize(
        ("values", "message"),
        [
            (
                {"totl_timesteps": 3},
                "unknown key 'totl_timesteps' for the configuration: did you mean 'total_timesteps'?",
            ),
            ({"Seed": 3}, "unknown key 'Seed' for the configuration: did you mean 'seed'?"),
            (
                {"eval_interval": 3},
                "unknown key 'eval_interval' for the configuration: did you mean algo_kwargs.eval_interval (in a file"
                " algo_kwargs: {eval_interval: …})?",
            ),
            (
                {"seed": -1},
                "bad value -1 for 'seed' of the configuration: should be greater than or equal to 0",
            ),
            (
                {"total_timesteps": 0},
                "bad value 0 for 'total_timesteps' of the configuration: should be greater than 0",
            ),
            (
                {"total_timesteps": 10**400},
                "bad value of 1,329 bits for 'total_timesteps' of the configuration: should be less than"
                " 340,282,366,920,938,463,463,374,607,431,768,211,456",
            ),
            (
                {"num_envs": -2},
                "bad value -2 for 'num_envs' of the configuration: should be greater than 0",
            ),
            (
                {"eval_episodes": 0},
                "bad value 0 for 'eval_episodes' of the configuration: should be greater than 0",
            ),
            (
                {"log_interval": 0},
                "bad value 0 for 'log_interval' of the configuration: should be greater than 0",
            ),
            (
                {"checkpoint_interval": -1},
                "bad value -1 for 'checkpoint_interval' of the configuration: should be greater than 0",
            ),
            (
                {"algo_kwargs": 3},
                "bad value 3 for 'algo_kwargs' of the configuration: should be a mapping of keys to values",
            ),
            (
                {"env_kwargs": [1]},
                "bad value [1] for 'env_kwargs' of the configuration: should be a mapping of keys to values",
            ),
            (
                {"tags": [1]},
                "bad value 1 for 'tags.0' of the configuration: should be a valid string",
            ),
            ({"env_id": None}, "missing key 'env_id' for the configuration"),
            (
                {"device": 1},
                "bad value 1 for 'device' of the configuration: should be a valid string",
            ),
        ],
    )
    def test_names_the_key_the_value_and_the_remedy(
        self, values: dict[str, Any], message: str
    ) -> None:
        assert complaint(**values) == message

    @pytest.mark.parametrize(
        ("key", "value", "reason"),
        [
            ("seed", "abc", "should be a valid integer"),
            ("seed", 1.5, "should be a whole number"),
            ("total_timesteps", None, "should be a valid integer"),
            ("output_dir", 3, "path"),
            ("tags", "one", "list"),
        ],
    )
    def test_wrong_type(self, key: str, value: Any, reason: str) -> None:
        message = complaint(**{key: value})
        assert message.startswith(f"bad value {value!r} for '{key}' of the configuration: ")
        assert reason in message

    @pytest.mark.parametrize("key", ["num_envs", "seed", "total_timesteps", "eval_episodes"])
    def test_true_is_not_a_number(self, key: str) -> None:
        assert f"bad value True for '{key}' of the configuration" in complaint(**{key: True})

    @pytest.mark.parametrize("key", ["num_steps", "gamma", "learning_rate"])
    def test_true_is_not_a_number_of_an_algorithm(self, key: str) -> None:
        assert f"bad value True for '{key}' of ppo" in algo_complaint("ppo", **{key: True})

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

    def test_missing_keys(self) -> None:
        with pytest.raises(ConfigError) as caught:
            TrainConfig()
        assert str(caught.value) == "missing key 'algo' for the configuration"
        with pytest.raises(ConfigError, match="missing key 'env_id' for the configuration"):
            TrainConfig(algo="ppo")
        with pytest.raises(ConfigError, match="key 1 of file is not a string"):
            resolve_config([("file", {"algo": "ppo", 1: 2})])  # type: ignore[dict-item]

    @pytest.mark.parametrize(
        ("key", "value", "remedies"),
        [
            ("num_threads", 0, ["greater than 0"]),
            ("num_threads", "many", ["integer", "'auto'"]),
            ("compile", "maybe", ["boolean", "'auto'"]),
        ],
    )
    def test_a_value_of_several_kinds_is_complained_of_once_by_the_name_users_write(
        self, key: str, value: Any, remedies: list[str]
    ) -> None:
        message = complaint(**{key: value})
        assert message.count("bad value") == 1
        assert f"for '{key}' of the configuration" in message
        assert all(remedy in message for remedy in remedies)

    @pytest.mark.parametrize(
        ("algo", "kwargs", "message"),
        [
            ("sac", {"taau": 0.1}, "unknown key 'taau' for sac: did you mean 'tau'?"),
            (
                "ppo",
                {"num_steps": 0},
                "bad value 0 for 'num_steps' of ppo: should be greater than 0",
            ),
            (
                "ppo",
                {"gamma": 1.5},
                "bad value 1.5 for 'gamma' of ppo: should be less than or equal to 1",
            ),
            (
                "dqn",
                {"batch_size": -1},
                "bad value -1 for 'batch_size' of dqn: should be greater than 0",
            ),
            (
                "dqn",
                {"hidden_sizes": [0]},
                "bad value 0 for 'hidden_sizes.0' of dqn: should be greater than 0",
            ),
            (
                "ppo",
                {"early_stopping": {"patienc": 3}},
                "unknown key 'early_stopping.patienc' for ppo: did you mean 'patience'?",
            ),
            (
                "ppo",
                {"early_stopping": {"mode": "most"}},
                "bad value 'most' for 'early_stopping.mode' of ppo: should be 'max' or 'min'",
            ),
            (
                "ppo",
                {"clip_range": 3},
                "unknown key 'clip_range' for ppo: did you mean 'clip_coef'?",
            ),
            ("dqn", {"n_steps": 3}, "unknown key 'n_steps' for dqn: did you mean 'n_step'?"),
            (
                "dqn",
                {"buffer_capacity": -1},
                "bad value -1 for 'buffer_capacity' of dqn: should be greater than 0",
            ),
            (
                "dqn",
                {"target_update_interval": 0},
                "bad value 0 for 'target_update_interval' of dqn: should be greater than 0",
            ),
            (
                "sac",
                {"learning_starts": -1},
                "bad value -1 for 'learning_starts' of sac: should be greater than or equal to 0",
            ),
            (
                "sac",
                {"train_frequency": 0},
                "bad value 0 for 'train_frequency' of sac: should be greater than 0",
            ),
            (
                "sac",
                {"hidden_sizes": 64},
                "bad value 64 for 'hidden_sizes' of sac: should be a list",
            ),
            (
                "sac",
                {"gradient_steps": 0},
                "bad value 0 for 'gradient_steps' of sac: should be greater than 0",
            ),
            (
                "ppo",
                {"vf_coef": float("nan")},
                "bad value nan for 'vf_coef' of ppo: should be a finite number",
            ),
        ],
    )
    def test_of_an_algorithm(self, algo: str, kwargs: dict[str, Any], message: str) -> None:
        assert algo_complaint(algo, **kwargs) == message

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

    @pytest.mark.parametrize(
        ("schedule", "message"),
        [
            (
                {"kind": "linaer", "start": 1.0},
                "bad value 'linaer' for 'learning_rate.kind' of sac: should be 'linear' or 'cosine'",
            ),
            ({"kind": "linear"}, "missing key 'learning_rate.start' for sac"),
            ({"start": 1.0}, "missing key 'learning_rate.kind' for sac"),
            (
                {"kind": "linear", "start": -1.0},
                "bad value -1.0 for 'learning_rate.start' of sac: should be greater than or equal to 0",
            ),
            (
                {"kind": "linear", "start": 1.0, "ennd": 0.0},
                "unknown key 'learning_rate.ennd' for sac: did you mean 'end'?",
            ),
        ],
    )
    def test_a_wrong_one_gets_one_message_about_the_part_at_fault(
        self, schedule: dict[str, Any], message: str
    ) -> None:
        assert algo_complaint("sac", learning_rate=schedule) == message

    @pytest.mark.parametrize("value", ["high", -1.0, None])
    def test_what_is_neither_a_number_nor_a_schedule_gets_one_message(self, value: Any) -> None:
        message = algo_complaint("sac", learning_rate=value)
        assert message.startswith(f"bad value {value!r} for 'learning_rate' of sac: ")
        assert message.count("bad value") == 1
        assert "number" in message or "greater than 0" in message


class TestYaml:
    @pytest.mark.parametrize("text", ["1e-3", "1E-3", "1.0e-3", "0.001", ".001", "+1e-3"])
    def test_every_spelling_of_a_small_number_is_a_float(self, text: str) -> None:
        value = parse_yaml(text, "it")
        assert isinstance(value, float)
        assert value == 1e-3

    def test_a_float_in_a_file_reaches_the_algorithm(self, tmp_path: Path) -> None:
        path = tmp_path / "c.yaml"
        path.write_text("algo: sac\nenv_id: Pendulum-v1\nalgo_kwargs:\n  learning_rate: 1e-3\n")
        config = TrainConfig(**load_config_file(path))
        assert get_algorithm_spec("sac").parse_kwargs(config.algo_kwargs).learning_rate == 1e-3

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"algo: [", ["is not valid YAML", "line 1"]),
            (b"seed: 1\nseed: 2\n", ["key 'seed' is given twice"]),
            (b"algo_kwargs:\n  gamma: 1\n  gamma: 2\n", ["key 'gamma' is given twice", "line 2"]),
            (b"- 1\n", ["must be a mapping of keys to values, not list"]),
            (b"", ["must be a mapping of keys to values"]),
            (b"\xff\xfe\x00", ["cannot be read"]),
            (b"seed: !!python/object/apply:os.getcwd []\n", ["is not valid YAML", "python/object"]),
            (b'algo: "a\x01b"\n', ["is not valid YAML"]),
        ],
        ids=["syntax", "twice", "twice nested", "list", "empty", "binary", "python", "control"],
    )
    def test_a_bad_file_is_named_with_its_fault(
        self, tmp_path: Path, content: bytes, words: list[str]
    ) -> None:
        path = tmp_path / "bad.yaml"
        path.write_bytes(content)
        with pytest.raises(ConfigError) as caught:
            load_config_file(path)
        assert all(word in str(caught.value) for word in [f"config file '{path}'", *words])

    def test_a_key_that_is_no_name_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "bad.yaml"
        path.write_text("algo: ppo\nenv_id: CartPole-v1\n1: 2\n")
        with pytest.raises(ConfigError, match=r"\bkey\b.*\b1\b"):
            resolve_config([("file", load_config_file(path))])

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

    def test_nested_keys_merge_one_by_one(self) -> None:
        resolved = resolve_config(
            [
                self.BASE,
                (
                    "preset",
                    {
                        "algo_kwargs": {
                            "gamma": 0.9,
                            "early_stopping": {"patience": 2, "mode": "min"},
                        }
                    },
                ),
                ("file", {"algo_kwargs": {"num_steps": 16, "early_stopping": {"patience": 7}}}),
            ]
        )
        assert resolved.config.algo_kwargs == {
            "gamma": 0.9,
            "num_steps": 16,
            "early_stopping": {"patience": 7, "mode": "min"},
        }
        assert resolved.sources["algo_kwargs.gamma"] == "preset"
        assert resolved.sources["algo_kwargs.num_steps"] == "file"
        assert resolved.sources["algo_kwargs.early_stopping.patience"] == "file"

    def test_a_schedule_is_replaced_whole(self) -> None:
        resolved = resolve_config(
            [
                self.BASE,
                (
                    "preset",
                    {
                        "algo_kwargs": {
                            "learning_rate": {"kind": "linear", "start": 1.0, "end": 0.5}
                        }
                    },
                ),
                ("file", {"algo_kwargs": {"learning_rate": {"kind": "cosine", "start": 2.0}}}),
            ]
        )
        assert resolved.config.algo_kwargs == {"learning_rate": {"kind": "cosine", "start": 2.0}}
        assert resolved.sources["algo_kwargs.learning_rate"] == "file"

    def test_a_part_of_a_schedule_can_be_changed(self) -> None:
        resolved = resolve_config(
            [
                self.BASE,
                ("preset", {"algo_kwargs": {"learning_rate": {"kind": "linear", "start": 1.0}}}),
                ("command line", {"algo_kwargs": {"learning_rate": {"start": 2.0}}}),
            ]
        )
        assert resolved.config.algo_kwargs == {"learning_rate": {"kind": "linear", "start": 2.0}}

    def test_a_number_replaces_a_schedule_and_forgets_its_source(self) -> None:
        resolved = resolve_config(
            [
                self.BASE,
                ("preset", {"algo_kwargs": {"early_stopping": {"patience": 1}}}),
                ("command line", {"algo_kwargs": {"early_stopping": {"patience": 3}}}),
                ("command line", {"algo_kwargs": {"early_stopping": None}}),
            ]
        )
        assert resolved.config.algo_kwargs == {"early_stopping": None}
        assert {k: s for k, s in resolved.sources.items() if k.startswith("algo_kwargs")} == {
            "algo_kwargs.early_stopping": "command line"
        }

    def test_an_environment_may_have_an_argument_called_kind(self) -> None:
        resolved = resolve_config(
            [
                self.BASE,
                ("file", {"env_kwargs": {"size": 3}}),
                ("command line", {"env_kwargs": {"kind": "hard"}}),
            ]
        )
        assert resolved.config.env_kwargs == {"size": 3, "kind": "hard"}
        assert resolved.sources["env_kwargs.size"] == "file"
        assert resolved.sources["env_kwargs.kind"] == "command line"

    def test_layers_come_back_unchanged(self) -> None:
        layers = [
            self.BASE,
            ("file", {"env_kwargs": {"wrappers": {"reward": {"scale": 2.0}}}}),
            ("command line", {"env_kwargs": {"wrappers": {"reward": {"shift": 1.0}}}}),
        ]
        before = copy.deepcopy(layers)
        resolved = resolve_config(layers)
        assert layers == before
        assert resolved.config.env_kwargs == {"wrappers": {"reward": {"scale": 2.0, "shift": 1.0}}}

    def test_an_unknown_key_in_a_layer_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"unknown key 'sed' .*did you mean 'seed'\?"):
            resolve_config([self.BASE, ("file", {"sed": 1})])


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

    def test_survives_json_and_yaml(self) -> None:
        config = make(tags=("x",), algo_kwargs={"learning_rate": {"kind": "linear", "start": 1e-5}})
        values = serialize_train_config(config)
        assert json.loads(json.dumps(values, allow_nan=False)) == values
        assert yaml.safe_load(yaml.safe_dump(values)) == values

    def test_of_a_serialized_configuration_is_the_same(self) -> None:
        values = serialize_train_config(make(seed=3, tags=("x",), total_timesteps=1_000))
        assert serialize_train_config(TrainConfig(**values)) == values


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
            {"env_kwargs": {"version": "1e5"}},
            {"env_kwargs": {"limit": float("inf")}},
        ],
        ids=[
            "defaults",
            "plain",
            "schedule",
            "wrappers",
            "tags like numbers",
            "words like numbers",
            "infinity",
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


@pytest.mark.parametrize(
    "path", list(list_presets()), ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_every_preset_is_valid_and_lies_under_its_algorithm(path: Path) -> None:
    config = TrainConfig(**load_config_file(path))
    assert config.algo == path.parent.name
    get_algorithm_spec(config.algo).parse_kwargs(config.algo_kwargs)


@pytest.mark.parametrize(("name", "found"), [("Corridor-v0", None), ("AirRade-v0", "AirRaid-v0")])
def test_names_that_are_unlike_are_not_suggested(name: str, found: str | None) -> None:
    assert nearest(name, ["AirRaid-v0", "CartPole-v1"]) == found
