"""Checks of the state in a checkpoint, on load and on save, before anything is created, written or removed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    StringConstraints,
    ValidationError,
)
from torch import Tensor

from rl_training.algorithms.config import AlgorithmConfig, Fraction
from rl_training.errors import CheckpointError, RLTrainingError
from rl_training.experiment.checkpoint_folder import CHECKPOINT_NAME
from rl_training.experiment.checkpointing import CheckpointState, check_savable
from rl_training.experiment.codec import tensors_in
from rl_training.experiment.config import TrainConfig, serialize_train_config
from rl_training.runtime.assembly import count_weights
from rl_training.runtime.run_utils import translate_save_errors
from rl_training.spaces.spec import Spaces


class _Saved(BaseModel):
    """Schema of a part of the state: the fields are required and typed; other keys are allowed."""

    model_config = ConfigDict(strict=True)


class _TrainingProgress(_Saved):
    total: NonNegativeInt
    from_step: NonNegativeInt
    from_progress: Fraction
    to_progress: Fraction


class _Interval(_Saved):
    every: NonNegativeInt
    passed: NonNegativeInt


class _MetricSums(_Saved):
    names: list[str]
    sums: Any


class _Accumulator(_Saved):
    sums: list[_MetricSums]
    counts: list[NonNegativeInt]
    returns: list[float]
    lengths: list[float]


class _Session(_Saved):
    global_step: NonNegativeInt
    epoch: NonNegativeInt
    update_count: NonNegativeInt
    update_calls: NonNegativeInt
    warm_start_step: NonNegativeInt | None = None
    training_progress: _TrainingProgress
    intervals: list[_Interval]
    accumulator: _Accumulator
    best_return: float | None
    last_eval: dict[str, float]
    last_eval_step: NonNegativeInt | None
    pending: Annotated[list[bool], Field(min_length=3, max_length=3)] | None
    inexact_reasons: list[str]
    shared_changes: list[str]
    eval_restarts: NonNegativeInt
    is_within_iteration: bool


class _Environments(_Saved):
    environments: list[dict[str, Any]]
    num_restarts: NonNegativeInt
    seeds: list[NonNegativeInt | None]


class _Collector(_Saved):
    envs: _Environments
    inexact_reasons: list[str]


class _Best(_Saved):
    name: Annotated[str, StringConstraints(pattern=f"^{CHECKPOINT_NAME.pattern}$")]
    score: float


class _TrainerState(_Saved):
    session: _Session
    best: _Best | None
    metrics_bytes: NonNegativeInt
    evaluations_bytes: NonNegativeInt
    collector: _Collector | None


@contextlib.contextmanager
def translate_state_errors() -> Iterator[None]:
    """Raise any exception while loading a state as one `CheckpointError`."""
    try:
        yield
    except RLTrainingError:
        raise
    except Exception as error:
        detail = " ".join(line.strip() for line in str(error).splitlines()[:2])
        raise CheckpointError(
            f"the checkpoint's state does not match its configuration: {type(error).__name__}: {detail:.300}"
        ) from error


def try_saving(
    config: TrainConfig,
    algorithm_state: dict[str, Any],
    trainer_state: dict[str, Any],
    metadata: dict[str, Any],
) -> None:
    """Raise, before training, if a checkpoint of this run could not be saved; the error names the value."""
    with translate_save_errors():
        values = serialize_train_config(config)
        check_savable(CheckpointState(algorithm_state, None, trainer_state, values, metadata))
    check_trainer_state(trainer_state, config.num_envs)


def check_trainer_state(trainer_state: dict[str, Any], num_envs: int) -> None:
    """Raise a `CheckpointError` unless the trainer state matches its schema and holds `num_envs` environments."""
    try:
        saved = _TrainerState(**trainer_state)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CheckpointError(
            f"the checkpoint's trainer state is wrong at '{where:.100}': {first['msg']}"
        ) from None
    accumulator = saved.session.accumulator
    has_sums = (
        isinstance(group.sums, Tensor) and group.sums.shape == (len(group.names),)
        for group in accumulator.sums
    )
    if not all(has_sums) or len(accumulator.counts) != len(accumulator.sums):
        raise CheckpointError(
            "the checkpoint's trainer state is wrong at 'session.accumulator.sums'"
        )
    if saved.collector is not None:
        envs = saved.collector.envs
        if not len(envs.environments) == len(envs.seeds) == num_envs:
            raise CheckpointError(
                f"the checkpoint holds {len(envs.environments)} environments, not num_envs={num_envs}"
            )


def check_network_size(
    config: AlgorithmConfig, spaces: Spaces, algorithm_state: dict[str, Any]
) -> None:
    """Refuse layers with more weights than the checkpoint holds, before memory is allocated for them."""
    sizes, needed = count_weights(config, spaces)
    held = sum(tensor.numel() for _, tensor in tensors_in(algorithm_state))
    if needed > held:
        raise CheckpointError(
            f"the checkpoint holds {held:,} numbers, but its layers {sizes} need {needed:,}"
        )
