"""The agent behind `PPO`, `SAC`, ...: settings in, then learn, evaluate, predict, save, load."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar, overload

import numpy.typing as npt
from torch import nn

from rl_training.algorithms.base import Algorithm
from rl_training.api.saving import save_policy
from rl_training.api.settings import (
    describe_settings,
    read_settings,
    refuse_policy_name,
    signature_of,
)
from rl_training.envs.given.objects import EnvLike, give_again
from rl_training.errors import CheckpointError, ConfigError
from rl_training.evaluation.prediction import NO_STATE, predict
from rl_training.experiment.checkpointing import CheckpointState, resolve_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.run_folder import has_checkpoint
from rl_training.runtime.callbacks import AnyCallback, Callback, CallbackList
from rl_training.runtime.controls import Schedules
from rl_training.runtime.resuming.initial_weights import policy_name
from rl_training.runtime.resuming.plan import ResumePlan, find_run_folder, plan_resume
from rl_training.runtime.run import run_plan, run_training
from rl_training.runtime.trainer import TrainerState, TrainResult
from rl_training.runtime.workflows import evaluate_algorithm, load_algorithm, stored_step
from rl_training.terminal.streams import quieted

AgentT = TypeVar("AgentT", bound="AlgorithmAPI")


class _Signature:
    """Reads the signature of an algorithm's class from its config class, when it is asked for."""

    def __get__(self, instance: object, owner: type[AlgorithmAPI]) -> inspect.Signature | None:
        return signature_of(owner.algo) if hasattr(owner, "algo") else None


class AlgorithmAPI:
    """Base class: trains one algorithm, then evaluates it and predicts actions."""

    algo: ClassVar[str]
    __signature__ = _Signature()

    def __init_subclass__(cls, *, algo: str | None = None) -> None:
        cls.algo = algo or cls.algo

    def __init__(
        self,
        config: EnvLike | TrainConfig | None = None,
        *others: object,
        preset: bool = True,
        progress: bool = True,
        eval_env: EnvLike | None = None,
        **settings: Any,
    ) -> None:
        """Check all settings; nothing is created before `learn`.

        `config` is an environment (an id, a class, a function that returns one, an instance or a vector environment)
        or a `TrainConfig`. With an environment, `settings` are keys of `TrainConfig` and of the algorithm, upon the
        preset for its id if there is one and `preset` is true. `eval_env` is for a vector environment: of it the
        single environments of evaluation are made. Without `progress`, nothing is printed.
        """
        refuse_policy_name(type(self).__name__, config, *others)
        self._progress = progress
        if isinstance(settings.get("init_from"), AlgorithmAPI):
            settings["init_from"] = settings["init_from"]._weights_path()
        with self._shown():
            name = type(self).__name__
            self.config = read_settings(
                name, self.algo, config, preset=preset, eval_env=eval_env, given=settings
            )
        self._algorithm: Algorithm[Any] | None = None
        self._global_step = 0
        self._eval_return: float | None = None
        self._metadata: dict[str, Any] = {}
        self._run_dir: Path | None = None
        self._checkpoint: Path | None = None  # holds the weights
        self._source: Path | None = None  # the run or checkpoint that learn continues
        self._is_loaded = False
        self._device: str | None = None
        self._changes: dict[str, Any] = {}  # of the run's settings, when learn continues it

    def __repr__(self) -> str:
        text = f"{type(self).__name__}({describe_settings(self.config)})"
        if self._algorithm is None:
            return f"{text}: not trained"
        where = self._run_dir or self._checkpoint
        text += f": trained to step {self._global_step:,}" + (f" in {where}" if where else "")
        return text if self._eval_return is None else f"{text}, eval return {self._eval_return:.1f}"

    @property
    def algorithm(self) -> Algorithm[Any]:
        """The trained algorithm: its networks and optimizers."""
        return self._trained()

    @property
    def policy(self) -> nn.Module:
        """The network that acts: an actor-critic, an actor or a Q-network."""
        members = vars(self._trained())
        name = policy_name(members)
        module = members[name] if name is not None else None
        if not isinstance(module, nn.Module):
            raise ConfigError(
                f"'{self.algo}' has no network named policy, actor or network: look at agent.algorithm"
            )
        return module

    @property
    def run_dir(self) -> Path | None:
        """Folder of the agent's run; None before `learn`, and for a policy that was saved with `save`."""
        return self._run_dir

    def learn(
        self,
        total_timesteps: int | None = None,
        *,
        callbacks: Sequence[AnyCallback] | None = None,
        schedules: Schedules | None = None,
        progress: bool | None = None,
    ) -> TrainResult:
        """Train: a new run the first time; after that, or once a run was loaded, the same run continues.

        `total_timesteps` counts from the start of the run: with a larger number, a finished run continues to there.
        `schedules` says how they continue then: `stretch` (default), `restart` or `hold`.
        """
        keeper = _Keeper()
        watching = [keeper, *CallbackList(callbacks).callbacks]
        with self._shown(progress):
            try:
                result = self._train(total_timesteps, schedules, watching)
            finally:
                if keeper.trainer is not None:
                    self._run_dir = self._source = keeper.trainer.run_dir
        if keeper.trainer is not None:
            self._algorithm, self.config = keeper.trainer.algorithm, keeper.trainer.config
        self._checkpoint, self._global_step = (
            result.checkpoint_path,
            int(result.metrics["global_step"]),
        )
        self._eval_return = result.metrics.get("eval_return_mean")
        return result

    def evaluate(self, num_episodes: int | None = None) -> dict[str, float]:
        """Mean and standard deviation of the deterministic policy's return, on the run's evaluation seeds."""
        with self._shown():
            return evaluate_algorithm(self.config, self._trained(), num_episodes, self._metadata)

    @overload
    def predict(
        self, obs: npt.ArrayLike, *, mask: npt.ArrayLike | None = None, deterministic: bool = True
    ) -> Any: ...

    @overload
    def predict(
        self,
        obs: npt.ArrayLike,
        *,
        state: npt.ArrayLike | None,
        mask: npt.ArrayLike | None = None,
        deterministic: bool = True,
    ) -> tuple[Any, npt.NDArray[Any] | None]: ...

    def predict(
        self,
        obs: npt.ArrayLike,
        *,
        deterministic: bool = True,
        state: Any = NO_STATE,
        mask: npt.ArrayLike | None = None,
    ) -> Any:
        """Action for one observation (an int for Discrete), or actions for a batch of them; reads no files."""
        return predict(self._trained(), obs, state=state, mask=mask, deterministic=deterministic)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the trained policy as a checkpoint without replay buffer; to resume, use the run's own checkpoints.

        With `overwrite` it replaces a policy that was saved at `path` before, and nothing else.
        """
        return save_policy(
            path,
            overwrite=overwrite,
            config=self.config,
            algorithm_state=self._trained().state_dict(),
            metadata={"global_step": self._global_step},
        )

    @classmethod
    def load(
        cls: type[AgentT],
        path: str | Path,
        *,
        device: str = "auto",
        progress: bool = True,
        network: type[nn.Module] | None = None,
        env: EnvLike | None = None,
        eval_env: EnvLike | None = None,
    ) -> AgentT:
        """Load a checkpoint: one written by `save`, one of a run, or the last one of a run folder.

        `network` is the class of your own network, if the program that trained with it kept it to itself. `env` (and
        `eval_env`) give an environment again whose id begins with `python:`.
        """
        config, algorithm, state = load_algorithm(path, device=device, network=network)
        if env is not None:
            give_again(config.env_id, env, eval_env)
        if config.algo != cls.algo:
            raise CheckpointError(
                f"'{path}' is a checkpoint of '{config.algo}', not of '{cls.algo}': use its class"
            )
        loaded = cls(config, progress=progress)
        loaded._remember(Path(path), algorithm, state)
        loaded._device = None if device == "auto" else device
        if network is not None:
            loaded._changes = {"algo_kwargs": {"network": config.algo_kwargs["network"]}}
        return loaded

    def _remember(self, path: Path, algorithm: Algorithm[Any], state: CheckpointState) -> None:
        """Set what `load` has read."""
        self._algorithm, self._metadata, self._is_loaded = algorithm, state.metadata, True
        self._global_step, self._checkpoint = stored_step(state), path
        if state.trainer_state:  # else it is a policy without its run
            self._source = path
            self._run_dir = find_run_folder(resolve_checkpoint(path))

    def _train(
        self,
        total_timesteps: int | None,
        schedules: Schedules | None,
        callbacks: Sequence[AnyCallback],
    ) -> TrainResult:
        """Train a new run, or continue the agent's."""
        has_run = self._source is not None and has_checkpoint(
            self._source
        )  # False if it failed before its first one
        if self._algorithm is not None or has_run:
            return run_plan(self._plan(total_timesteps, schedules), callbacks=callbacks)
        if total_timesteps is not None:
            self.config = self.config.replace(total_timesteps=total_timesteps)
        return run_training(self.config, callbacks=callbacks)

    def _plan(self, total_timesteps: int | None, schedules: Schedules | None) -> ResumePlan:
        """How the agent's run continues; a `ConfigError` if it is over, or if the agent has no run."""
        name = type(self).__name__
        if self._source is None:
            raise ConfigError(
                f"this {name} was loaded from a saved policy, and learn() would not use its weights: resume its run"
                f" with `rl-training resume RUN` (in Python: {name}.load(RUN).learn()), or start a new run from these"
                f" weights with {name}(..., init_from={str(self._checkpoint)!r})"
            )
        trusted = None if self._is_loaded else self.config
        flags: dict[str, Any] = {"total_timesteps": total_timesteps, "device": self._device}
        plan = plan_resume(
            self._source, schedules=schedules, changes=self._changes, trusted=trusted, **flags
        )
        if plan.is_over:
            end = (
                "reached its last step"
                if plan.is_finished
                else f"was ended by early stopping ({plan.early_stop})"
            )
            raise ConfigError(
                f"the run of this {name} {end}, {plan.global_step:,} of {plan.config.total_timesteps:,}: extend it with"
                " learn(total_timesteps=N), where N counts from the start of the run"
            )
        return plan

    def _shown(self, progress: bool | None = None) -> contextlib.AbstractContextManager[None]:
        """Suppress messages and progress inside the block if the user wants neither."""
        is_shown = self._progress if progress is None else progress
        return contextlib.nullcontext() if is_shown else quieted()

    def _trained(self) -> Algorithm[Any]:
        if self._algorithm is None:
            raise ConfigError(
                f"this {type(self).__name__} is not trained yet: call learn() or load() first"
            )
        return self._algorithm

    def _weights_path(self) -> Path:
        """The checkpoint that holds the agent's weights, for `init_from` of another."""
        self._trained()
        if self._checkpoint is None:
            raise ConfigError(
                f"this {type(self).__name__} has no checkpoint: save it, and give its path as init_from"
            )
        return self._checkpoint


class _Keeper(Callback):
    """Keeps a reference to the state of the run."""

    trainer: TrainerState | None = None

    def on_train_start(self, trainer: TrainerState) -> None:
        self.trainer = trainer
