"""Imports code that the user names: modules, files with the modules beside them, and classes by name."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym

from rl_training.errors import EnvError
from rl_training.plugins.extras import remedy_for
from rl_training.plugins.given import find_given, is_given_id
from rl_training.validation import suggest

Maker = Callable[..., gym.Env[Any, Any]]
NOT_THE_USERS = ("rl_training", "gymnasium", "importlib")
"""Packages whose frames are left out of tracebacks of user code."""
FILE_MODULE = "rl_training_env_"
"""Prefix of the module names of loaded files."""

_loaded: dict[str, None] = {}
"""Modules by name and files by absolute path, in the order in which they were first loaded."""
_folders: set[str] = set()
"""Folders of the loaded files."""
_registered: dict[str, tuple[str, Any]] = {}
"""By environment id: the loaded code that registered it, and the registered specification."""
_allowed_functions: set[tuple[str, str]] = set()
"""Functions, as (source, name), that the user has named: a checkpoint may call only these."""
MAIN = "__main__"
_local_classes: dict[str, type] = {}
"""Classes of this process by name that no import finds, such as those defined inside a function."""


def split_source(source: str) -> tuple[str, str]:
    """Split into the module or file and the name after the last colon (empty if there is none)."""
    if source.endswith(".py") or ":" not in source:
        return source, ""
    head, _, name = source.rpartition(":")
    return head, name


def load_code(source: str) -> ModuleType:
    """Import a module by its name or a file by its path; `source:function` also allows checkpoints to call it."""
    source, name = split_source(source)
    before = dict(gym.registry)
    if source.endswith(".py"):
        path = find_file(source)
        if not path.is_file():
            raise EnvError(f"file '{source}' does not exist (looked from {Path.cwd()})")
        module, source = _load_file(path), str(path)
    else:
        with _translate_import_errors(source):
            module = importlib.import_module(source)
    _loaded[source] = None
    if name:
        if not hasattr(module, name):
            raise EnvError(f"'{source}' has no '{name}'{suggest(name, _environments_of(module))}")
        _allowed_functions.add((source, name))
    for env_id, spec in gym.registry.items():
        if before.get(env_id) is not spec:
            _registered[env_id] = source, spec
    return module


def loaded_code() -> list[str]:
    """The --plugin arguments that load the same code again, for a run's metadata."""
    plugins: list[str] = []
    for source in _loaded:
        if source.partition(".")[0] not in NOT_THE_USERS and _is_available(source):
            functions = sorted(name for where, name in _allowed_functions if where == source)
            plugins += [f"{source}:{name}" for name in functions] or [source]
    return plugins


def code_for(env_id: str) -> str | None:
    """The module or file that a worker process must import before it can make this environment; None if none."""
    source, name = split_source(env_id)
    if name:
        # An absolute path: the file may have been found among the plugins, which the worker process does not know.
        return (
            str(path) if source.endswith(".py") and (path := find_file(source)).is_file() else None
        )
    spec = gym.registry.get(env_id)
    if spec is None:
        return None
    source, known_spec = _registered.get(env_id, ("", None))
    if known_spec is spec:
        return source
    module: str | None = getattr(spec.entry_point, "__module__", None)
    if isinstance(spec.entry_point, str):
        module = spec.entry_point.partition(":")[0]
    if module == MAIN or (module or "").startswith(FILE_MODULE):
        return None
    return module


def fingerprints(names: Iterable[str]) -> dict[str, str]:
    """Checksum of the file, of the user or of a package, that defines each name (environment id or `source:name`)."""
    found = {}
    for name in names:
        source, attribute = split_source(name)
        source = source if attribute else code_for(name) or ""
        if source and not is_given_id(name) and source.partition(".")[0] not in NOT_THE_USERS:
            found[name] = _fingerprint(located(source))
    return {name: checksum for name, checksum in found.items() if checksum}


@functools.cache
def _fingerprint(source: str) -> str:
    """Checksum of the file of a loaded module or file, when this process asked first; empty if there is none."""
    file = source if source.endswith(".py") else getattr(sys.modules.get(source), "__file__", None)
    with contextlib.suppress(OSError):
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] if file else ""
    return ""


def is_allowed(name: str) -> bool:
    """Whether the user has named this function, as `source:function`, so that a checkpoint may call it."""
    source, attribute = split_source(name)
    return (located(source), attribute) in _allowed_functions


def located(source: str) -> str:
    """The name of a module, or the absolute path of a file."""
    return str(find_file(source)) if source.endswith(".py") else source


def find_maker(env_id: str) -> Maker | None:
    """The class or factory function of `source:name`, the maker of a `python:` id, or None for a Gymnasium id."""
    if is_given_id(env_id):
        return find_given(env_id).make
    source, name = split_source(env_id)
    if ":" in env_id and (not source or not name or source.endswith(":")):
        raise EnvError(
            f"'{env_id}' is incomplete: write module:ClassName or path/to/file.py:ClassName"
        )
    if not name:
        return None
    if "/" in source and not source.endswith(".py"):
        raise EnvError(
            f"'{source}' is neither a module nor a file: write package.module or path/to/file.py"
        )
    module = load_code(source)
    candidate: Any = getattr(module, name, None)
    if inspect.isclass(candidate) and issubclass(candidate, gym.Env):
        return candidate
    if callable(candidate) and not inspect.isclass(candidate):
        load_code(f"{source}:{name}")
        maker: Maker = candidate
        return maker
    if not source.endswith(".py") and name in gym.registry:
        return None  # Gymnasium's `module:Id`, whose module registered the id when it was imported
    if inspect.isclass(candidate):
        remedy = ": let the class inherit from gymnasium.Env"
    else:
        remedy = suggest(name, _environments_of(module))
    raise EnvError(f"'{source}' has no environment class '{name}'{remedy}")


def name_of_class(given: type) -> str:
    """`module:Class` or `file.py:Class`; a class that no import finds keeps its name in this process only."""
    module, name = given.__module__, given.__qualname__
    home = sys.modules.get(module)
    file = getattr(home, "__file__", None)
    text = f"{Path(file) if file and module.startswith(FILE_MODULE) else module}:{name}"
    if getattr(home, name, None) is not given:
        _local_classes[text] = given
    return text


def is_of_program(name: str) -> bool:
    """Whether only a running program has this class: one of `__main__`, or inside a function or another class."""
    source, attribute = split_source(name)
    return source == MAIN or "." in attribute


def find_class(name: str, is_wanted: Callable[[Any], bool]) -> Any:
    """The class `source:name`; imports the source. An `EnvError` suggests names that are wanted."""
    if name in _local_classes:
        return _local_classes[name]
    source, attribute = split_source(name)
    if not source or not attribute or source.endswith(":"):
        raise EnvError("write module:ClassName or path/to/file.py:ClassName")
    found = None if "." in attribute else sys.modules[MAIN] if source == MAIN else load_code(source)
    if is_of_program(name) and not hasattr(found, attribute):
        short = attribute.rpartition(".")[2]
        raise EnvError(
            f"only the program that trained with it has this class: define it here under that name, pass it as"
            f" load(path, network={short}), or move it into a file and give that, such as my_networks.py:{short}"
        )
    if not hasattr(found, attribute):
        wanted = [known for known, value in vars(found).items() if is_wanted(value)]
        raise EnvError(f"'{source}' has no '{attribute}'{suggest(attribute, wanted)}")
    return getattr(found, attribute)


def find_file(source: str) -> Path:
    """The absolute path of a file; if it does not exist, of the only loaded file of the same name."""
    path = Path(source).resolve()
    if str(path) in _loaded or path.is_file():
        return path
    same_name = [
        known for known in _loaded if Path(known).name == path.name and _is_available(known)
    ]
    return Path(same_name[0]) if len(same_name) == 1 else path


def add_working_directory(source: str) -> None:
    """Make a module of the working directory importable, as `python -m` does, unless another has its name."""
    top, here = split_source(source)[0].partition(".")[0], Path.cwd()
    is_here = (here / f"{top}.py").is_file() or (here / top).is_dir()
    if source.endswith(".py") or not top.isidentifier() or not is_here:
        return
    importlib.invalidate_caches()
    with contextlib.suppress(ValueError):  # the main module has no spec
        if importlib.util.find_spec(top) is None:
            sys.path.append(str(here))


def frames_of_user(error: BaseException) -> str:
    """The traceback lines of the user's code, after a line break; empty if there are none."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = tuple(str(Path(sys.modules[name].__file__ or "").parent) for name in NOT_THE_USERS)
    lines = traceback.format_list(
        [frame for frame in frames if not frame.filename.startswith((*ours, "<frozen"))]
    )
    return "\nits own traceback:\n" + "".join(lines).rstrip() if lines else ""


def trace_from_user(error: BaseException) -> str:
    """The traceback from the first frame outside this package and Gymnasium's wrappers; if none, all of it."""
    gymnasium = Path(gym.__file__).parent
    skipped = (
        str(Path(__file__).parents[1]),
        str(gymnasium / "wrappers"),
        str(gymnasium / "core.py"),
    )
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(skipped):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace or error.__traceback__))


def _is_available(source: str) -> bool:
    return Path(source).is_file() if source.endswith(".py") else source in sys.modules


def module_name(path: Path) -> str:
    """Name of the module that a file becomes."""
    return f"{FILE_MODULE}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"


def _load_file(path: Path) -> ModuleType:
    name = module_name(path)
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            with _translate_import_errors(str(path)), _importable(str(path.parent)):
                spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


@contextlib.contextmanager
def _importable(folder: str) -> Iterator[None]:
    """Put a folder first in `sys.path` while a file of it is imported, and last afterwards."""
    hidden = _modules_of_other_files(folder)
    for name in hidden:
        del sys.modules[name]
    _folders.add(folder)
    is_new = folder not in sys.path
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        if is_new:
            sys.path.append(folder)
        sys.modules.update(hidden)


def _modules_of_other_files(folder: str) -> dict[str, ModuleType]:
    """Imported modules from other files' folders with the name of a module in this one, such as `utils`."""
    names_here = {path.stem for path in Path(folder).iterdir()}
    others = _folders - {folder}

    def is_others(name: str) -> bool:
        top = name.partition(".")[0]
        file = getattr(sys.modules.get(top), "__file__", None)
        home = None if file is None else Path(file).parent
        return (
            top in names_here and home is not None and bool({str(home), str(home.parent)} & others)
        )

    return {name: module for name, module in sys.modules.items() if is_others(name)}


@contextlib.contextmanager
def _translate_import_errors(source: str) -> Iterator[None]:
    try:
        yield
    except EnvError:
        raise
    except SyntaxError as error:
        where = f"line {error.lineno} of '{error.filename}'"
        raise EnvError(
            f"cannot import '{source}': {where} is not valid Python: {error.msg}"
        ) from None
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if source == missing or source.startswith(f"{missing}."):
            hint = f"no such module is installed or in {Path.cwd()}; for a file write path/to/file.py:ClassName"
            raise EnvError(f"cannot import '{source}': {error} ({hint})") from None
        hint = (
            remedy_for(missing) or "install it, or put it in the folder of the file that imports it"
        )
        raise EnvError(
            f"cannot import '{source}': {error} ({hint}){frames_of_user(error)}"
        ) from error
    except (Exception, SystemExit) as error:
        hint = (
            " (name a module of a package as package.module:ClassName)"
            if "relative import" in str(error)
            else ""
        )
        detail = f"it raised {type(error).__name__}: {error}{hint}"
        raise EnvError(f"cannot import '{source}': {detail}{frames_of_user(error)}") from error


def _environments_of(module: ModuleType) -> list[str]:
    """Names of environment classes and factory functions in a module, for suggestions."""

    def is_candidate(name: str, value: Any) -> bool:
        if inspect.isclass(value):
            return issubclass(value, gym.Env) and not value.__module__.startswith("gymnasium")
        is_defined_here = getattr(value, "__module__", None) == module.__name__ or isinstance(
            value, functools.partial
        )
        return (
            callable(value)
            and is_defined_here
            and ("env" in name.lower() or "make" in name.lower())
        )

    return [name for name, value in vars(module).items() if is_candidate(name, value)]
