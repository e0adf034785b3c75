"""Every transition that reaches an update or comes back from a file equals what the environment's journal has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import small_config
from gymnasium.spaces import flatten
from oracle_envs import (
    ACTION_SPACES,
    OBSERVATION_SPACES,
    Event,
    Moment,
    OracleEnv,
    OracleGoalEnv,
    code_of,
    goal_reward,
    moment_of,
    stored,
)
from run_tools import StopAt

from rl_training.algorithms.base import ActResult
from rl_training.cli import main
from rl_training.data.dataset_loaders import load_transition_dataset, save_transition_dataset
from rl_training.data.dataset_spaces import infer_spaces
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.envs.factory import make_vector_env
from rl_training.errors import DatasetError
from rl_training.replay.replay_buffer import ReplayBuffer
from rl_training.replay.transitions import FIELDS
from rl_training.runtime.collector import Collector
from rl_training.runtime.recording import record_random
from rl_training.runtime.run import run_training
from rl_training.runtime.trainer import TrainerState
from rl_training.runtime.workflows import resume_training
from rl_training.spaces.spec import describe_spaces

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


def assert_action(action: Any, event: Event, space: gym.Space) -> None:
    """A model action is the one that was executed; a Gaussian policy's is stored before it is moved onto its bounds."""
    action = np.asarray(action)
    if isinstance(space, gym.spaces.Box) and np.isfinite(space.low).all():
        action = action.clip(-1.0, 1.0)
    np.testing.assert_allclose(action, model_action(space, event.action), atol=1e-6)


def assert_true(
    batch: Any,
    obs_space: gym.Space,
    action_space: gym.Space,
    *,
    gamma: float | None = None,
    n_step: int = 1,
) -> list[Moment]:
    """Compare transitions [B, ...] in model space with the journal; returns their moments."""
    moments = []
    for row in range(len(batch.rewards)):
        moment, first = event_of(obs_space, batch.obs[row])
        events = [first] if gamma is None else list(following(moment, n_step))
        reward = sum((gamma or 1.0) ** step * event.reward for step, event in enumerate(events))
        np.testing.assert_array_equal(batch.obs[row], stored(obs_space, first.obs))
        np.testing.assert_array_equal(batch.next_obs[row], stored(obs_space, events[-1].next_obs))
        assert_action(batch.actions[row], first, action_space)
        assert float(batch.rewards[row]) == pytest.approx(reward, rel=1e-6)
        assert bool(batch.terminated[row]) == events[-1].terminated
        assert bool(batch.truncated[row]) == events[-1].truncated
        if gamma is not None:
            assert float(batch.discounts[row]) == pytest.approx(gamma ** len(events), rel=1e-6)
        moments.append(moment)
    return moments


def following(moment: Moment, count: int) -> Iterator[Event]:
    """Up to `count` events of one episode, from a moment to its end or to the newest."""
    for step in range(count):
        event = OracleEnv.journal.get(moment._replace(step=moment.step + step))
        if event is None:
            return
        yield event
        if event.terminated or event.truncated:
            return


class TestRecordings:
    """What is recorded, written and read again."""

    def written(
        self, kind: str, dataset: Any, spaces: tuple[Any, Any], folder: Path
    ) -> TransitionDataset:
        if kind == "npz":
            return load_transition_dataset(
                "npz", dataset_path=save_transition_dataset(folder / "a.npz", dataset)
            )
        if kind == "pt":
            torch.save(
                {name: torch.from_numpy(array.copy()) for name, array in dataset.arrays().items()},
                folder / "a.pt",
            )
            return load_transition_dataset("pt", dataset_path=folder / "a.pt")
        from rl_training.data.minari_datasets import write_minari

        write_minari("oracle/test-v0", dataset, *spaces)
        return load_transition_dataset("minari", dataset_id="oracle/test-v0")

    @pytest.mark.parametrize("kind", ["npz", "pt", "minari"])
    @pytest.mark.parametrize(
        ("obs", "action"),
        [
            *((obs, "box") for obs in OBSERVATION_SPACES),
            *(("box", action) for action in ACTION_SPACES),
        ],
    )
    def test_every_space_comes_back(
        self, kind: str, obs: str, action: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if kind == "minari":
            pytest.importorskip("minari")
            monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
        recording = record_random(
            ORACLE, {"obs": obs, "action": action}, 40, np.random.SeedSequence(0)
        )
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
        fields = {
            **dataset.arrays(),
            "obs": np.stack([flatten(space, event.obs) for event in events]),
        }
        fields["next_obs"] = np.stack([flatten(space, event.next_obs) for event in events])
        if kind == "npz":
            np.savez(tmp_path / "a.npz", **fields)
        else:
            torch.save(
                {name: torch.from_numpy(np.array(array)) for name, array in fields.items()},
                tmp_path / "a.pt",
            )
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
        with pytest.raises(
            DatasetError, match=r"obs\[\d+\] has .* the environment has integers from 0 to 255"
        ):
            TransitionDataset(**divided).to_model_space(spaces)

    def test_numbers_that_are_no_category_are_refused(self) -> None:
        spaces = describe_spaces(OBSERVATION_SPACES["multi_discrete"], ACTION_SPACES["discrete"])
        data = record_random(
            ORACLE, {"obs": "multi_discrete"}, 30, np.random.SeedSequence(0)
        ).dataset
        wrong = data.next_obs.copy()
        wrong[7, 0] = 1 - wrong[7, 0]
        with pytest.raises(DatasetError, match=r"next_obs\[7\] has .* store each one-hot"):
            TransitionDataset(**{**data.arrays(), "next_obs": wrong}).to_model_space(spaces)

    def test_an_agents_recording_has_the_spaces_of_its_own_arguments(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("minari")
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
        config = small_config(
            "ppo", tmp_path, env_id=ORACLE, env_kwargs={"obs": "tuple", "action": "box"}
        )
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
        renamed = gym.spaces.Dict(
            [(f"a/{key}" if key == "kind" else key, inner[key]) for key in inner]
        )
        for obs_space, action_space, message in (
            (renamed, ACTION_SPACES["discrete"], "write an .npz file instead"),
            (OBSERVATION_SPACES["dict"], ACTION_SPACES["box"], "store each action as floats"),
        ):
            with pytest.raises(DatasetError, match=message):
                write_minari("oracle/test-v0", data, obs_space, action_space)
            assert not (tmp_path / "oracle" / "test-v0").exists()

    def test_images_among_other_things_need_their_environment(self) -> None:
        data = record_random(ORACLE, {"obs": "dict_image"}, 30, np.random.SeedSequence(0)).dataset
        with pytest.raises(DatasetError, match="set env_id to the environment of the recording"):
            infer_spaces(data)
        short = record_random(ORACLE, {"obs": "bytes"}, 30, np.random.SeedSequence(0)).dataset
        assert infer_spaces(short).obs.shape == (3,)

    def test_a_single_step(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("minari")
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
        recording = record_random(
            ORACLE, {"obs": "tuple", "action": "multi_binary"}, 1, np.random.SeedSequence(0)
        )
        spaces = OBSERVATION_SPACES["tuple"], ACTION_SPACES["multi_binary"]
        data = self.written("minari", recording.dataset, spaces, tmp_path)
        assert data.truncated.tolist() == [True]
        np.testing.assert_array_equal(data.obs, recording.dataset.obs)

    def test_random_actions_spread_beside_a_single_bound(self) -> None:
        actions = record_random(
            ORACLE, {"action": "half_bounded"}, 60, np.random.SeedSequence(0)
        ).dataset.actions
        assert (np.ptp(actions, axis=0) > 1.5).all()


def last(obs_space: gym.Space, data: Any) -> Moment:
    return event_of(obs_space, data.obs[-1])[0]


def truncated(event: Event) -> Event:
    """The last event of a recording, which ends with it."""
    return event._replace(truncated=not event.terminated)


class Watch:
    """Hands every batch to a check before the algorithm learns from it."""

    def __init__(self, check: Callable[[Any], Any]) -> None:
        self.check, self.count = check, 0

    def on_train_start(self, trainer: Any) -> None:
        update = trainer.algorithm.update

        def watched(batch: Any) -> Any:
            self.check(batch)
            self.count += 1
            return update(batch)

        trainer.algorithm.update = watched


def run(algo: str, folder: Path, check: Callable[[Any], Any], *stops: Any, **changes: Any) -> Any:
    """A small run of several environments, of which every batch is checked."""
    values = {
        "env_id": ORACLE,
        "num_envs": 3,
        "total_timesteps": 120,
        "eval_episodes": 1,
        **changes,
    }
    watch = Watch(check)
    result = run_training(small_config(algo, folder, **values), callbacks=[watch, *stops])
    assert watch.count > 1
    return result


class TestUpdates:
    """What reaches an update in a run."""

    @pytest.mark.parametrize(
        ("obs", "action"), [("dict", "box"), ("box", "multi_discrete"), ("discrete", "unbounded")]
    )
    def test_rollouts(self, obs: str, action: str, tmp_path: Path) -> None:
        def check(batch: Any) -> None:
            flat = SimpleNamespace(**{name: getattr(batch, name).flatten(0, 1) for name in FIELDS})
            moments = assert_true(flat, OBSERVATION_SPACES[obs], ACTION_SPACES[action])
            assert len(set(moments)) == len(moments) == 16 * 3
            for env in range(3):
                column = moments[env::3]
                assert column == sorted(column)

        run("ppo", tmp_path, check, env_kwargs={"obs": obs, "action": action})

    @pytest.mark.parametrize("obs", list(OBSERVATION_SPACES))
    def test_replay(self, obs: str, tmp_path: Path) -> None:
        def check(batch: Any) -> None:
            seen.update(assert_true(batch, OBSERVATION_SPACES[obs], ACTION_SPACES["discrete"]))
            newest = list(OracleEnv.journal)[-60:]  # the buffer holds 20 steps of each environment
            assert seen_last(batch, OBSERVATION_SPACES[obs]) <= set(newest)

        seen: set[Moment] = set()
        own = {"buffer_capacity": 60, "batch_size": 8}
        never = {"eval_interval": 10**6}
        run("dqn", tmp_path, check, env_kwargs={"obs": obs}, algo_kwargs=own | never)
        assert len(seen) > 50

    @pytest.mark.parametrize(("obs", "options"), [("tuple", {}), ("stack", {"prioritized": True})])
    def test_returns_of_several_steps(
        self, obs: str, options: dict[str, Any], tmp_path: Path
    ) -> None:
        def check(batch: Any) -> None:
            assert_true(
                batch, OBSERVATION_SPACES[obs], ACTION_SPACES["discrete"], gamma=0.9, n_step=3
            )

        own = {"n_step": 3, "gamma": 0.9, "batch_size": 8, **options}
        run("dqn", tmp_path, check, env_kwargs={"obs": obs}, algo_kwargs=own)

    def test_a_resumed_run(self, tmp_path: Path) -> None:
        def check(batch: Any) -> None:
            assert_true(batch, OBSERVATION_SPACES["dict"], ACTION_SPACES["box"])

        env_kwargs = {"obs": "dict", "action": "box"}
        stopped = run("sac", tmp_path, check, StopAt(70, "update"), env_kwargs=env_kwargs)
        assert stopped.metrics["global_step"] < 120
        watch = Watch(check)
        resume_training(stopped.run_dir, callbacks=[watch])
        assert watch.count > 1

    def test_goals_in_hindsight(self, tmp_path: Path) -> None:
        def check(batch: Any) -> None:
            for row in range(len(batch.rewards)):
                is_original = row % 5 == 0
                moment, event = event_of(space, batch.obs[row])
                obs, next_obs = (stored(space, value) for value in (event.obs, event.next_obs))
                goal = np.asarray(batch.obs[row][6:])
                np.testing.assert_array_equal(batch.obs[row][:6], obs[:6])
                np.testing.assert_array_equal(
                    batch.next_obs[row], np.concatenate([next_obs[:6], goal])
                )
                assert_action(batch.actions[row], event, ACTION_SPACES["box"])
                assert float(batch.rewards[row]) == goal_reward(next_obs[3:6], goal)
                assert bool(batch.terminated[row]) == event.terminated
                assert bool(batch.truncated[row]) == event.truncated
                if is_original:
                    assert goal.tolist() == [-1, -1, -1]
                else:
                    achieved = moment._replace(step=int(goal[2]) - 1)
                    assert achieved in OracleEnv.journal
                    assert (*goal[:2],) == moment[:2]
                    assert achieved.step >= moment.step

        space = OracleGoalEnv().observation_space
        run(
            "her",
            tmp_path,
            check,
            env_id="oracle_envs:OracleGoalEnv",
            algo_kwargs={"batch_size": 15},
        )

    def test_recorded_and_new_transitions_together(self, tmp_path: Path) -> None:
        def check(batch: Any) -> None:
            raw = SimpleNamespace(**{name: getattr(batch, name) for name in FIELDS})
            raw.rewards = (batch.rewards - 1.0) / 0.5
            keys = [moment.key for moment in assert_true(raw, obs_space, action_space)]
            num_recorded = keys.count(recorded_key)
            assert keys[:num_recorded] == [recorded_key] * num_recorded
            shares.append(num_recorded)

        obs_space, action_space = OBSERVATION_SPACES["tuple"], ACTION_SPACES["box"]
        env_kwargs = {"obs": "tuple", "action": "box"}
        recording = record_random(ORACLE, env_kwargs, 50, np.random.SeedSequence(0))
        path = save_transition_dataset(tmp_path / "a.npz", recording.dataset)
        (recorded_key,) = {moment.key for moment in OracleEnv.journal}
        last_moment = max(OracleEnv.journal)
        OracleEnv.journal[last_moment] = truncated(OracleEnv.journal[last_moment])
        shares: list[int] = []
        own = {
            "dataset_kind": "npz",
            "dataset_path": path,
            "reward_scale": 0.5,
            "reward_shift": 1.0,
        }
        own["online"] = {
            "after_updates": 20,
            "learning_starts": 12,
            "offline_ratio": 0.25,
            "buffer_capacity": 60,
        }
        run("iql", tmp_path / "runs", check, env_kwargs=env_kwargs, algo_kwargs=own)
        assert (
            shares == [16] * 20 + [4] * 90
        )  # 102 steps online, of which 12 come before the first update


def seen_last(batch: Any, space: gym.Space) -> set[Moment]:
    return {moment_of(space, np.asarray(obs)) for obs in batch.obs}


def test_priorities_belong_to_their_transitions() -> None:
    envs = make_vector_env(ORACLE, {"obs": "box"}, num_envs=2)
    space, action_space = OBSERVATION_SPACES["box"], ACTION_SPACES["discrete"]
    spaces, device = describe_spaces(space, action_space), torch.device("cpu")
    buffer = ReplayBuffer(
        spaces, 40, 2, rng=np.random.default_rng(0), device=device, priority_alpha=0.5
    )
    collector, rng = Collector(envs, spaces, device), np.random.default_rng(1)
    collector.reset([0, 1])
    priorities: dict[Moment, float] = {}
    removed: list[float] = []
    for _ in range(30):
        known = set(OracleEnv.journal)
        state = TrainerState(None, Path())  # type: ignore[arg-type]
        collector.collect(
            lambda obs, *_: ActResult(torch.from_numpy(rng.integers(0, 3, len(obs)))),
            buffer,
            2,
            state,
        )
        largest = max([1.0, *priorities.values(), *removed])
        priorities |= dict.fromkeys(set(OracleEnv.journal) - known, largest)
        for moment in list(OracleEnv.journal)[:-40]:
            removed.append(priorities.pop(moment, 0.0))
        batch = buffer.sample(16)
        moments = assert_true(batch, space, action_space)
        expected = [
            sum(priorities.values()) / (len(priorities) * priorities[moment]) for moment in moments
        ]
        np.testing.assert_allclose(batch.unscaled_weights, expected, rtol=1e-6)
        errors = np.array([code_of(moment) / 100 for moment in moments])
        buffer.update_priorities(batch, torch.from_numpy(errors))
        priorities |= dict(zip(moments, (errors + 1e-6) ** 0.5, strict=True))
    envs.close()
