"""Imports a model of Stable-Baselines3 as a run: settings, networks, normalizers, optimizers, its score."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.algorithms.base import Algorithm
from rl_training.envs.factory import EnvSource
from rl_training.errors import CheckpointError, ConfigError, RLTrainingError, RunExistsError
from rl_training.experiment.config import TrainConfig, resolve_config
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.run_folder import TrainingRun
from rl_training.importers.files import Archive, read_archive
from rl_training.importers.networks import NETWORKS, Model
from rl_training.importers.normalization import (
    VecNormalizeState,
    read_normalization,
    read_vecnormalize,
)
from rl_training.importers.rewriting import rewrite
from rl_training.importers.settings import (
    Report,
    find_algorithm,
    read_bounds,
    read_hyperparameters,
    read_num_envs,
    read_policy_settings,
    read_shape,
    whole,
)
from rl_training.importers.transfer import Transfer, load_normalizers, set_counters
from rl_training.importers.verification import verify
from rl_training.runtime.assembly import RunSetup
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import run_training
from rl_training.runtime.trainer import TrainerState, TrainResult
from rl_training.spaces.spec import Spaces
from rl_training.terminal.streams import quieted

NETWORK_SETTINGS = {
    "activation", "layer_norm", "hidden_sizes", "actor_hidden_sizes", "critic_hidden_sizes", "network", "memory",
    "normalize_obs", "dueling", "num_quantiles", "num_critics",
}  # fmt: skip
"""Settings on which the action for an observation depends: they are the model's."""
STOP_REASON = "imported from Stable-Baselines3"


@dataclass(frozen=True)
class Conversion:
    """A model of SB3 as an algorithm of ours."""

    archive: Archive
    config: TrainConfig
    algorithm: Algorithm[Any]
    report: Report
    global_step: int
    """Environment steps that SB3 had trained for."""
    num_updates: int
    """Gradient steps that it had taken, as its optimizers count them."""


@dataclass(frozen=True)
class Imported:
    """An imported model: its run, what was taken and left, and how it compares with SB3's policy."""

    result: TrainResult
    conversion: Conversion
    verified: dict[str, Any] | None

    def as_dict(self) -> dict[str, Any]:
        """All of it, JSON-compatible."""
        conversion, result = self.conversion, self.result
        return {
            "run": str(result.run_dir),
            "checkpoint": str(result.checkpoint_path),
            "algo": conversion.config.algo,
            "env_id": conversion.config.env_id,
            "global_step": conversion.global_step,
            "sb3_version": conversion.archive.version,
            **conversion.report.as_dict(),
            "verified": self.verified,
            "metrics": result.metrics,
        }


def import_sb3(
    path: str | Path,
    env_id: str,
    *,
    vecnormalize: str | Path | None = None,
    changes: Mapping[str, Any] | None = None,
    run_suffix: str | None = None,
    verify_with_sb3: bool = False,
    sb3_python: str | None = None,
) -> Imported:
    """Import the zip file of an SB3 model as a run folder, which can be evaluated, resumed and started from.

    `changes` are settings of the run (`{"env_kwargs": …}`), which win over the model's. Without
    `verify_with_sb3` nothing of the file is unpickled; with it SB3 loads the file itself, in a process of its own.
    """
    statistics_file = None if vecnormalize is None else Path(vecnormalize)
    archive = read_archive(Path(path))
    statistics = None if statistics_file is None else read_vecnormalize(statistics_file)
    conversion = convert(archive, statistics, {**(changes or {}), "env_id": env_id})
    verified, config = None, conversion.config
    if verify_with_sb3:
        verified = vars(verify(conversion.algorithm, config, archive, statistics_file, sb3_python))
    suffix = run_suffix or archive.path.stem
    try:
        with quieted():
            result = run_training(config, run_suffix=suffix, callbacks=[_Load(conversion)])
    except RunExistsError as error:
        found = str(error).partition(": add ")[0]
        raise RunExistsError(f"{found}: choose a name of its own by --run-suffix NAME") from None
    facts = {"file": archive.path.name, "package": "stable-baselines3", "version": archive.version}
    origin = {**facts, **conversion.report.as_dict(), "verified": verified}
    # Written without owning the folder again, which would count as another attempt at the run.
    TrainingRun(result.run_dir).update_metadata(imported=origin, steps_per_second=None)
    return Imported(result, conversion, verified)


class _Load(Callback):
    """Puts the imported state into a new run, and ends it at once: it saves and evaluates as any run does."""

    def __init__(self, conversion: Conversion) -> None:
        self._conversion = conversion

    def on_train_start(self, trainer: TrainerState) -> None:
        """Load the state, and set the counters to where SB3 stopped."""
        state = copy.deepcopy(self._conversion.algorithm.state_dict())
        own = trainer.algorithm.state_dict()
        trainer.algorithm.load_state_dict({**state, "generator": own["generator"], "progress": 1.0})
        trainer.global_step = self._conversion.global_step
        trainer.update_count = self._conversion.num_updates
        # No update is due for steps that are not in the replay buffer.
        trainer.warm_start_step = trainer.update_calls = trainer.global_step
        trainer.request_stop(STOP_REASON)


def convert(
    archive: Archive, statistics: VecNormalizeState | None, changes: Mapping[str, Any]
) -> Conversion:
    """Convert a model; `changes` are settings of the run, `env_id` among them, which win over the model's."""
    for key in sorted(NETWORK_SETTINGS & changes.get("algo_kwargs", {}).keys()):
        raise ConfigError(
            f"'algo_kwargs.{key}' follows from the model, which would act differently: remove it"
        )
    report = Report()
    algo = find_algorithm(archive)
    networks, policy = NETWORKS[algo], read_policy_settings(archive, algo)
    _check_statistics(archive, statistics)
    spaces = _spaces_of(changes)
    get_algorithm_spec(algo).check_spaces(spaces)
    plain_model = Model(archive.weights, policy, spaces)
    normalizers, model = read_normalization(spaces.obs, statistics, plain_model, report)
    with _translate_errors(archive):
        model = rewrite(model)
        sizes = networks.read_sizes(model)
        _check_spaces(archive, networks.has_cnn(model), spaces)
    step = whole(archive.settings.get("num_timesteps"))
    hyperparameters = read_hyperparameters(archive, algo, step, report)
    hyperparameters |= {
        **dict.fromkeys(normalizers, True),
        "activation": policy.activation,
        **sizes,
    }
    gamma = statistics.gamma if statistics and "normalize_reward" in normalizers else None
    if gamma not in (None, hyperparameters.get("gamma")):
        effect = "rewards are normalized with the algorithm's here"
        report.leave("gamma of VecNormalize", f"{gamma:g}: {effect}")
    run = {"algo": algo, "total_timesteps": max(1, step), "tags": ["sb3"]}
    run |= {"num_envs": read_num_envs(archive, report), "algo_kwargs": hyperparameters}
    config = resolve_config([("the model", run), ("the command line", changes)]).config
    report.take("settings", ", ".join(sorted(hyperparameters)))
    algorithm = RunSetup.parse(config.replace(device="cpu")).make_algorithm(spaces)
    with _translate_errors(archive):
        members = algorithm.stateful_members()
        num_updates = Transfer(archive, model, networks, members, report).load()
    load_normalizers(algorithm, normalizers)
    set_counters(algorithm, step, num_updates)
    report.leave("generators, environments", "a run that continues has its own")
    if "buffer_size" in archive.settings:
        report.leave("replay buffer", "a model's zip has none: it begins empty")
    return Conversion(archive, config, algorithm, report, step, num_updates)


@contextlib.contextmanager
def _translate_errors(archive: Archive) -> Iterator[None]:
    """Raise what goes wrong with tensors of other names or shapes than SB3's as a `CheckpointError`."""
    try:
        yield
    except RLTrainingError:
        raise
    except (KeyError, IndexError, ValueError, RuntimeError, ZeroDivisionError) as error:
        detail = str(error).partition("\n")[0]
        raise CheckpointError(
            f"'policy.pth' of '{archive.path}' does not have the tensors of an SB3 policy: {type(error).__name__}:"
            f" {detail:.200}"
        ) from None


def _check_statistics(archive: Archive, statistics: VecNormalizeState | None) -> None:
    """An on-policy model that has been trained keeps the original observation only behind VecNormalize."""
    settings = archive.settings
    has_original = settings.get("_last_original_obs") is not None
    if "gae_lambda" not in settings or has_original == (statistics is not None):
        return
    if has_original:
        raise CheckpointError(
            f"'{archive.path}' was trained with VecNormalize, without whose statistics it acts differently: pass"
            " --vecnormalize FILE (the file that VecNormalize.save wrote)"
        )
    if settings.get("_last_obs") is not None:
        raise CheckpointError(
            f"'{archive.path}' was trained without VecNormalize, with whose statistics it acts differently: leave"
            " --vecnormalize out"
        )


def _spaces_of(changes: Mapping[str, Any]) -> Spaces:
    envs = EnvSource.parse(changes["env_id"], changes.get("env_kwargs", {})).make_vector(1)
    try:
        return envs.spaces
    finally:
        envs.close()


def _check_spaces(archive: Archive, reads_images: bool, spaces: Spaces) -> None:
    """Refuse spaces in which the policy would act differently, or not at all."""
    action, obs = spaces.action, spaces.obs
    if any(".extractors." in name for name in archive.weights):
        raise CheckpointError(
            "the policy reads images within a Dict by CNNs of 256 features: no counterpart"
        )
    shape = read_shape(archive.settings)
    if shape is not None and not obs.leaves and sorted(shape) != sorted(obs.shape):
        raise CheckpointError(
            f"the model's observations are of shape {shape}, this environment's {obs.shape}: name the environment with"
            " its wrappers (Atari: env_kwargs.wrappers.atari={}; others: env_kwargs.wrappers.list)"
        )
    if reads_images is not bool(obs.image_shapes):
        ways = ("with a CNN", "as vectors") if reads_images else ("as vectors", "with a CNN")
        raise CheckpointError(
            f"the model reads observations {ways[0]}; this environment's are read {ways[1]}"
        )
    if np.any(action.start != 0):
        raise CheckpointError("SB3 counts actions from 0, and this environment's start elsewhere")
    bounds = read_bounds(archive.settings)
    if action.choices or bounds is None or len(bounds[0]) != action.num_components:
        return
    for own, theirs in zip((action.low, action.high), bounds, strict=True):
        if not np.allclose(own.reshape(-1), theirs, rtol=1e-4, atol=1e-6):
            raise CheckpointError(
                f"the model's actions are bounded by {theirs}, this environment's by {own.tolist()}"
            )
