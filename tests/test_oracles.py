"""Every transition that reaches an update or comes back from a file equals what the environment's journal has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import small_config
from gymnasium.spaces import flatten
from oracle_envs import ACTION_SPACES, OBSERVATION_SPACES, Event, Moment, OracleEnv, moment_of, stored

from rl_training.cli import main
from rl_training.data.dataset_loaders import load_transition_dataset
from rl_training.data.dataset_spaces import infer_spaces
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.spaces import describe_spaces
from rl_training.errors import DatasetError
from rl_training.runtime.recording import record_random
from rl_training.runtime.training import run_training

ORACLE = "oracle_envs:OracleEnv"


@pytest.fixture(autouse=True)
def _new_journal() -> None:
    OracleEnv.journal.clear()
    OracleEnv.keys.clear()


def model_action(space: gym.Space, action: Any) -> np.ndarray:
    """An action of the environment as networks should get it."""
    if isinstance(space, gym.spaces.Discrete):
        return np.asarray(action - space.start)
    if isinstance(space, gym.spaces.Box) and np.isfinite(space.low).all():
        return (2.0 * (action - space.low) / (space.high - space.low) - 1.0).reshape(-1)
    return np.asarray(action).reshape(-1)


def event_of(space: gym.Space, obs: Any) -> tuple[Moment, Event]:
    """The moment that a stored observation shows, and what happened in it."""
    moment = moment_of(space, np.asarray(obs))
    return moment, OracleEnv.journal[moment]


def assert_true(batch: Any, obs_space: gym.Space, action_space: gym.Space) -> list[Moment]:
    """Compare transitions [B, ...] in model space with the journal; returns their moments."""
    moments = []
    for row in range(len(batch.rewards)):
        moment, event = event_of(obs_space, batch.obs[row])
        np.testing.assert_array_equal(batch.obs[row], stored(obs_space, event.obs))
        np.testing.assert_array_equal(batch.next_obs[row], stored(obs_space, event.next_obs))
        np.testing.assert_allclose(batch.actions[row], model_action(action_space, event.action), atol=1e-6)
        assert float(batch.rewards[row]) == event.reward
        assert bool(batch.terminated[row]) == event.terminated
        assert bool(batch.truncated[row]) == event.truncated
        moments.append(moment)
    return moments


class TestRecordings:
    """What is recorded, written and read again."""

    def written(self, kind: str, dataset: Any, spaces: tuple[Any, Any], folder: Path) -> TransitionDataset:
        if kind == "npz":
            from rl_training.data.dataset_loaders import save_transition_dataset

            return load_transition_dataset("npz", dataset_path=save_transition_dataset(folder / "a.npz", dataset))
        if kind == "pt":
            torch.save(
                {name: torch.from_numpy(array.copy()) for name, array in dataset.arrays().items()}, folder / "a.pt"
            )
            return load_transition_dataset("pt", dataset_path=folder / "a.pt")
        from rl_training.data.minari_datasets import write_minari

        write_minari("oracle/test-v0", dataset, *spaces)
        return load_transition_dataset("minari", dataset_id="oracle/test-v0")

    @pytest.mark.parametrize("kind", ["npz", "pt", "minari"])
    @pytest.mark.parametrize(
        ("obs", "action"),
        [*((obs, "box") for obs in OBSERVATION_SPACES), *(("box", action) for action in ACTION_SPACES)],
    )
    def test_every_space_comes_back(
        self, kind: str, obs: str, action: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if kind == "minari":
            pytest.importorskip("minari")
            monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
        recording = record_random(ORACLE, {"obs": obs, "action": action}, 40, np.random.SeedSequence(0))
        obs_space, action_space = OBSERVATION_SPACES[obs], ACTION_SPACES[action]
        assert recording.observation_space == obs_space
        assert recording.action_space == action_space
        data = self.written(kind, recording.dataset, (obs_space, action_space), tmp_path)
        model = data.to_model_space(describe_spaces(obs_space, action_space))
        OracleEnv.journal[last(obs_space, model)] = truncated(event_of(obs_space, model.obs[-1])[1])
        moments = assert_true(model, obs_space, action_space)
        assert len(moments) == 40
        assert moments == sorted(OracleEnv.journal)

    @pytest.mark.parametrize("kind", ["npz", "pt"])
    @pytest.mark.parametrize("obs", ["dict", "tuple"])
    def test_observations_that_gymnasium_flattened_are_what_the_policy_sees(
        self, obs: str, kind: str, tmp_path: Path
    ) -> None:
        space = OBSERVATION_SPACES[obs]
        dataset = record_random(ORACLE, {"obs": obs}, 30, np.random.SeedSequence(0)).dataset
        events = [OracleEnv.journal[moment] for moment in sorted(OracleEnv.journal)]
        fields = {**dataset.arrays(), "obs": np.stack([flatten(space, event.obs) for event in events])}
        fields["next_obs"] = np.stack([flatten(space, event.next_obs) for event in events])
        if kind == "npz":
            np.savez(tmp_path / "a.npz", **fields)
        else:
            torch.save({name: torch.from_numpy(np.array(array)) for name, array in fields.items()}, tmp_path / "a.pt")
        data = load_transition_dataset(kind, dataset_path=tmp_path / f"a.{kind}")
        model = data.to_model_space(describe_spaces(space, ACTION_SPACES["discrete"]))
        for row, event in enumerate(events):
            np.testing.assert_array_equal(model.obs[row], stored(space, event.obs))
            np.testing.assert_array_equal(model.next_obs[row], stored(space, event.next_obs))

    @pytest.mark.parametrize("obs", ["dict", "tuple", "dict_image"])
    def test_bytes_that_somebody_divided_are_refused(self, obs: str) -> None:
        spaces = describe_spaces(OBSERVATION_SPACES[obs], ACTION_SPACES["discrete"])
        data = record_random(ORACLE, {"obs": obs}, 30, np.random.SeedSequence(0)).dataset
        divided = data.to_model_space(spaces).arrays() | {"actions": data.actions}
        with pytest.raises(DatasetError, match=r"obs\[\d+\] has .* the environment gives bytes from 0 to 255 there"):
            TransitionDataset(**divided).to_model_space(spaces)

    def test_numbers_that_are_no_category_are_refused(self) -> None:
        spaces = describe_spaces(OBSERVATION_SPACES["multi_discrete"], ACTION_SPACES["discrete"])
        data = record_random(ORACLE, {"obs": "multi_discrete"}, 30, np.random.SeedSequence(0)).dataset
        wrong = data.next_obs.copy()
        wrong[7, 0] = 1 - wrong[7, 0]
        with pytest.raises(DatasetError, match=r"next_obs\[7\] has .* store each as zeros and a single 1"):
            TransitionDataset(**{**data.arrays(), "next_obs": wrong}).to_model_space(spaces)

    def test_an_agents_recording_has_the_spaces_of_its_own_arguments(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("minari")
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
        config = small_config("ppo", tmp_path, env_id=ORACLE, env_kwargs={"obs": "tuple", "action": "box"})
        run_dir = run_training(config.replace(total_timesteps=16)).run_dir
        words = ["data", "collect", "--checkpoint", str(run_dir), "--steps", "30", "--seed", "3"]
        assert main([*words, "--noise", "0.3", "--minari", "oracle/agent-v0"]) == 0
        data = load_transition_dataset("minari", dataset_id="oracle/agent-v0")
        obs_space, action_space = OBSERVATION_SPACES["tuple"], ACTION_SPACES["box"]
        assert len(np.unique(data.actions)) > 10
        model = data.to_model_space(describe_spaces(obs_space, action_space))
        OracleEnv.journal[last(obs_space, model)] = truncated(event_of(obs_space, model.obs[-1])[1])
        assert_true(model, obs_space, action_space)

    def test_what_minari_cannot_hold_is_refused_and_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("minari")
        from rl_training.data.minari_datasets import write_minari

        monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
        data = record_random(ORACLE, {"obs": "dict"}, 30, np.random.SeedSequence(0)).dataset
        inner = OBSERVATION_SPACES["dict"].spaces
        renamed = gym.spaces.Dict([(f"a/{key}" if key == "kind" else key, inner[key]) for key in inner])
        for obs_space, action_space, message in (
            (renamed, ACTION_SPACES["discrete"], "write an .npz file instead"),
            (OBSERVATION_SPACES["dict"], ACTION_SPACES["box"], "store them as floats"),
        ):
            with pytest.raises(DatasetError, match=message):
                write_minari("oracle/test-v0", data, obs_space, action_space)
            assert not (tmp_path / "oracle" / "test-v0").exists()

    def test_images_among_other_things_need_their_environment(self) -> None:
        data = record_random(ORACLE, {"obs": "dict_image"}, 30, np.random.SeedSequence(0)).dataset
        with pytest.raises(DatasetError, match="Set env_id to the environment of the recording"):
            infer_spaces(data)
        short = record_random(ORACLE, {"obs": "bytes"}, 30, np.random.SeedSequence(0)).dataset
        assert infer_spaces(short).obs.shape == (3,)


def last(obs_space: gym.Space, data: Any) -> Moment:
    return event_of(obs_space, data.obs[-1])[0]


def truncated(event: Event) -> Event:
    """The last event of a recording, which ends with it."""
    return event._replace(truncated=not event.terminated)
