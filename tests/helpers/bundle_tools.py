"""Policies of any algorithm and space as bundles, without training them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import Space
from gymnasium.vector.utils import concatenate, create_empty_array

from rl_training.algorithms.base import Algorithm, Resources
from rl_training.bundle.exporting.describing import Description, describe
from rl_training.bundle.exporting.export import assemble, bundle_files
from rl_training.bundle.exporting.golden import Situations, make_golden
from rl_training.bundle.spaces import parse_spaces
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.spaces.spec import describe_spaces


def make_policy(
    algo: str, obs: Space, action: Space, *, has_masks: bool = False, **settings: Any
) -> Algorithm[Any]:
    """An algorithm with tiny networks and random weights; with `normalize_obs`, also with statistics."""
    spec = get_algorithm_spec(algo)
    fields = spec.config_class().model_fields
    small = {
        "hidden_sizes": [8, 6],
        **({"dataset_kind": "random"} if "dataset_kind" in fields else {}),
    }
    config = spec.parse_kwargs({**small, **settings})
    spaces = describe_spaces(obs, action, has_masks=has_masks)
    algorithm_class = spec.algorithm_class()
    algorithm_class.check_spaces(spaces)
    resources = Resources(torch.device("cpu"), torch.Generator().manual_seed(3))
    algorithm = algorithm_class.for_spaces(spaces)(config, spaces, resources)
    stored = torch.from_numpy(np.ascontiguousarray(spaces.obs.as_stored(samples(obs, 32))))
    preprocessor = getattr(algorithm, "policy", algorithm).preprocessor
    if preprocessor is not None:
        preprocessor.update_statistics(stored)
    return algorithm


def samples(space: Space, count: int, seed: int = 0) -> Any:
    """A batch of observations."""
    space.seed(seed)
    return concatenate(
        space, [space.sample() for _ in range(count)], create_empty_array(space, count)
    )


def bundle_of(
    algorithm: Algorithm[Any], space: Space, algo: str = "ppo"
) -> tuple[bytes, Description, dict[str, Any]]:
    """The bundle of an algorithm, its description and its golden pairs."""
    description = describe(algorithm)
    golden = make_golden(
        algorithm, description, Situations(parse_spaces(description.spaces)), space
    )
    return assemble(bundle_files(description, golden), algo, "Test-v0", 3, 7), description, golden
