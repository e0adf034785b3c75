"""The promise of safety: a checkpoint runs no code, opens no file and sends no data that its user has not allowed."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_tools import forge_manifest
from conftest import small_config

from rl_training import PPO
from rl_training.cli import main
from rl_training.envs.factory import load_code
from rl_training.errors import RLTrainingError
from rl_training.experiment.checkpointing import resolve_checkpoint
from rl_training.plugins import gate, user_code
from rl_training.plugins.gate import Kind, Need, flags_for
from rl_training.runtime.run import run_training
from rl_training.runtime.workflows import (
    evaluate_checkpoint,
    load_algorithm,
    predict_checkpoint,
    record_checkpoint,
    resume_training,
)

CODE = "checkpoints never run code"
FILE = "import pathlib\npathlib.Path('harm').mkdir()\n"
WRAPPERS = "gymnasium.wrappers"


def wrapped(item: Any) -> dict[str, Any]:
    return {"env_kwargs": {"wrappers": {"list": [item]}}}


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "file": ({"env_id": "evil.py:Env"}, CODE),
    "absolute file": ({"env_id": "{here}/evil.py:Env"}, CODE),
    "module": ({"env_id": "evil_module:Env"}, CODE),
    "module of a package": ({"env_id": "evil_package.evil:Env"}, CODE),
    "function of the library": ({"env_id": "os:unlink", "env_kwargs": {"path": "victim"}}, CODE),
    "function of another package": (
        {"env_id": "shutil:rmtree", "env_kwargs": {"path": "victim"}},
        CODE,
    ),
    "our own function": ({"env_id": "rl_training.envs:make_env"}, CODE),
    "wrapper in a file": (
        wrapped("evil.py:Wrapper"),
        "wrapper 'evil.py:Wrapper' would import .*" + CODE,
    ),
    "wrapper in a module": (wrapped({"evil_module:Wrapper": {"x": 1}}), CODE),
    "function as wrapper": (wrapped("builtins:exec"), CODE),
    "class as wrapper": (wrapped("subprocess:Popen"), "has no wrapper 'Popen'"),
    "wrapper that writes": (wrapped({f"{WRAPPERS}:RecordVideo": {"video_folder": "harm"}}), CODE),
    "network in a file": (
        {"network": "evil.py:Net"},
        "network 'evil.py:Net' would import .*" + CODE,
    ),
    "path of the environment": (
        {"env_kwargs": {"file": "/etc/passwd"}},
        "--allow-path /etc/passwd",
    ),
    "path in a list": (
        {"env_kwargs": {"files": {"all": ["/etc/passwd"]}}},
        "--allow-path /etc/passwd",
    ),
    "path of a wrapper": (
        wrapped({f"{WRAPPERS}:TimeLimit": {"x": "~/a"}}),
        "wrappers.list.0.x .*--allow-path '~/a'",
    ),
    "server": (
        {"loggers": [{"mlflow": {"tracking_uri": "http://there"}}]},
        "does not choose where data is sent",
    ),
}
VERBS: dict[str, Callable[[Path], Any]] = {
    "resume": lambda run: resume_training(run, total_timesteps=256, output_dir=run.parent / "fork"),
    "evaluate": evaluate_checkpoint,
    "record": lambda run: record_checkpoint(run, 10),
    "api": lambda run: PPO.load(run).evaluate(),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_training(
        small_config("ppo", tmp_path_factory.mktemp("runs"), total_timesteps=32)
    ).run_dir


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of a stranger, in a folder with code that leaves a trace; nothing is allowed."""
    (tmp_path / "evil_package").mkdir()
    for name in ("evil.py", "evil_module.py", "evil_package/__init__.py", "evil_package/evil.py"):
        (tmp_path / name).write_text(FILE)
    (tmp_path / "victim").write_text("precious")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for module, name in ((gate, "_paths"), (gate, "_servers"), (user_code, "_allowed_functions")):
        monkeypatch.setattr(module, name, set())
    for name in (
        "evil_module",
        "evil_package",
        "evil_package.evil",
    ):  # which another test may have allowed
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(user_code, "_loaded", {})
    return Path(shutil.copytree(trained, tmp_path / "run"))


def forge(run: Path, changes: dict[str, Any]) -> None:
    def change(manifest: dict[str, Any]) -> None:
        config = manifest["config"]
        given = {key: value for key, value in changes.items() if key != "network"}
        config.update(
            {
                key: value.format(here=run.parent) if key == "env_id" else value
                for key, value in given.items()
            }
        )
        config["algo_kwargs"] |= {"network": changes["network"]} if "network" in changes else {}

    forge_manifest(resolve_checkpoint(run), change)


@pytest.mark.parametrize("case", HOSTILE)
def test_nothing_that_a_checkpoint_names_is_used_without_permission(
    run: Path, case: str, monkeypatch: Any
) -> None:
    changes, message = HOSTILE[case]
    forge(run, changes)
    for name, use in VERBS.items():
        if "loggers" in changes and name != "resume":
            continue  # nothing is sent
        with pytest.raises(RLTrainingError, match=message):
            use(run)
    assert main(["resume", str(run), "--total-timesteps", "64"]) == 2
    assert sorted(
        path.name for path in run.parent.iterdir() if path.name in ("harm", "victim", "fork")
    ) == ["victim"]


def test_acting_needs_no_environment_and_a_network_of_its_own_needs_its_code(run: Path) -> None:
    forge(run, {"env_id": "evil.py:Env"})
    predict_checkpoint(run, np.zeros(4))
    forge(run, {"network": "evil.py:Net"})
    for use in (load_algorithm, PPO.load, lambda path: predict_checkpoint(path, np.zeros(4))):
        with pytest.raises(RLTrainingError, match=CODE):
            use(run)
    assert not Path("harm").exists()


@pytest.mark.parametrize("source", ["evil.py", "evil_module", "evil_package.evil"])
def test_code_runs_once_the_user_allows_it(run: Path, source: str) -> None:
    forge(run, {"env_id": f"{source}:Env"})
    with pytest.raises(RLTrainingError):
        load_code(source) and evaluate_checkpoint(run)
    assert Path("harm").exists()


def test_the_metadata_names_the_plugin_in_the_message_and_allows_nothing(run: Path) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["config"]["env_id"] = "evil.py:Env"
        manifest["metadata"]["plugins"] = ["/far/away/evil.py"]

    forge_manifest(resolve_checkpoint(run), change)
    Path("evil.py").unlink()  # it was moved
    with pytest.raises(
        RLTrainingError, match=r"would import '/far/away/evil.py'.*--plugin /far/away/evil.py"
    ):
        evaluate_checkpoint(run)


def test_the_flags_of_another_command_leave_out_what_needs_no_permission(run: Path) -> None:
    names = (
        "evil.py:Env",
        "CartPole-v1",
        "python:Mine",
        f"{WRAPPERS}:TimeLimit",
        "rl_training.envs.toys:HiddenTarget",
    )
    needs = [Need(Kind.CODE, "", name) for name in (*names, names[0])] + [
        Need(Kind.PATH, "", "a.txt")
    ]
    expected = ["--plugin", "mine.py", "--plugin", "evil.py", "--allow-path", "a.txt"]
    assert flags_for(needs, ["mine.py"]) == expected
