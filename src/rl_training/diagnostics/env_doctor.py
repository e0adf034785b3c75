"""An examination of an environment: can it be trained on, and can a run on it be stopped and continued exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.data.findings import Finding, Level
from rl_training.diagnostics.env_probe import STEPS_TRACED, ProbeResult, watch
from rl_training.diagnostics.resume_check import check_resume, draw_actions
from rl_training.envs.answers import REMEDIES
from rl_training.envs.factory import make_env, make_vector_env, split_env_kwargs, training_env_maker
from rl_training.envs.pools import describe_error
from rl_training.envs.state.attributes import is_same
from rl_training.envs.state.shared_changes import shared_changes
from rl_training.errors import RLTrainingError
from rl_training.experiment.registry import AlgorithmSpec, list_algorithm_specs
from rl_training.memory import available_memory
from rl_training.replay.frame_replay import replay_bytes
from rl_training.spaces.actions import ActionKind
from rl_training.spaces.spec import Spaces, describe_spaces

REPLAY_SIZE = 1_000_000
LARGE_OBS = 20.0
LARGE_ACTION = 1000.0
Env = gym.Env[Any, Any]


@dataclass(frozen=True)
class EnvReport:
    """What the examination found."""

    env_id: str
    exactness: str
    """Whether a resumed run continues exactly: `exact`, `approximate`, or `unknown` if it could not be tried."""
    findings: tuple[Finding, ...]

    @property
    def has_errors(self) -> bool:
        """Whether training on this environment would fail."""
        return any(finding.level is Level.ERROR for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """The report as plain values."""
        findings = [
            {"check": row.name, "level": row.level.value, "finding": row.found, "remedy": row.remedy}
            for row in self.findings
        ]
        return {"env_id": self.env_id, "exactness": self.exactness, "findings": findings}


def examine_environment(
    env_id: str, env_kwargs: Mapping[str, Any] | None = None, *, steps: int = 600, seed: int = 0
) -> EnvReport:
    """Look at an environment as training will use it. What it raises or returns wrongly is in the report."""

    def make() -> Env:
        return make_env(env_id, env_kwargs)

    findings: list[Finding] = []
    exactness, check = "unknown", "make"
    try:
        env = make()
        findings.append(Finding(Level.OK, check, f"{type(env.unwrapped).__name__} can be made"))
        check = "spaces"
        spaces = describe_spaces(env.observation_space, env.action_space)
        findings += [*_judge_spaces(env, spaces), *_judge_actions(spaces)]
        check = "runs"
        actions = draw_actions(env.action_space, steps, seed)
        seen = watch(env, actions, seed)
        findings += [*_judge_conduct(seen), *_judge_episodes(env, seen), *_judge_size(spaces, seen)]
        if check not in seen.faults:
            findings += _judge_chance(make, seen, actions, seed)
            if split_env_kwargs(env_kwargs or {})[0].steps_all_at_once:
                check = "backend"
                exactness, finding = _judge_batch(env_id, env_kwargs)
            else:
                exactness, finding = _judge_resume(training_env_maker(env_id, env_kwargs), steps, seed, seen)
            findings.append(finding)
    except RLTrainingError as error:
        findings.append(Finding(Level.ERROR, check, str(error)))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        findings.append(Finding(Level.ERROR, check, describe_error(error), REMEDIES["runs"]))
    return EnvReport(env_id, exactness, tuple(findings))


def _judge_spaces(env: Env, spaces: Spaces) -> Iterator[Finding]:
    names = [
        f"Box{list(space.shape)} of {space.dtype}" if isinstance(space, gym.spaces.Box) else str(space)
        for space in (env.observation_space, env.action_space)
    ]
    yield Finding(Level.OK, "spaces", " to ".join(names))
    refusals = {spec.name: _refusal(spec, spaces) for spec in list_algorithm_specs()}
    fitting = [name for name, refusal in refusals.items() if refusal is None]
    if fitting:
        yield Finding(Level.OK, "algorithms", f"{', '.join(fitting)} can train on it")
    else:
        yield Finding(Level.ERROR, "algorithms", "none accepts its spaces", "; ".join(filter(None, refusals.values())))


def _refusal(spec: AlgorithmSpec, spaces: Spaces) -> str | None:
    """Why an algorithm cannot train on these spaces, if it cannot."""
    try:
        spec.algorithm_class().check_spaces(spaces)
    except RLTrainingError as error:
        return str(error)
    return None


def _judge_actions(spaces: Spaces) -> Iterator[Finding]:
    low, high = spaces.action.low, spaces.action.high
    if spaces.action.kind is not ActionKind.CONTINUOUS:
        return
    if not (low < high).all():
        yield Finding(Level.ERROR, "actions", "a lower bound is not below its upper bound", "give each low < high")
    elif not spaces.action.is_bounded:
        remedy = "give the Box finite bounds, so that actions can be scaled to them"
        yield Finding(Level.WARNING, "actions", "the action space has no finite bounds", remedy)
    elif np.abs([low, high]).max() > LARGE_ACTION:
        found = f"bounded, but as far as {low.min():g} to {high.max():g}"
        yield Finding(Level.WARNING, "actions", found, "check that they are meant: random actions will be that large")
    else:
        yield Finding(Level.OK, "actions", f"bounded, from {low.min():g} to {high.max():g}")


def _judge_conduct(seen: ProbeResult) -> Iterator[Finding]:
    for check, found in {**seen.faults, **seen.oddities, **seen.faults}.items():
        yield Finding(Level.ERROR if check in seen.faults else Level.WARNING, check, found, REMEDIES[check])
    if not seen.faults and not seen.oddities:
        yield Finding(Level.OK, "answers", f"observations, rewards and endings were right in {seen.steps:,} steps")
    if seen.reuses_array:
        yield Finding(Level.OK, "arrays", "each observation is the same array; it is copied here before it changes")


def _judge_episodes(env: Env, seen: ProbeResult) -> Iterator[Finding]:
    limit = env.spec.max_episode_steps if env.spec is not None else None
    if not limit and env.has_wrapper_attr("_max_episode_steps"):
        limit = env.get_wrapper_attr("_max_episode_steps")
    limited = f"at most {limit:,} steps" if limit else "without a time limit"
    if seen.episode_lengths:
        count, mean = len(seen.episode_lengths), np.mean(seen.episode_lengths)
        yield Finding(Level.OK, "episodes", f"{count:,} ended, after {mean:,.0f} steps on average; {limited}")
    elif limit:
        yield Finding(Level.OK, "episodes", f"none ended in {seen.steps:,} steps; {limited}")
    elif "runs" not in seen.faults:
        found = f"none ended in {seen.steps:,} steps, and there is no time limit: resuming replays all since the reset"
        yield Finding(Level.WARNING, "episodes", found, "set env_kwargs.max_episode_steps")


def _judge_size(spaces: Spaces, seen: ProbeResult) -> Iterator[Finding]:
    if spaces.obs.dtype == "float32" and seen.largest_obs > LARGE_OBS:
        found = f"observations reach {seen.largest_obs:,.4g}"
        yield Finding(Level.WARNING, "scale", found, _remedy_for_scale(spaces))
    if seen.seconds > 0:
        yield Finding(Level.OK, "speed", f"{seen.steps / seen.seconds:,.0f} steps a second in one process")
    needed, available = replay_bytes(spaces, REPLAY_SIZE), available_memory()
    found = f"a replay of {REPLAY_SIZE:,} transitions takes {needed / 1e9:,.2f} GB"
    if available is None or needed <= available:
        yield Finding(Level.OK, "memory", found)
    else:
        remedy = f"set a smaller algo_kwargs.buffer_capacity: {available / 1e9:,.2f} GB are free"
        yield Finding(Level.WARNING, "memory", found, remedy)


def _remedy_for_scale(spaces: Spaces) -> str:
    """What brings observations to scale: the setting, for the algorithms that have it, or a wrapper for all."""
    by_wrapper = "scale them with gymnasium.wrappers.TransformObservation (docs/environments.md)"
    names = [
        spec.name
        for spec in list_algorithm_specs()
        if _refusal(spec, spaces) is None and "normalize_obs" in spec.config_class().model_fields
    ]
    return f"set algo_kwargs.normalize_obs=true ({', '.join(names)}), or {by_wrapper}" if names else by_wrapper


def _judge_chance(make: Callable[[], Env], seen: ProbeResult, actions: list[Any], seed: int) -> Iterator[Finding]:
    again, other = (watch(make(), actions[:STEPS_TRACED], number).trace for number in (seed, seed + 1))
    pairs = enumerate(zip(seen.trace, again, strict=False))
    place = next((index for index, pair in pairs if not is_same(*pair)), None)
    faults = [] if place is None else [f"the same seed and actions led elsewhere at step {place}"]
    if seen.global_generators:
        faults.append(f"it draws from the global generator of {' and '.join(seen.global_generators)}")
    if faults:
        yield Finding(Level.WARNING, "seeds", ": ".join(faults), "draw every random number from self.np_random")
    else:
        yield Finding(Level.OK, "seeds", "the same seed and actions give the same steps")
    if place is not None:
        return
    beside = watch(make(), actions[:STEPS_TRACED], seed, neighbour=make()).trace
    if not is_same(again, beside):
        found = "it goes elsewhere when another environment of its class is stepped between its steps"
        yield Finding(Level.WARNING, "instances", found, "keep its state in self, not in the class or module")
    if is_same(again, other):
        found = "another seed changes nothing: every evaluation episode begins alike"
        yield Finding(Level.WARNING, "other seeds", found, "use self.np_random in reset, if chance is meant")
    env = make()
    env.reset(seed=seed)
    env.step(actions[0])
    if not is_same(env.reset(seed=seed)[0], again[0]):
        found = "reset(seed=...) of a used environment does not begin as that of a new one"
        yield Finding(Level.WARNING, "reset", found, "call super().reset(seed=seed) and begin anew")
    env.close()


def _judge_resume(make: Callable[[], Env], steps: int, seed: int, seen: ProbeResult) -> tuple[str, Finding]:
    try:
        proof = check_resume(make, steps=steps, seed=seed, in_new_process=True)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        found = f"saving or restoring it raised {type(error).__name__}: {error}"
        remedy = "let get_state return numbers, words, arrays, and containers of these"
        return "unknown", Finding(Level.ERROR, "resume", found, remedy)
    cut = f" cut at {proof.length_limit:,} steps" if proof.length_limit else ""
    how = f"{proof.num_points} states in {proof.num_episodes:,} episodes{cut}, restored by {proof.method}"
    named = " ".join(proof.inexact_reasons)
    changes = dict.fromkeys([*seen.shared_changes, *shared_changes(seen.env_class)])
    inexact_reasons = [*proof.inexact_reasons, *(f"it changes the {name}" for name in changes if name not in named)]
    if not inexact_reasons:
        return "exact", Finding(Level.OK, "resume", f"exact: {how}, went on as if never left")
    remedy = "give it get_state() and set_state(state), and all its chance from self.np_random"
    found = f"approximate: {'; '.join(inexact_reasons)} ({how})"
    return "approximate", Finding(Level.WARNING, "resume", found, remedy)


def _judge_batch(env_id: str, env_kwargs: Mapping[str, Any] | None) -> tuple[str, Finding]:
    """What the backend says of itself: the other findings are of one environment alone, as evaluation uses it."""
    with closing(make_vector_env(env_id, env_kwargs, num_envs=2)) as envs:
        inexact_reasons = "; ".join(envs.inexact_reasons)
    if inexact_reasons:
        return "approximate", Finding(Level.WARNING, "resume", f"approximate: {inexact_reasons}", "use sync or async")
    return "exact", Finding(Level.OK, "resume", "exact: a trial of the vectorized environment, restored, went on alike")
