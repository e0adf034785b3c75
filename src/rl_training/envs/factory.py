"""Making environments: from a Gymnasium id, an importable class or a class in a file."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import gymnasium as gym
from gymnasium.error import Error as GymnasiumError
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from rl_training.envs.atari_games import GAME_KWARGS, AtariConfig, reward_for_training, show
from rl_training.envs.episodes import EpisodeEnv
from rl_training.envs.pools import LocalPool, Pool
from rl_training.envs.rewards import EpisodeReport, RewardTransformConfig, apply_reward_wrappers
from rl_training.envs.vector import TrainingVectorEnv, make_local, make_workers
from rl_training.envs.vectorized import BatchVectorEnv, EnvPoolBatch, check_has_batch, make_gymnasium_batch
from rl_training.envs.workers import WorkerPool
from rl_training.errors import ConfigError, EnvError
from rl_training.validation import FrozenConfig, parse_config, suggest

Env = gym.Env[Any, Any]
Backend = Literal["sync", "async", "vector", "envpool"]
KNOWN_PACKAGES = ("ale_py", "gymnasium_robotics")
"""Where installed, these register environments when they are imported; the user need not ask for that."""
ROBOTS = ("Fetch", "HandReach", "HandManipulate", "AdroitHand", "FrankaKitchen", "PointMaze_", "AntMaze_")
"""What the ids of the second begin with."""


class WrapperConfig(FrozenConfig):
    """Wrappers of the training environment; evaluation sees none that change rewards or endings."""

    atari: AtariConfig | None = None
    """How an Atari game is shown and played."""
    reward: RewardTransformConfig | None = None
    """What to do to each reward."""


class EnvSettings(FrozenConfig):
    """The keys of `env_kwargs` that are ours; all others go to the environment itself."""

    backend: Backend = "sync"
    """Step the environments one by one in this process, each in a process of its own, or all at once: as Gymnasium's
    vectorized environment, or in EnvPool's threads."""
    wrappers: WrapperConfig = WrapperConfig()
    """Wrappers of the training environment."""
    max_episode_steps: PositiveInt | None = None
    """Truncate episodes at this length, instead of the environment's own limit."""
    max_restarts: NonNegativeInt = 0
    """How often, in the whole run, an environment that failed is made anew; the step that failed is not stored."""
    worker_timeout: PositiveFloat = 120.0
    """Seconds after which a step in a worker process counts as hung."""

    @property
    def steps_all_at_once(self) -> bool:
        """Whether the environments are one simulator."""
        return self.backend in ("vector", "envpool")

    @model_validator(mode="after")
    def _refuse_what_means_nothing(self) -> EnvSettings:
        idle = sorted(self.model_fields_set & {"max_restarts", "worker_timeout"})
        idle += ["wrappers.atari"] if self.wrappers.atari is not None else []
        if self.steps_all_at_once and idle:
            raise ValueError(f"{' and '.join(idle)} mean nothing with backend: {self.backend} (use sync or async)")
        return self


def split_env_kwargs(env_kwargs: Mapping[str, Any]) -> tuple[EnvSettings, dict[str, Any]]:
    """Separate our settings from the environment's own arguments."""
    ours = {key: value for key, value in env_kwargs.items() if key in EnvSettings.model_fields}
    own = {key: value for key, value in env_kwargs.items() if key not in EnvSettings.model_fields}
    return parse_config(EnvSettings, ours, "env_kwargs"), own


def without_training_wrappers(env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The same environment in this process, with the rewards and endings that evaluation sees."""
    kept = {key: value for key, value in env_kwargs.items() if key not in ("backend", "wrappers")}
    atari = split_env_kwargs(env_kwargs)[0].wrappers.atari
    if atari is None:
        return kept
    changes = {"terminal_on_life_loss": False, "clip_reward": False}
    return {**kept, "wrappers": {"atari": {**atari.model_dump(), **changes}}}


def make_env(env_id: str, env_kwargs: Mapping[str, Any] | None = None, *, with_wrappers: bool = True) -> Env:
    """Make one environment: any Gymnasium id, `module:ClassName` or `path/to/file.py:ClassName`.

    Without `with_wrappers` the rewards stay as the environment gives them, as evaluation needs.
    """
    settings, own = split_env_kwargs(env_kwargs or {})
    env = _make_plain(env_id, own, settings)
    return _with_training_rewards(env, settings.wrappers) if with_wrappers else env


def make_vector_env(
    env_id: str, env_kwargs: Mapping[str, Any] | None = None, *, num_envs: int = 1
) -> TrainingVectorEnv:
    """Make the training environments; an ended episode is reset within the step that ended it."""
    settings, own = split_env_kwargs(env_kwargs or {})
    if settings.steps_all_at_once:
        return _make_batched(env_id, settings, own, num_envs)
    make = functools.partial(_make_training_env, env_id, dict(env_kwargs or {}), tuple(_loaded))
    if settings.backend == "sync":
        return make_local(make, num_envs, settings.max_restarts)
    return make_workers(make, num_envs, settings.max_restarts, settings.worker_timeout)


def make_episode_pool(env_id: str, env_kwargs: Mapping[str, Any], size: int) -> Pool:
    """Make the places of evaluation episodes: with `backend: async`, each in a process of its own."""
    settings, _ = split_env_kwargs(env_kwargs)
    make = functools.partial(_make_evaluation_env, env_id, dict(env_kwargs), tuple(_loaded))
    has_own_process = settings.backend == "async"
    make_member = functools.partial(EpisodeEnv, make, has_own_process=has_own_process)
    return WorkerPool(make_member, size, settings.worker_timeout) if has_own_process else LocalPool(make_member, size)


def _make_evaluation_env(env_id: str, env_kwargs: Mapping[str, Any], code: Sequence[str]) -> Env:
    _load_registering_code(env_id, code)
    return make_env(env_id, env_kwargs, with_wrappers=False)


def _make_training_env(env_id: str, env_kwargs: Mapping[str, Any], code: Sequence[str]) -> Env:
    _load_registering_code(env_id, code)
    settings, own = split_env_kwargs(env_kwargs)
    return _with_training_rewards(EpisodeReport(_make_plain(env_id, own, settings)), settings.wrappers)


def _load_registering_code(env_id: str, code: Sequence[str]) -> None:
    """Import, in a worker process, what registered the environment in the main one."""
    if ":" not in env_id and env_id not in gym.registry:
        for place in code:
            load_code(place)


def _make_plain(env_id: str, own: Mapping[str, Any], settings: EnvSettings) -> Env:
    """The environment as training and evaluation both see it."""
    atari = settings.wrappers.atari
    if atari is None:
        return _construct(env_id, own, settings.max_episode_steps)
    for key in GAME_KWARGS.keys() & own.keys():
        raise ConfigError(f"env_kwargs.{key} is not yours to choose beside wrappers.atari: leave it out")
    try:
        env = show(_construct(env_id, {**own, **GAME_KWARGS}, None), atari)
    except ConfigError as error:
        raise ConfigError(f"env_kwargs.wrappers.atari is for the games of ale-py: {error}") from error
    limit = settings.max_episode_steps  # in actions, not in frames
    return env if limit is None else gym.wrappers.TimeLimit(env, limit)


def _with_training_rewards(env: Env, wrappers: WrapperConfig) -> Env:
    if wrappers.atari is not None:
        env = reward_for_training(env, wrappers.atari)
    return apply_reward_wrappers(env, wrappers.reward)


def _make_batched(env_id: str, settings: EnvSettings, own: dict[str, Any], num_envs: int) -> TrainingVectorEnv:
    if _find_class(env_id) is not None:
        raise EnvError(f"backend: {settings.backend} takes registered ids; '{env_id}' is a class (use sync or async)")
    env_id = env_id.rpartition(":")[2]
    check_has_batch(env_id, settings.backend)
    example = _construct(env_id, own, settings.max_episode_steps)
    make_batch = make_gymnasium_batch if settings.backend == "vector" else EnvPoolBatch
    with _naming_refusals(env_id, own):
        return BatchVectorEnv(make_batch(env_id, own, example, num_envs), example, num_envs, settings.wrappers.reward)


def _construct(env_id: str, own: Mapping[str, Any], max_episode_steps: int | None) -> Env:
    env_class = _find_class(env_id)
    for package in KNOWN_PACKAGES if ":" not in env_id else ():
        if env_id not in gym.registry:
            with contextlib.suppress(ImportError):
                importlib.import_module(package)
    with _naming_refusals(env_id, own):
        if env_class is None:
            return gym.make(env_id, max_episode_steps=max_episode_steps, disable_env_checker=True, **own)
        env = env_class(**own)
    return env if max_episode_steps is None else gym.wrappers.TimeLimit(env, max_episode_steps)


@contextlib.contextmanager
def _naming_refusals(env_id: str, own: Mapping[str, Any]) -> Iterator[None]:
    try:
        yield
    except GymnasiumError as error:
        raise EnvError(_explain_unknown_id(env_id, error)) from None
    except (TypeError, ValueError, KeyError, AssertionError) as error:
        if not own:
            raise
        raise ConfigError(f"environment '{env_id}' refuses its env_kwargs {dict(own)}: {error}") from error
    except ImportError as error:
        raise EnvError(f"environment '{env_id}' needs a package that is not installed: {error}") from None


def _find_class(env_id: str) -> Callable[..., Env] | None:
    """The environment class that `place:ClassName` names, or None for a Gymnasium id."""
    place, colon, name = env_id.rpartition(":")
    if not colon:
        return None
    module = load_code(place)
    candidate = getattr(module, name, None)
    if inspect.isclass(candidate) and issubclass(candidate, gym.Env):
        return candidate
    if not place.endswith(".py") and name in gym.registry:
        return None  # Gymnasium's own `module:Id`, whose module registered the id when it was imported
    classes = [key for key, value in vars(module).items() if inspect.isclass(value) and issubclass(value, gym.Env)]
    raise EnvError(f"'{place}' has no environment class '{name}'{suggest(name, classes)}")


_loaded: dict[str, None] = {}


def load_code(place: str) -> ModuleType:
    """Import a module by its name, or a file by its path; worker processes import it too."""
    if place.endswith(".py"):
        module = _load_file(Path(place))
        place = str(Path(place).resolve())
    else:
        try:
            module = importlib.import_module(place)
        except ImportError as error:
            raise EnvError(f"cannot import '{place}': {error}") from None
    _loaded[place] = None
    return module


def unknown_code(env_id: str) -> str | None:
    """The file or module that making this environment would import, if nothing has imported it so far."""
    place, colon, _ = env_id.rpartition(":")
    if not colon or place in sys.modules or place in _loaded or place in ("rl_training.envs.goals", *KNOWN_PACKAGES):
        return None
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # it is no path
        if str(Path(place).resolve()) in _loaded:
            return None
    return place


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise EnvError(f"file '{path}' does not exist (looked from {Path.cwd()})")
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    name = f"rl_training_env_{path.stem}_{digest}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _explain_unknown_id(env_id: str, error: GymnasiumError) -> str:
    if env_id in gym.registry:
        return f"environment '{env_id}' cannot be made: {error}"
    if env_id.startswith("ALE/") and "ale_py" not in sys.modules:
        return f"environment '{env_id}' needs ale-py: pip install 'rl-training[atari]'"
    if env_id.startswith(ROBOTS) and "gymnasium_robotics" not in sys.modules:
        return f"environment '{env_id}' needs gymnasium-robotics: pip install 'rl-training[robotics]'"
    remedy = "use a Gymnasium id, module:ClassName or path/to/file.py:ClassName"
    return f"unknown environment '{env_id}'{suggest(env_id, gym.registry, remedy)}"
