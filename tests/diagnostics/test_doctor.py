"""Checks of environments: each planted fault is found, and healthy environments pass."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from conftest import HELPERS, TEST_ENVS

from rl_training.cli import main
from rl_training.data.findings import Level
from rl_training.diagnostics.env_doctor import EnvReport, check_environment
from rl_training.diagnostics.resume_check import choose_points
from rl_training.experiment.registry import list_algorithm_specs

FAULTY = f"{HELPERS / 'faulty_envs.py'}"
TAXI = "Taxi-v4" if "Taxi-v4" in gym.registry else "Taxi-v3"


def checked(name: str, **env_kwargs: Any) -> EnvReport:
    return check_environment(f"{FAULTY}:{name}", env_kwargs, steps=200)


def finding(report: EnvReport, check: str) -> tuple[Level, str]:
    (found,) = [row for row in report.findings if row.name == check]
    assert found.level is Level.OK or found.remedy
    return found.level, found.found


@pytest.mark.parametrize(
    "env_id",
    [
        *("CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "FrozenLake-v1", TAXI),
        *("HalfCheetah-v5", "Hopper-v5", "Ant-v5"),
    ],
)
def test_a_known_environment_is_free_of_errors_and_resumes_exactly(env_id: str) -> None:
    if env_id.endswith("-v5"):
        pytest.importorskip("mujoco")
    report = check_environment(env_id, steps=200)
    assert not report.has_errors
    assert report.exactness == "exact", report.findings[-1]


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("Walk", "replaying"),
        ("OwnGenerator", "replaying"),
        ("Curriculum", "replaying"),
        ("SameArray", "replaying"),
        ("WrappedWalk", "replaying"),
        ("OwnState", "its own get_state"),
        ("WrappedOwnState", "its own get_state"),
    ],
)
def test_an_environment_that_can_be_restored_is_called_exact(name: str, method: str) -> None:
    report = checked(name)
    assert not report.has_errors
    assert report.exactness == "exact", report.findings[-1]
    level, text = finding(report, "resume")
    assert level is Level.OK
    assert method in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("GlobalChance", "draws from numpy's global generator"),
        ("WallClock", "another observation"),
        ("Hidden", "the reward differs 1 step after a restore at step"),
        ("Forgetful", "get_state after set_state returns something else"),
        ("TorchChance", "draws from torch's global generator"),
        ("ModuleChance", "changes the variable of its module 'MODULE_CHANCE'"),
        ("ModuleTable", "changes the variable of its module 'MODULE_TABLE'"),
        ("ModuleTable", "in a new process, restored at step"),
        ("ClassCounter", "changes the class attribute 'count'"),
        ("ConstructorCounter", "changes the class attribute 'made'"),
        ("CloseCounter", "changes the class attribute 'closed'"),
        ("CountIterator", "its attribute 'numbers' differs"),
        ("SpaceChance", "draws from the generator of its action_space"),
        ("RareChance", "draws from Python's global generator"),
    ],
)
def test_an_environment_that_cannot_be_restored_is_called_approximate_and_why(
    name: str, words: str
) -> None:
    report = checked(name)
    level, text = finding(report, "resume")
    assert (report.exactness, level) == ("approximate", Level.WARNING)
    assert words in text


def test_a_state_that_cannot_be_saved_is_an_error() -> None:
    level, text = finding(checked("Unsavable"), "resume")
    assert level is Level.ERROR
    assert "type object" in text


@pytest.mark.parametrize(
    ("fault", "check", "words"),
    [
        ("nan", "observations", "step 3 returned nan at [1]"),
        ("shape", "observations", "shape (3,), its space (2,)"),
        ("words", "observations", "'hello'"),
        ("reward words", "reward", "'good'"),
        ("reward list", "reward", "[1.0]"),
        ("reward nan", "reward", "nan in step 3"),
        ("raises", "runs", "ZeroDivisionError in step 3: the simulator exploded"),
        ("exits", "runs", "SystemExit"),
        ("four", "runs", "a tuple of 4"),
        ("reset", "runs", "instead of (observation, info)"),
        ("empty bounds", "actions", "not below its upper bound"),
        ("dict space", "observations", "is not in Dict("),
    ],
)
def test_a_fault_that_stops_training_is_an_error(fault: str, check: str, words: str) -> None:
    errors = [row for row in checked("Twisted", fault=fault).findings if row.level is Level.ERROR]
    assert any(row.name == check and words in row.found for row in errors)


@pytest.mark.parametrize(
    ("fault", "check", "words"),
    [
        ("outside", "observations", "step 3 returned 101 at [1], outside [-100, 100]"),
        ("dtype", "observations", "float32, its space float64"),
        ("ending number", "endings", "terminated is 0.0"),
        ("no bounds", "actions", "no finite bounds"),
        ("wide bounds", "actions", "-1e+06 to 1e+06"),
        ("endless", "episodes", "no time limit is known"),
        ("seedless", "seeds", "the same seed and actions gave different results at step 0"),
        ("one seed", "other seeds", "changes nothing"),
        ("large", "scale", "observations reach"),
    ],
)
def test_a_weakness_is_a_warning(fault: str, check: str, words: str) -> None:
    level, text = finding(checked("Twisted", fault=fault), check)
    assert level is Level.WARNING
    assert words in text


def test_an_environment_that_truncates_itself_has_a_time_limit() -> None:
    level, text = finding(checked("Twisted", fault="truncates"), "episodes")
    assert level is Level.OK
    assert text.endswith("; it truncates them itself, the longest after 5 steps")


def test_scaling_is_advised_only_to_algorithms_that_can_do_it() -> None:
    (row,) = [row for row in checked("Twisted", fault="large").findings if row.name == "scale"]
    names = row.remedy.partition("normalize_obs=true (")[2].partition(")")[0].split(", ")
    assert "ppo" in names
    for spec in list_algorithm_specs():
        assert (spec.name in names) <= ("normalize_obs" in spec.config_class().model_fields), (
            spec.name
        )
    wrapper = row.remedy.partition("gymnasium.wrappers.")[2].split()[0]
    assert hasattr(gym.wrappers, wrapper)


def test_state_that_two_environments_share_is_found() -> None:
    level, text = finding(checked("SharedPlace"), "instances")
    assert level is Level.WARNING
    assert "another environment of its class is stepped" in text
    assert not [row for row in checked("Walk").findings if row.name == "instances"]


def test_a_global_generator_is_named_where_seeding_is_checked() -> None:
    assert "global generator of numpy" in finding(checked("GlobalChance"), "seeds")[1]


def test_an_environment_that_cannot_be_made_is_reported() -> None:
    for report, words in [
        (checked("NeverMade"), "no licence"),
        (check_environment("CartPol-v1"), "did you mean"),
        (check_environment("CartPole-v1", {"gravitty": 1}), "gravitty"),
    ]:
        (only,) = report.findings
        assert (only.name, only.level) == ("make", Level.ERROR)
        assert words in only.found


def test_the_algorithms_that_fit_are_named() -> None:
    fits = {
        env_id: finding(check_environment(env_id, steps=20), "algorithms")[1]
        for env_id in TEST_ENVS
    }
    assert "ppo, sac, td3" in fits["Pendulum-v1"]
    assert "dqn" not in fits["Pendulum-v1"]
    assert "dqn" in fits["CartPole-v1"]
    assert "sac" in fits["CartPole-v1"]
    assert "td3" not in fits["CartPole-v1"]


def test_points_lie_at_the_start_around_episode_ends_and_between() -> None:
    points = choose_points([10, 30, 50, 90], 100)
    assert {0, 10, 11, 30, 31, 50, 51, 90, 91} <= set(points)
    assert len(points) >= 11
    assert choose_points([], 100)[0] == 0
    assert max(choose_points([99], 100)) == 99


def test_the_command_exits_with_1_only_for_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--env", "CartPole-v1", "--steps", "60", "max_episode_steps=7"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "exactness=exact" in lines
    assert any(line.startswith("ok       episodes") and "at most 7 steps" in line for line in lines)
    assert main(["doctor", "--env", f"{FAULTY}:Twisted", "fault=raises", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["exactness"] == "unknown"
    assert {row["level"] for row in report["findings"]} == {"ok", "error"}


def test_the_command_takes_a_plugin_and_refuses_settings_of_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "gravity=1"]) == 2
    assert "--env" in capsys.readouterr().err
    assert main(["doctor", "--plugin", "no_such_module_xyz"]) == 2


def test_without_an_environment_the_machine_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["gymnasium"] == gym.__version__
    assert {"memory", "compiler", "device", "processors"} <= facts.keys()


def test_the_help_stays_light() -> None:
    code = "import sys; from rl_training.cli import main; main(['doctor', '--help']); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


class StrictMask(gym.Env):
    """Raises on an invalid action."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.MultiDiscrete([4, 3], start=[1, 0])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length = 0
        return self._answer()

    def step(self, action):
        assert self.mask[[action[0] - 1, 4 + action[1]]].all(), action
        self.length += 1
        obs, info = self._answer()
        return obs, 1.0, self.length == 20, False, info

    def _answer(self):
        self.mask = np.zeros(7, bool)
        self.mask[[self.np_random.integers(4), 4 + self.np_random.integers(3)]] = True
        return np.zeros(2, np.float32), {"action_mask": self.mask}


def test_the_random_actions_obey_action_masks() -> None:
    report = check_environment(f"{__file__}:StrictMask", steps=100)
    assert report.exactness == "exact"
    assert not [finding for finding in report.findings if finding.level is Level.ERROR]
    found = {finding.name: finding.found for finding in report.findings}
    assert found["masks"] == "action masks from info['action_mask']; random actions obey them"
    assert found["algorithms"] == "supported by a2c, bc, ppo"
    report = check_environment(f"{__file__}:StrictMask", {"action_masks": False})
    (runs,) = [finding for finding in report.findings if finding.name == "runs"]
    assert runs.level is Level.ERROR
