"""The plan of a tuning, frozen in `tune.yaml`: base configuration, search space, budgets and seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from rl_training.algorithms.tune import Tune
from rl_training.errors import ConfigError
from rl_training.experiment.config import (
    TrainConfig,
    load_signed_file,
    merge_layers,
    resolve_config,
)
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.run_folder import safe_name
from rl_training.experiment.yaml_text import dump_yaml, parse_yaml, sign
from rl_training.studies.launching.launchers import SettingsCheck
from rl_training.studies.plan import Plan, freeze, make_plan, plan_differences, read_tune_file
from rl_training.studies.tuning.journal import Pruning
from rl_training.studies.tuning.search_space import (
    Asked,
    TunedKey,
    encode,
    full_key,
    read_asked,
    resolve_space,
)
from rl_training.studies.variation import CHOSEN_BY_TUNING, Setting, identity, nested, value_text
from rl_training.validation import FrozenConfig, suggest

TUNE_FILE = "tune.yaml"
SEEDS_APART = 10_000
"""The seeds of a tuning begin at this many times its own seed."""
STAGE_SEEDS = {"search": 0, "race": 1000, "final": 2000}
"""Where the seeds of each stage begin after that."""
Count = Annotated[int, Field(ge=1, le=1000)]


class TuneSettings(FrozenConfig):
    """How much is tried: the keys of a `tune` block beside `space`, what is tuned, and `fix`, values that are not."""

    trials: Annotated[int, Field(ge=1, le=100_000)] = 20
    """Settings that are tried in the search; the first is the default."""
    batch: Count = 4
    """Trials that are sampled together, before any of them has a result; how many run at once changes nothing."""
    seeds_per_trial: Count = 1
    """Seeds of each trial; its score is their mean."""
    pruner: Literal["median", "hyperband", "none"] = "median"
    """Who ends bad trials early: `median`, `hyperband` or `none`; none before a third of its steps."""
    finalists: Count = 3
    """Best settings of the search that race against the default."""
    race_seeds: Count = 5
    """Fresh seeds of the race."""
    final_seeds: Count = 5
    """Held-out seeds for the final comparison of winner and default."""
    seed: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Seed of the sampler; it also shifts the seeds of the runs."""

    @classmethod
    def _title(cls) -> str:
        return "the tuning"

    @classmethod
    def _suggest_key(cls, key: str, values: Mapping[str, Any]) -> str:
        return suggest(key, [*cls.model_fields, "space", "fix"])


@dataclass(frozen=True)
class TunePlan:
    """A tuning on paper: what was asked for; once it is resolved, everything that decides its trials."""

    study: Plan
    """The default configuration as a study of one run, with the name and the code of the tuning."""
    asked: Asked
    settings: TuneSettings
    fixed: tuple[str, ...] = ()
    """Keys that are not tuned."""
    space: tuple[TunedKey, ...] = ()
    """What is tuned; empty: not resolved yet."""
    eval_interval: int | None = None
    """Steps between two evaluations, as the algorithm's settings say; None: a tenth of the run."""

    @classmethod
    def from_file(cls, path: Path) -> tuple[TunePlan, Path]:
        """What a study file with a `tune` block asks for, and the folder that holds the tuning's folder."""
        study, block, output_dir = read_tune_file(path)
        space, fixed = block.pop("space", {}), block.pop("fix", {})
        settings = TuneSettings(**block)
        if not isinstance(fixed, Mapping):
            raise ConfigError(
                f"bad value {fixed!r} for 'fix' of the tuning: should be a mapping of keys to values"
            )
        return cls(study, read_asked(space), settings).fix(fixed), output_dir

    def fix(self, values: Mapping[str, Any]) -> TunePlan:
        """The same tuning with settings that are not tuned, given by key."""
        keys = {full_key(str(key)): value for key, value in values.items()}
        base, _ = merge_layers([("the base", self.study.base), ("--fix", nested(keys, "--fix"))])
        fixed = tuple(dict.fromkeys([*self.fixed, *keys]))
        return replace(self, study=replace(self.study, base=base), fixed=fixed)

    def config(self) -> TrainConfig:
        """The default configuration."""
        return resolve_config([("base", self.study.base)]).config

    def resolved(self) -> TunePlan:
        """The plan with its space: the default configuration and the space are checked in a worker process."""
        if self.config().env_id is None:
            raise ConfigError(
                "missing key 'env_id': trials are compared by evaluations, which need an environment"
            )
        plan = replace(self, study=replace(self.study, working_dir=str(Path.cwd())))
        runs, question = plan.study.runs(Path(plan.study.name)), (RESOLVER, plan.text())
        check = SettingsCheck(runs, plan.study.plugins, plan.study.callbacks, question=question)
        (answer,) = check.answers()
        if "error" in answer:
            raise ConfigError(answer["error"].splitlines()[0])
        return TunePlan.from_values(parse_yaml(answer["answer"], "the plan"))

    @property
    def total_steps(self) -> int:
        """Steps of each run."""
        return self.config().total_timesteps

    @property
    def eval_every_steps(self) -> int:
        """Steps between two evaluations."""
        return self.eval_interval or max(1, self.total_steps // 10)

    @property
    def pruning(self) -> Pruning:
        """The pruner."""
        return Pruning(self.settings.pruner, self.total_steps, self.settings.batch)

    @property
    def defaults(self) -> dict[str, Any]:
        """The parameters of trial 0, by name."""
        return {key.name: encode(key.default) for key in self.space}

    def seeds(self, stage: str) -> tuple[int, ...]:
        """The seeds of a stage; no seed is in two stages."""
        settings = self.settings
        counts = {
            "search": settings.seeds_per_trial,
            "race": settings.race_seeds,
            "final": settings.final_seeds,
        }
        first = SEEDS_APART * settings.seed + STAGE_SEEDS[stage]
        return tuple(range(first, first + counts[stage]))

    def stage(
        self, stage: str, settings: Mapping[str, Setting], threads: Sequence[int] = ()
    ) -> Plan:
        """The study of a stage; `settings` by name, and the PyTorch threads of each if they are known."""
        return replace(
            self.study,
            name=stage,
            vary=tuple(settings.values()),
            seeds=self.seeds(stage),
            threads=tuple(threads),
            names=tuple(settings),
        )

    def asked_values(self) -> dict[str, Any]:
        """What is asked to be tuned, as stored."""
        return {
            key: None if space is None else space.as_dict() for key, space in self.asked.items()
        }

    def values(self) -> dict[str, Any]:
        """The plan as stored."""
        study = self.study
        return {
            "name": study.name,
            "base": study.base,
            "asked": self.asked_values(),
            "fixed": list(self.fixed),
            **self.settings.model_dump(),
            "space": {key.key: key.as_dict() for key in self.space},
            "eval_interval": self.eval_interval,
            "seeds": {stage: list(self.seeds(stage)) for stage in STAGE_SEEDS},
            "plugins": list(study.plugins),
            "callbacks": list(study.callbacks),
            "working_dir": study.working_dir,
        }

    def text(self) -> str:
        """The plan as YAML."""
        return dump_yaml(self.values())

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> TunePlan:
        """The inverse of `values`."""
        try:
            return cls(
                Plan.from_values({**values, "vary": [{}], "seeds": 0, "threads": []}),
                {
                    key: None if space is None else Tune.from_dict(space)
                    for key, space in values["asked"].items()
                },
                TuneSettings(**{name: values[name] for name in TuneSettings.model_fields}),
                tuple(values["fixed"]),
                tuple(TunedKey.from_dict(key, item) for key, item in values["space"].items()),
                values["eval_interval"],
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"the stored plan is damaged: {error}") from None


RESOLVER = f"{__name__}:resolve"
"""What a worker process calls, by name."""


def resolve(text: str, config: TrainConfig) -> str:
    """Resolve a plan, as text; called in a worker process, with the default configuration."""
    plan = TunePlan.from_values(parse_yaml(text, "the plan"))
    space = resolve_space(plan.asked, config, plan.fixed)
    algo_config = get_algorithm_spec(config.algo).parse_kwargs(config.algo_kwargs)
    return replace(plan, space=space, eval_interval=algo_config.eval_interval).text()


def plan_tuning(
    name: str,
    base: Mapping[str, Any],
    asked: Asked,
    settings: TuneSettings,
    plugins: tuple[str, ...] = (),
    callbacks: tuple[str, ...] = (),
) -> TunePlan:
    """A tuning of a base configuration."""
    study = make_plan(name, [base], plugins=plugins, callbacks=callbacks, reserved=CHOSEN_BY_TUNING)
    return TunePlan(study, asked, settings)


def default_name(config: TrainConfig) -> str:
    """Name of a tuning that was given none."""
    return f"tune__{safe_name(config.algo)}__{safe_name(config.env_id or 'offline')}"


def open_tuning(path: Path) -> TunePlan:
    """The stored plan of a tuning; a file that was edited is refused."""
    values = load_signed_file(path / TUNE_FILE, "a tuning", "begin another tuning (--name NAME)")
    return TunePlan.from_values(values)


def find_plan(asked: TunePlan, path: Path) -> TunePlan:
    """The plan of the tuning in `path` if it has begun, which must be what is asked; else a new one, not stored yet."""
    if not (path / TUNE_FILE).is_file():
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigError(
                f"'{path}' exists and is not a tuning: move it away, or give another --name"
            )
        return asked.resolved()
    stored = open_tuning(path)
    differences = _differences(stored, asked)
    if differences:
        raise ConfigError(
            f"tuning '{stored.study.name}' began with another plan ('{path}'): {'; '.join(differences)}. Give --name"
            " NAME to begin another"
        )
    # The code that it imports may have moved.
    plugins, callbacks = asked.study.plugins, asked.study.callbacks
    return replace(stored, study=replace(stored.study, plugins=plugins, callbacks=callbacks))


def store_tuning(plan: TunePlan, path: Path) -> None:
    """Create the folder of a tuning with its plan; nothing happens if it is there."""
    file = path / TUNE_FILE
    if not file.is_file() and not freeze(file, sign(plan.text())):
        find_plan(plan, path)  # another process began it at the same moment


def _differences(old: TunePlan, new: TunePlan) -> list[str]:
    found = plan_differences(old.study, new.study)
    first, second = (
        {"tune": plan.asked_values(), **plan.settings.model_dump()} for plan in (old, new)
    )
    for key, value in first.items():
        if identity(value) != identity(second[key]):
            option = f"--{key.replace('_', '-')}"
            found.append(f"{option} was {value_text(value)} and is {value_text(second[key])}")
    if {*old.fixed} != {*new.fixed}:
        was, now = (", ".join(plan.fixed) or "nothing" for plan in (old, new))
        found.append(f"--fix was of {was} and is of {now}")
    return found
