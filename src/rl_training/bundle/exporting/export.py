"""Exports the policy of a run as a bundle: describes, proves and writes it, as one new file."""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from rl_training.algorithms.base import Algorithm
from rl_training.bundle.archive import (
    CARD,
    GOLDEN,
    MANIFEST,
    MAX_BYTES,
    ONNX,
    OPERATIONS,
    SPACES,
    WEIGHTS,
    pack,
)
from rl_training.bundle.exporting.card import Evaluation, write_card
from rl_training.bundle.exporting.describing import Description, describe
from rl_training.bundle.exporting.golden import Situations, make_golden
from rl_training.bundle.loading import FORMAT, SCHEMA_VERSION, load_bytes
from rl_training.bundle.program import ACTION
from rl_training.bundle.reading import Array
from rl_training.bundle.spaces import parse_spaces
from rl_training.errors import BundleError, ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.run_folder import package_versions
from rl_training.files import atomic_write, translate_write_errors, write_new
from rl_training.runtime.execution import choose_execution
from rl_training.runtime.workflows import load_algorithm, open_evaluator, stored_step
from rl_training.terminal.progress import counter
from rl_training.terminal.streams import tell


@dataclass(frozen=True)
class Exported:
    """A written bundle."""

    path: Path
    num_bytes: int
    files: dict[str, int]
    """Bytes of each file in it."""
    num_pairs: int
    """Golden pairs."""
    num_operations: int
    evaluation: Evaluation | None
    """The episodes that real golden pairs are from; None for a run without an environment."""


def export_bundle(
    run: str | Path,
    out: str | Path,
    *,
    onnx: bool = False,
    card: bool = False,
    num_episodes: int | None = None,
) -> Exported:
    """Write the deterministic policy of a run (or checkpoint) as a bundle to the new file `out`.

    The policy is evaluated for golden pairs of real observations, unless the run has no environment or `num_episodes`
    is 0. With `onnx` the bundle has an ONNX model too, with `card` a description in Markdown.
    """
    out = Path(out)
    check_free(out)
    if onnx:
        from rl_training.bundle.exporting.onnx_model import require_onnx

        require_onnx()
    config, algorithm, state = load_algorithm(run, device="cpu")
    description = describe(algorithm)
    with choose_execution(config, state).applied():
        golden, evaluation = _golden(config, algorithm, description, num_episodes, state.metadata)
    files = bundle_files(description, golden)
    if onnx:
        tell("converting to ONNX…")
        from rl_training.bundle.exporting.onnx_model import make_onnx

        files[ONNX] = make_onnx(description, golden)
    step, versions = stored_step(state), _versions(state.metadata)
    if card:
        files[CARD] = write_card(
            config, description, out.name, step, evaluation, versions, has_onnx=onnx
        )
    data = assemble(files, config.algo, config.env_id, config.seed, step)
    with translate_write_errors(out, BundleError, "bundle "), atomic_write(out) as temporary:
        write_new(temporary, data)
        check_free(out)
    sizes = {name: len(content) for name, content in files.items()}
    return Exported(
        out, len(data), sizes, len(golden[ACTION]), len(description.operations), evaluation
    )


def check_free(out: Path) -> None:
    """Refuse a path that exists, or that no file can be written to."""
    if out.exists() or out.is_symlink():
        raise ConfigError(
            f"'{out}' exists already and is not overwritten: choose another --out, or remove it"
        )
    if not out.parent.is_dir():
        raise ConfigError(f"cannot write '{out}': the folder '{out.parent}' does not exist")


def assemble(
    files: dict[str, bytes], algorithm: str, env_id: str | None, seed: int, step: int
) -> bytes:
    """The bytes of a bundle, which have been loaded and proven."""
    from rl_training import __version__

    listed = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in files.items()
    }
    manifest = {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "package_version": __version__,
        "algorithm": algorithm,
        "env_id": env_id,
        "seed": seed,
        "global_step": step,
        "files": listed,
    }
    data = pack({MANIFEST: _json(manifest), **files})
    if len(data) > MAX_BYTES:
        raise BundleError(
            f"the bundle would have {len(data):,} bytes, more than the limit of {MAX_BYTES:,}"
        )
    try:
        load_bytes(data)
    except BundleError as error:
        raise BundleError(
            f"the policy cannot be exported, since its operations in NumPy do not act like it: {error}. Does its"
            " algorithm or network override a method of the package?"
        ) from error
    return data


def _golden(
    config: TrainConfig,
    algorithm: Algorithm[Any],
    description: Description,
    num_episodes: int | None,
    metadata: dict[str, Any],
) -> tuple[dict[str, Array], Evaluation | None]:
    real = Situations(parse_spaces(description.spaces))
    obs_space, evaluation = None, None
    if config.env_id is None or num_episodes == 0:
        tell("no episode is evaluated: golden pairs are of extreme and random observations only")
    else:
        with open_evaluator(config, algorithm, num_episodes, metadata) as evaluator:
            with counter(len(evaluator.seeds), "evaluating", "episodes", shows_time=True) as show:
                returns, _, _ = evaluator.run_episodes(algorithm, show, real.watch)
            obs_space = evaluator.obs_space
        evaluation = Evaluation(tuple(returns))
    golden = make_golden(algorithm, description, real, obs_space)
    if not len(golden[ACTION]):
        raise BundleError(
            "the policy's actions for all tested observations depend on rounding, so that no golden pair could prove"
            " the bundle: train the policy further"
        )
    return golden, evaluation


def bundle_files(description: Description, golden: dict[str, Array]) -> dict[str, bytes]:
    """The files that every bundle has, without the manifest."""
    return {
        SPACES: _json(description.spaces),
        OPERATIONS: _json({"operations": description.operations}),
        WEIGHTS: safetensors.numpy.save(description.tensors),
        GOLDEN: safetensors.numpy.save(golden),
    }


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def _versions(metadata: dict[str, Any]) -> dict[str, str]:
    """Versions that the checkpoint was written with; of this process where it does not say."""
    saved = metadata.get("versions")
    versions = saved if isinstance(saved, dict) else package_versions()
    return {"python": platform.python_version(), "numpy": np.__version__} | {
        str(name): str(version) for name, version in versions.items()
    }
