"""Demonstrations of others: each published layout gives the transitions worked out by hand, or a remedy."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TESTS
from gymnasium.spaces import Box, Discrete

from rl_training.cli import main
from rl_training.data.dataset_checks import check_dataset
from rl_training.data.dataset_loaders import (
    load_transition_dataset,
    mix_datasets,
    save_transition_dataset,
)
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.errors import DatasetError
from rl_training.spaces.spec import describe_spaces

PUBLISHED = TESTS.parent.parent / "shared" / "demonstrations"
needs_published = pytest.mark.skipif(
    not PUBLISHED.is_dir(), reason="the published demonstrations are not here"
)

# Two episodes, of 3 and 2 steps: observations 0 to 3 and 10 to 12.
OBS, NEXT_OBS = [0, 1, 2, 10, 11], [1, 2, 3, 11, 12]
WITH_FINALS = np.array([0, 1, 2, 3, 10, 11, 12], np.float64)[:, None]
WITHOUT_FINALS = np.array(OBS, np.float64)[:, None]
ACTS, REWS = np.array([0, 1, 0, 1, 1]), np.array([1.0, 2.0, 3.0, 4.0, 5.0])
NO, YES = False, True
ENDS = np.array([NO, NO, YES, NO, YES])
NEXT = np.array(NEXT_OBS, np.float64)[:, None]
FINALS = {"obs": WITH_FINALS, "acts": ACTS, "rews": REWS}
IMITATION = {**FINALS, "terminal": np.array([YES, NO])}


def rows(dataset: TransitionDataset) -> dict[str, list[Any]]:
    fields = {name: array.tolist() for name, array in dataset.arrays().items()}
    return fields | {name: dataset.arrays()[name][:, 0].tolist() for name in ("obs", "next_obs")}


def read(**fields: Any) -> TransitionDataset:
    """The fields as a dataset; lists are arrays."""
    return TransitionDataset.from_dict(
        {name: np.asarray(values) for name, values in fields.items()}
    )


def from_file(path: Path, **fields: Any) -> TransitionDataset:
    """Write the fields as a file of the kind that the suffix names, and read it."""
    if path.suffix == ".npz":
        np.savez(path, **fields)
    else:
        torch.save({name: torch.as_tensor(value) for name, value in fields.items()}, path)
    return load_transition_dataset(path.suffix[1:], dataset_path=path)


class TestFinalObservations:
    """One more observation than actions in each episode."""

    @pytest.mark.parametrize(
        "cuts",
        [
            {"indices": [3]},
            {"indices": [0, 3]},
            {"indices": [0, 3, 5]},
            {"episode_starts": [1, 0, 0, 1, 0]},
            {"episode_starts": [YES, NO, NO, YES, NO]},
            {"episode_ends": [3, 5]},
            {"episode_ends": [2, 4]},
            {"episode_ends": [NO, NO, YES, NO, YES]},
            {"episode_lengths": [3, 2]},
            {"episode_lengths": [3, 2], "episode_ends": [3, 5]},
            {"episode_lengths": [[3], [2]]},
        ],
        ids=repr,
    )
    @pytest.mark.parametrize("kind", ["npz", "pt"])
    def test_imitations_layout(self, tmp_path: Path, kind: str, cuts: dict[str, Any]) -> None:
        fields = {**IMITATION, **{name: np.array(value) for name, value in cuts.items()}}
        dataset = from_file(tmp_path / f"data.{kind}", **fields)
        assert rows(dataset) == rows(read(**fields))
        assert rows(dataset) == {
            "obs": OBS,
            "actions": [0, 1, 0, 1, 1],
            "rewards": [1, 2, 3, 4, 5],
            "next_obs": NEXT_OBS,
            "terminated": [NO, NO, YES, NO, NO],
            "truncated": [NO, NO, NO, NO, YES],
        }
        assert dataset.obs.dtype == np.float32
        assert dataset.episodes().tolist() == [[0, 3], [3, 5]]
        assert dataset.episode_returns().tolist() == [6, 9]
        notes = " ".join(dataset.notes)
        key = next(iter(cuts))
        assert f"2 episodes by '{key}', with one more observation than actions in each" in notes
        assert (
            "1 of 2 episodes count as terminated, 1 of them with the maximum length of 3" in notes
        )

    def test_truncated_tells_the_time_limits_among_the_ends(self) -> None:
        flags = {"terminal": [YES, YES], "truncated": [YES, NO]}
        dataset = read(**{**IMITATION, **flags}, indices=[3])
        assert rows(dataset)["terminated"] == [NO, NO, NO, NO, YES]
        assert rows(dataset)["truncated"] == [NO, NO, YES, NO, NO]
        assert not any("time limit" in note for note in dataset.notes)

    def test_without_flags_every_episode_is_truncated(self) -> None:
        dataset = read(**FINALS, episode_lengths=[3, 2])
        assert rows(dataset)["next_obs"] == NEXT_OBS
        assert not dataset.terminated.any()
        assert dataset.truncated.tolist() == ENDS.tolist()
        assert "all count as truncated" in dataset.notes[-1]

    @pytest.mark.parametrize(
        ("flags", "terminated"),
        [
            ({"dones": ENDS}, ENDS),
            ({"terminated": ENDS & [NO, NO, YES, NO, NO]}, [NO, NO, YES, NO, NO]),
            ({"terminated": [NO] * 5, "truncated": ENDS}, [NO] * 5),
            ({"dones": ENDS, "truncated": [NO, NO, YES, NO, NO]}, [NO, NO, NO, NO, YES]),
        ],
        ids=["dones", "terminated", "truncated", "dones and truncated"],
    )
    def test_the_flags_of_each_step_cut_episodes_too(
        self, flags: dict[str, Any], terminated: Any
    ) -> None:
        dataset = read(**FINALS, **flags)
        assert (rows(dataset)["obs"], rows(dataset)["next_obs"]) == (OBS, NEXT_OBS)
        assert dataset.terminated.tolist() == list(terminated)
        assert dataset.dones.tolist() == ENDS.tolist()

    @pytest.mark.parametrize("cuts", [{}, {"indices": np.array([], np.int64)}])
    def test_one_episode_has_no_cuts(self, cuts: dict[str, Any]) -> None:
        dataset = read(obs=WITH_FINALS[:4], acts=ACTS[:3], rews=REWS[:3], terminal=[YES], **cuts)
        assert rows(dataset)["next_obs"] == [1, 2, 3]
        assert rows(dataset)["terminated"] == [NO, NO, YES]

    def test_masks_have_final_rows_too(self) -> None:
        dataset = read(**FINALS, masks=np.eye(7, dtype=np.bool_), episode_lengths=[3, 2])
        assert dataset.masks is not None
        assert dataset.next_masks is not None
        assert dataset.masks.argmax(1).tolist() == [0, 1, 2, 4, 5]
        assert dataset.next_masks.argmax(1).tolist() == [1, 2, 3, 5, 6]


class TestWithoutFinalObservations:
    """As many observations as actions: `next_obs` is given, or the last step of a truncated episode is dropped."""

    @pytest.mark.parametrize(
        ("fields", "next_obs", "terminated", "truncated"),
        [
            ({"episode_starts": np.roll(ENDS, 1)}, [1, 2, 11], [NO] * 3, [NO, YES, YES]),
            ({"indices": [3], "terminal": [YES, YES]}, [1, 2, 2, 11, 11], ENDS, [NO] * 5),
            ({"indices": [3], "next_obs": NEXT}, NEXT_OBS, [NO] * 5, ENDS),
            (
                {"indices": [3], "next_obs": NEXT, "terminal": [NO, YES]},
                NEXT_OBS,
                [NO, NO, NO, NO, YES],
                [NO, NO, YES, NO, NO],
            ),
            (
                {"terminated": [NO] * 5, "episode_lengths": [3, 2]},
                [1, 2, 11],
                [NO] * 3,
                [NO, YES, YES],
            ),
        ],
        ids=["starts", "terminated", "next_obs", "next_obs and flags", "time limits"],
    )
    def test_cuts_mark_the_ends(
        self, fields: dict[str, Any], next_obs: list[int], terminated: Any, truncated: Any
    ) -> None:
        dataset = read(obs=WITHOUT_FINALS, acts=ACTS, rews=REWS, **fields)
        assert rows(dataset)["obs"] == (OBS if len(next_obs) == 5 else [0, 1, 10])
        assert rows(dataset)["next_obs"] == next_obs
        assert dataset.terminated.tolist() == list(terminated)
        assert dataset.truncated.tolist() == list(truncated)
        is_noted = any("2 of 5 transitions were dropped" in note for note in dataset.notes)
        assert is_noted == (len(dataset) == 3)

    @pytest.mark.parametrize(
        ("complete", "others"),
        [
            (
                {"next_obs": NEXT},
                {"indices": [9, 1], "episode_starts": [0.5], "acts": ACTS + 1, "terminal": ENDS},
            ),
            ({}, {"episode_lengths": [3]}),  # of the finished episodes
        ],
        ids=["with next_obs", "flags of each step"],
    )
    def test_a_file_with_every_flag_needs_no_cuts(
        self, complete: dict[str, Any], others: dict[str, Any]
    ) -> None:
        fields = {"obs": WITHOUT_FINALS, "actions": ACTS, "rewards": REWS, **complete}
        fields |= {"terminated": ENDS & [NO, NO, YES, NO, NO], "truncated": ENDS & NO}
        dataset = read(**fields, **others)
        assert rows(dataset) == rows(read(**fields))
        assert not any("episodes by" in note for note in dataset.notes)


class TestFaults:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            (
                {"indices": [9]},
                "indices of .* does not cut 5 actions into episodes: give increasing rows",
            ),
            ({"indices": [3, 3]}, "give increasing rows of the actions, from 0 to 5"),
            ({"indices": [-1]}, "does not cut 5 actions"),
            ({"indices": [3.0]}, "has dtype float64: store integers"),
            ({"indices": [[3, 4], [1, 2]]}, "give one number per episode"),
            ({"episode_lengths": [3, 3]}, "whose sum is the number of actions, 5"),
            ({"episode_lengths": [5, 0]}, "give numbers above 0"),
            ({"episode_ends": [3, 6]}, "the last one 5"),
            (
                {"episode_ends": [2, 5], "episode_lengths": [3, 2]},
                "episode_lengths and episode_ends of .* cut the actions differently: keep one of them",
            ),
            (
                {"indices": [1, 3]},
                "obs of .* has 7 rows for 5 actions in 3 episodes .by 'indices'.: give 5 rows, or 8",
            ),
            (
                {"terminal": [True] * 4},
                r"terminated of .* has shape \(4,\): give one flag per transition \(5\) or per",
            ),
            ({"rews": REWS[:4]}, "rewards of .* has 4 rows and obs has 5"),
        ],
        ids=repr,
    )
    def test_cuts_that_do_not_fit(self, changes: dict[str, Any], message: str) -> None:
        cuts = (
            {}
            if any(name in changes for name in ("episode_lengths", "episode_ends"))
            else {"indices": [3]}
        )
        with pytest.raises(DatasetError, match=message):
            read(**{**IMITATION, **cuts, **changes})

    def test_rewards_without_episode_ends_are_refused(self) -> None:
        with pytest.raises(
            DatasetError, match=r"lacks terminated .*'episode_lengths' can cut episodes"
        ):
            read(obs=WITHOUT_FINALS, acts=ACTS, rews=REWS)

    def test_stacked_episodes_are_refused_with_the_way_to_join_them(self) -> None:
        steps = np.zeros((2, 3))
        with pytest.raises(
            DatasetError, match=r"has shape \(2, 3\).*join stacked episodes .*'episode_lengths'"
        ):
            read(obs=np.zeros((2, 3, 4)), acs=steps, rews=steps, terminal=[YES, NO])

    def test_episodes_as_objects_are_refused_with_the_way_to_convert_them(
        self, tmp_path: Path
    ) -> None:
        episodes = np.array([np.zeros((4, 1)), np.zeros((3, 1))], object)
        np.savez(tmp_path / "data.npz", obs=episodes, acts=ACTS)
        torch.save([{"obs": torch.zeros(3, 1)}], tmp_path / "data.pt")
        for kind in ("npz", "pt"):
            with pytest.raises(
                DatasetError, match=r"join the episodes with numpy.concatenate.*episode_lengths"
            ):
                load_transition_dataset(kind, dataset_path=tmp_path / f"data.{kind}")

    def test_infos_of_imitation_are_not_opened(self, tmp_path: Path) -> None:
        infos = np.array([{}] * 5, object)
        dataset = from_file(tmp_path / "data.npz", **IMITATION, infos=infos, indices=[3])
        assert rows(dataset)["next_obs"] == NEXT_OBS


class TestNoRewards:
    def test_final_observations_without_rewards(self) -> None:
        dataset = read(obs=WITH_FINALS, acts=ACTS, indices=[3], terminal=[YES, NO])
        assert not dataset.has_rewards
        assert rows(dataset)["next_obs"] == NEXT_OBS
        assert "'rewards' is missing: the file can be imitated (bc)" in dataset.notes[-3]

    def test_pairs_of_observations_and_actions(self) -> None:
        dataset = read(obs=WITHOUT_FINALS, acts=ACTS)
        assert rows(dataset)["obs"] == OBS
        assert dataset.terminated.all()
        assert len(dataset.episodes()) == 5

    def test_it_stays_without_rewards_when_saved_split_or_mixed(self, tmp_path: Path) -> None:
        dataset = read(obs=WITH_FINALS, acts=ACTS, indices=[3])
        mixed = mix_datasets([dataset, dataset], [0.5, 0.5], 0)
        path = save_transition_dataset(tmp_path / "saved.npz", mixed)
        assert not load_transition_dataset("npz", dataset_path=path).has_rewards
        assert not any(part.has_rewards for part in dataset.split_episodes(0.5, 0))
        rewarded = read(**FINALS, indices=[3])
        with pytest.raises(DatasetError, match="some datasets have rewards and others have none"):
            mix_datasets([dataset, rewarded], [0.5, 0.5], 0)

    def test_only_bc_is_advised_and_only_bc_trains(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)

        def call(code: int, *words: str) -> tuple[str, str]:
            assert main(list(words)) == code
            out, err = capsys.readouterr()
            return out, " ".join(err.split())

        obs = np.random.default_rng(0).normal(size=(62, 4))
        np.savez("data.npz", obs=obs, acts=np.arange(60.0) % 2, episode_lengths=[30, 30])
        words = ["CartPole-v1", "--no-preset", "total_timesteps=2", "eval_episodes=1"]
        data = {"dataset_kind": "npz", "dataset_path": "data.npz", "batch_size": 8}
        words += [f"algo_kwargs.{name}={value}" for name, value in data.items()]
        _, err = call(2, "train", "cql", *words)
        assert "cql learns from rewards, and the dataset has none" in err
        assert not list(Path().glob("runs/*"))
        _, err = call(0, "train", "bc", *words)
        assert "'rewards' is missing" in err
        (run,) = Path("runs").iterdir()
        _, err = call(2, "eval", str(run), "--dataset", "data.npz")
        assert "the dataset has no rewards" in err
        out, _ = call(0, "data", "check", "data.npz", "--env", "CartPole-v1", "--json")
        report = json.loads(out)
        names = {finding["name"] for finding in report["findings"]}
        assert {"no_rewards", "actions_as_floats"} <= names
        assert "only bc can be trained" in report["advice"][0]


class TestDiscreteActions:
    SPACES = describe_spaces(Box(-20, 20, (1,)), Discrete(2))

    @pytest.mark.parametrize("shape", [(5,), (5, 1)])
    def test_whole_numbers_stored_as_floats(self, shape: tuple[int, ...]) -> None:
        dataset = read(**{**FINALS, "acts": ACTS.astype(np.float64).reshape(shape)}, indices=[3])
        assert dataset.to_model_space(self.SPACES).actions.reshape(-1).tolist() == ACTS.tolist()
        findings = check_dataset(dataset, self.SPACES, thorough=False).findings
        assert "actions_as_floats" in [finding.name for finding in findings]

    @pytest.mark.parametrize(
        ("actions", "message"),
        [
            (ACTS + 0.5, "store each action as an integer"),
            (np.where(ACTS, np.nan, 0.0), "store each action as an integer"),
            (ACTS * 2.0, r"first actions\[1\] = 2; its bounds are 0 to 1"),
            (
                np.eye(2)[ACTS],
                r"look one-hot: store the index of each action, as actions.argmax\(1\)",
            ),
        ],
        ids=["fractions", "nan", "outside", "one-hot"],
    )
    def test_other_numbers_are_refused(self, actions: Any, message: str) -> None:
        with pytest.raises(DatasetError, match=message):
            read(**{**FINALS, "acts": actions}, indices=[3]).to_model_space(self.SPACES)


@needs_published
class TestPublished:
    def test_cartpole_of_imitation(self) -> None:
        path = PUBLISHED / "cartpole-v1-expert.npz"
        dataset = load_transition_dataset("npz", dataset_path=path)
        file = np.load(path, allow_pickle=False)
        cuts = [0, *file["indices"], len(file["acts"])]
        assert len(dataset) == 26_964
        assert dataset.episodes().tolist() == [list(pair) for pair in pairwise(cuts)]
        assert dataset.episode_returns().max() == 500
        assert dataset.terminated.sum() == 57
        finals = file["obs"][np.array(cuts[1:]) + np.arange(57)]
        np.testing.assert_array_equal(dataset.next_obs[dataset.terminated], finals)
        assert "15 of them with the maximum length of 500" in dataset.notes[-1]
        assert check_dataset(dataset).errors == ()
        # Euler steps of 0.02 s: position and angle move by the velocities before the step.
        moved = dataset.obs[:, [0, 2]] + 0.02 * dataset.obs[:, [1, 3]]
        np.testing.assert_allclose(dataset.next_obs[:, [0, 2]], moved, atol=1e-5)

    @pytest.mark.parametrize(
        ("name", "returns"), [("hopper", [3717.16, 3717.87]), ("halfcheetah", [4067.67, 4001.93])]
    )
    def test_mujoco(self, name: str, returns: list[float]) -> None:
        dataset = load_transition_dataset("npz", dataset_path=PUBLISHED / f"{name}-v4-expert.npz")
        assert dataset.episodes().tolist() == [[0, 1000], [1000, 2000]]
        np.testing.assert_allclose(dataset.episode_returns(), returns, atol=0.01)
        assert np.flatnonzero(dataset.truncated).tolist() == [999, 1999]
        assert not dataset.terminated.any()
