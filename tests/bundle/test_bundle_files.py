"""A bundle that is damaged, hostile or acts otherwise is refused with a `BundleError`; loading needs no torch."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from bundle_tools import bundle_of, make_policy
from gymnasium.spaces import Box, Dict, Discrete

from rl_training.bundle import load
from rl_training.bundle.archive import REQUIRED, pack, unpack
from rl_training.bundle.loading import load_bytes
from rl_training.errors import BundleError

SPACE = Dict(a=Box(-1, 1, (3,), np.float32), b=Discrete(3))
FLIPS_PER_FILE = 60


@pytest.fixture(scope="module")
def bundle() -> bytes:
    algorithm = make_policy(
        "ppo", SPACE, Discrete(3), normalize_obs=True, memory={"kind": "lstm", "size": 4}
    )
    return bundle_of(algorithm, SPACE)[0]


@pytest.fixture(scope="module")
def box_bundle() -> bytes:
    space = Box(-1, 1, (3,), np.float32)
    return bundle_of(make_policy("sac", space, Box(-2, 2, (2,), np.float32)), space, "sac")[0]


def signed(content: dict[str, bytes], **manifest: Any) -> bytes:
    """A bundle of these files whose manifest an attacker has signed again."""
    files = dict(content)
    old = json.loads(files.pop("manifest.json"))
    entries = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in files.items()
    }
    return pack({"manifest.json": to_json({**old, "files": entries, **manifest}), **files})


def to_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def changed_json(data: bytes, name: str, change: Callable[[Any], None]) -> bytes:
    """A signed bundle in which a JSON file is changed."""
    files = unpack(data)
    value = json.loads(files[name])
    change(value)
    return signed({**files, name: to_json(value)})


def changed_tensors(
    data: bytes, name: str, change: Callable[[dict[str, np.ndarray]], None]
) -> bytes:
    """A signed bundle in which tensors are changed."""
    files = unpack(data)
    tensors = {key: array.copy() for key, array in safetensors.numpy.load(files[name]).items()}
    change(tensors)
    return signed({**files, name: safetensors.numpy.save(tensors)})


def test_an_intact_bundle_loads_and_says_what_it_is(bundle: bytes, tmp_path: Path) -> None:
    path = tmp_path / "policy.rlp"
    path.write_bytes(bundle)
    policy = load(path)
    assert policy.manifest["algorithm"] == "ppo"
    assert [leaf.name for leaf in policy.spaces.observation] == ["a", "b"]
    shown = "a float32[3], b int64[] -> int64[] of [3] options, memory of 8"
    assert repr(policy) == f"<BundlePolicy ppo on Test-v0: {shown}>"
    assert load_bytes(signed(unpack(bundle))).manifest["env_id"] == "Test-v0"


def test_any_zip_program_can_open_it(bundle: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in archive.namelist()} == unpack(bundle)
        assert archive.namelist() == list(REQUIRED)


def test_a_flipped_bit_anywhere_is_found(bundle: bytes) -> None:
    generator, size = random.Random(0), len(bundle)
    places = {*range(30), *range(size - 400, size)}  # headers and the directory
    for data in unpack(bundle).values():
        start = bundle.index(data)
        first = max(start - 50, 0)
        places |= {generator.randrange(first, start + len(data)) for _ in range(FLIPS_PER_FILE)}
    for place in places:
        damaged = bytearray(bundle)
        damaged[place] ^= 1 << generator.randrange(8)
        with pytest.raises(BundleError):
            load_bytes(bytes(damaged))


def test_a_truncated_or_extended_file_is_found(bundle: bytes) -> None:
    for size in [0, 1, 3, 29, 30, 40, *range(100, len(bundle), 199), len(bundle) - 1]:
        with pytest.raises(BundleError):
            load_bytes(bundle[:size])
    for extra in (b"\0", b"PK", bundle):
        with pytest.raises(BundleError):
            load_bytes(bundle + extra)
        with pytest.raises(BundleError, match="is damaged"):
            load_bytes(b"#!" + extra + bundle)


def zipped(files: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["../manifest.json", "/etc/passwd", "a\\..\\b", "extra.bin", ""])
def test_other_names_are_refused(bundle: bytes, name: str) -> None:
    with pytest.raises(BundleError, match="which a bundle does not have"):
        load_bytes(pack({**unpack(bundle), name: b"x"}))


def test_duplicate_missing_unlisted_and_compressed_files_are_refused(bundle: bytes) -> None:
    files, buffer = unpack(bundle), io.BytesIO(bundle)
    with zipfile.ZipFile(buffer, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("spaces.json", b"{}")
    refused = {
        "it holds a file twice": buffer.getvalue(),
        "not those that its manifest lists": pack({**files, "card.md": b"# mine"}),
        "is compressed": zipped(files, zipfile.ZIP_DEFLATED),
        "was changed by another program": zipped(files),
    }
    for name in REQUIRED:
        rest = {key: data for key, data in files.items() if key != name}
        refused[f"it lacks {name}"] = pack(rest)
    for message, data in refused.items():
        with pytest.raises(BundleError, match=message):
            load_bytes(data)


def test_a_claimed_size_is_compared_before_anything_is_allocated(bundle: bytes) -> None:
    for place, message in (
        (18, "it is damaged"),
        (bundle.index(b"PK\x01\x02") + 20, r"claim 4,294,9\d\d,\d+ bytes, where"),
    ):
        claimed = bytearray(bundle)
        struct.pack_into("<II", claimed, place, 0xFFFFFFF0, 0xFFFFFFF0)
        with pytest.raises(BundleError, match=message):
            load_bytes(bytes(claimed))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"sha256": "0" * 64}, r"spaces\.json is damaged: its SHA-256"),
        ({"bytes": 1 << 60}, "where the manifest says 1,152,921,504,606,846,976"),
    ],
)
def test_a_wrong_hash_or_size_is_refused(bundle: bytes, entry: Any, message: str) -> None:
    files = unpack(bundle)
    manifest = json.loads(files["manifest.json"])
    manifest["files"]["spaces.json"].update(entry)
    with pytest.raises(BundleError, match=message):
        load_bytes(pack({**files, "manifest.json": to_json(manifest)}))


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{", b"\xff\xfe", b'{"a": NaN}', b"[" * 100_000, b'{"a":' * 50_000]
)
@pytest.mark.parametrize("name", ["manifest.json", "spaces.json", "operations.json"])
def test_json_that_is_none_is_refused(bundle: bytes, name: str, text: bytes) -> None:
    files = unpack(bundle)
    data = pack({**files, name: text}) if name == "manifest.json" else signed({**files, name: text})
    with pytest.raises(BundleError, match=name):
        load_bytes(data)


@pytest.mark.parametrize("name", ["weights.safetensors", "golden.safetensors"])
def test_what_is_no_safetensors_file_is_refused(bundle: bytes, name: str) -> None:
    header = json.dumps(
        {"x": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}
    ).encode()
    claims = struct.pack("<Q", len(header)) + header
    for data in (b"", b"\x80\x04K\x01.", struct.pack("<Q", 1 << 62), claims, b"\xff" * 100):
        with pytest.raises(BundleError, match=f"{name} is not a safetensors file"):
            load_bytes(signed({**unpack(bundle), name: data}))


HOSTILE: list[tuple[str, list[Any], list[dict[str, Any]]]] = [
    (
        "operations.json",
        ["operations", 0],
        [
            {"op": "exec"},
            {"op": ["linear"]},
            {"in": []},
            {"in": ["v99"]},  # does not exist
            {"in": [["obs.0"]]},
            {"out": ["obs.0"]},  # is given
            {"shell": "rm"},
        ],
    ),
    ("operations.json", ["operations", 1], [{"out": ["v0"]}]),  # made before
    ("operations.json", ["operations", 1], [{"choices": [1 << bits]} for bits in (26, 62)]),
    ("operations.json", ["operations", 4], [{"input_weight": "none"}, {"input_weight": "4.bias"}]),
    ("operations.json", ["operations", -1], [{"out": ["other"]}]),  # no action
    ("operations.json", [], [{"operations": []}, {"operations": {"op": "tanh"}}]),
    ("operations.json", [], [{"operations": [3]}, {"operations": [{}] * 5000}, {"also": 1}]),
    (
        "spaces.json",
        ["observation", 0],
        [
            {"shape": [1 << 30, 1 << 30]},
            {"shape": [1 << 14] * 3},
            {"shape": [-3]},
            {"shape": [4]},
            {"dtype": "object"},
            {"path": [None]},
            {"path": ["b"]},  # equal to the other
        ],
    ),
    ("spaces.json", ["action"], [{"choices": [1 << 40]}, {"choices": [4]}, {"choices": []}]),
    ("spaces.json", ["action"], [{"kind": "any"}, {"dtype": "int32"}]),
    ("spaces.json", [], [{"state_size": size} for size in (7, 0, True)]),
    ("spaces.json", [], [{"mask_use": "sometimes"}, {"more": 1}, {"observation": []}]),
    ("manifest.json", [], [{"schema_version": version} for version in (2, True, "1")]),
    ("manifest.json", [], [{"format": "other"}, {"algorithm": 3}, {"env_id": ["x"]}, {"more": 1}]),
    ("manifest.json", [], [{"seed": -1}, {"seed": 1.5}]),
]


@pytest.mark.parametrize(
    ("name", "path", "values"),
    [(name, path, values) for name, path, changes in HOSTILE for values in changes],
    ids=lambda value: str(value)[:40],
)
def test_hostile_values_are_refused(
    bundle: bytes, name: str, path: list[Any], values: dict[str, Any]
) -> None:
    def change(node: Any) -> None:
        for key in path:
            node = node[key]
        node.update(values)

    with pytest.raises(BundleError):
        load_bytes(changed_json(bundle, name, change))


@pytest.mark.parametrize("entries", [[], {"weights.safetensors": 1}])
def test_a_manifest_that_lists_other_files_is_refused(bundle: bytes, entries: Any) -> None:
    with pytest.raises(BundleError):
        load_bytes(signed(unpack(bundle), files=entries))


def test_missing_keys_are_refused(bundle: bytes) -> None:
    with pytest.raises(BundleError, match="lacks 'action'"):
        load_bytes(changed_json(bundle, "spaces.json", lambda value: value.pop("action")))


def test_golden_pairs_outside_of_the_spaces_are_refused(bundle: bytes) -> None:
    moved = changed_json(bundle, "spaces.json", lambda spaces: spaces["action"].update(start=[7]))
    with pytest.raises(BundleError, match="actions outside of the action space"):
        load_bytes(moved)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(
    bundle: bytes, box_bundle: bytes, value: float
) -> None:
    for data in (bundle, box_bundle):
        operations = json.loads(unpack(data)["operations.json"])["operations"]
        clips = {one[key] for one in operations if one["op"] == "clip" for key in ("low", "high")}
        for name in safetensors.numpy.load(unpack(data)["weights.safetensors"]):
            if value == float("inf") and name in clips:
                continue  # an action may be unbounded

            def put(tensors: dict[str, np.ndarray], name: str = name) -> None:
                tensors[name].reshape(-1)[0] = value

            with pytest.raises(BundleError, match="holds numbers that are not finite"):
                load_bytes(changed_tensors(data, "weights.safetensors", put))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"more": np.zeros(3, np.float32)}, "no operation reads the tensor 'more'"),
        ({"4.bias": np.zeros(16)}, r"is float64 \["),
    ],
)
def test_weights_that_no_operation_reads_or_of_another_type_are_refused(
    bundle: bytes, tensors: Any, message: str
) -> None:
    with pytest.raises(BundleError, match=message):
        load_bytes(changed_tensors(bundle, "weights.safetensors", lambda t: t.update(tensors)))


def test_a_policy_that_acts_otherwise_is_refused(bundle: bytes, box_bundle: bytes) -> None:
    def load_shifted(data: bytes, name: str, by: float) -> None:
        def shift(tensors: dict[str, np.ndarray]) -> None:
            shifted = (tensors[name] + by) % 3 if by == 1 else tensors[name] + by
            tensors[name] = shifted.astype(tensors[name].dtype)

        load_bytes(changed_tensors(data, "golden.safetensors", shift))

    with pytest.raises(BundleError, match=r"pair \d+ of \d+ is not reproduced: the action is"):
        load_shifted(bundle, "action", 1)
    with pytest.raises(BundleError, match="golden pair 0 of"):
        load_shifted(bundle, "next_state", 1e-3)
    with pytest.raises(BundleError, match="golden pair 0 of"):
        load_shifted(box_bundle, "action", 1e-4)  # the range is 4: the tolerance is 4e-5
    load_shifted(box_bundle, "action", 1e-5)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.pop("action"),
        lambda t: t.update(more=np.zeros(3)),
        lambda t: t.update({name: array[:0] for name, array in t.items()}),
        lambda t: t.update(action=t["action"][:-1]),
        lambda t: t.update(action=t["action"].astype(np.int32)),
        lambda t: t.update({"obs.0": t["obs.0"].astype(np.float64)}),
        lambda t: t.update({name: np.repeat(array, 300, 0) for name, array in t.items()}),
    ],
)
def test_wrong_golden_pairs_are_refused(bundle: bytes, change: Callable[[Any], None]) -> None:
    with pytest.raises(BundleError):
        load_bytes(changed_tensors(bundle, "golden.safetensors", change))


def test_random_changes_of_the_json_never_raise_anything_else(bundle: bytes) -> None:
    generator, files = random.Random(1), unpack(bundle)
    values: list[Any] = [None, True, -1, 0, 1.5, 1 << 70, "", "obs.0", [], {}, [1], ["v0"]]

    def places(node: Any) -> list[tuple[Any, Any]]:
        keys: Any = []
        if isinstance(node, (dict, list)):
            keys = list(node) if isinstance(node, dict) else range(len(node))
        return [(node, key) for key in keys] + [one for key in keys for one in places(node[key])]

    for name in ("spaces.json", "operations.json"):
        for _ in range(150):
            tree = json.loads(files[name])
            node, key = generator.choice(places(tree))
            node[key] = generator.choice(values)
            with contextlib.suppress(BundleError):
                load_bytes(signed({**files, name: to_json(tree)}))


def test_paths_that_are_no_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "huge.rlp").open("wb") as file:
        file.truncate((1 << 30) + 1)  # sparse
    for name, message in (
        ("nothing.rlp", "does not exist"),
        (".", "is not a regular file"),
        ("pipe", "is not a regular file"),
        ("nul\0byte", "cannot read"),
        ("huge.rlp", "is larger than 1,073,741,824 bytes"),
    ):
        with pytest.raises(BundleError, match=message):
            load(tmp_path / name)


def test_the_error_names_the_file(bundle: bytes, tmp_path: Path) -> None:
    path = tmp_path / "policy.rlp"
    path.write_bytes(bundle[:-5])
    with pytest.raises(
        BundleError, match=rf"cannot load '{path}': it is not a bundle, or is damaged"
    ):
        load(path)


BLOCKED = ("torch", "gymnasium", "pydantic", "yaml", "rich", "typer", "tensorboard")
ALONE = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked}:
            raise ImportError(f"{{name}} is blocked")
sys.meta_path.insert(0, Block())
import numpy as np
from rl_training.bundle import load
policy = load(sys.argv[1])
action, state = policy.act({{"a": np.zeros(3), "b": 1}}, state=None)
print(int(action), state.shape, sorted(set(sys.modules) & set({blocked})))
"""


def test_it_loads_and_acts_without_torch(bundle: bytes, tmp_path: Path) -> None:
    path = tmp_path / "policy.rlp"
    path.write_bytes(bundle)
    command = [sys.executable, "-c", ALONE.format(blocked=BLOCKED), str(path)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    expected, _ = load(path).act({"a": np.zeros(3), "b": 1}, state=None)
    assert answer.stdout == f"{int(expected)} (8,) []\n"


@pytest.mark.parametrize("processor", ["Prescott", "Nehalem", "Haswell", "SkylakeX"])
def test_it_loads_with_the_arithmetic_of_other_processors(processor: str, tmp_path: Path) -> None:
    space, paths = Box(-5, 5, (17,), np.float32), []
    for algo, action in (("sac", Box(-1, 1, (6,), np.float32)), ("dqn", Discrete(6))):
        algorithm = make_policy(algo, space, action, hidden_sizes=[256, 256])
        paths.append(tmp_path / f"{algo}.rlp")
        paths[-1].write_bytes(bundle_of(algorithm, space, algo)[0])
    code = "import sys\nfrom rl_training.bundle import load\nprint(len([load(path) for path in sys.argv[1:]]))"
    variables = {**os.environ, "OPENBLAS_CORETYPE": processor}  # read by NumPy's OpenBLAS
    command = [sys.executable, "-c", code, *map(str, paths)]
    answer = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout) == (0, "2\n"), answer.stderr


def test_equal_policies_give_equal_bytes() -> None:
    one, two = (bundle_of(make_policy("ppo", SPACE, Discrete(3)), SPACE)[0] for _ in range(2))
    assert one == two
