"""Who imports whom: rooms, folders within rooms and modules are layers, strings that name a module included."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import TESTS

SOURCE = TESTS.parent / "src" / "rl_training"
PACKAGE = "rl_training"
LEAVES = {
    "errors",
    "exports",
    "providers",
    "processors",
    "validation",
    "files",
    "memory",
    "terminal",
    "plugins",
}
"""What every room may import: modules and rooms that know nothing of reinforcement learning."""
MAY_IMPORT = {
    "terminal": set(),
    "plugins": set(),
    "spaces": set(),
    "envs": {"spaces"},
    "replay": {"spaces"},
    "data": {"spaces", "replay"},
    "models": {"spaces"},
    "algorithms": {"spaces", "replay", "models"},
    "experiment": {"spaces", "envs", "replay", "algorithms"},
    "evaluation": {"spaces", "envs", "replay", "data", "models", "algorithms"},
    "runtime": {
        "spaces",
        "envs",
        "replay",
        "data",
        "models",
        "algorithms",
        "experiment",
        "evaluation",
    },
    "diagnostics": {
        "spaces",
        "envs",
        "replay",
        "data",
        "models",
        "algorithms",
        "experiment",
        "evaluation",
        "runtime",
    },
}
"""The rooms from the bottom up, and which rooms each may import."""
ABOVE = {
    "studies": (),
    "views": ("studies", "diagnostics"),
    "bundle": ("studies",),
    "importers": (),
    "api": (),
    "testing": (),
    "cli": ("studies", "diagnostics", "views", "bundle", "importers", "api"),
}
for _room, _others in ABOVE.items():
    MAY_IMPORT[_room] = {*MAY_IMPORT["runtime"], "runtime", *_others}
PROMISED_BELOW = {"experiment/default_manager.py": "runtime"}
"""Files that stand on a room above their own, because the public contract names their place."""
WIRED = {"rl_training.runtime.recording", "rl_training.runtime.trainer_modules"}
"""What the package hands down by name: recording for `load_transition_dataset("random")`, training for the registry."""
BOTH_WAYS = {
    ("runtime", "runtime/loops"): "a run chooses its loop; the loops stand on the session",
    ("runtime", "runtime/resuming"): "a run restores by its plan; a plan restores a session",
}
"""Folders that import their room and are imported by it: the room's files are two layers under one name."""


def modules() -> dict[str, Path]:
    paths = SOURCE.rglob("*.py")
    names = {
        path: ".".join((PACKAGE, *path.relative_to(SOURCE).with_suffix("").parts)) for path in paths
    }
    return {name.removesuffix(".__init__"): path for path, name in names.items()}


MODULES = modules()


def imported_modules(path: Path, *, with_types: bool = True) -> Iterator[str]:
    """The modules of the package that a file names: wherever an import stands, and in strings."""
    tree = ast.parse(path.read_text())
    blocks = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    ]
    types = {id(inner) for block in blocks for inner in ast.walk(block)}
    for node in ast.walk(tree):
        if id(node) in types and not with_types:
            continue
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [name for name in [node.value.partition(":")[0]] if name in MODULES]
        for name in names:
            while name.startswith(f"{PACKAGE}.") and name not in MODULES:
                name = name.rpartition(".")[0]
            if name.startswith(f"{PACKAGE}."):
                yield name


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of nodes each of which reaches the others."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen, todo = set(), list(graph.get(start, ()))
        while todo:
            node = todo.pop()
            if node not in seen:
                seen.add(node)
                todo += graph.get(node, ())
        reached[start] = seen
    groups = {
        tuple(sorted({node, *(o for o in reached[node] if node in reached.get(o, ()))}))
        for node in graph
    }
    return sorted([*group] for group in groups if len(group) > 1)


@pytest.mark.parametrize("room", list(MAY_IMPORT))
def test_each_room_imports_only_what_lies_below_it(room: str) -> None:
    for path in (SOURCE / room).rglob("*.py"):
        above = PROMISED_BELOW.get(path.relative_to(SOURCE).as_posix(), room)
        rooms = {name.split(".")[1] for name in imported_modules(path)}
        assert rooms <= MAY_IMPORT[room] | LEAVES | {room, above}, path


def test_the_package_hands_down_two_functions_by_name() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    strings = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert {text.partition(":")[0] for text in strings if text.startswith(f"{PACKAGE}.")} == WIRED


def test_folders_and_modules_import_in_no_circle() -> None:
    folders: dict[str, set[str]] = defaultdict(set)
    files: dict[str, set[str]] = defaultdict(set)
    for module, path in MODULES.items():
        folder = path.parent.relative_to(SOURCE).as_posix()
        if path == SOURCE / "__init__.py" or path.relative_to(SOURCE).as_posix() in PROMISED_BELOW:
            continue
        for name in imported_modules(path, with_types=False):
            other = MODULES[name].parent.relative_to(SOURCE).as_posix()
            if name != module and "__init__.py" not in (path.name, MODULES[name].name):
                files[module].add(name)
            if "." not in (folder, other) and folder != other:
                folders[folder].add(other)
    both_ways = {
        (a, b)
        for a in folders
        for b in folders[a]
        if b.startswith(f"{a}/") and a in folders.get(b, ())
    }
    nested = {
        a: {b for b in folders[a] if not b.startswith(f"{a}/") and not a.startswith(f"{b}/")}
        for a in folders
    }
    assert circles(files) == []
    assert circles(nested) == []
    assert both_ways <= set(BOTH_WAYS)


def test_every_room_has_a_rule_and_at_most_twenty_files() -> None:
    folders = {path.parent for path in SOURCE.rglob("*.py")} - {SOURCE}
    assert {folder.relative_to(SOURCE).parts[0] for folder in folders} == set(MAY_IMPORT)
    for folder in folders:
        files = sorted(path.stem for path in folder.glob("*.py"))
        assert len(files) <= (30 if folder.name == "algorithms" else 20), (folder, files)
        for name in files:
            assert len((folder / f"{name}.py").read_text().splitlines()) <= 450, (folder, name)


def test_a_bundle_is_loaded_without_the_rest_of_the_package() -> None:
    """Of the other rooms it needs what spaces are made of, which imports NumPy only."""
    for path in (SOURCE / "bundle").glob("*.py"):
        names = set(imported_modules(path))
        assert {name.split(".")[1] for name in names} <= {"bundle", "errors", "spaces"}, path
        assert not any(name.startswith("rl_training.bundle.exporting") for name in names), path
        spaces = {name for name in names if name.startswith("rl_training.spaces")}
        assert spaces <= {
            f"rl_training.spaces.{name}" for name in ("given", "observations", "actions")
        }, path
