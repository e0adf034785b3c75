"""The verb that takes a policy out of the package: `export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rl_training.cli.options import (
    NUMBER,
    AllowedPaths,
    AsJson,
    CheckpointPath,
    CheckpointPlugins,
    Run,
    find_run,
    flag,
    option,
    output_file,
    whole_number,
)
from rl_training.cli.output import say, show
from rl_training.errors import ConfigError

BundleFile = Annotated[
    Path | None,
    option("--out", "FILE", "Bundle to write, such as policy.rlp. Needed.", parser=output_file),
]
Onnx = Annotated[
    bool,
    flag("--onnx", "Add the policy as an ONNX model, checked with ONNX Runtime (extra: onnx)."),
]
Card = Annotated[
    bool, flag("--card", "Add card.md: what the policy is, its score, how to load it.")
]
GoldenEpisodes = Annotated[
    int | None,
    option(
        "--eval-episodes",
        NUMBER,
        "Episodes for golden pairs and for the score of the card (default: the run's; 0: no environment).",
        parser=whole_number,
    ),
]


def export(
    run: Run = None,
    checkpoint: CheckpointPath = None,
    out: BundleFile = None,
    onnx: Onnx = False,
    card: Card = False,
    eval_episodes: GoldenEpisodes = None,
    plugin: CheckpointPlugins = None,
    allow_path: AllowedPaths = None,
    as_json: AsJson = False,
) -> None:
    """Write the policy of a run as one file: `export RUN --out policy.rlp`.

    `rl_training.bundle.load` reads it with NumPy and safetensors alone, and refuses it unless it acts as it did when
    it was exported. RUN may be a checkpoint, such as runs/RUN/checkpoints/best. An existing file is not overwritten.
    """
    from rl_training.bundle.exporting.export import check_free, export_bundle

    path = find_run(run, checkpoint)
    if out is None:
        raise ConfigError("missing option --out: name the file to write, such as --out policy.rlp")
    if eval_episodes is not None and eval_episodes < 0:
        raise ConfigError(f"bad value {eval_episodes} for --eval-episodes: should be at least 0")
    check_free(out)
    done = export_bundle(path, out, onnx=onnx, card=card, num_episodes=eval_episodes)
    values = {
        "bundle": str(done.path),
        "bytes": done.num_bytes,
        "files": done.files,
        "operations": done.num_operations,
        "golden_pairs": done.num_pairs,
        "returns": None if done.evaluation is None else list(done.evaluation.returns),
    }
    show(values, [f"bundle={done.path}"], as_json)
    if not as_json:
        size = f"{done.num_bytes / 1000:,.0f} kB"
        say(f"{done.num_operations} operations, {done.num_pairs} golden pairs reproduced, {size}")
        if done.evaluation is not None:
            say(f"score  {done.evaluation}")
