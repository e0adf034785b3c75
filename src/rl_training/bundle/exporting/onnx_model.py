"""An ONNX model of a list of operations: each becomes a few nodes, and ONNX Runtime checks the result."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rl_training.bundle.exporting.describing import Description
from rl_training.bundle.loading import differing
from rl_training.bundle.operations import INVALID
from rl_training.bundle.program import ACTION, MASK, NEXT_STATE, OBS, STATE
from rl_training.bundle.reading import Array
from rl_training.bundle.spaces import BundleSpaces, parse_spaces
from rl_training.errors import BundleError, ConfigError, install_extra

PACKAGES = ("onnx", "onnxruntime")
OPSET, IR_VERSION = 18, 10


def require_onnx() -> None:
    """Raise a `ConfigError` that names the extra if a package is missing."""
    for name in PACKAGES:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"--onnx needs {name}, which is not installed: {install_extra('onnx')}"
            )


def make_onnx(description: Description, golden: dict[str, Array]) -> bytes:
    """The model, after ONNX Runtime has reproduced the golden pairs with it."""
    require_onnx()
    import onnx
    from onnx.helper import make_graph, make_model, make_node, make_operatorsetid

    spaces = parse_spaces(description.spaces)
    names = input_names(spaces)
    graph = Graph()
    values = {key: Node(graph, name, golden[key].ndim) for key, name in names.items()}
    for operation in description.operations:
        settings = {
            key: description.tensors.get(value, value) if isinstance(value, str) else value
            for key, value in operation.items()
            if key not in ("op", "in", "out")
        }
        made = ONNX_OPERATIONS[operation["op"]](*map(values.get, operation["in"]), **settings)
        values |= zip(operation["out"], made if isinstance(made, tuple) else (made,), strict=True)
    results = [name for name in (ACTION, NEXT_STATE) if name in golden]
    ends = [make_node("Identity", [values[name].name], [name]) for name in results]
    inputs = [_described(name, golden[key]) for key, name in names.items()]
    outputs = [_described(name, golden[name]) for name in results]
    content = make_graph([*graph.nodes, *ends], "policy", inputs, outputs, graph.constants)
    opset = [make_operatorsetid("", OPSET)]
    model = make_model(content, opset_imports=opset, ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    check_onnx(data, spaces, golden)
    return data


def _described(name: str, values: Array) -> Any:
    """Type and shape of an input or output with any batch size."""
    from onnx.helper import make_tensor_value_info, np_dtype_to_tensor_dtype

    return make_tensor_value_info(
        name, np_dtype_to_tensor_dtype(values.dtype), ["batch", *values.shape[1:]]
    )


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
            raise BundleError(
                f"the ONNX model does not reproduce golden pair {int(np.argmax(differs))}"
            )


def input_names(spaces: BundleSpaces) -> dict[str, str]:
    """Names of the model's inputs, by golden tensor name; a mask is an input only if it is required."""
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


class Graph:
    """ONNX nodes and constants under construction."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any) -> str:
        """Name of a new tensor; Python's floats are float32."""
        from onnx.numpy_helper import from_array

        array = np.array(value, np.float32 if isinstance(value, float) else None, order="C")
        name = f"c{len(self.constants)}"
        self.constants.append(from_array(array, name))
        return name


class Node:
    """A value of the model: the output of an ONNX node, which its methods and operators append to."""

    def __init__(self, graph: Graph, name: str, rank: int = 2) -> None:
        self.graph, self.name, self.rank = graph, name, rank

    def __call__(self, kind: str, *others: Any, **attributes: Any) -> Node:
        """The output of a node that reads this value first, then others: nodes, or constants."""
        return self.many(kind, 1, *others, **attributes)[0]

    def many(self, kind: str, count: int, *others: Any, **attributes: Any) -> list[Node]:
        """The same with several outputs."""
        from onnx.helper import make_node

        graph = self.graph
        sources = [self.name]
        sources += [one.name if isinstance(one, Node) else graph.constant(one) for one in others]
        outputs = [f"v{len(graph.nodes)}_{index}" for index in range(count)]
        graph.nodes.append(make_node(kind, sources, outputs, **attributes))
        return [Node(graph, name) for name in outputs]

    def __add__(self, other: Any) -> Node:
        return self("Add", other)

    def __sub__(self, other: Any) -> Node:
        return self("Sub", other)

    def __mul__(self, other: Any) -> Node:
        return self("Mul", other)

    def __matmul__(self, other: Any) -> Node:
        return self("MatMul", other)

    def cast(self, dtype: str) -> Node:
        """The value in another dtype."""
        from onnx.helper import np_dtype_to_tensor_dtype

        return self("Cast", to=np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def reshape(self, *shape: int) -> Node:
        """The value of each observation in another shape."""
        return self("Reshape", [0, *shape])

    def chunk(self, count: int) -> list[Node]:
        """Equal parts of each row."""
        return self.many("Split", count, axis=1, num_outputs=count)


def _one_hot(x: Node, choices: list[int], start: list[int]) -> Node:
    component = np.repeat(np.arange(len(choices)), choices)
    option = np.concatenate(
        [first + np.arange(count) for first, count in zip(start, choices, strict=True)]
    )
    return x("Flatten")("Gather", component, axis=1)("Equal", option).cast("float32")


def _image(x: Node, plane: list[int], channels_last: bool) -> Node:
    order = list(range(x.rank))
    if channels_last:
        order.insert(-2, order.pop())
    return x("Transpose", perm=order).cast("float32").reshape(-1, *plane)


def _lstm(
    x: Node, state: Node, input_weight: Array, recurrent_weight: Array, bias: Array
) -> tuple[Node, Node]:
    hidden, cell = state.chunk(2)
    row = x @ input_weight + bias + hidden @ recurrent_weight
    input_gate, forget_gate, candidate, output_gate = row.chunk(4)
    cell = forget_gate("Sigmoid") * cell + input_gate("Sigmoid") * candidate("Tanh")
    hidden = output_gate("Sigmoid") * cell("Tanh")
    return hidden, hidden("Concat", cell, axis=1)


def _gru(
    x: Node,
    state: Node,
    input_weight: Array,
    recurrent_weight: Array,
    bias: Array,
    recurrent_bias: Array,
) -> tuple[Node, Node]:
    reset, update, new = (x @ input_weight + bias).chunk(3)
    reset_h, update_h, new_h = (state @ recurrent_weight + recurrent_bias).chunk(3)
    candidate = (new + (reset + reset_h)("Sigmoid") * new_h)("Tanh")
    hidden = candidate + (update + update_h)("Sigmoid") * (state - candidate)
    return hidden, hidden


def _dueling(x: Node, width: int) -> Node:
    parts = x.reshape(-1, width)
    value, advantages = parts("Slice", [0], [1], [1]), parts("Slice", [1], [1 << 31], [1])
    return (value + advantages - advantages("ReduceMean", [1]))("Flatten")


def _categorical_mean(x: Node, support: Array) -> Node:
    weights = x.reshape(-1, len(support))("Softmax", axis=-1)
    return (weights * support)("ReduceSum", [-1], keepdims=0)


def _argmax(x: Node, choices: list[int]) -> Node:
    first, *rest = [
        part("ArgMax", axis=1) for part in x.many("Split", len(choices), choices, axis=1)
    ]
    return first("Concat", *rest, axis=1)


def _cast(x: Node, shape: list[int], dtype: str) -> Node:
    return (x.reshape(*shape) if shape else x("Reshape", [-1])).cast(dtype)


ONNX_OPERATIONS: dict[str, Callable[..., Any]] = {
    "flatten": lambda x: x("Flatten").cast("float32"),
    "one_hot": _one_hot,
    "scale": lambda x, factor: x * float(factor),
    "concat": lambda x, *parts: x("Concat", *parts, axis=1),
    "normalize": lambda x, mean, scale, limit: ((x - mean) * scale)(
        "Clip", -float(limit), float(limit)
    ),
    "image": _image,
    "conv2d": lambda x, weight, bias, stride: x("Conv", weight, bias, strides=[stride, stride]),
    "linear": lambda x, weight, bias: x("Gemm", weight, bias, transB=1),
    "layer_norm": lambda x, scale, offset, epsilon: x(
        "LayerNormalization", scale, offset, epsilon=epsilon
    ),
    "batch_norm": lambda x, scale, offset: x * scale + offset,
    "relu": lambda x: x("Relu"),
    "tanh": lambda x: x("Tanh"),
    "silu": lambda x: x * x("Sigmoid"),
    "gelu": lambda x: x * 0.5 * ((x * math.sqrt(0.5))("Erf") + 1.0),
    "elu": lambda x: x("Elu"),
    "lstm": _lstm,
    "gru": _gru,
    "dueling": _dueling,
    "quantile_mean": lambda x, width: x.reshape(-1, width)("ReduceMean", [-1], keepdims=0),
    "categorical_mean": _categorical_mean,
    "mask": lambda x, mask: x if mask is None else mask("Where", x, INVALID),
    "argmax": _argmax,
    "offset": lambda x, start: x + start,
    "to_bounds": lambda x, low, high: ((x + 1.0) * 0.5).cast("float64") * (high - low) + low,
    "clip": lambda x, low, high: x.cast("float64")("Max", low)("Min", high),
    "cast": _cast,
}
"""Each operation of `rl_training.bundle.operations` as nodes: of its inputs, then its settings by name."""
