"""Arguments of the algorithm classes: what they mean, and which are refused."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import rl_training
from rl_training import BC, DQN, PPO, SAC, TrainConfig
from rl_training.algorithms.config import Schedule
from rl_training.algorithms.dqn import DQNConfig
from rl_training.algorithms.ppo import PPOConfig
from rl_training.api.settings import OPTIONS
from rl_training.errors import ConfigError
from rl_training.experiment.config import load_config_file
from rl_training.experiment.presets import find_preset
from rl_training.experiment.registry import (
    BUILT_IN_CLASSES,
    get_algorithm_spec,
    list_algorithm_specs,
)


def test_an_environment_id_and_keywords_make_a_configuration() -> None:
    agent = PPO(
        "Acrobot-v1",
        seed=1,
        total_timesteps=50_000,
        learning_rate=1e-3,
        env_kwargs={"max_episode_steps": 9},
    )
    assert agent.config == TrainConfig(
        algo="ppo",
        env_id="Acrobot-v1",
        seed=1,
        total_timesteps=50_000,
        algo_kwargs={"learning_rate": 1e-3},
        env_kwargs={"max_episode_steps": 9},
    )
    assert PPO(env_id="Acrobot-v1").config == PPO("Acrobot-v1", preset=False).config


def test_the_preset_is_used_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    path = find_preset("ppo", "CartPole-v1")
    assert path is not None
    preset = TrainConfig(**load_config_file(path))
    assert PPO("CartPole-v1").config == preset
    assert capsys.readouterr().err == "using preset ppo/cartpole.yaml\n"
    assert PPO("CartPole-v1", seed=4, gamma=0.5, progress=False).config == preset.replace(
        seed=4, algo_kwargs={**preset.algo_kwargs, "gamma": 0.5}
    )
    assert PPO("CartPole-v1", preset=False).config == TrainConfig(algo="ppo", env_id="CartPole-v1")
    assert capsys.readouterr().err == ""


def test_later_sources_win() -> None:
    agent = PPO(
        "CartPole-v1", algo_kwargs={"gamma": 0.6, "num_steps": 8}, clip_coef=0.3, progress=False
    )
    kwargs = agent.config.algo_kwargs
    assert (kwargs["gamma"], kwargs["num_steps"], kwargs["clip_coef"]) == (0.6, 8, 0.3)
    assert kwargs["gae_lambda"] == 0.8  # the preset's


def test_a_config_object_is_the_same_as_its_values() -> None:
    settings = PPOConfig(gamma=0.6, learning_rate=Schedule(kind="linear", start=1e-3))
    schedule = {"kind": "linear", "start": 1e-3}
    expected = {"gamma": 0.6, "learning_rate": schedule}
    assert PPO("Acrobot-v1", algo_kwargs=settings).config.algo_kwargs == expected
    assert (
        TrainConfig(algo="ppo", env_id="Acrobot-v1", algo_kwargs=settings).algo_kwargs == expected
    )
    assert PPO("Acrobot-v1", learning_rate=Schedule(**schedule)).config.algo_kwargs == {
        "learning_rate": schedule
    }
    with pytest.raises(ConfigError, match="algo_kwargs is a DQNConfig, but ppo has PPOConfig"):
        PPO("Acrobot-v1", algo_kwargs=DQNConfig())


def test_a_whole_configuration_is_taken_as_it_is() -> None:
    config = TrainConfig(algo="ppo", env_id="CartPole-v1")
    assert PPO(config).config is config
    assert PPO(config=config).config is config
    with pytest.raises(
        ConfigError,
        match=r"'seed' is given beside a TrainConfig: .*PPO\(config.replace\(seed=...\)\)",
    ):
        PPO(config, seed=3)
    with pytest.raises(ConfigError, match="unknown key 'gama' for ppo: did you mean 'gamma'"):
        PPO(config.replace(algo_kwargs={"gama": 0.9}))


def test_an_offline_algorithm_needs_no_environment() -> None:
    agent = BC(dataset_kind="npz", dataset_path=Path("data.npz"))
    assert agent.config.env_id is None
    with pytest.raises(ConfigError, match="missing key 'env_id'"):
        PPO(seed=3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"learning_rat": 1e-3},
            "unknown setting 'learning_rat' for PPO: did you mean 'learning_rate'?",
        ),
        ({"env_idd": "x"}, "unknown setting 'env_idd' for PPO: did you mean 'env_id'?"),
        ({"pre_set": False}, "unknown setting 'pre_set' for PPO: did you mean 'preset'?"),
        ({"n_steps": 9}, "unknown setting 'n_steps' for PPO: did you mean 'num_steps'?"),
        (
            {"buffer_capacity": 9},
            "unknown setting 'buffer_capacity' for PPO (`rl-training algos ppo` lists",
        ),
        ({"algo": "dqn"}, "'algo' is no setting of PPO, which trains 'ppo'"),
        ({"env_id": "CartPole-v1"}, "PPO got env_id twice"),
        (
            {"gamma": 0.9, "algo_kwargs": {"gamma": 0.8}},
            "'gamma' of PPO is given as a keyword and in algo_kwargs",
        ),
        ({"gamma": 2.0}, "bad value 2.0 for 'gamma' of ppo"),
        ({"seed": -1}, "bad value -1 for 'seed' of the configuration"),
        ({"algo_kwargs": {"gama": 0.8}}, "unknown key 'gama' for ppo: did you mean 'gamma'?"),
        ({"algo_kwargs": 3}, "bad value 3 for algo_kwargs of PPO"),
    ],
)
def test_wrong_arguments_fail_in_the_constructor(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PPO("Acrobot-v1", **arguments)
    assert message in str(caught.value)


def test_what_is_no_environment_is_refused_with_the_forms_that_work() -> None:
    with pytest.raises(
        ConfigError, match=r"takes an environment id, a class, a function .* not a list"
    ):
        PPO(["CartPole-v1"])  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match=r"PPO takes no 'MlpPolicy'.*write PPO\('CartPole-v1', hidden_sizes="
    ):
        PPO("MlpPolicy", "CartPole-v1")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="PPO takes one positional argument"):
        PPO("CartPole-v1", 3)  # type: ignore[call-arg]


def test_no_setting_of_an_algorithm_has_the_name_of_a_run_key() -> None:
    sources = {"config", *OPTIONS}
    for spec in list_algorithm_specs():
        assert not spec.config_class().model_fields.keys() & (
            TrainConfig.model_fields.keys() | sources
        ), spec.name


def test_help_and_completion_know_every_setting() -> None:
    for name, algo in BUILT_IN_CLASSES.items():
        known = inspect.signature(getattr(rl_training, name)).parameters.keys()
        assert get_algorithm_spec(algo).config_class().model_fields.keys() <= known
        assert TrainConfig.model_fields.keys() - known == {"algo"}
    parameters = inspect.signature(PPO).parameters
    assert (parameters["clip_coef"].default, parameters["eval_episodes"].default) == (0.2, 5)


def test_the_text_of_an_agent_shows_what_differs_from_the_defaults() -> None:
    assert repr(PPO("Acrobot-v1")) == "PPO('Acrobot-v1'): not trained"
    assert repr(DQN("Acrobot-v1", seed=1, total_timesteps=500, gamma=0.9, batch_size=16)) == (
        "DQN('Acrobot-v1', seed=1, total_timesteps=500, gamma=0.9, batch_size=16): not trained"
    )
    long = SAC(
        "Pendulum-v1",
        tags=["x" * 500],
        env_kwargs={f"key{i}": "y" * 90 for i in range(50)},
        preset=False,
    )
    assert len(repr(long)) < 500
    assert len(repr(PPO("CartPole-v1", progress=False))) < 500
