"""Trains the runs that a planned look needs, as runs of the studies that are compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rl_training.studies.catalog import is_run_folder, read_run
from rl_training.studies.comparison.looks import PlannedArm, PlannedComparison
from rl_training.studies.driver import Driver, is_complete
from rl_training.studies.launching.launchers import Launcher
from rl_training.studies.plan import PlannedRun


def train_look(comparison: PlannedComparison, look: int, launch: Callable[[Path], Launcher]) -> Driver | None:
    """Train what is not finished of a look; `launch` makes the launcher for a folder of studies.

    Returns the driver that a signal interrupted, if one was.
    """
    plan = comparison.plan
    arms: dict[Path, list[PlannedArm]] = {}
    for arm in (plan.a, plan.b):
        arms.setdefault(comparison.study_of(arm).path, []).append(arm)
    for members in arms.values():
        study = comparison.study_of(members[0])
        seeds = [seed for arm in members for seed in plan.seeds_of(arm, look)]
        new = [seed for seed in dict.fromkeys(seeds) if seed not in study.plan.seeds]
        study = study.with_seeds(new)

        def is_of_look(run: PlannedRun, members: list[PlannedArm] = members) -> bool:
            return any(arm.owns(run, plan.seeds_of(arm, look)) for arm in members)

        if not all(_is_done(run) for run in study.runs() if is_of_look(run)):
            driver = study.drive(launch(study.path.parent), extend=bool(new), only=is_of_look)
            if driver.interrupted_by is not None:
                return driver
    return None


def _is_done(run: PlannedRun) -> bool:
    return is_run_folder(run.run_dir) and is_complete(read_run(run.run_dir))
