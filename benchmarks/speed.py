"""Training speed of this package next to Stable-Baselines3, SBX and d3rlpy, in one run on one machine.

    python benchmarks/speed.py --peer-python PEERS/bin/python          all cases
    python benchmarks/speed.py sac_halfcheetah --repeats 5             one of them
    python benchmarks/speed.py ppo_pong dqn_pong --peer-python …       those on images (a step is four frames)
    python benchmarks/speed.py bc td3_bc iql awac cql --peer-python …  the offline ones, next to d3rlpy

The peers live in environments of their own (torch==2.13.0 first, then stable-baselines3==2.9.2 sbx-rl==0.28.0
gymnasium[mujoco] ale-py opencv-python-headless, or d3rlpy==2.8.0). The contenders take turns; each turn is a new
process. What is counted is environment steps (offline: updates) per second of training, after a warm-up that covers
imports and compilation, without evaluation. The first round tries one and two threads and the better number is kept
for the rounds that follow, for every contender.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import replay
from pages import write_block

ROOT = Path(__file__).resolve().parents[1]
WORKER = Path(__file__).with_name("speed_worker.py")
OFFLINE_WORKER = Path(__file__).with_name("offline_worker.py")
PAGE = ROOT / "docs" / "speed.md"
RAW = ROOT / "benchmarks" / "results" / "speed.json"
CASES = {
    "ppo_cartpole": ("PPO, CartPole-v1", "8 envs, 32 steps, minibatch 256, 20 epochs, 64x64", 2.0),
    "ppo_halfcheetah": (
        "PPO, HalfCheetah-v5",
        "8 envs, 256 steps, minibatch 64, 10 epochs, 64x64",
        1.8,
    ),
    "a2c_cartpole": ("A2C, CartPole-v1", "8 envs, 5 steps, 64x64", 2.0),
    "dqn_cartpole": ("DQN, CartPole-v1", "batch 64, every 256 steps 128 updates, 256x256", 1.8),
    "sac_halfcheetah": ("SAC, HalfCheetah-v5", "batch 256, one update a step, 256x256", 1.8),
    "td3_halfcheetah": ("TD3, HalfCheetah-v5", "batch 256, one update a step, 256x256", 1.6),
}
OFFLINE = "offline updates, obs 17, actions 6, batch 256, 256x256"
OFFLINE_CASES = {
    "bc": ("BC", OFFLINE, 2.5),
    "td3_bc": ("TD3+BC", OFFLINE, 1.6),
    "iql": ("IQL", OFFLINE, 2.5),
    "awac": ("AWAC", OFFLINE, 2.0),
    "cql": ("CQL", f"{OFFLINE}, 10 sampled actions", 1.3),
}
IMAGE_CASES = {
    "ppo_pong": (
        "PPO, ALE/Pong-v5",
        "8 envs, 128 steps, minibatch 256, 4 epochs, a step is four frames",
        None,
    ),
    "dqn_pong": (
        "DQN, ALE/Pong-v5",
        "batch 32, every 4 steps 1 update, replay 100,000, a step is four frames",
        None,
    ),
}
ALL_CASES = {**CASES, **IMAGE_CASES, **OFFLINE_CASES}
TITLES = {
    "ours": "ours, eager",
    "ours_compiled": "ours, compiled",
    "sb3": "SB3 2.9.2",
    "sbx": "SBX 0.28.0",
    "d3rlpy": "d3rlpy 2.8.0",
}


def contenders(case: str) -> tuple[str, ...]:
    peers = {
        **dict.fromkeys(OFFLINE_CASES, ("d3rlpy",)),
        **dict.fromkeys((*IMAGE_CASES, "a2c_cartpole"), ("sb3",)),
    }
    return ("ours", "ours_compiled", *peers.get(case, ("sb3", "sbx")))  # SBX has no A2C


def measure(python: str, contender: str, case: str, threads: int) -> dict[str, Any]:
    """One turn: a new process that trains and reports its steps per second."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = [python, str(WORKER), contender, case, str(threads)]
    if case in OFFLINE_CASES:
        command = [python, str(OFFLINE_WORKER), "speed", contender, case, str(threads)]
    answer = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if answer.returncode:
        raise SystemExit(f"{contender} failed on {case}:\n{answer.stderr[-3000:]}")
    return dict(json.loads(answer.stdout.splitlines()[-1]))


def run_case(case: str, peer_python: str, repeats: int) -> dict[str, Any]:
    """Alternate the contenders for a number of rounds."""
    names = contenders(case)
    pythons = {name: sys.executable if name.startswith("ours") else peer_python for name in names}
    best_threads: dict[str, int] = {}
    rates: dict[str, list[float]] = {name: [] for name in names}
    warm_up: dict[str, float] = {}
    for round_number in range(repeats):
        for name in names:
            tries = [best_threads[name]] if name in best_threads else [1, 2]
            results = {threads: measure(pythons[name], name, case, threads) for threads in tries}
            best_threads[name] = max(
                results, key=lambda threads: results[threads]["steps_per_second"]
            )
            result = results[best_threads[name]]
            rates[name].append(round(result["steps_per_second"], 1))
            warm_up.setdefault(name, round(result["warm_up_seconds"], 1))
        row = "  ".join(f"{name} {rates[name][-1]:.0f}" for name in names)
        print(f"{case} round {round_number + 1}: {row}", flush=True)
    return {"rates": rates, "threads": best_threads, "warm_up_seconds": warm_up}


def write_page(record: dict[str, Any]) -> None:
    lines = [
        "| case | contender | threads | steps/s | ours to it, eager | ours to it, compiled | warm-up, s |",
        "|---|---|---|---|---|---|---|",
    ]
    for case, (title, settings, _) in ALL_CASES.items():
        if case not in record["cases"]:
            continue
        result = record["cases"][case]
        lines.append(f"| **{title}** ({settings}) | | | | | | |")
        for name in contenders(case):
            own = result["rates"][name]
            is_peer = not name.startswith("ours")
            ratios = [
                f"{ratio(result, mine, name):.2f}" if is_peer else ""
                for mine in ("ours", "ours_compiled")
            ]
            lines.append(
                f"| | {TITLES[name]} | {result['threads'][name]} | {statistics.median(own):,.0f} |"
                f" {ratios[0]} | {ratios[1]} | {result['warm_up_seconds'][name]} |"
            )
    lines += ["", "Targets, as ratios; *measured* is the better of our two ratios.", ""]
    lines += ["| case | against | target | measured | reached |", "|---|---|---|---|---|"]
    for peer, cases in (("SB3", CASES), ("d3rlpy", OFFLINE_CASES)):
        lines += [
            target_row(record["cases"][case], *cases[case], peer)
            for case in cases
            if case in record["cases"]
        ]
    write_block(PAGE, "verdict", verdict(record))
    write_block(PAGE, "training", lines)
    write_block(PAGE, "replay", replay.section())
    print(f"wrote {PAGE.relative_to(ROOT)}")


def verdict(record: dict[str, Any]) -> list[str]:
    """The smallest and the largest of our ratios to each peer, for the top of the page."""
    lines = [
        f"Ours divided by theirs, the better of eager and compiled, on one machine ({record['machine']}):",
        "",
    ]
    for peer in ("sb3", "sbx", "d3rlpy"):
        ratios = {
            title: max(
                ratio(record["cases"][case], mine, peer) for mine in ("ours", "ours_compiled")
            )
            for case, (title, *_) in ALL_CASES.items()
            if case in record["cases"] and peer in contenders(case)
        }
        if ratios:
            slowest = min(ratios, key=lambda title: ratios[title])
            low, high = min(ratios.values()), max(ratios.values())
            slower = [title for title, value in ratios.items() if value < 1]
            ending = f"; slower in {len(slower)}" if slower else "; faster in all"
            lines.append(
                f"- {TITLES[peer]}: {low:.2f} ({slowest}) to {high:.2f} times, {len(ratios)} cases{ending}."
            )
    return lines


def ratio(result: dict[str, Any], mine: str, peer: str) -> float:
    pairs = zip(result["rates"][mine], result["rates"][peer], strict=True)
    return statistics.median(a / b for a, b in pairs)


def target_row(result: dict[str, Any], title: str, settings: str, target: float, peer: str) -> str:
    """A target, the better of our two ratios, and whether that reaches it."""
    best = max(ratio(result, mine, peer.lower()) for mine in ("ours", "ours_compiled"))
    reached = "yes" if best >= target else f"**no**, by {target - best:.2f}"
    return f"| {title} | {peer} | {target} | {best:.2f} | {reached} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", default=list(CASES), help=", ".join(ALL_CASES))
    parser.add_argument(
        "--peer-python",
        default=os.environ.get("PEER_PYTHON"),
        help="python with the peers installed",
    )
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    if not arguments.peer_python:
        raise SystemExit(
            "say where the peers are: --peer-python PEERS/bin/python (or PEER_PYTHON=…)"
        )
    record = json.loads(RAW.read_text()) if RAW.is_file() else {"cases": {}}
    record["machine"] = f"{os.cpu_count()} cores, {platform.machine()}, no accelerator"
    for case in arguments.cases:
        record["cases"][case] = run_case(case, arguments.peer_python, arguments.repeats)
        RAW.parent.mkdir(exist_ok=True)
        RAW.write_text(json.dumps(record, indent=1) + "\n")
    write_page(record)


if __name__ == "__main__":
    main()
