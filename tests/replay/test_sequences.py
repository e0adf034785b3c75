"""Sequences of steps from a replay buffer, a dataset and both: where they begin and end, and what marks them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conftest import step_of
from gymnasium.spaces import Box, Discrete

from rl_training.algorithms.config import OffPolicyConfig
from rl_training.algorithms.dqn import DQNConfig
from rl_training.algorithms.replay import Batch
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.errors import ConfigError
from rl_training.replay.mixed_replay import MixedReplay
from rl_training.replay.replay_buffer import ReplayBuffer
from rl_training.replay.sequences import Sampling, pad_to_one_length, sampler_of
from rl_training.replay.transitions import StepField, Transitions
from rl_training.runtime.loops.off_policy import check_sampling
from rl_training.spaces.rewards import RewardTransformConfig
from rl_training.spaces.spec import describe_spaces

SPACES = describe_spaces(Box(-np.inf, np.inf, (1,)), Discrete(100))
CPU = torch.device("cpu")
SEQUENCES, EPISODES = Sampling("sequences", 3), Sampling("episodes", 10)


def make_buffer(
    ends: list[str], *, capacity: int | None = None, fields: dict[str, StepField] | None = None
) -> ReplayBuffer:
    """One column per text: `.` is a step, `T` a terminated and `t` a truncated one; an action is the step's number.

    The number of step `row` of environment `env` is 10 * env + row.
    """
    num_envs, num_rows = len(ends), len(ends[0])
    capacity = num_rows * num_envs if capacity is None else capacity
    buffer = ReplayBuffer(
        SPACES, capacity, num_envs, rng=np.random.default_rng(0), device=CPU, fields=fields
    )
    for row in range(num_rows):
        numbers = np.array([10 * env + row for env in range(num_envs)])
        obs = numbers[:, None].astype(np.float32)
        flags = [np.array([text[row] == mark for text in ends]) for mark in "Tt"]
        further = {name: numbers.astype(np.float32) for name in fields or ()}
        buffer.add(step_of(obs, numbers, numbers.astype(np.float32), obs + 1, *flags) | further)
    return buffer


def drawn(batch: Transitions) -> set[tuple[int, ...]]:
    """The step numbers of each sequence, its valid steps only."""
    assert batch.valid is not None
    columns = zip(batch.actions.T.tolist(), batch.valid.T.tolist(), strict=True)
    return {
        tuple(number for number, valid in zip(*column, strict=True) if valid) for column in columns
    }


class TestReplayBuffer:
    def test_sequences_end_with_the_episode_and_with_the_newest_step(self) -> None:
        batch = make_buffer(["..T..", ".t..."]).sample_sequences(500, SEQUENCES)
        first = {(0, 1, 2), (1, 2), (2,), (3, 4), (4,)}
        second = {(10, 11), (11,), (12, 13, 14), (13, 14), (14,)}
        assert drawn(batch) == first | second

    def test_sequences_continue_where_the_ring_begins_again_and_end_at_the_newest_step(
        self,
    ) -> None:
        batch = make_buffer(["........"], capacity=5).sample_sequences(500, SEQUENCES)
        assert drawn(batch) == {(3, 4, 5), (4, 5, 6), (5, 6, 7), (6, 7), (7,)}

    def test_sequences_begin_at_every_stored_step_equally_often(self) -> None:
        batch = make_buffer(["..T.", "...."], capacity=20).sample_sequences(8000, SEQUENCES)
        counts = np.bincount(batch.actions[0].numpy(), minlength=14)
        assert set(np.flatnonzero(counts)) == {0, 1, 2, 3, 10, 11, 12, 13}
        np.testing.assert_allclose(counts[counts > 0] / 8000, 1 / 8, atol=0.02)

    def test_padding_repeats_the_last_step_and_is_not_valid(self) -> None:
        batch = make_buffer([".T"], fields={"costs": StepField()}).sample_sequences(50, SEQUENCES)
        column = batch.actions[0].tolist().index(0)
        assert batch.valid is not None
        assert batch.valid[:, column].tolist() == [True, True, False]
        assert batch.actions[:, column].tolist() == [0, 1, 1]
        assert batch.obs[:, column, 0].tolist() == [0.0, 1.0, 1.0]
        assert batch.terminated[:, column].tolist() == [False, True, True]
        assert batch.extras["costs"][:, column].tolist() == [0.0, 1.0, 1.0]

    def test_a_batch_of_sequences_has_their_length_and_one_of_episodes_that_of_its_longest(
        self,
    ) -> None:
        buffer = make_buffer([".T..."])
        assert buffer.sample_sequences(20, Sampling("sequences", 7)).rewards.shape == (7, 20)
        assert buffer.sample_sequences(20, Sampling("episodes", 7)).rewards.shape == (3, 20)
        assert buffer.sample_sequences(20, Sampling("episodes", 2)).rewards.shape == (2, 20)

    def test_episodes_begin_at_first_steps(self) -> None:
        batch = make_buffer(["..T..", ".t..T"], capacity=20).sample_sequences(200, EPISODES)
        assert drawn(batch) == {(0, 1, 2), (3, 4), (10, 11), (12, 13, 14)}

    def test_an_episode_whose_first_steps_were_overwritten_is_not_drawn(self) -> None:
        batch = make_buffer(["...T....", "........"], capacity=12).sample_sequences(200, EPISODES)
        assert drawn(batch) == {(4, 5, 6, 7)}

    def test_where_no_first_step_is_left_episodes_begin_at_the_oldest(self) -> None:
        batch = make_buffer(["........", "........"], capacity=10).sample_sequences(200, EPISODES)
        assert drawn(batch) == {(3, 4, 5, 6, 7), (13, 14, 15, 16, 17)}

    def test_a_step_that_was_lost_ends_the_sequences_before_it(self) -> None:
        buffer = make_buffer([".."], capacity=10)
        buffer.truncate_newest()
        obs = np.array([[2.0]], np.float32)
        flags = np.zeros(1, np.bool_), np.zeros(1, np.bool_)
        buffer.add(step_of(obs, np.array([2]), np.zeros(1, np.float32), obs + 1, *flags))
        assert drawn(buffer.sample_sequences(100, SEQUENCES)) == {(0, 1), (1,), (2,)}

    @pytest.mark.parametrize("sampling", [SEQUENCES, EPISODES], ids=lambda one: one.kind)
    def test_a_restored_buffer_draws_the_same_sequences(self, sampling: Sampling) -> None:
        buffer = make_buffer(["..T.....", ".t......"], capacity=12)
        buffer.sample_sequences(7, sampling)
        restored = make_buffer(["........", "........"], capacity=12)
        restored.load_state_dict(buffer.state_dict())
        for _ in range(3):
            one, other = (
                source.sample_sequences(9, sampling).tensors() for source in (buffer, restored)
            )
            assert one.keys() == other.keys()
            assert all(torch.equal(value, other[name]) for name, value in one.items())


def make_dataset(**changes: Any) -> TransitionDataset:
    """Episodes 0 1 2 (terminated), 3 4 (where the next row does not follow) and 5 6 (the end of the file)."""
    numbers = np.arange(7)
    obs = numbers[:, None].astype(np.float32)
    next_obs = obs + 1
    next_obs[4] = 99.0
    flags = {"terminated": numbers == 2, "truncated": np.zeros(7, np.bool_)}
    fields = {"obs": obs, "actions": numbers, "rewards": obs[:, 0], "next_obs": next_obs, **flags}
    return TransitionDataset(**{**fields, "rng": np.random.default_rng(0), **changes})


class TestDataset:
    def test_sequences_end_with_the_episode(self) -> None:
        batch = make_dataset().sample_sequences(300, SEQUENCES)
        assert drawn(batch) == {(0, 1, 2), (1, 2), (2,), (3, 4), (4,), (5, 6), (6,)}

    def test_episodes_begin_at_first_steps(self) -> None:
        assert drawn(make_dataset().sample_sequences(300, EPISODES)) == {(0, 1, 2), (3, 4), (5, 6)}

    def test_masks_are_in_the_batch(self) -> None:
        masks = np.arange(7)[:, None] >= np.arange(3)
        batch = make_dataset(masks=masks, next_masks=~masks).sample_sequences(20, SEQUENCES)
        assert batch.masks is not None
        assert batch.next_masks is not None
        np.testing.assert_array_equal(batch.masks.numpy(), masks[batch.actions.numpy()])
        np.testing.assert_array_equal(batch.next_masks.numpy(), ~masks[batch.actions.numpy()])

    def test_a_restored_dataset_draws_the_same_sequences(self) -> None:
        dataset, restored = make_dataset(), make_dataset(rng=np.random.default_rng(1))
        dataset.sample_sequences(5, SEQUENCES)
        restored.load_state_dict(dataset.state_dict())
        one, other = (
            source.sample_sequences(9, SEQUENCES).actions for source in (dataset, restored)
        )
        assert torch.equal(one, other)


class TestMixedReplay:
    def mixed(self, ends: list[str], ratio: float = 0.25) -> MixedReplay:
        buffer = make_buffer(ends, fields={"costs": StepField()})
        return MixedReplay(make_dataset(), buffer, ratio, RewardTransformConfig())

    def test_the_dataset_comes_first_and_both_have_one_length(self) -> None:
        batch = self.mixed(["......"]).sample_sequences(8, EPISODES)
        assert batch.valid is not None
        lengths = batch.valid.sum(0).tolist()
        assert batch.rewards.shape == (6, 8)
        assert all(length in (2, 3) for length in lengths[:2])  # episodes of the dataset
        assert lengths[2:] == [6] * 6
        assert batch.actions[-1, :2].tolist() == [
            batch.actions[length - 1, i] for i, length in enumerate(lengths[:2])
        ]

    def test_fields_that_the_dataset_lacks_are_left_out(self) -> None:
        assert set(self.mixed(["......"]).sample_sequences(8, SEQUENCES).extras) == set()
        assert set(self.mixed(["......"], ratio=0.0).sample_sequences(8, SEQUENCES).extras) == {
            "costs"
        }

    def test_an_empty_buffer_adds_nothing(self) -> None:
        empty = ReplayBuffer(SPACES, 10, 1, rng=np.random.default_rng(0), device=CPU)
        mixed = MixedReplay(make_dataset(), empty, 0.25, RewardTransformConfig())
        assert drawn(mixed.sample_sequences(200, EPISODES)) == {(0, 1, 2), (3, 4), (5, 6)}

    def test_padding_does_not_change_the_batches_it_is_given(self) -> None:
        short, long = (make_buffer([ends]).sample_sequences(2, EPISODES) for ends in ("..", "...."))
        padded, same = pad_to_one_length(short, long)
        assert same is long
        assert len(padded.rewards) == 4
        assert padded.valid is not None
        assert short.valid is not None
        assert padded.valid.sum(0).tolist() == [2, 2]
        assert short.valid.all()


def test_several_batches_are_drawn_in_the_way_that_was_chosen() -> None:
    buffer = make_buffer([".....", "....."])
    batches = list(sampler_of(buffer, SEQUENCES)(4, 3))
    assert [tuple(batch.rewards.shape) for batch in batches] == [(3, 4)] * 3
    batches = list(sampler_of(buffer, Sampling())(4, 3))
    assert [tuple(batch.rewards.shape) for batch in batches] == [(4,)] * 3
    assert all(batch.valid is None for batch in batches)


def test_a_mean_over_sequences_counts_valid_steps_only() -> None:
    losses = torch.tensor([[1.0, 2.0], [3.0, 100.0]])
    rest = [torch.zeros(2, 2)] * 5
    valid = torch.tensor([[True, True], [True, False]])
    assert Batch(*rest, valid=valid).mean(losses) == 2.0
    assert Batch(*rest, valid=valid).mean(torch.stack([losses, 2 * losses])).tolist() == [2.0, 4.0]


class Drawing(DQNConfig):
    """DQN's settings, with sequences."""

    def sampling(self) -> Sampling:
        """Sequences."""
        return SEQUENCES


@pytest.mark.parametrize(
    "settings", [{"n_step": 3}, {"replay": {"kind": "prioritized"}}, {"replay": {"kind": "her"}}]
)
def test_sequences_with_a_replay_of_single_transitions_are_refused(
    settings: dict[str, Any],
) -> None:
    with pytest.raises(
        ConfigError, match=r"draws sequences: set n_step to 1 and replay\.kind to uniform"
    ):
        check_sampling(Drawing(**settings))
    check_sampling(Drawing())
    check_sampling(OffPolicyConfig(**settings))
