"""Load datasets from `npz` files (memory-mapped), `pt` and Minari files or random actions; save and mix them."""

from __future__ import annotations

import shlex
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_training.data.dataset_fields import (
    JOIN_EPISODES,
    FieldHeader,
    as_stored,
    check_fits,
    find_fields,
    stored_dtype,
)
from rl_training.data.episode_layouts import complete_fields
from rl_training.data.minari_datasets import read_minari
from rl_training.data.npz_files import read_npz
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.errors import DatasetError
from rl_training.files import atomic_write, translate_write_errors
from rl_training.memory import check_data_fits
from rl_training.providers import provided
from rl_training.replay.transitions import Array
from rl_training.validation import suggest

SMALLER = (
    "keep fewer transitions, or save them with numpy.savez, which is memory-mapped instead of read"
)


def load_transition_dataset(
    kind: str,
    *,
    dataset_path: str | Path | None = None,
    dataset_id: str | None = None,
    download: bool = False,
    env_id: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    size: int = 10_000,
    seed: int | np.random.SeedSequence = 0,
) -> TransitionDataset:
    """Load a dataset; its `notes` describe dropped rows and derived fields.

    `npz` and `pt` need `dataset_path`, `minari` needs `dataset_id`. `random` needs `env_id` and records `size` steps
    of random actions in that environment, created with `env_kwargs`.
    """
    if kind not in KINDS:
        raise DatasetError(f"unknown dataset_kind '{kind}'{suggest(str(kind), KINDS)}")
    if kind == "random":
        return _record_random(env_id, env_kwargs or {}, size, seed)
    if kind == "minari":
        if dataset_id is None:
            raise DatasetError(
                "dataset_kind 'minari' needs dataset_id: set it, for example to 'D4RL/door/human-v2'"
            )
        source = f"Minari dataset '{dataset_id}'"
        fields, notes = read_minari(dataset_id, source, download=download)
    else:
        path = _existing_file(kind, dataset_path, env_id)
        source = f"'{path}'"
        fields, notes = FILE_READERS[kind](path, source)
    complete, derived = complete_fields(fields, source)
    return TransitionDataset(**complete, notes=(*notes, *derived))


def save_transition_dataset(path: str | Path, dataset: TransitionDataset) -> Path:
    """Write an uncompressed `.npz`, which loads memory-mapped; an existing file is not overwritten."""
    path = check_new_file(path)
    with translate_write_errors(path, DatasetError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as draft, draft.open("xb") as file:
            fields = dataset.arrays()
            if not dataset.has_rewards:
                del fields["rewards"]
            np.savez(file, **fields)  # type: ignore[arg-type]
    return path


def check_new_file(path: str | Path) -> Path:
    """The path, or a `DatasetError` if `save_transition_dataset` cannot write there."""
    path = Path(path)
    if path.suffix != ".npz":
        raise DatasetError(f"cannot write '{path}': give a file name that ends in .npz")
    if path.exists():
        raise DatasetError(f"'{path}' exists already and is not overwritten: choose another name")
    return path


def mix_datasets(
    datasets: Sequence[TransitionDataset], weights: Sequence[float], seed: int
) -> TransitionDataset:
    """Concatenate random whole episodes of each dataset, with transitions in proportion to `weights`.

    The result is as large as possible without repeating an episode; proportions are met to the nearest episode.
    """
    fractions = np.asarray(weights, np.float64)
    if (
        len(datasets) == 0
        or len(fractions) != len(datasets)
        or not ((fractions > 0) & np.isfinite(fractions)).all()
    ):
        given = f"{len(datasets)} datasets with weights {list(weights)}"
        raise DatasetError(f"cannot mix {given}: give one finite weight above 0 per dataset")
    _check_same_fields(datasets)
    counts = fractions * np.min([len(dataset) for dataset in datasets] / fractions)
    rng = np.random.default_rng(seed)
    chosen = [
        (dataset, _choose_rows(dataset, n, rng))
        for dataset, n in zip(datasets, counts, strict=True)
    ]
    needed = sum(dataset.nbytes // len(dataset) * len(rows) for dataset, rows in chosen)
    what = f"a mix of {sum(len(rows) for _, rows in chosen):,} transitions"
    check_data_fits(needed, what, "mix smaller files")
    fields: dict[str, Any] = {
        name: np.concatenate([dataset.arrays()[name][rows] for dataset, rows in chosen])
        for name in datasets[0].arrays()
    }
    return TransitionDataset(**fields, rng=rng, has_rewards=datasets[0].has_rewards)


def _choose_rows(dataset: TransitionDataset, num_wanted: float, rng: np.random.Generator) -> Array:
    """Rows of random whole episodes, in file order, about `num_wanted` in total."""
    episodes = dataset.episodes()
    order = rng.permutation(len(episodes))
    sizes = np.cumsum((episodes[:, 1] - episodes[:, 0])[order])
    count = int(np.argmin(np.abs(sizes - num_wanted))) + 1
    return np.concatenate(
        [np.arange(start, stop) for start, stop in episodes[np.sort(order[:count])]]
    )


def _check_same_fields(datasets: Sequence[TransitionDataset]) -> None:
    if len({dataset.masks is None for dataset in datasets}) > 1:
        raise DatasetError(
            "some datasets have action masks and others have none: mix datasets of one environment"
        )
    if len({dataset.has_rewards for dataset in datasets}) > 1:
        raise DatasetError(
            "some datasets have rewards and others have none: add them, or remove them everywhere"
        )
    for name in datasets[0].arrays():
        arrays = [dataset.arrays()[name] for dataset in datasets]
        kinds = [f"{array.dtype} of shape {array.shape[1:]}" for array in arrays]
        for number, kind in enumerate(kinds):
            if kind != kinds[0]:
                difference = f"{name} of dataset {number} is {kind} and of dataset 0 {kinds[0]}"
                raise DatasetError(f"{difference}: mix datasets of one environment")


def _existing_file(kind: str, dataset_path: str | Path | None, env_id: str | None) -> Path:
    if dataset_path is None:
        raise DatasetError(f"dataset_kind '{kind}' needs dataset_path: set it to a .{kind} file")
    path = Path(dataset_path).expanduser()
    if not path.exists():
        out = str(path) if kind == "npz" else "FILE.npz"
        command = shlex.join(
            ["rl-training", "data", "collect", "RUN", "--steps", "20000", "--out", out]
        )
        remedy = f"record an .npz file with `{command}`, where RUN is a run folder"
        if env_id is not None:
            remedy += f", for example of `{shlex.join(['rl-training', 'train', 'ppo', env_id])}`"
        raise DatasetError(
            f"'{path}' does not exist (looked from {Path.cwd()}): correct the path, or {remedy}"
        )
    if not path.is_file():
        raise DatasetError(f"'{path}' is not a file: dataset_kind '{kind}' reads one .{kind} file")
    try:
        with path.open("rb") as file:
            is_empty = not file.read(1)
    except OSError as error:
        raise DatasetError(f"cannot read '{path}': {error.strerror}") from None
    if is_empty:
        raise DatasetError(f"'{path}' is empty (0 bytes): save the dataset again")
    return path


def _record_random(
    env_id: str | None, env_kwargs: Mapping[str, Any], size: int, seed: int | np.random.SeedSequence
) -> TransitionDataset:
    if env_id is None:
        raise DatasetError(
            "dataset_kind 'random' needs env_id: set it, for example to 'Pendulum-v1'"
        )
    if size < 1:
        raise DatasetError(f"size is {size}: record at least 1 step")
    seeds = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    dataset: TransitionDataset = provided("record_random_actions")(env_id, env_kwargs, size, seeds)
    return dataset


def _read_pt(path: Path, source: str) -> tuple[dict[str, Array], tuple[str, ...]]:
    """The stored fields of a dict of tensors; a zip archive stays memory-mapped."""
    if not zipfile.is_zipfile(path):
        check_data_fits(path.stat().st_size, source, SMALLER)
    tensors = _read_tensors(path)
    found = find_fields(tensors, source)
    headers = {}
    for name, key in found.items():
        tensor = tensors[key]
        if (
            not isinstance(tensor, torch.Tensor)
            or tensor.layout is not torch.strided
            or tensor.is_quantized
        ):
            raise DatasetError(
                f"'{key}' in {source} is not a dense tensor: save a dict of dense tensors with torch.save"
            )
        if tensor.numel() * tensor.element_size() > path.stat().st_size:
            raise DatasetError(
                f"'{key}' in {source} is damaged: it is larger than the file; save the file again"
            )
        headers[name] = _describe_tensor(name, tensor, source)
    check_fits(headers, source, SMALLER)
    return {name: as_stored(name, tensors.pop(key), source) for name, key in found.items()}, ()


def _describe_tensor(name: str, tensor: torch.Tensor, source: str) -> FieldHeader:
    """Header of a field; it is copied if its stored dtype or layout differs from the tensor's."""
    kind = "float32" if tensor.is_floating_point() else str(tensor.dtype).removeprefix("torch.")
    target = stored_dtype(name, np.dtype(kind), source)
    is_kept = str(tensor.dtype) == f"torch.{target}" and tensor.is_contiguous()
    return FieldHeader(tuple(tensor.shape), target, is_copied=not is_kept)


def _read_tensors(path: Path) -> dict[str, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error below describes the fault
            # weights_only: tensors and plain containers; a pickle with other objects is refused before it runs.
            content = torch.load(
                path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
            )
    except Exception as error:  # torch raises many types for a damaged file
        reason = str(error).split("\n")[0][:200]
        if "weights_only" in str(error):
            reason = "it contains objects other than tensors"
        elif ".npy" in reason:
            reason = "it was written by numpy.savez: use dataset_kind 'npz'"
        raise DatasetError(
            f"'{path}' cannot be read: {reason}; save a dict of tensors with torch.save, or arrays as npz"
        ) from None
    if not isinstance(content, dict):
        more = f", or {JOIN_EPISODES}" if isinstance(content, (list, tuple)) else ""
        kind = type(content).__name__
        raise DatasetError(
            f"'{path}' contains a {kind}: save a dict of tensors with torch.save{more}"
        )
    return {str(key): value for key, value in content.items()}


FILE_READERS = {"npz": read_npz, "pt": _read_pt}
"""By kind, which is also the suffix: reads the stored fields of a file, and notes on how they were read."""
KINDS = ("random", *FILE_READERS, "minari")
