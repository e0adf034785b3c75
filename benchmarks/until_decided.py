"""How often `compare --until-decided` calls equal arms different: random halves of forty runs of one configuration.

    python benchmarks/until_decided.py [SPLITS]

The scores of forty CartPole runs are stored in benchmarks/results/cartpole_forty.json, with the command that trained
them. Each split makes two studies of twenty finished runs and gives them to the command line, which looks at 5, 10, 15
and 20 runs of each arm. A second table adds a true difference to one arm: how often, and how early, it is found.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from finished_studies import write_finished_study  # noqa: E402
from pages import write_block  # noqa: E402

from rl_training.cli import main  # noqa: E402

STORED = ROOT / "benchmarks" / "results" / "cartpole_forty.json"
PAGE = ROOT / "docs" / "comparing.md"
LEVEL = 0.05


def decide(first: list[float], second: list[float]) -> tuple[str, int]:
    """The verdict of the command line on two arms, and the look at which it came."""
    with tempfile.TemporaryDirectory() as folder:
        for name, scores in (("a", first), ("b", second)):
            write_finished_study(Path(folder, name), dict(enumerate(scores)))
        words = ["compare", f"{folder}/a", f"{folder}/b", "--until-decided", "--json", "--quiet"]
        with contextlib.redirect_stdout(io.StringIO()) as out:
            if main(words) != 0:
                raise SystemExit("compare failed")
        result = json.loads(out.getvalue())
        return str(result["verdict"]), int(result["look"])


def trial(
    scores: list[float], shift: float, num_splits: int, generator: np.random.Generator
) -> dict[str, float]:
    """Verdicts over random halves, the first of which is shifted."""
    verdicts: Counter[str] = Counter()
    looks = []
    for _ in range(num_splits):
        order = generator.permutation(len(scores))
        first, second = ([scores[index] for index in half] for half in np.split(order, 2))
        verdict, look = decide([score + shift for score in first], second)
        verdicts[verdict] += 1
        if verdict != "undecided":
            looks.append(look)
    decided = num_splits - verdicts["undecided"]
    return {
        "decided": decided / num_splits,
        "right": verdicts["a_better"] / num_splits,
        "mean_seeds": 5 * statistics.fmean(looks) if looks else math.nan,
    }


def run(num_splits: int) -> None:
    os.environ.setdefault("MPLBACKEND", "agg")
    scores = list(json.loads(STORED.read_text())["scores"].values())
    spread = statistics.stdev(scores)
    generator = np.random.default_rng(15)
    error = math.sqrt(LEVEL * (1 - LEVEL) / num_splits)
    lines = [
        f"Random splits of {len(scores)} runs (mean {statistics.fmean(scores):.1f}, standard deviation {spread:.1f});"
        f" Monte Carlo error of the first row: {error:.1%}.",
        "",
        "| true difference | splits | decided | A called better | seeds of each arm when decided, mean |",
        "|---|---|---|---|---|",
    ]
    for shift in (0.0, 1.0, 1.5):
        count = num_splits // 4 if shift else num_splits
        found = trial(scores, shift * spread, count, generator)
        seeds = f"{found['mean_seeds']:.1f}"
        name = (
            "none" if not shift else f"{shift:g} standard deviations ({shift * spread:.0f} points)"
        )
        lines.append(
            f"| {name} | {count} | {found['decided']:.1%} | {found['right']:.1%} | {seeds} |"
        )
        print(lines[-1], flush=True)
    print("\n".join(lines))
    if PAGE.is_file():
        write_block(PAGE, "until-decided", lines)


if __name__ == "__main__":
    run(int(sys.argv[1]) if len(sys.argv) > 1 else 400)
