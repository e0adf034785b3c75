"""One section of a checkpoint: named tensors for its safetensors file, and the rest of its state as JSON.

The limits that reading has are kept here in writing, so that no checkpoint is written that would be refused.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from rl_training.errors import CheckpointError
from rl_training.experiment.tree_codec import stored_bytes, unpack_dict
from rl_training.experiment.tree_packing import UnsavableStateError, pack

MAX_JSON_BYTES = 1 << 28
"""Largest JSON text of a section."""
MAX_INLINE_BYTES = 1 << 18
"""A larger JSON text is not in the manifest but a tensor of the section's file."""
MAX_HEADER_BYTES = 100_000_000
"""Longest list of tensors that the safetensors library reads."""
JSON_TAG = JSON_TENSOR = "$json"


def pack_section(name: str, state: dict[str, Any]) -> tuple[Any, dict[str, torch.Tensor]]:
    """What the manifest says of a section's state, and the tensors of its file."""
    tensors: dict[str, torch.Tensor] = {}
    try:
        plain = pack(state, tensors)
    except UnsavableStateError as error:
        raise error.within(name) from None
    text = json.dumps(plain, allow_nan=False, separators=(",", ":")).encode()
    if len(text) > MAX_JSON_BYTES:
        raise CheckpointError(
            f"the {name} state takes {len(text):,} bytes besides its arrays, and a checkpoint may have"
            f" {MAX_JSON_BYTES:,}: keep numbers in NumPy arrays"
        )
    if len(text) > MAX_INLINE_BYTES:
        tensors[JSON_TENSOR] = torch.from_numpy(np.frombuffer(bytearray(text), np.uint8))
        plain = {JSON_TAG: JSON_TENSOR}
    # An entry of the header has the name, a type, the shape and two offsets.
    header_bytes = sum(len(json.dumps(key)) + 100 + 22 * tensor.dim() for key, tensor in tensors.items())
    if header_bytes > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"the {name} state has {len(tensors):,} arrays, tensors and long lists, more than one file can list:"
            " join them into fewer, larger arrays"
        )
    return plain, tensors


def unpack_section(name: str, plain: Any, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """The inverse of `pack_section`."""
    if isinstance(plain, dict) and JSON_TAG in plain:
        try:
            text = stored_bytes(plain[JSON_TAG], tensors)
            if len(text) > MAX_JSON_BYTES:
                raise CheckpointError(f"the checkpoint's {name} state is damaged: it has {len(text):,} bytes of JSON")
            plain = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"the checkpoint's {name} state is damaged: {error!s:.200}") from None
    return unpack_dict(plain, tensors, name)
