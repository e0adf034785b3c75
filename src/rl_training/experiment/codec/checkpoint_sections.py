"""One section of a checkpoint: its tensors, for a safetensors file, and the rest of its state as JSON.

Writing enforces the limits of reading, so that no checkpoint is written that cannot be read.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from rl_training.errors import CheckpointError
from rl_training.experiment.codec.tree_codec import stored_bytes, unpack_dict
from rl_training.experiment.codec.tree_packing import UnsavableStateError, pack

MAX_JSON_BYTES = 1 << 28
"""Maximum size of a section's JSON text."""
MAX_INLINE_BYTES = 1 << 18
"""A longer JSON text is stored as a tensor in the section's file, not in the manifest."""
MAX_HEADER_BYTES = 100_000_000
"""Maximum size of a header that the safetensors library reads."""
JSON_TAG = JSON_TENSOR = "$json"


def pack_section(name: str, state: dict[str, Any]) -> tuple[Any, dict[str, torch.Tensor]]:
    """The JSON-compatible state of a section, for the manifest, and the tensors of its file."""
    tensors: dict[str, torch.Tensor] = {}
    try:
        json_state = pack(state, tensors)
    except UnsavableStateError as error:
        raise error.within(name) from None
    text = json.dumps(json_state, allow_nan=False, separators=(",", ":")).encode()
    if len(text) > MAX_JSON_BYTES:
        raise CheckpointError(
            f"the {name} state takes {len(text):,} bytes besides its arrays, more than the limit of"
            f" {MAX_JSON_BYTES:,}: keep numbers in NumPy arrays"
        )
    if len(text) > MAX_INLINE_BYTES:
        tensors[JSON_TENSOR] = torch.from_numpy(np.frombuffer(bytearray(text), np.uint8))
        json_state = {JSON_TAG: JSON_TENSOR}
    # A header entry has a name, a dtype, a shape and two offsets.
    header_bytes = sum(len(json.dumps(key)) + 100 + 22 * tensor.dim() for key, tensor in tensors.items())
    if header_bytes > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"the {name} state has {len(tensors):,} arrays, tensors and long lists, more than a file's header can list:"
            " join them into fewer, larger arrays"
        )
    return json_state, tensors


def unpack_section(name: str, json_state: Any, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """The inverse of `pack_section`."""
    if isinstance(json_state, dict) and JSON_TAG in json_state:
        try:
            text = stored_bytes(json_state[JSON_TAG], tensors)
            if len(text) > MAX_JSON_BYTES:
                raise CheckpointError(f"the checkpoint's {name} state is damaged: it has {len(text):,} bytes of JSON")
            json_state = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"the checkpoint's {name} state is damaged: {error!s:.200}") from None
    return unpack_dict(json_state, tensors, name)
