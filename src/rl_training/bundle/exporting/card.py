"""The card of a bundle: what the policy is, how it was trained and evaluated, and how it is loaded, in Markdown."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from rl_training.bundle.exporting.describing import Description
from rl_training.bundle.spaces import BundleSpaces, parse_spaces
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import learns_offline
from rl_training.spaces.given import ObsLeaf
from rl_training.studies.statistics import mean_interval


@dataclass(frozen=True)
class Evaluation:
    """Episodes of the deterministic policy on the run's evaluation seeds."""

    returns: tuple[float, ...]

    def __str__(self) -> str:
        found, count = mean_interval(self.returns), len(self.returns)
        if found.low is None or found.high is None:
            return f"{found.mean:.1f} (one episode: no interval)"
        interval = f"{found.low:.1f} to {found.high:.1f}"
        return f"{found.mean:.1f} (95 % interval of the mean over {count:,} episodes: {interval})"


def write_card(
    config: TrainConfig,
    description: Description,
    file_name: str,
    step: int,
    evaluation: Evaluation | None,
    versions: dict[str, str],
    *,
    has_onnx: bool,
) -> bytes:
    """The card as Markdown."""
    spaces = parse_spaces(description.spaces)
    env = config.env_id or "none (a dataset)"
    unit = "gradient" if learns_offline(config.algo) else "environment"
    rows = {
        "algorithm": config.algo,
        "environment": env,
        "seed": str(config.seed),
        "trained for": f"{step:,} {unit} steps",
        **_describe_spaces(spaces),
        **_describe_score(config.seed, evaluation),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    lines = [
        f"# {config.algo} on {env}",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {_cell(text)} |" for name, text in rows.items()),
        "",
        "The score is of one training run: it says nothing about other seeds.",
        "",
        "## Use",
        "",
        "```python",
        *snippet(spaces, file_name),
        "```",
        "",
        "`load` needs NumPy and safetensors only. It checks every byte of the file, and that the policy gives the"
        " actions that it gave when it was exported.",
    ]
    if has_onnx:
        unpack = f"`unzip {file_name} policy.onnx`"
        lines += ["", f"An ONNX model for other languages is inside: {unpack}."]
    return ("\n".join(lines) + "\n").encode()


def snippet(spaces: BundleSpaces, file_name: str) -> list[str]:
    """Lines of Python that load the policy and act."""
    arguments, comment = "observation", ""
    if spaces.state_size:
        arguments, comment = "observation, state=None", "  # action and next state"
    if spaces.mask_use == "required":
        arguments += f", mask=np.ones({spaces.action.num_options}, bool)"
    return [
        "import numpy as np",
        "from rl_training.bundle import load",
        f"policy = load({json.dumps(file_name)})",
        f"observation = {_example(spaces)}  # one of the environment's, or a batch",
        f"print(policy.act({arguments})){comment}",
    ]


def _describe_spaces(spaces: BundleSpaces) -> dict[str, str]:
    observation = ", ".join(
        f"{leaf.name or 'one array'}: {leaf.dtype} {list(leaf.shape)}"
        for leaf in spaces.observation
    )
    action = spaces.action
    options = f", options {list(action.choices)}" if action.choices else ""
    return {
        "observation": observation,
        "action": f"{action.dtype} {list(action.shape)}{options}",
        "memory": f"{spaces.state_size} numbers" if spaces.state_size else "none",
        "action masks": spaces.mask_use,
    }


def _describe_score(seed: int, evaluation: Evaluation | None) -> dict[str, str]:
    if evaluation is None:
        reason = "none: the run has no environment, or the policy was exported without it"
        return {"evaluation": reason, "score": "not measured"}
    count = len(evaluation.returns)
    protocol = (
        f"{count:,} episode{'' if count == 1 else 's'} of the deterministic policy, unscaled rewards, on evaluation"
        f" seeds derived from seed {seed}, which training never uses"
    )
    return {"evaluation": protocol, "score": str(evaluation)}


def _example(spaces: BundleSpaces) -> str:
    """Python code of an observation."""
    first = spaces.observation[0]
    if not first.path:
        return _example_leaf(first)
    nested: dict[str | int, Any] = {}
    for leaf in spaces.observation:
        inner = nested
        for key in leaf.path[:-1]:
            inner = inner.setdefault(key, {})
        inner[leaf.path[-1]] = _example_leaf(leaf)
    return _literal(nested)


def _literal(nested: dict[str | int, Any]) -> str:
    parts = {
        key: _literal(value) if isinstance(value, dict) else value for key, value in nested.items()
    }
    if all(isinstance(key, int) for key in parts):  # a Tuple
        return f"({', '.join(parts.values())},)"
    return "{" + ", ".join(f"{key!r}: {value}" for key, value in parts.items()) + "}"


def _example_leaf(leaf: ObsLeaf) -> str:
    shape = repr(leaf.shape)
    return (
        f"np.reshape({list(leaf.start)}, {shape})"
        if leaf.choices
        else f'np.zeros({shape}, "{leaf.dtype}")'
    )


def _cell(text: str) -> str:
    """Text that cannot end a cell or a line of a table."""
    return " ".join(text.split()).replace("|", "\\|")
