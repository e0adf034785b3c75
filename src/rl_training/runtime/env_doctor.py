"""An examination of an environment: can it be trained on, and can a run on it be stopped and continued exactly."""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.data.spaces import ActionKind, Spaces, describe_spaces
from rl_training.data.transitions import storage_bytes
from rl_training.envs.attributes import is_same
from rl_training.envs.episodes import EpisodeReport
from rl_training.envs.factory import make_env
from rl_training.envs.vector import describe_error
from rl_training.errors import RLTrainingError
from rl_training.experiment.registry import list_algorithm_specs
from rl_training.runtime.env_conduct import Conduct, watch
from rl_training.runtime.memory import available_memory
from rl_training.runtime.resume_proof import ResumeProof, draw_actions, prove_resume

REPLAY_SIZE = 1_000_000
LARGE_OBS = 20.0
LARGE_ACTION = 1000.0
Env = gym.Env[Any, Any]


class Level(str, enum.Enum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """One row of the report."""

    check: str
    level: Level
    finding: str
    remedy: str = ""


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
        findings = [{**asdict(finding), "level": finding.level.value} for finding in self.findings]
        return {"env_id": self.env_id, "exactness": self.exactness, "findings": findings}


def examine_environment(
    env_id: str, env_kwargs: Mapping[str, Any] | None = None, *, steps: int = 600, seed: int = 0
) -> EnvReport:
    """Look at an environment as training will use it. What it raises or returns wrongly is in the report."""

    def make() -> Env:
        return EpisodeReport(make_env(env_id, env_kwargs))

    findings: list[Finding] = []
    exactness = "unknown"
    check = "make"
    try:
        env = make_env(env_id, env_kwargs)
        findings.append(Finding(check, Level.OK, f"{type(env.unwrapped).__name__} can be made"))
        check = "spaces"
        spaces = describe_spaces(env.observation_space, env.action_space)
        findings += [*_judge_spaces(env, spaces), *_judge_actions(spaces)]
        check = "runs"
        seen = watch(env, draw_actions(env.action_space, steps, seed), seed)
        findings += [*_judge_conduct(seen), *_judge_episodes(env, seen), *_judge_size(spaces, seen)]
        env.close()
        if check not in seen.faults:
            actions = draw_actions(env.action_space, min(steps, 200), seed)
            findings += _judge_chance(lambda: make_env(env_id, env_kwargs), seen, actions, seed)
            exactness, finding = _judge_resume(make, steps, seed)
            findings.append(finding)
    except RLTrainingError as error:
        findings.append(Finding(check, Level.ERROR, str(error)))
    except (Exception, SystemExit) as error:
        findings.append(Finding(check, Level.ERROR, describe_error(error), REMEDIES["runs"]))
    return EnvReport(env_id, exactness, tuple(findings))


def _judge_spaces(env: Env, spaces: Spaces) -> Iterator[Finding]:
    fitting, refusing = [], []
    for spec in list_algorithm_specs():
        try:
            spec.algorithm_class().check_spaces(spaces)
            fitting.append(spec.name)
        except RLTrainingError as error:
            refusing.append(str(error))
    yield Finding("spaces", Level.OK, f"{_short(env.observation_space)} to {_short(env.action_space)}")
    if fitting:
        yield Finding("algorithms", Level.OK, f"{', '.join(fitting)} can train on it")
    else:
        yield Finding("algorithms", Level.ERROR, "none accepts its spaces", "; ".join(refusing))


def _judge_actions(spaces: Spaces) -> Iterator[Finding]:
    action = spaces.action
    if action.kind is not ActionKind.CONTINUOUS:
        return
    if np.isnan(action.low).any() or np.isnan(action.high).any() or (action.low >= action.high).any():
        yield Finding("actions", Level.ERROR, "a lower bound is not below its upper bound", "give each low < high")
    elif not action.is_bounded:
        remedy = "give the Box finite bounds, so that actions can be scaled to them"
        yield Finding("actions", Level.WARNING, "the action space has no finite bounds", remedy)
    elif max(np.abs(action.low).max(), np.abs(action.high).max()) > LARGE_ACTION:
        text = f"bounded, but as far as {action.low.min():g} to {action.high.max():g}"
        yield Finding("actions", Level.WARNING, text, "check that they are meant: random actions will be that large")
    else:
        yield Finding("actions", Level.OK, f"bounded, from {action.low.min():g} to {action.high.max():g}")


REMEDIES = {
    "runs": "mend the environment; the traceback shows when it is stepped by hand",
    "observations": "return what observation_space describes",
    "reward": "return a finite float",
    "endings": "return bool(...) for both",
}


def _judge_conduct(seen: Conduct) -> Iterator[Finding]:
    for check, fault in seen.faults.items():
        yield Finding(check, Level.ERROR, fault, REMEDIES[check])
    for check, oddity in seen.oddities.items():
        if check not in seen.faults:
            yield Finding(check, Level.WARNING, oddity, REMEDIES[check])
    if not seen.faults and not seen.oddities:
        yield Finding("answers", Level.OK, f"observations, rewards and endings were right in {seen.steps:,} steps")
    if seen.reuses_array:
        yield Finding("arrays", Level.OK, "each observation is the same array; it is copied here before it changes")


def _judge_episodes(env: Env, seen: Conduct) -> Iterator[Finding]:
    limit = env.spec.max_episode_steps if env.spec is not None else None
    limit = limit or next((layer._max_episode_steps for layer in _time_limits(env)), None)
    limited = f"at most {limit:,} steps" if limit else "without a time limit"
    if seen.episode_lengths:
        count, mean = len(seen.episode_lengths), np.mean(seen.episode_lengths)
        yield Finding("episodes", Level.OK, f"{count:,} ended, after {mean:,.0f} steps on average; {limited}")
    elif limit:
        yield Finding("episodes", Level.OK, f"none ended in {seen.steps:,} steps; {limited}")
    elif "runs" not in seen.faults:
        text = f"none ended in {seen.steps:,} steps, and there is no time limit: resuming replays all since the reset"
        yield Finding("episodes", Level.WARNING, text, "set env_kwargs.max_episode_steps")


def _judge_size(spaces: Spaces, seen: Conduct) -> Iterator[Finding]:
    if spaces.obs.dtype == "float32" and spaces.obs.num_categories is None and seen.largest_obs > LARGE_OBS:
        text = f"observations reach {seen.largest_obs:,.4g}"
        yield Finding("scale", Level.WARNING, text, "set algo_kwargs.normalize_obs=true, or scale them")
    if seen.seconds > 0:
        yield Finding("speed", Level.OK, f"{seen.steps / seen.seconds:,.0f} steps a second in one process")
    needed, available = storage_bytes(spaces, REPLAY_SIZE), available_memory()
    fits = available is None or needed <= available
    text = f"a replay of {REPLAY_SIZE:,} transitions takes {needed / 1e9:,.2f} GB"
    remedy = "" if fits else f"set a smaller algo_kwargs.buffer_capacity: {(available or 0) / 1e9:,.2f} GB are free"
    yield Finding("memory", Level.OK if fits else Level.WARNING, text, remedy)


def _judge_chance(make: Callable[[], Env], seen: Conduct, actions: list[Any], seed: int) -> Iterator[Finding]:
    first, again = _trace(make, actions, seed), _trace(make, actions, seed)
    place = next((index for index, pair in enumerate(zip(first, again, strict=False)) if not is_same(*pair)), None)
    drawn = f"it draws from the global generator of {' and '.join(seen.global_generators)}"
    if place is not None:
        why = f": {drawn}" if seen.global_generators else ""
        text = f"the same seed and actions led elsewhere at step {place}{why}"
        yield Finding("seeds", Level.WARNING, text, "draw every random number from self.np_random")
    elif seen.global_generators:
        yield Finding("seeds", Level.WARNING, drawn, "draw every random number from self.np_random")
    else:
        yield Finding("seeds", Level.OK, "the same seed and actions give the same steps")
    if place is None and is_same(first, _trace(make, actions, seed + 1)):
        text = "another seed changes nothing: every evaluation episode begins alike"
        yield Finding("other seeds", Level.WARNING, text, "use self.np_random in reset, if chance is meant")
    env = make()
    env.reset(seed=seed)
    for action in actions[:1]:
        env.step(action)
    obs = env.reset(seed=seed)[0]
    if place is None and not is_same(obs, first[0]):
        text = "reset(seed=...) of a used environment does not begin as that of a new one"
        yield Finding("reset", Level.WARNING, text, "call super().reset(seed=seed) and begin anew")
    env.close()


def _trace(make: Callable[[], Env], actions: list[Any], seed: int) -> list[Any]:
    env = make()
    trace: list[Any] = [copy.deepcopy(env.reset(seed=seed)[0])]
    for action in actions:
        obs, reward, terminated, truncated, _ = env.step(action)
        trace.append([copy.deepcopy(obs), float(reward), bool(terminated), bool(truncated)])
        if terminated or truncated:
            trace.append(copy.deepcopy(env.reset()[0]))
    env.close()
    return trace


def _judge_resume(make: Callable[[], Env], steps: int, seed: int) -> tuple[str, Finding]:
    try:
        proof = prove_resume(make, steps=steps, seed=seed)
    except (Exception, SystemExit) as error:
        text = f"saving or restoring it raised {type(error).__name__}: {error}"
        return "unknown", Finding("resume", Level.ERROR, text, "let get_state return numbers, arrays, lists and dicts")
    cut = f" cut at {proof.length_limit:,} steps" if proof.length_limit else ""
    how = f"{proof.num_points} states in {proof.num_episodes:,} episodes{cut}, restored by {proof.method}"
    if proof.is_exact:
        return "exact", Finding("resume", Level.OK, f"exact: {how}, went on as if never left")
    remedy = "give it get_state() and set_state(state), and all its chance from self.np_random"
    return "approximate", Finding("resume", Level.WARNING, f"approximate: {_why_inexact(proof)} ({how})", remedy)


def _why_inexact(proof: ResumeProof) -> str:
    reasons = list(proof.doubts)
    if proof.difference is not None:
        found = proof.difference
        count = "1 step" if found.after_steps == 1 else f"{found.after_steps} steps"
        reasons.append(f"{found.what} differs {count} after a restore at step {found.at_step}")
    return "; ".join(reasons)


def _time_limits(env: Any) -> Iterator[Any]:
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.wrappers.TimeLimit):
            yield env
        env = env.env


def _short(space: Any) -> str:
    if isinstance(space, gym.spaces.Box):
        return f"Box{list(space.shape)} of {space.dtype}"
    return str(space)
