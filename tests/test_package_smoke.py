"""The package as a whole: what importing it costs, and that its presets and its README are valid."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from conftest import TESTS

import rl_training
from rl_training.envs.factory import make_env
from rl_training.experiment.config import TrainConfig, load_config_file
from rl_training.experiment.presets import find_preset, list_presets
from rl_training.experiment.registry import get_algorithm_spec, list_algorithm_specs

SOURCE = TESTS.parent / "src" / "rl_training"
README = (TESTS.parent / "README.md").read_text()
PYPROJECT = (TESTS.parent / "pyproject.toml").read_text()
NUMPY_ONLY = {f"rl_training.spaces.{name}" for name in ("given", "observations", "actions")}


def test_spaces_need_no_torch_and_those_of_bundles_numpy_only() -> None:
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\nprint(*sys.modules)"
    answer = {}
    for names in (
        NUMPY_ONLY,
        {f"rl_training.spaces.{path.stem}" for path in (SOURCE / "spaces").glob("[a-z]*.py")},
    ):
        command = [sys.executable, "-c", code, *names]
        loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        answer[len(names)] = {"torch", "gymnasium", "pydantic"} & set(loaded)
    assert list(answer.values()) == [set(), {"gymnasium", "pydantic"}]


def test_no_algorithm_is_singled_out_by_name_outside_the_registry() -> None:
    names = {spec.name for spec in list_algorithm_specs()}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                values = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
                assert not values & names, f"{path}:{node.lineno} compares with an algorithm's name"


def test_every_module_imports_and_says_what_it_is_for() -> None:
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        if parts[-1] != "__main__":
            module = importlib.import_module(".".join(parts).removesuffix(".__init__"))
            assert module.__doc__, path


def test_the_version_is_the_projects() -> None:
    assert f'version = "{rl_training.__version__}"\n' in PYPROJECT
    assert metadata.version("rl-training") == rl_training.__version__


def extras_of_the_project() -> set[str]:
    section = PYPROJECT.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    return set(re.findall(r"^(\w+) = \[", section, re.MULTILINE))


def test_the_readme_lists_the_extras_of_the_project() -> None:
    table = README.partition("| extra |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == extras_of_the_project()


def test_every_extra_that_a_message_or_a_page_names_exists() -> None:
    pages = [
        *SOURCE.rglob("*.py"),
        *(TESTS.parent / "docs").glob("*.md"),
        TESTS.parent / "README.md",
    ]
    named = [
        found
        for path in pages
        for found in re.findall(r"rl-training\[([\w,]+)\]", path.read_text())
    ]
    assert named
    assert {extra for found in named for extra in found.split(",")} <= extras_of_the_project()


TOPICS = {
    "dataset_kind": r"`dataset_kind` is `npz`, `pt`, `minari` or `random`",
    "offline extra": r"\| `offline` \| .*Minari",
    "reward wrappers": r"`env_kwargs\.wrappers\.reward`.*`scale`.*`shift`.*`clip`",
    "early stopping": r"`early_stopping`.*`patience`.*`target_value`",
}
"""What the README must explain, and how it is recognized: each in one line."""


@pytest.mark.parametrize("topic", list(TOPICS))
def test_the_readme_explains(topic: str) -> None:
    assert any(re.search(TOPICS[topic], line) for line in README.splitlines())


@pytest.mark.parametrize("path", list_presets(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_preset_is_valid_and_is_found_by_its_pair(path: Path) -> None:
    config = TrainConfig(**load_config_file(path))
    assert config.algo == path.parent.name
    get_algorithm_spec(config.algo).parse_kwargs(config.algo_kwargs)
    if path.stem == "fetchreach":
        pytest.importorskip("gymnasium_robotics")
    make_env(config.env_id, config.env_kwargs).close()
    assert find_preset(config.algo, config.env_id) == path


def test_every_built_in_algorithm_has_a_preset() -> None:
    assert {path.parent.name for path in list_presets()} == {
        spec.name for spec in list_algorithm_specs()
    }
