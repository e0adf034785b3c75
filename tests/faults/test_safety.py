"""No line of the package can run what a file holds: every source file is read for the ways in which that happens."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import rl_training
from rl_training.errors import ConfigError
from rl_training.experiment import yaml_text

SOURCES = sorted(Path(rl_training.__file__).parent.rglob("*.py"))
RUNS_CODE = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}
SAFE_YAML_LOADERS = {"_Loader": yaml_text._Loader, "_TupleLoader": yaml_text._TupleLoader}
YAML_LOADS = {
    "yaml.load",
    "yaml.load_all",
    "yaml.unsafe_load",
    "yaml.full_load",
    "yaml.unsafe_load_all",
}
READS_FILES = {"experiment", "cli.py"}
"""Where input is validated, and so must be with errors that `python -O` keeps."""


def find_dangers(source: str, *, reads_files: bool = False) -> Iterator[str]:
    """What in a source text could run a stranger's code."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (
                f"import {alias.name}"
                for alias in node.names
                if alias.name.split(".")[0] in RUNS_CODE
            )
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in RUNS_CODE:
            yield f"from {node.module} import"
        elif isinstance(node, ast.Call):
            yield from _dangers_of_call(node)
        elif isinstance(node, ast.Assert) and reads_files:
            yield f"assert {ast.unparse(node.test)}"


def _dangers_of_call(node: ast.Call) -> Iterator[str]:
    name = ast.unparse(node.func)
    settings = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
    if name in BUILTINS or name.removeprefix("builtins.") in BUILTINS or name in SHELLS:
        yield f"{name}()"
    if settings.get("shell", "False") != "False":
        yield f"{name}(shell=...)"
    if name in YAML_LOADS and not (
        name == "yaml.load" and settings.get("Loader") in SAFE_YAML_LOADERS
    ):
        yield f"{name}() without a safe loader"
    if name == "torch.load" and settings.get("weights_only") != "True":
        yield "torch.load() without weights_only=True"
    if name in ("np.load", "numpy.load") and settings.get("allow_pickle") != "False":
        yield f"{name}() without allow_pickle=False"
    if settings.get("allow_pickle", "False") != "False":
        yield f"{name}(allow_pickle=...)"
    if name in ("importlib.import_module", "importlib.util.spec_from_file_location"):
        yield f"{name}()"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(SOURCES[0].parent)))
def test_no_source_file_can_run_what_it_reads(path: Path) -> None:
    place = path.relative_to(Path(rl_training.__file__).parent)
    found = set(
        find_dangers(path.read_text(encoding="utf-8"), reads_files=place.parts[0] in READS_FILES)
    )
    assert found <= ALLOWED.get(str(place), set())


ALLOWED = {
    # What the user names on the command line or registers, never what a file names (see test_hostile_files.py).
    "plugins/user_code.py": {
        "importlib.import_module()",
        "importlib.util.spec_from_file_location()",
    },
    "experiment/registry.py": {"importlib.import_module()"},
    # What our own tables name.
    "plugins/extras.py": {"importlib.import_module()"},
    "exports.py": {"importlib.import_module()"},
    "providers.py": {"importlib.import_module()"},
    # Environments that this package ships; functions of `studies` that the process which starts a worker names.
    "plugins/gate.py": {"importlib.import_module()"},
    "studies/launching/worker.py": {"importlib.import_module()"},
}


def test_the_loader_of_yaml_makes_plain_values_only() -> None:
    for loader in SAFE_YAML_LOADERS.values():
        assert issubclass(loader, yaml.SafeLoader)
        assert not any(
            "python" in (tag or "")
            for tag in (*loader.yaml_constructors, *loader.yaml_multi_constructors)
        )


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['true']",
        "!!python/name:os.system",
        "!!python/object/new:type []",
    ],
)
def test_yaml_that_names_code_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not valid YAML"):
        yaml_text.parse_yaml(text, "this")


@pytest.mark.parametrize(
    "source",
    [
        *(f"import {name}" for name in sorted(RUNS_CODE)),
        "import pickle as harmless",
        "def f():\n    from dill import loads",
        "import joblib.numpy_pickle",
        "eval(text)",
        "exec(text)",
        "compile(text, '', 'exec')",
        "builtins.eval(text)",
        "__import__(name)",
        "yaml.load(text)",
        "yaml.load(text, Loader=yaml.Loader)",
        "yaml.load(text, yaml.UnsafeLoader)",
        "yaml.full_load(text)",
        "yaml.unsafe_load(text)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=flag)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "numpy.load(path, None)",
        "load(path, allow_pickle=True)",
        "os.system('ls')",
        "os.popen('ls')",
        "subprocess.run('ls', shell=True)",
        "subprocess.run('ls', shell=flag)",
        "importlib.import_module(name)",
    ],
)
def test_each_danger_is_found_where_it_is_planted(source: str) -> None:
    assert list(find_dangers(f"def harmless():\n    return 1\n\n{source}\n"))


def test_an_assert_is_found_where_files_are_read() -> None:
    assert list(find_dangers("assert size < 5", reads_files=True))


@pytest.mark.parametrize(
    "source",
    [
        "yaml.load(text, Loader=_Loader)",
        "torch.load(path, weights_only=True)",
        "np.load(path, allow_pickle=False)",
        "re.compile(pattern)",
        "torch.compile(step)",
        "subprocess.run(['git'], check=False)",
        "model.eval()",
    ],
)
def test_what_is_harmless_is_not_found(source: str) -> None:
    assert not list(find_dangers(source))
