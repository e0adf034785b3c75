"""The settings that offline algorithms share: their defaults, and the data they must be able to find."""

from pathlib import Path

import pytest

from rl_training.algorithms.bc import BCConfig
from rl_training.algorithms.cql import CQLConfig
from rl_training.algorithms.iql import IQLConfig
from rl_training.algorithms.td3_bc import TD3BCConfig
from rl_training.errors import ConfigError
from rl_training.validation import parse_config


def test_a_run_reads_one_batch_at_each_of_its_steps():
    config = BCConfig(batch_size=32)
    assert config.samples_per_update() == 32
    assert config.gradient_steps_in(5000, num_envs=8) == 5000


def test_observations_are_scaled_by_default_where_the_paper_does_so():
    assert TD3BCConfig().normalize_obs
    assert not IQLConfig().normalize_obs


@pytest.mark.parametrize(
    "values",
    [
        {"dataset_kind": "npz", "dataset_path": "data.npz"},
        {"dataset_kind": "pt", "dataset_path": "data.pt"},
        {
            "dataset_kind": "minari",
            "dataset_id": "mujoco/hopper/medium-v0",
            "dataset_download": True,
        },
        {"dataset_kind": "random", "reward_scale": -2, "reward_clip_min": -1, "reward_clip_max": 1},
    ],
)
def test_a_source_of_data_that_is_whole_is_accepted(values):
    config = parse_config(BCConfig, values, "bc")
    assert config.dataset_path is None or isinstance(config.dataset_path, Path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dataset_kind": "npz"}, "bc: dataset_kind 'npz' needs dataset_path"),
        ({"dataset_kind": "pt", "dataset_id": "x"}, "bc: dataset_kind 'pt' needs dataset_path"),
        ({"dataset_kind": "minari"}, "bc: dataset_kind 'minari' needs dataset_id"),
        (
            {"dataset_path": "data.npz"},
            "dataset_path is 'data.npz', but dataset_kind is not set: set it to npz or pt",
        ),
        ({"dataset_id": "x"}, "dataset_id is 'x', but dataset_kind is not set: set it to minari"),
        (
            {"dataset_kind": "random", "dataset_id": "x"},
            "dataset_id is 'x', but dataset_kind 'random' does not read",
        ),
        (
            {"dataset_kind": "npz", "dataset_path": "a", "dataset_seed": 0},
            "dataset_seed is '0', but dataset_kind 'npz'",
        ),
        (
            {"dataset_kind": "npz", "dataset_path": "a", "dataset_id": "x"},
            "dataset_id is 'x', but dataset_kind 'npz'",
        ),
        (
            {"dataset_kind": "minari", "dataset_id": "x", "dataset_path": "a"},
            "dataset_path is 'a', but dataset_kind",
        ),
        (
            {"dataset_kind": "pt", "dataset_path": "a", "dataset_download": True},
            "dataset_download is 'True', but",
        ),
        (
            {"reward_clip_min": 2.0, "reward_clip_max": 1.0},
            "reward_clip_min 2.0 lies above reward_clip_max 1.0",
        ),
        ({"dataset_kind": "hdf5"}, "'hdf5' for 'dataset_kind'"),
        ({"dataset_pth": "x"}, "did you mean 'dataset_path'"),
    ],
)
def test_data_that_cannot_be_found_is_said_before_anything_is_made(values, message):
    with pytest.raises(ConfigError, match=message):
        parse_config(BCConfig, values, "bc")


def test_a_schedule_of_the_actor_alone_can_be_written_as_plain_values():
    schedule = {"kind": "linear", "start": 1e-3, "end": 1e-4}
    config = parse_config(
        CQLConfig, {"actor_learning_rate": schedule, "learning_rate": 1e-4}, "cql"
    )
    assert config.actor_learning_rate.at(1.0) == pytest.approx(1e-4)
