"""Types of the algorithm classes: the stub is that of the config classes, and a type checker uses it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import rl_training
from rl_training.api.stubs import STUB, make_stub

PACKAGE = Path(rl_training.__file__).parent
RIGHT = """
from rl_training import PPO, TrainConfig
from rl_training.algorithms.config import Schedule
from rl_training.algorithms.ppo import PPOConfig
from rl_training.api import SAC
from rl_training.envs import make_env

agent: PPO = PPO("CartPole-v1", seed=1, total_timesteps=50_000, learning_rate=1e-3, hidden_sizes=[64, 64])
PPO(TrainConfig(algo="ppo", env_id="CartPole-v1"))
PPO("CartPole-v1", algo_kwargs=PPOConfig(gamma=0.9), learning_rate=Schedule(kind="linear", start=1e-3), init_from=agent)
SAC("Pendulum-v1", preset=False, progress=False, output_dir="runs", alpha="auto", replay={"kind": "prioritized"})
PPO(make_env, env_id=None)
PPO(lambda: make_env("CartPole-v1"), env_kwargs={"size": 3})
PPO(object, eval_env="CartPole-v1")
loaded: PPO = PPO.load("runs/a", env=make_env)
steps: float = loaded.learn(total_timesteps=9).metrics["global_step"]
"""
SETTINGS = """
[mypy]
strict = true
follow_imports = skip

[mypy-rl_training.*,pydantic.*]
follow_imports = silent
"""
"""Without the other libraries, whose types the classes do not need."""
WRONG = {
    'PPO("CartPole-v1", env_idd=1)': 'Unexpected keyword argument "env_idd" for "PPO"; did you mean "env_id"?',
    'PPO("CartPole-v1", learning_rat=1)': 'Unexpected keyword argument "learning_rat" for "PPO"; did you mean',
    'PPO("CartPole-v1", buffer_capacity=1)': 'Unexpected keyword argument "buffer_capacity" for "PPO"',
    'PPO("CartPole-v1", seed="x")': 'Argument "seed" to "PPO" has incompatible type "str"',
    'PPO("CartPole-v1", activation="rely")': 'Argument "activation" to "PPO" has incompatible type',
    "from rl_training import PPPO": 'Module "rl_training" has no attribute "PPPO"',
}


def test_the_stub_is_that_of_the_config_classes() -> None:
    assert STUB.read_text() == make_stub(), "run `python -m rl_training.api.stubs`"
    assert (PACKAGE / "py.typed").is_file()


def test_a_type_checker_sees_wrong_names(tmp_path: Path) -> None:
    lines = RIGHT.splitlines()
    script = tmp_path / "script.py"
    script.write_text("\n".join([*lines, *WRONG]) + "\n")
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    command = [sys.executable, "-m", "mypy", f"--config-file={tmp_path / 'mypy.ini'}", str(script)]
    environment = {"MYPYPATH": str(PACKAGE.parent), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [*command, f"--cache-dir={tmp_path}"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    found = dict(re.findall(r"script\.py:(\d+): error: (.*)", done.stdout))
    expected = {str(len(lines) + 1 + index): text for index, text in enumerate(WRONG.values())}
    assert found.keys() == expected.keys(), done.stdout + done.stderr
    assert all(text in found[line] for line, text in expected.items()), done.stdout
