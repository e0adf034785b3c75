"""Train presets on several seeds and write the scores, 100 episodes each, to docs/results.md and configs/scores.json.

    python benchmarks/proof.py                        what is missing of every preset
    python benchmarks/proof.py ppo/cartpole --again   all seeds of one of them, once more

Raw scores are kept in benchmarks/results/<preset>.json; the page is made from those files, so a preset can be
measured again on its own. Two runs go side by side, on one thread each.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import mujoco_study
import offline_study
from commands import RESULTS, ROOT, call, train
from pages import write_block

PAGE = ROOT / "docs" / "results.md"
SCORES = ROOT / "configs" / "scores.json"
EPISODES = 100
FEWEST_SEEDS = 3
SUCCESS = "eval_success_rate"
REACHED, NOT_REACHED = "yes", "**no**"


@dataclass(frozen=True)
class Bar:
    """What a preset must show: the policy that is judged, the score, and which seeds must reach it.

    The rule is "median", "all" or "all but one".
    """

    policy: str
    score: float
    rule: str
    peer: str
    metric: str = "eval_return_mean"
    needs: str = "rl_training"
    """The package without which it is left out."""

    def is_met(self, scores: list[float]) -> bool:
        if self.rule == "median":
            return statistics.median(scores) >= self.score
        return sum(score >= self.score for score in scores) >= self.seeds_needed(len(scores))

    def seeds_needed(self, count: int) -> int:
        """How many of `count` seeds must reach the score, where the rule is "all" or "all but one"."""
        return count - (self.rule == "all but one")


BARS = {
    "ppo/cartpole": Bar("last", 475, "all", "500 on 5 of 5 (SB3)"),
    "ppo/pendulum": Bar("last", -250, "all but one", "-172 (RL Zoo)"),
    "ppo/cart_memory": Bar("last", 475, "all", "500 (RL Zoo, LSTM); without memory 42"),
    "ppo/pend_memory": Bar(
        "last", -250, "all but one", "-218 (RL Zoo, LSTM); without memory -1,100"
    ),
    "ppo/masks": Bar("last", 90, "all", "over 90 (sb3-contrib's own test); without masks about 0"),
    "ppo/mask_memory": Bar(
        "last", 9, "all but one", "none here; without memory 2, without masks -1"
    ),
    "a2c/cartpole": Bar("last", 475, "all", "500 on 5 of 5 (SB3)"),
    "dqn/cartpole": Bar("best", 475, "median", "last policy 500, 500, 500, 192, 19 (SB3)"),
    "dqn/mountaincar": Bar("best", -130, "median", "-101 (RL Zoo)"),
    "qrdqn/cartpole": Bar("best", 475, "median", "none here"),
    "c51/cartpole": Bar("best", 475, "median", "none here"),
    "sac/cartpole": Bar("best", 475, "all", "none here: SB3 has no SAC for Discrete actions"),
    "sac/pendulum": Bar("last", -200, "all", "-144, -158, -132 (SB3, 3 seeds)"),
    "td3/pendulum": Bar("last", -200, "all", "-148, -166, -138 (SB3, 3 seeds)"),
    "ddpg/pendulum": Bar("last", -200, "all", "none here"),
    "tqc/pendulum": Bar("last", -200, "all", "none here"),
    "crossq/pendulum": Bar("last", -200, "all", "none here"),
    "dqn/bitflip": Bar(
        "last", 0.9, "all", "over 0.9, with one goal for all episodes (SB3's own test)", SUCCESS
    ),
    "her/pointgoal": Bar("last", 0.95, "all", "none here", SUCCESS),
    "her/fetchreach": Bar("last", 0.95, "all", "none here", SUCCESS, "gymnasium_robotics"),
    "ppo/breakout": Bar("last", 5, "all", "random play 1.3", needs="ale_py"),
    "ppo/pong": Bar("last", -15, "all", "random play -20.5", needs="ale_py"),
    "dqn/breakout": Bar("last", 5, "all", "random play 1.3", needs="ale_py"),
    "td3_bc/pendulum": Bar("last", -200, "all", "none here; random actions score about -1200"),
    "iql/pendulum": Bar("last", -500, "all", "random actions score about -1200"),
    "awac/pendulum": Bar("last", -500, "all", "random actions score about -1200"),
    "cql/pendulum": Bar("last", -500, "all", "random actions score about -1200"),
}


def run_seed(preset: str, seed: int) -> dict[str, Any]:
    """Train one seed in a process of its own and evaluate its last and its best policy."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir, seconds = train(preset, seed, folder)
        scores = {}
        for policy in ("last", "best"):
            checkpoint = run_dir / "checkpoints" / policy
            metrics = call(
                "eval", "--checkpoint", str(checkpoint), "--eval-episodes", str(EPISODES)
            )
            metric = BARS[preset].metric
            scores[policy] = round(metrics[metric], 2 if metric == SUCCESS else 1)
    print(
        f"{preset} seed {seed}: last {scores['last']}, best {scores['best']}, {seconds} s",
        flush=True,
    )
    return {"seed": seed, **scores, "seconds": seconds}


def write_page() -> None:
    rows = {preset: preset_columns(preset, bar) for preset, bar in BARS.items()}
    verdicts = [columns[5] for columns in rows.values()]
    table = [
        "| preset | steps | last policy, each seed | best policy, each seed | target | reached | baseline |"
        " seconds a run |",
        f"|{'---|' * 8}",
        *(f"| {' | '.join(columns)} |" for columns in rows.values()),
    ]
    missed = [preset for preset, columns in rows.items() if columns[5] == NOT_REACHED]
    unclear = [
        preset for preset, columns in rows.items() if columns[5] not in (REACHED, NOT_REACHED)
    ]
    first = f"{verdicts.count(REACHED)} of {len(rows)} presets reach their target"
    first += (
        f"; {', '.join(missed)} {'does' if len(missed) == 1 else 'do'} not"
        if missed
        else "; none misses it"
    )
    first += f"; {', '.join(unclear)}: too few seeds yet to say." if unclear else "."
    sentences = [first, *mujoco_study.verdict(), *offline_study.verdict()]
    write_block(PAGE, "verdict", [f"- {sentence}" for sentence in sentences])
    write_block(PAGE, "presets", table)
    write_block(PAGE, "mujoco", mujoco_study.section())
    write_block(PAGE, "offline", offline_study.section())
    print(f"wrote {PAGE.relative_to(ROOT)}")


def preset_columns(preset: str, bar: Bar) -> list[str]:
    """One row of the table; the sixth column is the verdict."""
    path = RESULTS / f"{preset.replace('/', '_')}.json"
    if not path.is_file():
        return [
            preset,
            "",
            "not measured yet",
            "",
            f"{bar.policy}: {bar.score:g}",
            "not measured yet",
            bar.peer,
            "",
        ]
    record = json.loads(path.read_text())
    scores = [run[bar.policy] for run in record["runs"]]
    rule = "median" if bar.rule == "median" else f"{bar.seeds_needed(len(scores))} of {len(scores)}"
    by_policy = [", ".join(str(run[name]) for run in record["runs"]) for name in ("last", "best")]
    verdict = REACHED if bar.is_met(scores) else NOT_REACHED
    verdict = "too few seeds yet" if len(scores) < FEWEST_SEEDS else verdict
    seconds = round(statistics.median(run["seconds"] for run in record["runs"]))
    target = f"{bar.policy}: {rule} at {bar.score:g}"
    return [preset, f"{record['steps']:,}", *by_policy, target, verdict, bar.peer, str(seconds)]


def write_scores() -> None:
    """The scores that ship with the presets, for `rl-training presets`: of the policy that each preset is judged by."""
    scores: dict[str, dict[str, Any]] = mujoco_study.final_scores()
    for preset, bar in BARS.items():
        path = RESULTS / f"{preset.replace('/', '_')}.json"
        if path.is_file():
            record = json.loads(path.read_text())
            values = [run[bar.policy] for run in record["runs"]]
            scores[preset] = {
                "metric": bar.metric,
                "policy": bar.policy,
                "steps": record["steps"],
                "episodes": record["episodes"],
                "scores": values,
            }
    lines = [f"{json.dumps(preset)}: {json.dumps(scores[preset])}" for preset in sorted(scores)]
    SCORES.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"wrote {SCORES.relative_to(ROOT)}")


def main() -> None:
    installed = [preset for preset, bar in BARS.items() if importlib.util.find_spec(bar.needs)]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("presets", nargs="*", default=installed, help="such as ppo/cartpole")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--again", action="store_true", help="measure seeds that are recorded already once more"
    )
    arguments = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    import yaml

    for preset in arguments.presets:
        path = RESULTS / f"{preset.replace('/', '_')}.json"
        steps = yaml.safe_load((ROOT / "configs" / f"{preset}.yaml").read_text())["total_timesteps"]
        known = (
            json.loads(path.read_text())["runs"] if path.is_file() and not arguments.again else []
        )
        runs = {run["seed"]: run for run in known}
        missing = [seed for seed in range(arguments.seeds) if seed not in runs]
        with ThreadPoolExecutor(arguments.jobs) as pool:
            for run in pool.map(lambda seed, preset=preset: run_seed(preset, seed), missing):
                runs[run["seed"]] = run
                ordered = [runs[seed] for seed in sorted(runs)]
                record = {"preset": preset, "steps": steps, "episodes": EPISODES, "runs": ordered}
                path.write_text(json.dumps(record, indent=1) + "\n")
    write_page()
    write_scores()


if __name__ == "__main__":
    main()
