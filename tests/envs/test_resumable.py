"""Environments brought back to where they were: alone, through wrappers, in whole runs, and from hostile states."""

from __future__ import annotations

import functools
import operator
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faulty_envs
import gymnasium as gym
import numpy as np
import pytest
from conftest import HELPERS, small_config
from faulty_envs import (
    CountingWrapper,
    Curriculum,
    DoublesAction,
    Hidden,
    OwnState,
    SameArray,
    Walk,
    WallClockReward,
)
from gymnasium.wrappers import (
    DelayObservation,
    FrameStackObservation,
    NormalizeObservation,
    NormalizeReward,
    RecordEpisodeStatistics,
    StickyAction,
    TimeAwareObservation,
    TimeLimit,
)
from stored_steps import collect

from rl_training.diagnostics.resume_check import check_resume
from rl_training.envs.factory import make_vector_env
from rl_training.envs.rewards import RewardClipWrapper, RewardScaleWrapper
from rl_training.envs.single.resumable import ResumableEnv, Step
from rl_training.envs.state import generators as ale_rng
from rl_training.envs.state.attributes import capture_attributes, restore_attributes
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.runtime.run import run_training
from rl_training.runtime.workflows import resume_training

FAULTY = f"{HELPERS / 'faulty_envs.py'}"


def to_the_end(env: ResumableEnv) -> list[Step]:
    """Steps up to the end of the episode."""
    steps = [env.step(0)]
    while steps[-1].episode is None:
        steps.append(env.step(0))
    return steps


def cartpole(**kwargs: Any) -> gym.Env:
    return gym.make("CartPole-v1", **kwargs)


@pytest.mark.parametrize(
    "make",
    [
        lambda: TimeLimit(Walk(), 9),
        lambda: RewardClipWrapper(
            RewardScaleWrapper(cartpole(), scale=0.3), clip_min=0.0, clip_max=0.2
        ),
        lambda: FrameStackObservation(cartpole(), 4),
        lambda: NormalizeObservation(cartpole()),
        lambda: NormalizeReward(NormalizeObservation(cartpole())),
        lambda: DelayObservation(cartpole(), 3),
        lambda: TimeAwareObservation(cartpole()),
        lambda: StickyAction(cartpole(), 0.3),
        lambda: RecordEpisodeStatistics(cartpole()),
        lambda: CountingWrapper(FrameStackObservation(NormalizeObservation(Curriculum()), 2)),
        SameArray,
    ],
)
def test_wrappers_are_restored_with_their_memory(make: Callable[[], gym.Env]) -> None:
    proof = check_resume(make, steps=250, seed=3)
    assert proof.num_episodes >= 5
    assert proof.is_exact, proof


def test_what_is_hidden_is_found_by_the_twin() -> None:
    proof = check_resume(Hidden, steps=150, seed=0)
    assert not proof.is_exact
    assert proof.inexact_reasons[-1].startswith("the reward differs")


@pytest.mark.parametrize(
    ("env_id", "limit"),
    [
        ("BipedalWalker-v3", 60),
        ("BipedalWalkerHardcore-v3", 60),
        ("LunarLander-v3", 60),
        ("CarRacing-v3", 6),
    ],
)
def test_box2d_is_exact_over_episodes(env_id: str, limit: int) -> None:
    pytest.importorskip("Box2D")
    pytest.importorskip("pygame")
    make = functools.partial(gym.make, env_id, max_episode_steps=limit)
    proof = check_resume(make, steps=5 * limit, seed=1, num_points=4)
    assert proof.num_episodes >= 2
    assert proof.is_exact, proof


def make_atari(game: str = "Breakout", **kwargs: Any) -> gym.Env:
    ale_py = pytest.importorskip("ale_py")
    gym.register_envs(ale_py)
    return gym.make(f"ALE/{game}-v5", **kwargs)


@pytest.mark.parametrize("game", ["Breakout", "Seaquest"])
def test_atari_with_sticky_actions_is_exact(game: str) -> None:
    make_atari().close()
    kwargs = {"obs_type": "ram", "repeat_action_probability": 0.5, "max_episode_steps": 80}
    proof = check_resume(lambda: make_atari(game, **kwargs), steps=250, seed=0, num_points=6)
    assert proof.num_episodes >= 3
    assert proof.is_exact, proof


@pytest.fixture
def game() -> tuple[Any, np.ndarray]:
    """A game, and the emulator's generators in it."""
    core: Any = make_atari().unwrapped
    core.reset(seed=0)
    good = ale_rng.read_generators(ale_rng.snapshot(core))
    assert good is not None
    return core, good


def test_hostile_atari_generators_are_refused_before_they_reach_the_emulator(game: Any) -> None:
    core, good = game
    ale_rng.set_generators(core, good)
    before = ale_rng.snapshot(core)
    position, word, negative = good.copy(), good.copy(), good.copy()
    position[0, -1], word[1, 5], negative[0, 0] = 625, 1 << 32, -1
    for bad in (position, word, negative, good[:1], good[:, :-1], good.astype(np.float64)):
        with pytest.raises(ValueError, match="generators"):
            ale_rng.set_generators(core, bad)
    assert ale_rng.snapshot(core) == before


def test_generators_of_every_length_of_text_fit_into_a_snapshot(game: Any) -> None:
    core, good = game
    for value in (0, (1 << 32) - 1):
        changed = np.full_like(good, value)
        changed[:, -1] = 624
        ale_rng.set_generators(core, changed)
        assert (ale_rng.read_generators(ale_rng.snapshot(core)) == changed).all()
        core.step(0)


def test_attributes_of_a_file_cannot_replace_methods_or_simulators() -> None:
    env = Walk()
    env.simulator = object()
    restore_attributes(
        env, {"step": 3, "simulator": 4, "__class__": 5, "action_space": 6, "time": 7}
    )
    assert callable(env.step)
    assert not isinstance(env.simulator, int)
    assert isinstance(env, Walk)
    assert isinstance(env.action_space, gym.Space)
    assert env.time == 7


def test_attributes_keep_their_types_and_shared_arrays_stay_shared() -> None:
    one, other = Curriculum(), Curriculum()
    one.pair, one.places, one.size = (1, 2), {(1, 2), (3, 4)}, np.float32(2.5)
    other.pair, other.places, other.size = (0, 0), set(), np.float32(0.0)
    one.table, other.table = np.arange(3.0), np.zeros(3)
    shared = other.table
    restore_attributes(other, capture_attributes(one))
    assert (other.pair, other.places, other.size) == ((1, 2), {(1, 2), (3, 4)}, 2.5)
    assert isinstance(other.size, np.float32)
    assert shared.tolist() == [0.0, 1.0, 2.0]


def test_the_last_observation_survives_an_environment_that_overwrites_it() -> None:
    env = ResumableEnv(SameArray())
    env.reset(0)
    step = to_the_end(env)[-1]
    assert not np.array_equal(step.final_obs, step.obs)


HIDDEN_CHANCE = {
    "GlobalChance": "numpy's global generator",
    "TorchChance": "torch's global generator",
    "ModuleChance": "variable of its module 'MODULE_CHANCE'",
    "ClassCounter": "class attribute 'count'",
    "CountIterator": "attribute 'numbers'",
    "Hidden": "attribute 'middle'",
    "SpaceChance": "the generator of its action_space",
    "RareChance": "Python's global generator",
}


@pytest.mark.parametrize("num_replayed", [0, 5])
@pytest.mark.parametrize(("name", "words"), HIDDEN_CHANCE.items())
def test_rewards_from_what_no_checkpoint_holds_are_called_approximate(
    name: str, words: str, num_replayed: int
) -> None:
    make = getattr(faulty_envs, name)
    env = ResumableEnv(make())
    env.reset(0)
    for _ in range(40):
        to_the_end(env)
    for _ in range(num_replayed):
        assert env.step(0).final_obs is None
    _, inexact_reasons = ResumableEnv(make()).restore(env.state())
    assert any(words in reason for reason in inexact_reasons), inexact_reasons


def test_other_rewards_on_the_way_are_seen() -> None:
    env = ResumableEnv(WallClockReward())
    env.reset(0)
    for _ in range(3):
        env.step(0)
    _, inexact_reasons = ResumableEnv(WallClockReward()).restore(env.state())
    assert inexact_reasons == ["replaying its actions led to other rewards"]


@pytest.mark.parametrize("make", [Walk, OwnState, lambda: RecordEpisodeStatistics(Walk())])
def test_the_episode_in_progress_keeps_its_return_and_length(make: Callable[[], gym.Env]) -> None:
    env = ResumableEnv(make())
    env.reset(0)
    rewards = [env.step(0).reward for _ in range(3)]
    restored = ResumableEnv(make())
    assert restored.restore(env.state())[1] == []
    steps = to_the_end(restored)
    rewards += [step.reward for step in steps]
    total = functools.reduce(operator.add, rewards)  # `sum` rounds otherwise from Python 3.12 on
    assert steps[-1].episode == (total, len(rewards))


def test_an_environment_that_writes_into_its_action_is_exact() -> None:
    assert check_resume(DoublesAction, steps=100, seed=0).is_exact
    rows, _ = collect(make_vector_env(f"{FAULTY}:DoublesAction"), 50)
    assert 0.8 < np.abs(rows["actions"]).max() <= 1.0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ConstructorCounter", "class attribute 'made'"),
        ("ConstructorChance", "variable of its module 'CONSTRUCTOR_CHANCE'"),
        ("CloseCounter", "class attribute 'closed'"),
        ("ClassCounter", "class attribute 'count'"),
    ],
)
def test_a_run_whose_environments_change_their_class_is_approximate(
    name: str, words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = small_config("ppo", tmp_path, env_id=f"{FAULTY}:{name}", total_timesteps=64)
    run_dir = run_training(config).run_dir
    capfd.readouterr()
    resume_training(run_dir, total_timesteps=80)
    said = capfd.readouterr().err
    assert "exactness: approximate" in said
    assert said.count(f"it changes the {words}, which is not saved") == 1
    assert load_checkpoint(run_dir).metadata["exactness"] == "approximate"


@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.parametrize(
    ("name", "exactness"), [("Curriculum", "exact"), ("GlobalChance", "approximate")]
)
def test_a_resumed_run_says_whether_it_is_exact(
    name: str, exactness: str, backend: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = small_config(
        "ppo",
        tmp_path,
        env_id=f"{FAULTY}:{name}",
        total_timesteps=45,
        num_envs=2,
        env_kwargs={"backend": backend},
    )
    first = run_training(config, run_suffix="a")
    assert load_checkpoint(first.checkpoint_path).metadata["exactness"] == "exact"
    second = resume_training(first.run_dir, total_timesteps=100)
    metadata = load_checkpoint(second.checkpoint_path).metadata
    assert metadata["exactness"] == exactness
    assert any("global generator" in reason for reason in metadata["inexact_reasons"]) == (
        exactness == "approximate"
    )
    assert ("exactness: approximate" in capfd.readouterr().err) == (exactness == "approximate")


def test_hostile_emulator_bytes_cannot_be_loaded_from_a_state() -> None:
    """The emulator's own snapshots are never read from a state: one with crafted bytes can end the process."""
    make_atari().close()
    code = (
        "import gymnasium as gym, ale_py, numpy as np; gym.register_envs(ale_py);"
        "from rl_training.envs.single.resumable import ResumableEnv; env = ResumableEnv(gym.make('ALE/Pong-v5'));"
        "env.reset(0); env.step(0); state = env.state(); assert state['custom_state'] is None;"
        "state['custom_state'] = np.zeros(14438, np.uint8)\n"
        "try:\n    env.restore(state)\nexcept AttributeError:\n    print('refused')"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip().endswith("refused")
