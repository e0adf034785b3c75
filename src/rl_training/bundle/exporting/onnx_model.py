"""An ONNX model of a list of operations: torch runs and exports them, and ONNX Runtime checks the result."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_training.bundle.exporting.describing import Description
from rl_training.bundle.loading import differing
from rl_training.bundle.program import ACTION, MASK, NEXT_STATE, OBS, STATE
from rl_training.bundle.reading import Array
from rl_training.bundle.spaces import BundleSpaces, parse_spaces
from rl_training.errors import BundleError, ConfigError, install_extra
from rl_training.models.actions import masked

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
EXAMPLES = 2
"""Batch of the export: with one observation, torch would fix the batch to one."""


def require_onnx() -> None:
    """Raise a `ConfigError` that names the extra if a package is missing."""
    for name in PACKAGES:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f"--onnx needs {name}, which is not installed: {install_extra('onnx')}")


def make_onnx(description: Description, golden: dict[str, Array]) -> bytes:
    """The model, after ONNX Runtime has reproduced the golden pairs with it."""
    require_onnx()
    import onnx

    spaces = parse_spaces(description.spaces)
    names = input_names(spaces)
    rows = np.arange(EXAMPLES) % len(golden[ACTION])
    examples = tuple(torch.from_numpy(golden[key][rows].copy()) for key in names)
    batch = torch.export.Dim("batch", min=1)
    outputs = ["action", *(["next_state"] if spaces.state_size else [])]
    try:
        with _quiet(), torch.no_grad():
            program: Any = torch.onnx.export(
                OperationsModule(description, list(names)).eval(),
                examples,
                dynamo=True,
                external_data=False,
                input_names=list(names.values()),
                output_names=outputs,
                dynamic_shapes=(tuple({0: batch} for _ in names),),
                verbose=False,
            )
    except Exception as error:  # torch's exporter raises errors of many types
        detail = str(error.__cause__ or error).strip().partition("\n")[0]
        raise BundleError(f"torch cannot convert the policy to ONNX: {detail:.300}") from error
    model = program.model_proto
    _remove_origins(model)
    buffer = io.BytesIO()
    onnx.save_model(model, buffer)
    data = buffer.getvalue()
    check_onnx(data, spaces, golden)
    return data


def check_onnx(data: bytes, spaces: BundleSpaces, golden: dict[str, Array]) -> None:
    """Raise a `BundleError` unless ONNX Runtime gives the golden actions, one by one and as a batch."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = input_names(spaces)
    if MASK in golden and MASK not in names:  # the model permits every action
        unmasked = golden[MASK].all(1)
        golden = {name: array[unmasked] for name, array in golden.items()}
    for rows in (slice(None), slice(0, 1)) if len(golden[ACTION]) else ():
        results = session.run(None, {name: golden[key][rows] for key, name in names.items()})
        differs = differing(spaces, np.asarray(results[0]), golden[ACTION][rows], factor=2.0)
        if spaces.state_size:
            differs |= (np.abs(np.asarray(results[1]) - golden[NEXT_STATE][rows]) > 1e-4).any(1)
        if differs.any():
            raise BundleError(f"the ONNX model does not reproduce golden pair {int(differs.argmax())}")


class OperationsModule(nn.Module):
    """A list of operations as a torch module; inputs in the order of `keys`."""

    def __init__(self, description: Description, keys: list[str]) -> None:
        super().__init__()
        self._keys, self._operations = keys, description.operations
        self._has_state = bool(description.spaces["state_size"])
        self._buffer_names = {name: f"tensor_{index}" for index, name in enumerate(description.tensors)}
        for name, array in description.tensors.items():
            self.register_buffer(self._buffer_names[name], torch.from_numpy(array.copy()))

    def forward(self, *inputs: Tensor) -> Any:
        """The action, and with memory the next state."""
        values: dict[str, Any] = dict(zip(self._keys, inputs, strict=True))
        for operation in self._operations:
            settings = {key: self._setting(value) for key, value in operation.items() if key not in ("op", "in", "out")}
            made = TORCH_OPERATIONS[operation["op"]](*(values.get(name) for name in operation["in"]), **settings)
            made = made if isinstance(made, tuple) else (made,)
            values |= dict(zip(operation["out"], made, strict=True))
        return (values[ACTION], values[NEXT_STATE]) if self._has_state else values[ACTION]

    def _setting(self, value: Any) -> Any:
        is_tensor = isinstance(value, str) and value in self._buffer_names
        return getattr(self, self._buffer_names[value]) if is_tensor else value


def input_names(spaces: BundleSpaces) -> dict[str, str]:
    """Names of the model's inputs, by those of the golden tensors; a mask is an input only if it is required."""
    names = {}
    for index, leaf in enumerate(spaces.observation):
        names[f"{OBS}.{index}"] = "_".join(["obs", *map(str, leaf.path)])
    if len(set(names.values())) < len(names):
        names = {key: key.replace(".", "_") for key in names}
    if spaces.state_size:
        names[STATE] = STATE
    if spaces.mask_use == "required":
        names[MASK] = MASK
    return names


def _remove_origins(model: Any) -> None:
    """Remove what torch notes about its source: stack traces with paths of this machine."""
    del model.metadata_props[:]
    for graph in (model.graph, *model.functions):
        del graph.metadata_props[:]
        for node in graph.node:
            del node.metadata_props[:]
            node.doc_string = ""
        for value in (*graph.value_info, *(() if graph is not model.graph else (*graph.input, *graph.output))):
            del value.metadata_props[:]
    for tensor in model.graph.initializer:
        tensor.doc_string = ""


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the messages of torch's exporter."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "torch.export")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _one_hot(x: Tensor, choices: list[int], start: list[int]) -> Tensor:
    index = x.reshape(x.shape[0], len(start)) - torch.tensor(start)
    columns = [(index[:, n : n + 1] == torch.arange(count)).float() for n, count in enumerate(choices)]
    return torch.cat(columns, 1)


def _normalize(x: Tensor, mean: Tensor, scale: Tensor, limit: float) -> Tensor:
    return ((x - mean) * scale).clamp(-limit, limit)


def _image(x: Tensor, plane: list[int], channels_last: bool) -> Tensor:
    x = x.movedim(-1, -3) if channels_last else x
    return x.to(torch.float32).reshape(x.shape[0], -1, *plane)


def _layer_norm(x: Tensor, scale: Tensor, offset: Tensor, epsilon: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], scale, offset, epsilon)


def _lstm(
    x: Tensor, state: Tensor, input_weight: Tensor, recurrent_weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    hidden, cell = state.chunk(2, 1)
    input_gate, forget_gate, candidate, output_gate = (x @ input_weight + bias + hidden @ recurrent_weight).chunk(4, 1)
    cell = forget_gate.sigmoid() * cell + input_gate.sigmoid() * candidate.tanh()
    hidden = output_gate.sigmoid() * cell.tanh()
    return hidden, torch.cat([hidden, cell], 1)


def _gru(
    x: Tensor, state: Tensor, input_weight: Tensor, recurrent_weight: Tensor, bias: Tensor, recurrent_bias: Tensor
) -> tuple[Tensor, Tensor]:
    reset, update, new = (x @ input_weight + bias).chunk(3, 1)
    reset_h, update_h, new_h = (state @ recurrent_weight + recurrent_bias).chunk(3, 1)
    candidate = (new + (reset + reset_h).sigmoid() * new_h).tanh()
    hidden = candidate + (update + update_h).sigmoid() * (state - candidate)
    return hidden, hidden.clone()


def _dueling(x: Tensor, width: int) -> Tensor:
    parts = x.reshape(x.shape[0], -1, width)
    value, advantages = parts[:, :1], parts[:, 1:]
    return (value + advantages - advantages.mean(1, keepdim=True)).flatten(1)


def _categorical_mean(x: Tensor, support: Tensor) -> Tensor:
    return (x.reshape(x.shape[0], -1, support.shape[0]).softmax(-1) * support).sum(-1)


def _argmax(x: Tensor, choices: list[int]) -> Tensor:
    return torch.stack([part.argmax(-1) for part in torch.split(x, choices, -1)], -1)


def _clip(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.minimum(torch.maximum(x.double(), low), high)


def _cast(x: Tensor, shape: list[int], dtype: str) -> Tensor:
    return x.reshape(x.shape[0], *shape).to(getattr(torch, dtype))


TORCH_OPERATIONS: dict[str, Callable[..., Any]] = {
    "flatten": lambda x: (x[:, None] if x.dim() == 1 else x).to(torch.float32).flatten(1),
    "one_hot": _one_hot,
    "scale": lambda x, factor: x * factor,
    "concat": lambda *parts: torch.cat(parts, 1),
    "normalize": _normalize,
    "image": _image,
    "conv2d": lambda x, weight, bias, stride: F.conv2d(x, weight, bias, stride),
    "linear": lambda x, weight, bias: F.linear(x, weight, bias),
    "layer_norm": _layer_norm,
    "batch_norm": lambda x, scale, offset: x * scale + offset,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "silu": F.silu,
    "gelu": F.gelu,
    "elu": F.elu,
    "lstm": _lstm,
    "gru": _gru,
    "dueling": _dueling,
    "quantile_mean": lambda x, width: x.reshape(x.shape[0], -1, width).mean(-1),
    "categorical_mean": _categorical_mean,
    "mask": masked,
    "argmax": _argmax,
    "offset": lambda x, start: x + torch.tensor(start),
    "to_bounds": lambda x, low, high: low + (x + 1.0) * 0.5 * (high - low),
    "clip": _clip,
    "cast": _cast,
}
"""Function of each operation of `rl_training.bundle.operations`: its inputs, then its settings by name."""
