"""Checkpoints made to do harm: nothing runs, nothing outside their folder is touched, and the error is a named one."""

from __future__ import annotations

import copy
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_tools import forge_manifest, make_run
from conftest import TESTS, algorithms_for_faults, as_observation
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rl_training
from rl_training.errors import CheckpointError, RLTrainingError
from rl_training.experiment import checkpointing
from rl_training.experiment.checkpointing import load_checkpoint, resolve_checkpoint
from rl_training.runtime.workflows import (
    evaluate_checkpoint,
    load_algorithm,
    plan_resume,
    predict,
    resume_training,
)
from rl_training.views.plotting import plot_learning_curve

ALGOS = algorithms_for_faults()


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run of each algorithm, never changed."""
    return {algo: make_run(algo, tmp_path_factory.mktemp(algo)) for algo in {*ALGOS, "ppo", "dqn"}}


@pytest.fixture(params=ALGOS)
def run(request: pytest.FixtureRequest, originals: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals[request.param], tmp_path / "run"))


@pytest.fixture
def ppo_run(originals: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals["ppo"], tmp_path / "run"))


@pytest.fixture
def dqn_run(originals: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals["dqn"], tmp_path / "run"))


def use_in_every_way(path: Path) -> None:
    """Read, act, evaluate and resume, each of which may raise an error of ours and no other."""
    for use in (
        load_checkpoint,
        load_algorithm,
        lambda place: evaluate_checkpoint(place, num_episodes=1),
        lambda place: resume_training(
            place, total_timesteps=128, output_dir=path.parent / "elsewhere"
        ),
    ):
        try:
            use(path)
        except RLTrainingError:
            continue


def refuse_everywhere(
    path: Path, match: str | None, kind: type[Exception] = RLTrainingError
) -> None:
    for use in (load_checkpoint, load_algorithm, evaluate_checkpoint, plan_resume):
        with pytest.raises(kind, match=match):
            use(path)


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize(
    "name", ["manifest.json", "algorithm.safetensors", "trainer.safetensors", "last", "policy.pt"]
)
@pytest.mark.parametrize("is_signed", [False, True])
def test_a_pickle_is_never_opened(
    ppo_run: Path, tmp_path: Path, name: str, is_signed: bool
) -> None:
    checkpoint = resolve_checkpoint(ppo_run)
    data = pickle.dumps(Payload(tmp_path / "harm"))
    place = tmp_path / name if name == "policy.pt" else checkpoint / name
    place = ppo_run / "checkpoints" / "last" if name == "last" else place
    place.write_bytes(data)
    if is_signed and name.endswith(".safetensors"):
        sign_file(checkpoint, name)
    target = place if name == "policy.pt" else ppo_run
    refuse_everywhere(target, None, CheckpointError)
    pickle.loads(data)  # the payload does work
    assert (tmp_path / "harm").is_dir()


def sign_file(checkpoint: Path, name: str) -> None:
    """Write a file's size and checksum into the manifest, as someone would who means harm."""
    data = (checkpoint / name).read_bytes()
    entry = {"bytes": len(data), "sha256": checkpointing.hashlib.sha256(data).hexdigest()}

    def change(manifest: dict[str, Any]) -> None:
        if name.startswith("replay_"):
            manifest["segments"][int(name[7:13])].update(entry)
        else:
            manifest["sections"][name.removesuffix(".safetensors")].update(entry)

    forge_manifest(checkpoint, change)


def safetensors_file(
    header: bytes | dict[str, Any], body: bytes = b"", length: int | None = None
) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def tensor(shape: list[Any], end: int, dtype: str = "F32", start: int = 0) -> dict[str, Any]:
    return {"/x": {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}}


BAD_TENSORS = {
    "empty": b"",
    "header of 2**63": safetensors_file(b"{}", length=2**63),
    "header of 2**64-1": safetensors_file(b"{}", length=2**64 - 1),
    "header of a terabyte": safetensors_file(b"{}", length=2**40),
    "header is no JSON": safetensors_file(b"\xff" * 10),
    "header is a list": safetensors_file(b"[]"),
    "deep header": safetensors_file(b"[" * 100_000),
    "terabytes": safetensors_file(tensor([2**40], 2**42)),
    "overflow": safetensors_file(tensor([2**32, 2**32, 2**32], 8), bytes(8)),
    "overflow to zero": safetensors_file(tensor([2**63, 2], 0)),
    "empty but long": safetensors_file(tensor([0, 2**62], 0)),
    "backwards": safetensors_file(tensor([1], 0, start=4), bytes(4)),
    "negative": safetensors_file(tensor([-1], 4), bytes(4)),
    "float shape": safetensors_file(tensor([1.5], 4), bytes(4)),
    "unknown type": safetensors_file(tensor([1], 4, "PICKLE"), bytes(4)),
    **{
        f"type {dtype}": safetensors_file(tensor([8], 8 * bits // 8, dtype), bytes(8 * bits // 8))
        for dtype, bits in {
            "BF16": 16,
            "F8_E4M3": 8,
            "F8_E5M2": 8,
            "F8_E8M0": 8,
            "F4": 4,
            "C64": 64,
            "U64": 64,
        }.items()
    },
}


@pytest.mark.parametrize("content", BAD_TENSORS)
def test_a_signed_file_of_absurd_tensors_is_refused(dqn_run: Path, content: str) -> None:
    checkpoint = resolve_checkpoint(dqn_run)
    for name in ("algorithm.safetensors", "replay_000000.safetensors"):
        whole = (checkpoint / name).read_bytes()
        (checkpoint / name).unlink()
        (checkpoint / name).write_bytes(BAD_TENSORS[content])
        sign_file(checkpoint, name)
        with pytest.raises(CheckpointError):
            plan_resume(dqn_run)
        (checkpoint / name).write_bytes(whole)
        sign_file(checkpoint, name)
    plan_resume(dqn_run)


@pytest.mark.parametrize(
    "version", [0, 1, 3, 5, -1, "4", None, True, 1.0, 10**30, [], {}, float("nan")]
)
def test_a_schema_version_that_is_none_is_refused(ppo_run: Path, version: Any) -> None:
    forge_manifest(
        resolve_checkpoint(ppo_run), lambda manifest: manifest.update(schema_version=version)
    )
    refuse_everywhere(ppo_run, "schema version")


def test_a_changed_manifest_is_refused(ppo_run: Path) -> None:
    path = resolve_checkpoint(ppo_run) / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "config": {**manifest["config"], "seed": 9}}))
    refuse_everywhere(ppo_run, "checksum differs")


@pytest.mark.parametrize("opening", ["[", '{"a":'])
@pytest.mark.parametrize("levels", [80, 300, 900, 100_000])
@pytest.mark.parametrize("place", ["root", "config", "metadata", "state"])
def test_deep_nesting_is_refused(ppo_run: Path, opening: str, levels: int, place: str) -> None:
    path = resolve_checkpoint(ppo_run) / "manifest.json"
    nested = opening * levels + "1" + ("]" if opening == "[" else "}") * levels
    if place == "root" or levels == 100_000:
        path.write_text(nested)
    else:
        tree = json.loads(nested)
        places = {
            "config": ("config", "env_kwargs"),
            "metadata": ("metadata",),
            "state": ("sections", "trainer", "plain"),
        }
        forge_manifest_deeply(path.parent, set_at(*places[place], deep=tree))
    refuse_everywhere(ppo_run, "nested|damaged|schema version")


def forge_manifest_deeply(checkpoint: Path, change: Callable[[dict[str, Any]], object]) -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        forge_manifest(checkpoint, change)
    finally:
        sys.setrecursionlimit(limit)


def test_repeated_keys_and_numbers_without_end_are_harmless(ppo_run: Path) -> None:
    path = resolve_checkpoint(ppo_run) / "manifest.json"
    text = path.read_text()
    path.write_text(text.replace('"config": {', '"config": {"algo": "sac"}, "config": {', 1))
    assert (
        load_algorithm(ppo_run)[0].algo == "ppo"
    )  # the last one counts, and it is the one that was signed
    path.write_text(text.replace('"seed": 1', '"seed": ' + "9" * 5000, 1))
    refuse_everywhere(ppo_run, "damaged")
    path.write_text(" " * (checkpointing.MAX_MANIFEST_BYTES + 1))
    refuse_everywhere(ppo_run, "larger than")


# Links and pipes


def files_of(run: Path) -> Iterator[Path]:
    yield from sorted(resolve_checkpoint(run).iterdir())
    yield run / "checkpoints" / "last"


def test_a_link_in_place_of_any_file_is_refused(run: Path, tmp_path: Path) -> None:
    for index, path in enumerate(list(files_of(run))):
        moved = path.rename(tmp_path / f"moved_{index}")
        path.symlink_to(moved)
        with pytest.raises(CheckpointError, match=path.name):
            plan_resume(run)
        path.unlink()
        moved.rename(path)
    plan_resume(run)


def test_a_link_in_place_of_the_checkpoint_is_not_followed(ppo_run: Path, tmp_path: Path) -> None:
    checkpoint = resolve_checkpoint(ppo_run)
    moved = checkpoint.rename(tmp_path / "moved")
    checkpoint.symlink_to(moved)
    with pytest.raises(CheckpointError, match="last' points at"):
        load_checkpoint(ppo_run)


def test_a_pipe_in_place_of_any_file_is_refused_at_once(run: Path, tmp_path: Path) -> None:
    for path in list(files_of(run)):
        data = path.read_bytes()
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(CheckpointError):
            plan_resume(run)
        path.unlink()
        path.write_bytes(data)
    for name in ("metadata.json", "metrics.jsonl"):
        (run / name).unlink()
        os.mkfifo(run / name)
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl"):
        resume_training(run, total_timesteps=128)
    (run / "metrics.jsonl").unlink()
    resume_training(run, total_timesteps=128)


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "timing.jsonl", "run.log", "tensorboard", "checkpoints"]
)
def test_a_run_that_goes_on_writes_through_no_link(
    ppo_run: Path, tmp_path: Path, name: str
) -> None:
    outside = (ppo_run / name).rename(tmp_path / "outside")
    (ppo_run / name).symlink_to(outside)
    before = snapshot(outside)
    if name == "checkpoints":
        resume_training(ppo_run, total_timesteps=128, output_dir=tmp_path / "new")
    else:
        with pytest.raises(CheckpointError, match="is a link"):
            resume_training(ppo_run, total_timesteps=128)
    assert snapshot(outside) == before


def test_links_that_wait_for_a_file_to_be_written_are_not_followed(
    ppo_run: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in ("config.yaml", "metadata.json", "checkpoints/last", "checkpoints/best"):
        path = ppo_run / name
        path.with_name(f".{path.name}.tmp-{os.getpid()}").symlink_to(victim)
    (ppo_run / "checkpoints" / ".step_1.tmp-1").symlink_to(tmp_path)
    (ppo_run / "learning_curve.png").symlink_to(victim)
    resume_training(ppo_run, total_timesteps=128)
    with pytest.raises(RLTrainingError, match="is a link"):
        plot_learning_curve(ppo_run)
    assert victim.read_text() == "precious"


@pytest.mark.parametrize(
    "text",
    [
        "..",
        ".",
        "/",
        "../checkpoints/step_000000000096",
        "step_²",
        "x" * 1000,
        "step_" + "9" * 900,
        "a\0b",
        "",
    ],
)
def test_a_pointer_names_a_checkpoint_beside_it_or_nothing(ppo_run: Path, text: str) -> None:
    shutil.copytree(resolve_checkpoint(ppo_run), ppo_run / "copy")
    shutil.copy(ppo_run / "copy" / "manifest.json", ppo_run / "manifest.json")
    (ppo_run / "checkpoints" / "step_²").mkdir()
    (ppo_run / "checkpoints" / "last").write_text(text)
    (ppo_run / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="last'") as caught:
        load_checkpoint(ppo_run)
    assert caught.value.fallback == ppo_run / "checkpoints" / "step_000000000096"


def snapshot(path: Path) -> dict[str, bytes]:
    found = [path] if path.is_file() else sorted(path.rglob("*"))
    return {str(file): file.read_bytes() for file in found if file.is_file()}


# Absurd sizes, in a process that may not have more than a few gigabytes


def set_at(*place: str, **changes: Any) -> Callable[[dict[str, Any]], None]:
    """A change of values within a manifest."""

    def change(manifest: dict[str, Any]) -> None:
        for key in place:
            manifest = manifest[key]
        manifest.update(changes)

    return change


set_config = partial(set_at, "config")
set_algo = partial(set_at, "config", "algo_kwargs")
set_obs, set_action = (
    partial(set_at, "sections", "algorithm", "plain", "spaces", kind) for kind in ("obs", "action")
)
set_session = partial(set_at, "sections", "trainer", "plain", "session")
ABSURD: dict[str, Callable[[dict[str, Any]], object]] = {
    "bytes": set_at("sections", "algorithm", bytes=10**18),
    "rows": lambda manifest: manifest["segments"][0].update(rows=10**18),
    "hidden sizes": set_algo(hidden_sizes=[10**9, 10**9]),
    "wide layer": set_algo(hidden_sizes=[200_000]),
    "many layers": set_algo(hidden_sizes=[8] * 1_000_000),
    "wide critic": set_algo(critic_hidden_sizes=[200_000]),
    "num_threads": lambda manifest: (
        manifest["config"].update(num_threads=10**6),
        manifest["metadata"].clear(),
    ),
    "execution": set_at("metadata", "execution", num_threads=10**6),
    "buffer_capacity": set_algo(buffer_capacity=10**12),
    "buffer_capacity 10**30": set_algo(buffer_capacity=10**30),
    "num_steps": set_algo(num_steps=10**12),
    "batch_size": set_algo(batch_size=10**12),
    "num_envs": set_config(num_envs=10**6),
    "num_envs 10**12": set_config(num_envs=10**12),
    "eval_episodes": set_config(eval_episodes=10**12),
    "obs shape": set_obs(shape=[10**9]),
    "obs shapes": set_obs(shape=[10**9] * 5),
    "obs dtype": set_obs(dtype="U100000000"),
    "categories": set_obs(shape=[], dtype="int64", num_categories=10**9),
    "choices": set_action(choices=[10**9]),
    "action dtype": set_action(dtype="V1000000000"),
    "step": set_session(global_step=10**400),
    "step of text": set_session(global_step="64"),
    "step below zero": set_session(global_step=-1),
    "self": set_config(self=1),
}


def run_elsewhere(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a process in a folder, with the package that is under test here."""
    environment = {**os.environ, "PYTHONPATH": str(Path(rl_training.__file__).parent.parent)}
    process = subprocess.run(
        words, capture_output=True, text=True, timeout=300, check=False, cwd=folder, env=environment
    )
    assert process.returncode == 0, process.stderr[-2000:]
    return process


PROBE = """
import resource, sys
sys.path[:0] = [sys.argv[2], sys.argv[2] + '/faults']
from pathlib import Path
import conftest, torch
torch.set_num_threads(1)
from test_hostile_files import use_in_every_way
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
for place in sorted(Path(sys.argv[1]).iterdir()):
    try:
        use_in_every_way(place)
    except BaseException as error:
        print(place.name, type(error).__name__, error)
# Not ru_maxrss, which begins with what the process that started this one held.
(peak,) = [line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
print("largest", int(peak) // 1024)
"""


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the peak of memory is read from /proc"
)
def test_absurd_sizes_are_refused_before_memory_is_asked_for(
    originals: dict[str, Path], tmp_path: Path
) -> None:
    for algo in ("dqn", "ppo"):
        for name, change in ABSURD.items():
            target = tmp_path / "all" / f"{algo} {name}" / "step_000000000096"
            shutil.copytree(resolve_checkpoint(originals[algo]), target)
            if name != "rows" or algo == "dqn":
                forge_manifest(target, change)
            target.rename(target.parent.parent / f"{algo} {name} checkpoint")
            target.parent.rmdir()
    words = [sys.executable, "-c", PROBE, str(tmp_path / "all"), str(TESTS)]
    process = run_elsewhere(words, tmp_path)
    *problems, (word, megabytes) = [line.split(maxsplit=1) for line in process.stdout.splitlines()]
    assert problems == []
    assert word == "largest"
    assert int(megabytes) < 1500


# What is read and written

AUDIT = """
import os, sys
sys.path[:0] = [sys.argv[2], sys.argv[2] + '/faults']
from pathlib import Path
import conftest, torch, matplotlib.figure, torch.utils.tensorboard
import gymnasium.envs.classic_control.cartpole
from test_hostile_files import use_in_every_way
allowed = tuple(sys.argv[1].split(os.pathsep))
secret = sys.argv[3]
touched = []
def note(event, arguments):
    if event in ("open", "os.rename", "os.remove", "os.link", "os.symlink", "os.truncate", "os.mkdir", "os.rmdir",
                 "shutil.rmtree", "os.listdir", "os.chmod"):
        arguments = arguments[: 1 if event == "open" else 2]
        paths = [path for path in arguments if isinstance(path, (str, bytes, os.PathLike))]
        touched.extend(os.path.abspath(os.fsdecode(path)) for path in paths)
    if event in ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "socket.connect"):
        touched.append(f"{event} {arguments[:2]}")
sys.addaudithook(note)
for place in sorted(Path(allowed[0]).iterdir()):
    use_in_every_way(place)
    for line in touched:
        if line.startswith(secret) or "Popen" in line or "socket" in line:
            print(place.name, line)
    touched.clear()
open(secret + "/evil.py").close()
print("noticed", touched)
"""


def test_nothing_outside_the_folder_is_touched(originals: dict[str, Path], tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    shutil.copytree(originals["dqn"], secret / "run")
    for name in ("evil.py", "data.npz", "model.xml"):
        (secret / name).write_text("1/0")
    paths = [
        str(secret / "run"),
        "../../secret/run/checkpoints/step_000000000096",
        str(secret / "evil.py"),
    ]
    source = resolve_checkpoint(originals["dqn"])
    strings = list(places_of(json.loads((source / "manifest.json").read_text()), str))
    for index, place in enumerate(strings[:: 1 + len(strings) // 30]):
        if place[0] in ("schema_version", "checksum"):
            continue
        target = Path(shutil.copytree(source, tmp_path / "all" / f"{index:04d} step"))
        forge_manifest(
            target, lambda m, place=place, index=index: put_at(m, place, paths[index % len(paths)])
        )
    extra = {
        "env_kwargs": set_config(
            env_kwargs={"xml_file": str(secret / "model.xml"), "path": paths[0]}
        ),
        "algo_kwargs": set_algo(dataset_path=str(secret / "data.npz")),
        "output_dir": set_config(output_dir=str(secret)),
    }
    for name, change in extra.items():
        forge_manifest(Path(shutil.copytree(source, tmp_path / "all" / name)), change)
    before = snapshot(secret)
    words = [sys.executable, "-c", AUDIT, str(tmp_path / "all"), str(TESTS), str(secret)]
    process = run_elsewhere(words, tmp_path)
    *lines, control = [line for line in process.stdout.splitlines() if "git" not in line]
    assert lines == []
    assert control == f"noticed ['{secret / 'evil.py'}']"
    assert snapshot(secret) == before


def test_where_a_resumed_run_writes_is_not_for_a_file_to_say(
    ppo_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Path(shutil.copytree(resolve_checkpoint(ppo_run), tmp_path / "received"))
    forge_manifest(checkpoint, set_config(output_dir=str(tmp_path / "elsewhere")))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    result = resume_training(checkpoint, total_timesteps=128)
    assert result.run_dir.resolve().parent == tmp_path / "here" / "runs"
    assert not (tmp_path / "elsewhere").exists()


def test_a_run_goes_on_in_its_own_folder_however_its_checkpoint_is_named(
    ppo_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "link").symlink_to(resolve_checkpoint(ppo_run))
    assert plan_resume(tmp_path / "far" / "link").run.run_dir == ppo_run
    monkeypatch.chdir(ppo_run / "checkpoints")
    assert plan_resume(resolve_checkpoint(ppo_run).name).run.run_dir == ppo_run


# Any change of the manifest


def places_of(
    tree: Any, kind: type | tuple[type, ...] = object, place: tuple[Any, ...] = ()
) -> Iterator[tuple[Any, ...]]:
    """The way to every value in a JSON tree."""
    if place and isinstance(tree, kind):
        yield place
    if isinstance(tree, (dict, list)):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from places_of(value, kind, (*place, key))


def put_at(tree: Any, place: tuple[Any, ...], value: Any) -> None:
    for key in place[:-1]:
        tree = tree[key]
    if isinstance(tree, dict) and not isinstance(place[-1], str):
        raise TypeError("a list was here before another change")
    if value is REMOVED:
        del tree[place[-1]]
    else:
        tree[place[-1]] = value


REMOVED = object()
ODD_VALUES = st.one_of(
    st.just(REMOVED),
    st.sampled_from(
        [
            None,
            True,
            False,
            0,
            1,
            -1,
            2**31,
            2**63,
            2**64,
            10**30,
            0.5,
            float("nan"),
            float("inf"),
            -0.0,
            "",
            "x",
            "1",
        ]
    ),
    st.sampled_from(
        [
            [],
            {},
            [[]],
            [1, "a"],
            {"$tensor": "/x"},
            {"$array": []},
            {"$float": "x"},
            {"$float": "nan"},
        ]
    ),
    st.sampled_from(
        [
            "nan",
            "../../x",
            "/etc/passwd",
            "\0",
            "\ud800",
            "a:b",
            "CartPole-v1",
            "cuda:99",
            "meta",
            "é" * 999,
        ]
    ),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(), max_size=4),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=3),
)


@pytest.mark.parametrize("algo", ALGOS)
def test_any_change_of_a_manifest_is_harmless(
    algo: str, originals: dict[str, Path], tmp_path: Path
) -> None:
    checkpoint = Path(shutil.copytree(resolve_checkpoint(originals[algo]), tmp_path / "checkpoint"))
    whole = json.loads((checkpoint / "manifest.json").read_text())
    places = list(places_of(whole))
    _, algorithm, _ = load_algorithm(checkpoint, device="cpu")
    obs = np.linspace(-1, 1, 5 * int(np.prod(algorithm.spaces.obs.shape))).reshape(
        5, *algorithm.spaces.obs.shape
    )
    obs = as_observation(algorithm.spaces.obs, obs)
    expected = predict(algorithm, obs)

    @settings(
        max_examples=500,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(st.lists(st.tuples(st.sampled_from(places), ODD_VALUES), min_size=1, max_size=2))
    def change(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
        manifest = copy.deepcopy(whole)
        for place, value in changes:
            try:
                put_at(manifest, place, value if value is REMOVED else copy.deepcopy(value))
            except (KeyError, IndexError, TypeError):
                continue  # the first change has removed this place
        manifest.pop("checksum", None)
        manifest["checksum"] = checkpointing._checksum(manifest)
        (checkpoint / "manifest.json").write_text(json.dumps(manifest))
        try:
            plan_resume(checkpoint)
            _, changed, _ = load_algorithm(checkpoint, device="cpu")
            actions = predict(changed, obs)
        except RLTrainingError:
            return
        if not any(
            place[:2] == ("sections", "algorithm") or "algo_kwargs" in place for place, _ in changes
        ):
            np.testing.assert_array_equal(actions, expected)

    change()


@pytest.mark.parametrize("algo", ALGOS)
def test_a_changed_state_is_refused_or_goes_on(
    algo: str, originals: dict[str, Path], tmp_path: Path
) -> None:
    """Resuming and evaluating for real, at every place of the manifest's state once."""
    whole = json.loads((resolve_checkpoint(originals[algo]) / "manifest.json").read_text())
    places = [place for place in places_of(whole) if place[0] in ("config", "metadata", "sections")]
    rng = np.random.default_rng(0)
    values = [None, "x", -1, 2.5, [], {}, True, REMOVED]
    for index in rng.choice(len(places), size=min(10, len(places)), replace=False):
        place, value = places[index], values[rng.integers(len(values))]
        if place[-1] in ("total_timesteps", "update_epochs", "gradient_steps", "eval_episodes"):
            continue  # a long run is not harm
        checkpoint = Path(
            shutil.copytree(resolve_checkpoint(originals[algo]), tmp_path / str(index))
        )
        forge_manifest(
            checkpoint, lambda manifest, place=place, value=value: put_at(manifest, place, value)
        )
        use_in_every_way(checkpoint)
