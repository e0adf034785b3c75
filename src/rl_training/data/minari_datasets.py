"""Read Minari datasets, local or downloaded, and write new ones."""

from __future__ import annotations

import contextlib
import inspect
import json
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rl_training.data.dataset_fields import FieldHeader, check_fits, stored_dtype
from rl_training.data.dataset_spaces import as_observations, recorded_spec
from rl_training.errors import DatasetError
from rl_training.replay.transitions import FIELDS, Array
from rl_training.spaces.observations import ObsSpec
from rl_training.spaces.spec import describe_observation, describe_spaces

DAMAGED = "it is damaged; download or record it again"
ACTION_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
MISSING = 'Minari datasets need the package minari: pip install "rl-training[offline]"'


def read_minari(
    dataset_id: str, source: str, *, download: bool
) -> tuple[dict[str, Array], tuple[str, ...]]:
    """The six fields with all episodes concatenated, and notes on how they were read."""
    try:
        return _read_episodes(_open(dataset_id, source, download), source)
    except DatasetError:
        raise
    except ImportError:
        raise DatasetError(MISSING) from None
    except Exception as error:  # the libraries raise many types for a damaged folder
        raise DatasetError(
            f"{source} cannot be read: {type(error).__name__}: {error}; download or record it again"
        ) from None


def _open(dataset_id: str, source: str, download: bool) -> Any:
    import minari
    from minari.dataset.minari_storage import MinariStorage

    folder = _folder_of(dataset_id)
    if not (folder / "data").is_dir():
        if not download:
            known: list[str] = []
            with contextlib.suppress(Exception):  # only a hint: its failure must not hide the error
                known = sorted(minari.list_local_datasets())[:8]
            raise DatasetError(
                f"{source} is not in '{folder}': set MINARI_DATASETS_PATH to the folder with your datasets, or set"
                " dataset_download to true" + (f" (there: {', '.join(known)})" if known else "")
            )
        _download(minari, dataset_id, str(folder))
    metadata = MinariStorage.read_raw_metadata(folder / "data")
    for name in ("observation_space", "action_space"):
        # Without stored spaces Minari would import and build the environment that the file names.
        if not isinstance(metadata.get(name), str):
            raise DatasetError(
                f"'{folder}' lacks its {name}: record it again with Minari 0.5 or later"
            )
    return minari.load_dataset(dataset_id)


def _folder_of(dataset_id: str) -> Path:
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.storage.datasets_root_dir import get_dataset_path

    try:
        parse_dataset_id(dataset_id)
    except (ValueError, TypeError):
        raise DatasetError(
            f"'{dataset_id}' is not a Minari id: write it like 'D4RL/door/human-v2'"
        ) from None
    return Path(get_dataset_path(dataset_id))


def _download(minari: Any, dataset_id: str, folder: str) -> None:
    try:
        with contextlib.redirect_stdout(sys.stderr):
            minari.download_dataset(dataset_id)
    except ImportError:
        raise DatasetError(
            'downloading needs huggingface_hub: pip install "rl-training[offline]"'
        ) from None
    except Exception as error:  # network, server and client libraries raise many types
        reason = str(error).strip().splitlines()[0] if str(error).strip() else "no reason given"
        raise DatasetError(
            f"could not download '{dataset_id}': {type(error).__name__}: {reason}; check the network and the id,"
            f" or copy the dataset's folder to '{folder}'"
        ) from None


def _read_episodes(dataset: Any, source: str) -> tuple[dict[str, Array], tuple[str, ...]]:
    if not isinstance(dataset.action_space, ACTION_SPACES):
        kinds = "Box, Discrete, MultiDiscrete or MultiBinary"
        raise DatasetError(f"{source} has actions of {dataset.action_space}: use {kinds}")
    metadata = dataset.storage.read_raw_metadata(dataset.storage.data_path)
    space = _in_order(dataset.observation_space, json.loads(metadata["observation_space"]))
    # Nested observations are flattened to rows in the environment's units.
    is_flat = isinstance(space, (spaces.Box, spaces.Discrete))
    flatten = np.asarray if is_flat else recorded_spec(describe_observation(space)).as_stored
    fields: dict[str, Array] = {}
    total, start, num_unflagged = dataset.total_steps, 0, 0
    for episode in dataset.iterate_episodes():
        obs, count = flatten(episode.observations), len(episode.rewards)
        if len(obs) != count + 1 or len(episode.actions) != count or start + count > total:
            raise DatasetError(
                f"episode {episode.id} of {source} has {len(obs)} observations, {count} rewards and"
                f" {len(episode.actions)} actions, of {total:,} announced steps: {DAMAGED}"
            )
        truncated = np.array(episode.truncations, np.bool_)
        if count and not (truncated[-1] or episode.terminations[-1]):
            truncated[-1] = True
            num_unflagged += 1
        values = (
            obs[:-1],
            episode.actions,
            episode.rewards,
            obs[1:],
            episode.terminations,
            truncated,
        )
        arrays = dict(zip(FIELDS, map(np.asarray, values), strict=True))
        fields = fields or _allocate(arrays, total, source)
        for name, value in arrays.items():
            fields[name][start : start + count] = value
        start += count
    if start == 0:
        raise DatasetError(f"{source} is empty: it has no transitions")
    if start != total:
        raise DatasetError(f"{source} announces {total:,} steps and has {start:,}: {DAMAGED}")
    notes = [] if is_flat else _describe_rows(describe_observation(space))
    if num_unflagged:
        notes.append(f"{num_unflagged:,} episodes end without a flag and are taken as truncated")
    return fields, tuple(notes)


def _describe_rows(spec: ObsSpec) -> list[str]:
    if not spec.leaves:
        return []
    order = ", ".join(
        f"{'.'.join(map(str, part.path)) or 'obs'} ({part.width})" for part in spec.leaves
    )
    if spec.image_shapes:
        return [
            f"observations are uint8 rows, first the float32 numbers, then the images, in this order: {order}"
        ]
    wrapper = "gymnasium.wrappers.FlattenObservation does the same in the environment"
    return [f"observations are flattened in this order: {order}; {wrapper}"]


def _allocate(first: dict[str, Array], total: int, source: str) -> dict[str, Array]:
    """Arrays for `total` steps, shaped like the first episode's; a `DatasetError` if they exceed the memory."""
    headers = {
        name: FieldHeader((total, *array.shape[1:]), stored_dtype(name, array.dtype, source))
        for name, array in first.items()
    }
    remedy = "keep fewer episodes with minari's filter_episodes"
    check_fits(headers, f"{source} of {total:,} steps", remedy)
    return {name: np.empty(header.shape, header.stored_dtype) for name, header in headers.items()}


def _in_order(space: Space[Any], description: Any) -> Space[Any]:
    """The space with its keys in the environment's order.

    Minari's metadata keeps that order; the space it builds from the metadata sorts the keys.
    """
    if isinstance(space, spaces.Dict):
        inner = description["subspaces"]
        return spaces.Dict([(key, _in_order(space[key], inner[key])) for key in inner])
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple(map(_in_order, space.spaces, description["subspaces"]))
    return space


def check_new_id(dataset_id: str) -> None:
    """Raise a `DatasetError` if `write_minari` cannot create a dataset of this id."""
    try:
        folder = _folder_of(dataset_id)
    except ImportError:
        raise DatasetError(MISSING) from None
    if folder.exists():
        raise DatasetError(
            f"Minari dataset '{dataset_id}' exists already in '{folder}' and is not overwritten: choose another id"
        )


def write_minari(
    dataset_id: str, dataset: Any, observation_space: Space[Any], action_space: Space[Any]
) -> None:
    """Write a new local Minari dataset in the environment's spaces, and verify it by reading it back.

    On any error the new folder is removed.
    """
    check_new_id(dataset_id)
    dataset.to_model_space(describe_spaces(observation_space, action_space))
    folder = _folder_of(dataset_id)
    try:
        _write_episodes(dataset_id, dataset, observation_space, action_space)
        fields, _ = read_minari(dataset_id, f"Minari dataset '{dataset_id}'", download=False)
        for name, array in dataset.arrays().items():
            if not np.array_equal(
                fields[name].reshape(array.shape), array, equal_nan=array.dtype.kind == "f"
            ):
                raise DatasetError(f"{name} differs when read back")
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, Exception):
            is_ours = isinstance(error, DatasetError)
            reason = str(error) if is_ours else f"{type(error).__name__}: {error}"
            raise DatasetError(
                f"cannot write Minari dataset '{dataset_id}': {reason}; write an .npz file instead"
            ) from None
        raise


def _write_episodes(
    dataset_id: str, dataset: Any, observation_space: Space[Any], action_space: Space[Any]
) -> None:
    import minari
    from minari.data_collector import EpisodeBuffer

    actions = dataset.actions.reshape(len(dataset), *(action_space.shape or ())).astype(
        action_space.dtype
    )
    buffers = [
        EpisodeBuffer(
            id=number,
            observations=as_observations(
                observation_space,
                np.concatenate([dataset.obs[start:stop], dataset.next_obs[stop - 1 : stop]]),
            ),
            actions=actions[start:stop],
            rewards=dataset.rewards[start:stop],
            terminations=dataset.terminated[start:stop],
            truncations=dataset.truncated[start:stop],
            infos={},
        )
        for number, (start, stop) in enumerate(dataset.episodes())
    ]
    create = minari.create_dataset_from_buffers
    options: dict[str, Any] = {}
    # JPEG changes pixels. Before Minari 0.5.4 it cannot be turned off: reading back then fails for images.
    if "jpeg_encoding" in inspect.signature(create).parameters:
        options["jpeg_encoding"] = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # missing author, description and similar metadata
        create(
            dataset_id,
            buffers,
            observation_space=observation_space,
            action_space=action_space,
            **options,
        )
