"""A study from Python: `Study(base, vary=..., seeds=range(5)).run(jobs=2)`; its runs, scores and means."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.run_folder import safe_name
from rl_training.studies.groups import RunRecord
from rl_training.studies.launching.driver import Driver, Outcome, Task
from rl_training.studies.launching.launchers import (
    ClusterOptions,
    Launcher,
    LocalLauncher,
    SettingNeeds,
    SettingsCheck,
)
from rl_training.studies.launching.progress import make_listener
from rl_training.studies.plan import (
    PLAN_FILE,
    Plan,
    PlannedRun,
    StudyFolder,
    make_plan,
    open_study,
    read_study_file,
    refuse_changed,
    store_plan,
)
from rl_training.studies.statistics import MeanInterval, mean_interval
from rl_training.studies.variation import WHOLE, Shard
from rl_training.terminal.streams import tell


@dataclass(frozen=True)
class SettingResult:
    """The runs of one setting."""

    setting: str
    """Label; empty if the study has only one."""
    tasks: Sequence[Task]

    @property
    def scores(self) -> dict[int, float | None]:
        """Last evaluation of each seed; None if its run is not complete or was not evaluated."""
        return {task.run.config.seed: task.score for task in self.tasks}

    @property
    def interval(self) -> MeanInterval | None:
        """Mean and interval over the complete runs; None if there are none."""
        scores = [score for score in self.scores.values() if score is not None]
        return mean_interval(scores) if scores else None

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        interval = self.interval
        return {
            "setting": self.setting,
            "scores": {str(seed): score for seed, score in self.scores.items()},
            "mean": None if interval is None else interval.mean,
            "interval": None if interval is None else [interval.low, interval.high],
            "num_runs": 0 if interval is None else interval.count,
        }


def results_by_setting(tasks: Sequence[Task]) -> list[SettingResult]:
    """The tasks grouped by setting, in the order of the plan."""
    groups: dict[str, list[Task]] = {}
    for task in tasks:
        groups.setdefault(task.run.setting, []).append(task)
    return [SettingResult(setting, members) for setting, members in groups.items()]


class StudyResult(dict[str, RunRecord]):
    """The runs of a study by the names of their folders; runs that have no folder yet are left out."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = list(tasks)
        folders = [task.run.run_dir for task in tasks if task.info is not None]
        super().__init__({folder.name: RunRecord(folder) for folder in folders})

    def __repr__(self) -> str:
        return f"<{len(self.tasks)} runs: {', '.join(str(result.interval) for result in self.settings)}>"

    @property
    def settings(self) -> list[SettingResult]:
        """Scores, means and intervals by setting."""
        return results_by_setting(self.tasks)

    @property
    def failed(self) -> dict[str, str]:
        """Why runs failed or were given up, by the names of their folders."""
        return {
            task.run.run_dir.name: task.reason or task.outcome.value
            for task in self.tasks
            if task.outcome in (Outcome.FAILED, Outcome.GIVEN_UP)
        }

    @property
    def is_complete(self) -> bool:
        """Whether every run is finished."""
        return all(task.outcome is Outcome.DONE for task in self.tasks)


class Study:
    """Many runs: settings that vary, times seeds. Each is an ordinary run in a process of its own.

    `base` is a configuration or a mapping of its keys; `vary` a grid (a mapping of dotted keys to lists) or a list of
    settings; `seeds` a range, a list, or text such as `0..4`. The study and its runs are in `output_dir/name`; `suffix`
    ends the names of the run folders, before the setting's label. Running it again continues it: what is finished is
    not trained again.
    """

    def __init__(
        self,
        base: TrainConfig | Mapping[str, Any],
        *,
        vary: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
        seeds: Any = 0,
        name: str | None = None,
        output_dir: str | Path | None = None,
        plugins: Sequence[str] = (),
        callbacks: Sequence[str] = (),
        suffix: str | None = None,
    ) -> None:
        if isinstance(base, TrainConfig):
            values = base.model_dump(include=base.model_fields_set - {"seed"})
        else:
            values = dict(base)
        own_dir = values.pop("output_dir", None)
        name = name or safe_name(
            f"{values.get('algo', 'study')}__{values.get('env_id', 'offline')}"
        )
        plan = make_plan(
            name,
            [values],
            vary=vary,
            seeds=seeds,
            plugins=plugins,
            callbacks=callbacks,
            suffix=suffix,
        )
        self._set(plan, Path(output_dir or own_dir or "runs") / name)

    def _set(self, plan: Plan, path: Path) -> None:
        self.plan, self.path = plan, path
        self.runs()  # validated now

    @classmethod
    def from_file(cls, path: str | Path) -> Study:
        """The study in a YAML file."""
        return cls._of(*read_study_file(Path(path)))

    @classmethod
    def open(cls, path: str | Path) -> Study:
        """A study that has begun, by its folder."""
        folder = open_study(Path(path))
        return cls._of(folder.plan, folder.path)

    @classmethod
    def _of(cls, plan: Plan, path: Path) -> Study:
        study = cls.__new__(cls)
        study._set(plan, path)
        return study

    def __repr__(self) -> str:
        return (
            f"<study '{self.path}': {len(self.plan.vary)} settings x {len(self.plan.seeds)} seeds>"
        )

    def runs(self) -> list[PlannedRun]:
        """All planned runs."""
        return self.plan.runs(self.path)

    def within(self, output_dir: Path | None) -> Study:
        """The same study with its folder in another one; None: where it is."""
        return self if output_dir is None else self._of(self.plan, output_dir / self.plan.name)

    def with_plugins(self, plugins: Sequence[str]) -> Study:
        """The same study with further code to import."""
        names = dict.fromkeys([*self.plan.plugins, *plugins])
        return self._of(replace(self.plan, plugins=tuple(names)), self.path)

    def with_seeds(self, seeds: Sequence[int]) -> Study:
        """The same study with further seeds; to train them, `run(extend=True)`."""
        every = dict.fromkeys([*self.plan.seeds, *seeds])
        return self._of(replace(self.plan, seeds=tuple(every)), self.path)

    def fork(self, name: str) -> Study:
        """The same plan under another name, in a folder beside this one."""
        if safe_name(name) != name:
            raise ConfigError(f"bad value {name!r} for --fork: use letters, digits and . _ - only")
        return self._of(replace(self.plan, name=name, threads=()), self.path.parent / name)

    def code(self) -> list[str]:
        """The code that its runs import, as --plugin arguments: plugins, callbacks, and what their settings name."""
        from rl_training.envs.needs import env_needs
        from rl_training.plugins.gate import code_in, network_needs

        needs = []
        for run in self.runs():
            needs += env_needs(run.config.env_id, run.config.env_kwargs)
            needs += network_needs(run.config.algo_kwargs.get("network"))
        return [*self.plan.plugins, *self.plan.callbacks, *code_in(needs)]

    def refuse_unnamed_code(self, named: Sequence[str]) -> None:
        """Raise a `ConfigError` for code of a study's folder that the user has not named: it may come from anywhere."""
        from rl_training.plugins.user_code import split_source

        def places(text: str, folder: str) -> set[str]:
            sources = (text, split_source(text)[0])
            return {
                str(Path(folder, item).resolve()) if item.endswith(".py") else item
                for item in sources
            }

        known = {place for text in named for place in places(text, "")}
        unknown = [text for text in self.code() if not places(text, self.plan.working_dir) & known]
        if unknown:
            words = " ".join(f"--plugin {shlex.quote(text)}" for text in unknown)
            raise ConfigError(
                f"training further seeds of study '{self.path}' would run code that this command does not name: review"
                f" it, then pass {words}"
            )

    def check(self, *, extend: bool = False) -> list[SettingNeeds]:
        """Check every setting in a process of its own, without training; returns what a run of each needs."""
        _, check = self._check(extend=extend)
        return check.wait()

    def _check(self, *, extend: bool) -> tuple[StudyFolder | None, SettingsCheck]:
        """The study as stored, which is refused if it differs, and the check of its settings, which has begun."""
        stored = open_study(self.path) if (self.path / PLAN_FILE).is_file() else None
        if stored is not None:
            refuse_changed(self.plan, stored, is_extended=extend)
        elif self.plan.hint:
            tell(self.plan.hint)
        return stored, SettingsCheck(self.runs(), self.plan.plugins, self.plan.callbacks)

    def run(
        self,
        *,
        jobs: int | None = None,
        backend: str = "local",
        cluster: ClusterOptions | None = None,
        shard: Shard = WHOLE,
        extend: bool = False,
    ) -> StudyResult:
        """Train what is not finished yet, `jobs` runs at a time (default: as many as processors).

        With `backend="ray"`, runs are started by Ray on the nodes of a cluster. `shard` takes a share of the plan;
        `extend` adds runs to a study that has begun.
        """
        launcher = make_launcher(self.path.parent, jobs=jobs, backend=backend, cluster=cluster)
        return StudyResult(self.drive(launcher, shard=shard, extend=extend).tasks)

    def drive(
        self,
        launcher: Launcher,
        *,
        shard: Shard = WHOLE,
        extend: bool = False,
        only: Callable[[PlannedRun], bool] | None = None,
        on_begin: Callable[[], None] | None = None,
    ) -> Driver:
        """Train as `run` does; returns the driver, whose `interrupted_by` names a signal.

        `only` selects a part of the runs. `on_begin` is called when everything has been checked and the study has its
        folder.
        """
        with closing(launcher):
            folder = self._begin(launcher, extend=extend)
            runs = [run for run in shard.of(folder.runs()) if only is None or only(run)]
            launcher.threads_per_run = max(folder.plan.threads, default=1)
            if on_begin is not None:
                on_begin()
            share = "" if shard == WHOLE else f" (share {shard})"
            tell(f"study {folder.path}: {len(runs):,} run{'' if len(runs) == 1 else 's'}{share}")
            with closing(make_listener()) as listener:
                driver = Driver(runs, launcher, listener, folder)
                driver.shard = None if shard == WHOLE else str(shard)
                driver.run()
        return driver

    def begin(self) -> StudyFolder:
        """Check the settings and store the plan in the study's folder, without training."""
        return self._begin(None, extend=False)

    def _begin(self, launcher: Launcher | None, *, extend: bool) -> StudyFolder:
        """The study's folder. The settings of a new study, or of new runs, are checked first."""
        if (self.path / PLAN_FILE).is_file() and not extend:
            return store_plan(self.plan, self.path)
        stored, check = self._check(extend=extend)
        runs = self.runs()
        if isinstance(launcher, LocalLauncher):
            launcher.prepare(len(runs))
        needs = {need.setting: need.num_threads for need in check.wait()}
        threads: dict[str, int] = {run.suffix: needs[run.setting] for run in runs}
        working_dir = str(Path.cwd())
        if stored is not None:  # settings that have begun keep their number
            working_dir = stored.plan.working_dir
            threads |= dict(zip(stored.plan.suffixes(), stored.plan.threads, strict=False))
        numbers = tuple(threads[suffix] for suffix in self.plan.suffixes())
        plan = replace(self.plan, threads=numbers, working_dir=working_dir)
        return store_plan(plan, self.path, is_extended=extend)


def make_launcher(
    output_dir: Path,
    *,
    jobs: int | None = None,
    backend: str = "local",
    cluster: ClusterOptions | None = None,
) -> Launcher:
    """Who starts the runs in `output_dir`: this machine, or a Ray cluster."""
    if jobs is not None and jobs < 1:
        raise ConfigError(f"bad value {jobs} for jobs: should be at least 1")
    if backend == "local":
        if cluster is not None:
            raise ConfigError("options of a cluster need backend='ray' (--backend ray)")
        return LocalLauncher(jobs)
    if backend == "ray":
        from rl_training.studies.launching.ray_launcher import RayLauncher

        return RayLauncher(cluster or ClusterOptions(), output_dir, jobs)
    raise ConfigError(f"bad value {backend!r} for backend: use local or ray")
