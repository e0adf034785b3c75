"""Checks an environment: whether it can be trained on, and whether a run on it resumes exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.data.findings import Finding, Level
from rl_training.diagnostics.env_probe import STEPS_TRACED, ProbeResult, probe
from rl_training.diagnostics.resume_check import check_resume, sample_actions
from rl_training.envs.factory import EnvSource, make_env, make_vector_env
from rl_training.envs.parallel.pools import describe_error
from rl_training.envs.single.answers import REMEDIES
from rl_training.envs.single.masks import make_valid
from rl_training.envs.state.aliases import MakeEnv
from rl_training.envs.state.attributes import is_same
from rl_training.envs.state.unsaved_state import shared_changes
from rl_training.errors import RLTrainingError
from rl_training.experiment.registry import list_algorithm_specs
from rl_training.memory import available_memory
from rl_training.replay.frame_replay import replay_bytes
from rl_training.spaces.actions import ActionKind
from rl_training.spaces.spec import Spaces, describe_spaces

REPLAY_SIZE = 1_000_000
LARGE_OBS = 20.0
LARGE_ACTION = 1000.0
EXACTNESS = {Level.OK: "exact", Level.WARNING: "approximate"}
"""Exactness of a resumed run, by the level of the finding `resume`."""
Env = gym.Env[Any, Any]
passed, warning, error = (
    partial(Finding, level) for level in (Level.OK, Level.WARNING, Level.ERROR)
)


@dataclass(frozen=True)
class EnvReport:
    """The findings about one environment."""

    env_id: str
    findings: tuple[Finding, ...]

    @property
    def exactness(self) -> str:
        """Whether a resumed run continues exactly: `exact`, `approximate`, or `unknown` if the check failed."""
        levels = [finding.level for finding in self.findings if finding.name == "resume"]
        return EXACTNESS.get(levels[0], "unknown") if levels else "unknown"

    @property
    def has_errors(self) -> bool:
        """Whether training on this environment would fail."""
        return any(finding.level is Level.ERROR for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON-compatible values."""
        findings = [
            {
                "check": row.name,
                "level": row.level.value,
                "finding": row.found,
                "remedy": row.remedy,
            }
            for row in self.findings
        ]
        return {"env_id": self.env_id, "exactness": self.exactness, "findings": findings}


def check_environment(
    env_id: str, env_kwargs: Mapping[str, Any] | None = None, *, steps: int = 600, seed: int = 0
) -> EnvReport:
    """Check an environment as training will use it; its exceptions and wrong return values become findings."""
    findings: list[Finding] = []
    check = "make"
    try:
        make: MakeEnv = partial(make_env, env_id, env_kwargs)
        env = make()
        findings.append(passed(check, f"{type(env.unwrapped).__name__} was created"))
        check = "spaces"
        source = EnvSource.parse(env_id, env_kwargs)
        make_training: MakeEnv = source.training_maker()
        masks = source.find_reading(env, make).masks
        spaces = describe_spaces(
            env.observation_space, env.action_space, has_masks=masks is not None
        )
        findings += [*_check_spaces(env, spaces), *_check_actions(spaces)]
        if masks is not None:
            found = f"action masks from {masks.value}; random actions obey them"
            findings.append(passed("masks", found))
            make, make_training = (partial(make_valid, one, masks) for one in (make, make_training))
            env.close()
            env = make()
        check = "runs"
        actions = sample_actions(env.action_space, steps, seed)
        result = probe(env, actions, seed)
        findings += [*_check_answers(result), *_check_episodes(env, result)]
        findings += _check_size(spaces, result)
        if check not in result.faults:
            findings += _check_seeding(make, result, actions[:STEPS_TRACED], seed)
            if source.settings.steps_all_at_once:
                check = "backend"
                findings.append(_check_vector_backend(env_id, env_kwargs))
            else:
                findings.append(_check_resume(make_training, steps, seed, result))
    except RLTrainingError as fault:
        findings.append(error(check, str(fault)))
    except KeyboardInterrupt:
        raise
    except BaseException as fault:
        findings.append(error(check, describe_error(fault), REMEDIES["runs"]))
    return EnvReport(env_id, tuple(findings))


def _check_spaces(env: Env, spaces: Spaces) -> Iterator[Finding]:
    names = [
        f"Box{list(space.shape)} of {space.dtype}"
        if isinstance(space, gym.spaces.Box)
        else str(space)
        for space in (env.observation_space, env.action_space)
    ]
    yield passed("spaces", f"observations {names[0]}, actions {names[1]}")
    refusals = {spec.name: spec.refusal_of(spaces) for spec in list_algorithm_specs()}
    fitting = [name for name, refusal in refusals.items() if refusal is None]
    if fitting:
        yield passed("algorithms", f"supported by {', '.join(fitting)}")
    else:
        remedy = "; ".join(filter(None, refusals.values()))
        yield error("algorithms", "no algorithm supports its spaces", remedy)


def _check_actions(spaces: Spaces) -> Iterator[Finding]:
    low, high = spaces.action.low, spaces.action.high
    if spaces.action.kind is not ActionKind.CONTINUOUS:
        return
    if not (low < high).all():
        found = "a lower bound is not below its upper bound"
        yield error("actions", found, "set low < high in every dimension")
    elif not spaces.action.is_bounded:
        remedy = "set finite bounds, so that actions can be scaled to them"
        yield warning("actions", "the action space has no finite bounds", remedy)
    elif np.abs([low, high]).max() > LARGE_ACTION:
        found = f"the bounds are large: {low.min():g} to {high.max():g}"
        remedy = "check that they are intended: random actions are sampled from the whole range"
        yield warning("actions", found, remedy)
    else:
        yield passed("actions", f"bounds {low.min():g} to {high.max():g}")


def _check_answers(result: ProbeResult) -> Iterator[Finding]:
    for check, found in result.faults.items():
        yield error(check, found, REMEDIES[check])
    for check, found in result.warnings.items():
        if check not in result.faults:
            yield warning(check, found, REMEDIES[check])
    if not result.faults and not result.warnings:
        found = f"observations, rewards and episode ends were valid in {result.steps:,} steps"
        yield passed("answers", found)
    if result.reuses_array:
        yield passed("arrays", "every observation is the same array; rl_training copies it")


def _check_episodes(env: Env, result: ProbeResult) -> Iterator[Finding]:
    limit = env.spec.max_episode_steps if env.spec is not None else None
    if not limit and env.has_wrapper_attr("_max_episode_steps"):
        limit = env.get_wrapper_attr("_max_episode_steps")
    limited = f"time limit: at most {limit:,} steps" if limit else "no time limit"
    if not limit and result.truncated_at:
        limited = f"it truncates them itself, the longest after {result.truncated_at:,} steps"
    if result.episode_lengths:
        count, mean = len(result.episode_lengths), np.mean(result.episode_lengths)
        yield passed("episodes", f"{count:,} ended, mean length {mean:,.0f} steps; {limited}")
    elif limit:
        yield passed("episodes", f"none ended in {result.steps:,} steps; {limited}")
    elif "runs" not in result.faults:
        found = f"none ended in {result.steps:,} steps, and no time limit is known: a resume replays an episode's steps"
        remedy = "set env_kwargs.max_episode_steps, or see that it ends itself"
        yield warning("episodes", found, remedy)


def _check_size(spaces: Spaces, result: ProbeResult) -> Iterator[Finding]:
    if spaces.obs.dtype == "float32" and result.largest_obs > LARGE_OBS:
        found = f"observations reach {result.largest_obs:,.4g} in absolute value"
        yield warning("scale", found, _remedy_for_scale(spaces))
    if result.seconds > 0:
        rate = f"{result.steps / result.seconds:,.0f} steps a second"
        yield passed("speed", f"{rate} in one process")
    needed, available = replay_bytes(spaces, REPLAY_SIZE), available_memory()
    found = f"a replay buffer of {REPLAY_SIZE:,} transitions takes {needed / 1e9:,.2f} GB"
    if available is None or needed <= available:
        yield passed("memory", found)
    else:
        remedy = f"lower algo_kwargs.buffer_capacity: {available / 1e9:,.2f} GB are free"
        yield warning("memory", found, remedy)


def _remedy_for_scale(spaces: Spaces) -> str:
    """Normalize with the setting, for the algorithms that have it; a wrapper works for all."""
    by_wrapper = "scale them with gymnasium.wrappers.TransformObservation (docs/environments.md)"
    names = [
        spec.name
        for spec in list_algorithm_specs()
        if spec.refusal_of(spaces) is None and "normalize_obs" in spec.config_class().model_fields
    ]
    by_setting = f"set algo_kwargs.normalize_obs=true ({', '.join(names)}), or "
    return by_setting + by_wrapper if names else by_wrapper


def _check_seeding(
    make: MakeEnv, result: ProbeResult, actions: list[Any], seed: int
) -> Iterator[Finding]:
    again, other = (probe(make(), actions, number).trace for number in (seed, seed + 1))
    pairs = enumerate(zip(result.trace, again, strict=False))
    first = next((index for index, pair in pairs if not is_same(*pair)), None)
    faults = []
    if first is not None:
        faults.append(f"the same seed and actions gave different results at step {first}")
    if result.global_generators:
        names = " and ".join(result.global_generators)
        faults.append(f"it samples from the global generator of {names}")
    if faults:
        yield warning("seeds", "; ".join(faults), "sample every random number from self.np_random")
    else:
        yield passed("seeds", "the same seed and actions give the same steps")
    if first is not None:
        return
    if not is_same(again, probe(make(), actions, seed, neighbour=make()).trace):
        found = "its steps change when another environment of its class is stepped in between"
        yield warning("instances", found, "keep its state in self, not in the class or the module")
    if is_same(again, other):
        found = "another seed changes nothing: every evaluation episode starts the same"
        yield warning("other seeds", found, "use self.np_random in reset, if it should be random")
    with closing(make()) as env:
        env.reset(seed=seed)
        env.step(actions[0])
        if not is_same(env.reset(seed=seed)[0], again[0]):
            found = "reset(seed=...) after a step differs from reset(seed=...) of a new environment"
            yield warning("reset", found, "call super().reset(seed=seed) and reset all state")


def _check_resume(make: MakeEnv, steps: int, seed: int, result: ProbeResult) -> Finding:
    try:
        outcome = check_resume(make, steps=steps, seed=seed, in_new_process=True)
    except KeyboardInterrupt:
        raise
    except BaseException as fault:
        found = f"saving or restoring its state raised {type(fault).__name__}: {fault}"
        remedy = "return only numbers, strings, arrays and containers of these from get_state"
        return error("resume", found, remedy)
    cut = f" truncated at {outcome.length_limit:,} steps" if outcome.length_limit else ""
    how = f"{outcome.num_points} states in {outcome.num_episodes:,} episodes{cut}, restored by {outcome.method}"
    named = " ".join(outcome.inexact_reasons)
    changes = dict.fromkeys([*result.shared_changes, *shared_changes(result.env_class)])
    further = [f"it changes the {name}" for name in changes if name not in named]
    inexact_reasons = "; ".join([*outcome.inexact_reasons, *further])
    if not inexact_reasons:
        return passed("resume", f"exact: {how}, continued identically")
    remedy = (
        "add get_state() and set_state(state), and sample every random number from self.np_random"
    )
    return warning("resume", f"approximate: {inexact_reasons} ({how})", remedy)


def _check_vector_backend(env_id: str, env_kwargs: Mapping[str, Any] | None) -> Finding:
    """Exactness of the vectorized backend; the other checks use a single environment, as evaluation does."""
    with closing(make_vector_env(env_id, env_kwargs, num_envs=2)) as envs:
        inexact_reasons = "; ".join(envs.inexact_reasons)
    if inexact_reasons:
        return warning("resume", f"approximate: {inexact_reasons}", "use backend: sync or async")
    return passed("resume", "exact: a restored vectorized environment continued identically")
