"""Measure learning curves of every algorithm next to a public implementation with equal settings, and draw them.

    python benchmarks/curves.py dqn ddpg --peer-python SB3/bin/python      what is missing of these, ours and SB3's
    python benchmarks/curves.py iql cql --peer-python D3RLPY/bin/python    the offline ones, next to d3rlpy
    python benchmarks/curves.py                                            what is missing of ours
    python benchmarks/curves.py --pages                                    write pictures and captions into the pages

The first environment has stable-baselines3==2.9.2 and sb3-contrib==2.9.2, the second d3rlpy==2.8.0 (torch first).
Offline, `benchmarks/offline_datasets.py Pendulum-v1` makes the data first. Runs go one by one on one thread; each
is added to benchmarks/results/curves.json as it ends. PPO, SAC and TD3 have the curves of `benchmarks/mujoco_study.py`.
The tasks are short. The length of A2C's runs and, offline, learning rate, tau and length were chosen after runs of
seed 0, so that scores rise; seed 0 is one of the three.
`draw` and `caption` serve the documentation; importing this file imports no torch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commands import ONE_THREAD, RESULTS, ROOT, call
from mujoco_study import EPISODES as MUJOCO_EPISODES
from mujoco_study import PEER, RAW, read, read_curve
from pages import write_block

RECORD = RESULTS / "curves.json"
DATASETS = ROOT / "benchmarks" / "datasets"
PICTURES = ROOT / "docs" / "images" / "curves"
PEER_WORKER = Path(__file__).with_name("curves_peer.py")
SEEDS = (0, 1, 2)
EPISODES = 20
"""Of one evaluation."""
OURS, SB3, CONTRIB, D3RLPY = (
    "rl_training",
    "Stable-Baselines3 2.9.2",
    "sb3-contrib 2.9.2",
    "d3rlpy 2.8.0",
)
OUR_DQN = "rl_training's DQN"
COLOURS = {"ours": "#2a8bd6", "peer": "#e07b39"}
GREY = "#888888"
Curves = dict[str, list[list[float]]]
"""Points (step, mean return) of each seed."""


@dataclass(frozen=True)
class Task:
    """What both sides train on: a preset with some settings changed, for `total` environment steps or updates."""

    preset: str
    env: str
    total: int
    peer: str
    changes: tuple[str, ...] = ()
    """Settings of `algo_kwargs` that differ from the preset, as KEY=VALUE."""
    dataset: str | None = None
    """Name of the dataset, offline; one of `DATA`."""
    remark: str = ""
    """What differs between the two sides nevertheless."""


SMALL = "hidden_sizes=[64,64]"
RANDOM, EXPERT = "Pendulum-v1-random", "Pendulum-v1-expert"
DATA = {RANDOM: "10,000 steps of random actions", EXPERT: "10,000 steps of a trained SAC agent"}
FASTER, TAU, NORMALIZED = "learning_rate=1e-3", "tau=0.02", "normalize_obs=true"
TASKS = {
    "a2c": Task("a2c/cartpole", "CartPole-v1", 100_000, SB3),
    "dqn": Task("dqn/cartpole", "CartPole-v1", 30_000, SB3, ("double=false",)),
    "qrdqn": Task("qrdqn/cartpole", "CartPole-v1", 30_000, CONTRIB),
    "c51": Task(
        "c51/cartpole", "CartPole-v1", 30_000, OUR_DQN, ("double=false",),
        remark="DQN has those of `configs/dqn/cartpole.yaml` with the same change",
    ),
    "ddpg": Task("ddpg/pendulum", "Pendulum-v1", 5_000, SB3, (SMALL, "learning_starts=100")),
    "tqc": Task("tqc/pendulum", "Pendulum-v1", 5_000, CONTRIB, (SMALL,)),
    "crossq": Task(
        "crossq/pendulum", "Pendulum-v1", 5_000, CONTRIB, (SMALL,),
        remark="sb3-contrib's actor has batch normalization, too",
    ),
    "her": Task(
        "her/pointgoal", "PointGoalEnv", 5_000, SB3,
        remark="rl_training recomputes terminations for relabelled goals, Stable-Baselines3 the rewards only",
    ),
    "bc": Task("bc/pendulum", "Pendulum-v1", 2_000, D3RLPY, (FASTER, NORMALIZED), EXPERT),
    "td3_bc": Task("td3_bc/pendulum", "Pendulum-v1", 3_000, D3RLPY, (FASTER, TAU), RANDOM),
    "iql": Task("iql/pendulum", "Pendulum-v1", 5_000, D3RLPY, (NORMALIZED,), RANDOM),
    "awac": Task(
        "awac/pendulum", "Pendulum-v1", 3_000, D3RLPY, (FASTER, TAU, NORMALIZED), RANDOM,
        remark="d3rlpy normalizes the advantage weights over the batch, rl_training clips them",
    ),
    "cql": Task(
        "cql/pendulum", "Pendulum-v1", 1_500, D3RLPY,
        (FASTER, "actor_learning_rate=1e-3", TAU, NORMALIZED, "backup_mean=true"), RANDOM,
    ),
}  # fmt: skip
MUJOCO = {"halfcheetah": "HalfCheetah-v5", "hopper": "Hopper-v5"}
MUJOCO_ALGOS = ("ppo", "sac", "td3")


@dataclass(frozen=True)
class Panel:
    """The curves of one algorithm on one task, by seed."""

    env: str
    unit: str
    preset: str
    changes: tuple[str, ...]
    dataset: str | None
    remark: str
    episodes: int
    peer: str
    ours: Curves
    others: Curves

    @property
    def name(self) -> str:
        """Our side's name."""
        return f"{OURS}'s C51" if self.peer == OUR_DQN else OURS


def algorithms() -> list[str]:
    """Every algorithm that has curves."""
    return sorted((*TASKS, *MUJOCO_ALGOS))


def panels(algo: str) -> list[Panel]:
    """The measured tasks of an algorithm."""
    if algo in MUJOCO_ALGOS:
        ours, others = read(RAW), read(PEER)
        presets = {f"{algo}/{name}": env for name, env in MUJOCO.items()}
        return [
            Panel(env, "environment steps", preset, (), None, "", MUJOCO_EPISODES, SB3, *(
                {seed: run["curve"] for seed, run in sorted(side[preset].items())} for side in (ours, others)
            ))
            for preset, env in presets.items()
        ]  # fmt: skip
    task, record = TASKS[algo], read(RECORD)
    others = record["dqn"]["ours"] if task.peer == OUR_DQN else record[algo]["peer"]
    unit = "updates" if task.dataset else "environment steps"
    data = DATA[task.dataset] if task.dataset else None
    facts = (task.env, unit, task.preset, task.changes, data, task.remark, EPISODES, task.peer)
    return [Panel(*facts, record[algo]["ours"], others)]


def final_scores(curves: Curves) -> list[float]:
    """The last evaluation of each seed."""
    return [curve[-1][1] for curve in curves.values()]


def caption(algo: str) -> str:
    """Tasks, settings, episodes, and the last scores of both sides; what was chosen after a look at results."""
    parts = panels(algo)
    clauses = [f"on {part.env}, {settings_text(part)}, {verdict(part)}" for part in parts]
    episodes = f"Mean return of {parts[0].episodes} evaluation episodes (mean ± standard deviation over seeds)"
    chosen = (
        " Learning rate, tau and number of updates were chosen on seed 0."
        if parts[0].dataset
        else ""
    )
    return f"{episodes}: {'; '.join(clauses)}.{chosen}"


def settings_text(part: Panel) -> str:
    """Data and settings of a task, and what differs between the two sides."""
    text = f"with the settings of `configs/{part.preset}.yaml`"
    if part.changes:
        text += f" and {', '.join(f'`{change}`' for change in part.changes)}"
    text += " on both sides" if part.peer != OUR_DQN else ""
    data = f"from {part.dataset}, " if part.dataset else ""
    return f"{data}{text}{f' ({part.remark})' if part.remark else ''}"


def verdict(part: Panel) -> str:
    """The last scores of both sides, and which is ahead."""
    sides = [final_scores(part.ours), final_scores(part.others)]
    ours, others = (
        f"{statistics.mean(scores):.1f} ± {statistics.stdev(scores):.1f} ({len(scores)} seeds)"
        for scores in sides
    )
    steps = f"{next(iter(part.ours.values()))[-1][0]:,} {part.unit}"
    scores = f"after {steps} {part.name} has {ours} and {part.peer} has {others}"
    ahead = statistics.mean(sides[0]) - statistics.mean(sides[1])
    error = sum(statistics.variance(values) / len(values) for values in sides) ** 0.5
    if abs(ahead) < 0.05:
        return f"{scores}: equal"
    within = "within" if abs(ahead) <= error else "more than"
    where = f"{'ahead' if ahead > 0 else 'behind'} by {abs(ahead):.1f}"
    return f"{scores}: {part.name} is {where}, {within} the standard error of the difference, {error:.1f}"


def draw(algo: str, path: str | Path) -> None:
    """Write the curves of an algorithm as SVG: ours solid, the peer's dashed, each seed thin, their mean thick."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    parts = panels(algo)
    style = {
        "svg.hashsalt": algo,
        "svg.fonttype": "none",
        "font.size": 9,
        "font.family": "sans-serif",
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(4.2 * len(parts), 3.0), layout="constrained")
        FigureCanvasSVG(figure)
        for axes, part in zip(figure.subplots(1, len(parts), squeeze=False)[0], parts, strict=True):
            draw_panel(axes, part)
        figure.savefig(
            path, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )


def draw_panel(axes: Any, part: Panel) -> None:
    for side, name, curves, line in (
        ("ours", part.name, part.ours, "-"),
        ("peer", part.peer, part.others, "--"),
    ):
        for curve in curves.values():
            axes.plot(
                *zip(*curve, strict=True), line, color=COLOURS[side], linewidth=0.8, alpha=0.6
            )
        steps, means = mean_curve(curves)
        axes.plot(
            steps,
            means,
            line,
            color=COLOURS[side],
            linewidth=2.2,
            label=f"{name}, {len(curves)} seeds",
        )
    axes.set_title(part.env, color=GREY, fontsize=10)
    axes.set_xlabel(part.unit, color=GREY)
    axes.set_ylabel(f"mean return of {part.episodes} evaluation episodes", color=GREY, fontsize=8)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.xaxis.get_major_locator().set_params(nbins=5)
    axes.tick_params(colors=GREY)
    axes.grid(color=GREY, alpha=0.25, linewidth=0.5)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(GREY)
    axes.legend(labelcolor=GREY, frameon=False, fontsize=8)


def mean_curve(curves: Curves) -> tuple[list[float], list[float]]:
    """Steps, and the mean over seeds at each."""
    points = list(zip(*curves.values(), strict=True))
    return [row[0][0] for row in points], [
        statistics.mean(point[1] for point in row) for row in points
    ]


def write_page(algo: str) -> None:
    """Draw the curves of an algorithm, and put picture and caption into its page."""
    PICTURES.mkdir(exist_ok=True)
    draw(algo, PICTURES / f"{algo}.svg")
    picture = (
        f"![Learning curves of {algo} next to another implementation](../images/curves/{algo}.svg)"
    )
    write_block(ROOT / "docs" / "algorithms" / f"{algo}.md", "curves", [picture, "", caption(algo)])


def settings_of(task: Task, seed: int) -> list[str]:
    """The words of `train` and `config` for one run."""
    words = ["--config", str(ROOT / "configs" / f"{task.preset}.yaml"), "--seed", str(seed)]
    words += [f"total_timesteps={task.total}", f"eval_episodes={EPISODES}"]
    changes = [*task.changes, f"eval_interval={task.total // 10}"]
    if task.dataset:
        changes += ["dataset_kind=npz", f"dataset_path={DATASETS / task.dataset}.npz"]
    return [*words, *(f"algo_kwargs.{change}" for change in changes)]


def run_ours(task: Task, seed: int) -> list[list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        result = call("train", *settings_of(task, seed), "--output-dir", folder, "num_threads=1")
        return read_curve(Path(result["run_dir"]) / "metrics.jsonl")


def run_peer(task: Task, seed: int, python: str) -> list[list[float]]:
    """The same by the peer, with all of our settings and the same episodes of evaluation."""
    from rl_training.runtime.run_utils import RunSeeds

    config = call("config", *settings_of(task, seed))
    settings = {key.removeprefix("algo_kwargs."): entry["value"] for key, entry in config.items()}
    eval_seeds = RunSeeds.from_seed(seed).eval_seeds(EPISODES)
    job = {"settings": settings, "eval_seeds": eval_seeds, "dataset": settings.get("dataset_path")}
    environment = {
        **ONE_THREAD,
        "PYTHONPATH": str(ROOT / "src"),
    }  # for our goal-conditioned environment
    command = [python, str(PEER_WORKER), json.dumps(job)]
    answer = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if answer.returncode:
        raise SystemExit(f"{task.peer} failed:\n{answer.stderr[-3000:]}")
    return list(json.loads(answer.stdout.splitlines()[-1]))


def keep(algo: str, side: str, seed: int, curve: list[list[float]]) -> None:
    """Add a run to the record."""
    record = read(RECORD)
    record.setdefault(algo, {}).setdefault(side, {})[str(seed)] = curve
    text = json.dumps(record, sort_keys=True).replace('": [[', '":\n[[')
    draft = RECORD.with_suffix(".part")
    draft.write_text(text + "\n")
    draft.replace(RECORD)
    print(algo, side, "seed", seed, curve[-1], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("algos", nargs="*", default=list(TASKS), help=", ".join(TASKS))
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS)
    parser.add_argument(
        "--peer-python", help="interpreter that has the peer of these algorithms: its runs, too"
    )
    parser.add_argument(
        "--pages",
        action="store_true",
        help="only write pictures and captions into docs/algorithms/",
    )
    arguments = parser.parse_args()
    for seed in () if arguments.pages else arguments.seeds:
        for algo in arguments.algos:
            done = read(RECORD).get(algo, {})
            if str(seed) not in done.get("ours", {}):
                keep(algo, "ours", seed, run_ours(TASKS[algo], seed))
            has_peer = arguments.peer_python and TASKS[algo].peer != OUR_DQN
            if has_peer and str(seed) not in done.get("peer", {}):
                keep(algo, "peer", seed, run_peer(TASKS[algo], seed, arguments.peer_python))
    for algo in algorithms() if arguments.pages else ():
        write_page(algo)


if __name__ == "__main__":
    main()
