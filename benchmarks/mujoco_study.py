"""Train SAC, TD3 and PPO on HalfCheetah-v5 and Hopper-v5 by their presets, next to Stable-Baselines3's own curves.

    python benchmarks/mujoco_study.py                            what is missing: two runs side by side, a thread each
    python benchmarks/mujoco_study.py sac/hopper                 of one preset
    python benchmarks/mujoco_study.py td3/hopper --peer-python PEERS/bin/python --seeds 0 1 2 3    SB3's instead

Curves and seconds go to benchmarks/results/mujoco_study.json, one run at a time, so a study that was interrupted goes
on; `benchmarks/proof.py` makes the page of them. SB3's curves, with the same settings and on a machine of the same
kind, are in benchmarks/results/mujoco_sb3.json. CrossQ is held against our own SAC.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import yaml
from commands import ONE_THREAD, RESULTS, ROOT, train

RAW = RESULTS / "mujoco_study.json"
PEER = RESULTS / "mujoco_sb3.json"
PEER_WORKER = Path(__file__).with_name("mujoco_peer.py")
PRESETS = [f"{algo}/{env}" for env in ("halfcheetah", "hopper") for algo in ("sac", "td3", "ppo")]
CROSSQ, ITS_RIVAL = "crossq/hopper", "sac/hopper"
PEERS_ALGORITHMS = ("sac", "td3")
"""Those that the worker runs by SB3."""
SEEDS = (0, 1, 2)
EPISODES = 10
"""Of one evaluation, as the presets have it."""
MORE_SEEDS = {"sac/halfcheetah": range(6), "td3/hopper": range(6)}
"""Where three seeds left it open which of the two is ahead."""
REMARKS = [
    "",
    "Where three seeds (SB3: two of TD3 on Hopper) left it open which is ahead, more were run on both sides. Seeds",
    "differ much: SB3's SAC has 3288, 3728 and 3535 on HalfCheetah and then 2324, and its TD3 on Hopper rose from 222",
    "to 1028 within the last 5,000 steps of one seed. Both rows still lie a little beyond the error, and no cause",
    "was found. SB3's seeds 3 (SAC) and 1 (TD3) were run here, all others on a machine of the same kind. Some runs",
    "shared the machine with other work, which cost them time.",
]
writing = Lock()


def run(preset: str, seed: int) -> None:
    """One training in a process of its own: its evaluations, ten episodes each, and its time from start to end."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir, seconds = train(preset, seed, folder)
        keep(RAW, preset, seed, read_curve(run_dir / "metrics.jsonl"), seconds)


def run_peer(preset: str, seed: int, python: str) -> None:
    """The same by SB3."""
    start = time.monotonic()
    command = [python, str(PEER_WORKER), preset, str(seed)]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=ONE_THREAD, check=True)
    keep(
        PEER,
        preset,
        seed,
        json.loads(answer.stdout.splitlines()[-1]),
        round(time.monotonic() - start),
    )


def keep(path: Path, preset: str, seed: int, curve: list[list[float]], seconds: int) -> None:
    """Add a run to a record."""
    with writing:
        record = read(path)
        record.setdefault(preset, {})[str(seed)] = {"curve": curve, "seconds": seconds}
        path.write_text(json.dumps(record, sort_keys=True).replace('{"curve"', '\n{"curve"') + "\n")
    print(path.stem, preset, "seed", seed, curve[-1], seconds, "s", flush=True)


def read_curve(path: Path) -> list[list[float]]:
    """Steps and mean return of every evaluation."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        [row["global_step"], round(row["eval_return_mean"], 1)]
        for row in rows
        if "eval_return_mean" in row
    ]


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.is_file() else {}


def final_scores() -> dict[str, dict[str, Any]]:
    """The last evaluation of each seed, by preset."""
    return {
        preset: {
            "metric": "eval_return_mean",
            "policy": "last",
            "steps": yaml.safe_load((ROOT / "configs" / f"{preset}.yaml").read_text())[
                "total_timesteps"
            ],
            "episodes": EPISODES,
            "scores": [runs[seed]["curve"][-1][1] for seed in sorted(runs, key=int)],
        }
        for preset, runs in read(RAW).items()
    }


def section() -> list[str]:
    """The table of the study, for docs/results.md."""
    record, peer = read(RAW), read(PEER)
    lines = [
        "| preset | steps | ours, each seed | mean | SB3, each seed | mean | behind | error | within error | late |"
        " SB3's | seconds | SB3's | times faster |",
        f"|{'---|' * 14}",
    ]
    lines += [
        study_line(preset, record[preset], peer[preset]) for preset in PRESETS if preset in record
    ]
    return [*lines, *REMARKS, *crossq_section(record)]


def verdict() -> list[str]:
    """One sentence, for the top of docs/results.md."""
    record, peer = read(RAW), read(PEER)
    measured = [preset for preset in PRESETS if preset in record]
    behind = []
    for preset in measured:
        distance, error = compare(record[preset], peer[preset])
        behind += [preset] if distance > error else []
    within = f"{len(measured) - len(behind)} of {len(measured)} presets are level with SB3's score or ahead of it"
    missed = (
        f"; {' and '.join(behind)} lie further behind than the standard error" if behind else ""
    )
    return [f"On MuJoCo, {within}{missed}."]


def compare(ours: dict[str, Any], peer: dict[str, Any]) -> tuple[float, float]:
    """How far our mean final score lies below the peer's, and the standard error of that difference."""
    scores = [[runs[seed]["curve"][-1][1] for seed in sorted(runs)] for runs in (ours, peer)]
    error = (
        sum(statistics.variance(values) / len(values) for values in scores) ** 0.5
        if len(ours) > 1
        else 0.0
    )
    return statistics.mean(scores[1]) - statistics.mean(scores[0]), error


def crossq_section(record: dict[str, Any]) -> list[str]:
    """CrossQ next to our SAC at the same numbers of steps and updates."""
    if CROSSQ not in record:
        return []
    lines = [
        "",
        "CrossQ next to our SAC on Hopper-v5, whose settings it shares except for its learning rate of 1e-3, after as",
        "many steps and updates (the same episodes; each seed, then the mean):",
        "",
        "| steps | CrossQ | mean | SAC | mean |",
        "|---|---|---|---|---|",
    ]
    runs = record[CROSSQ]
    seeds, seconds = sorted(runs), statistics.median(run["seconds"] for run in runs.values())
    for steps, _ in runs[seeds[0]]["curve"][1:]:
        columns = [f"{steps:,}"]
        for contender in (runs, record[ITS_RIVAL]):
            scores = [dict(contender[seed]["curve"])[steps] for seed in seeds]
            columns += [
                ", ".join(f"{score:.0f}" for score in scores),
                f"{statistics.mean(scores):.0f}",
            ]
        lines.append(f"| {' | '.join(columns)} |")
    return [*lines, "", f"A run of CrossQ took {seconds:.0f} seconds."]


def study_line(preset: str, ours: dict[str, Any], peer: dict[str, Any]) -> str:
    steps = peer["0"]["curve"][-1][0]
    scores = [[runs[seed]["curve"][-1][1] for seed in sorted(runs)] for runs in (ours, peer)]
    behind, error = compare(ours, peer)
    seconds = [statistics.median(runs[seed]["seconds"] for seed in runs) for runs in (ours, peer)]
    columns = [preset, f"{steps:,}"]
    for values in scores:
        columns += [", ".join(f"{value:.0f}" for value in values), f"{statistics.mean(values):.0f}"]
    columns += [f"{behind:.0f}", f"{error:.0f}", "yes" if behind <= error else "**no**"]
    for runs in (ours, peer):
        columns.append(
            f"{statistics.mean(point[1] for run in runs.values() for point in run['curve'][-3:]):.0f}"
        )
    columns += [*(f"{value:.0f}" for value in seconds), f"{seconds[1] / seconds[0]:.1f}"]
    return f"| {' | '.join(columns)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = [*PRESETS, CROSSQ]
    parser.add_argument("presets", nargs="*", default=known, help=", ".join(known))
    parser.add_argument("--seeds", type=int, nargs="*", help="(default: those of the study)")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--peer-python", help="interpreter that has stable-baselines3: its runs instead of ours"
    )
    arguments = parser.parse_args()
    if arguments.peer_python and not all(
        preset.startswith(PEERS_ALGORITHMS) for preset in arguments.presets
    ):
        parser.error(
            f"name presets of {' or '.join(PEERS_ALGORITHMS)}: only these are run by SB3 here"
        )
    record = read(PEER if arguments.peer_python else RAW)
    missing = [
        (preset, seed)
        for preset in arguments.presets
        for seed in arguments.seeds or MORE_SEEDS.get(preset, SEEDS)
        if str(seed) not in record.get(preset, {})
    ]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        if arguments.peer_python:
            list(pool.map(lambda job: run_peer(*job, arguments.peer_python), missing))
        else:
            list(pool.map(lambda job: run(*job), missing))


if __name__ == "__main__":
    main()
