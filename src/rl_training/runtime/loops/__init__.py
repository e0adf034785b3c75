"""The three training loops, each with the assembler of its components."""

import contextlib
from collections.abc import Callable
from typing import NamedTuple

from rl_training.experiment.registry import Loop
from rl_training.runtime.assembly import RunComponents, RunSetup
from rl_training.runtime.loops.off_policy import (
    assemble_off_policy,
    off_policy_bytes,
    off_policy_loop,
)
from rl_training.runtime.loops.offline import assemble_offline, offline_bytes, offline_loop
from rl_training.runtime.loops.on_policy import assemble_on_policy, on_policy_loop, rollout_bytes


class LoopFunctions(NamedTuple):
    """How the components of a loop are made, how it trains with them, and the memory that its buffer needs."""

    assemble: Callable[[RunSetup, contextlib.ExitStack], RunComponents]
    train: Callable[..., None]
    buffer_bytes: Callable[..., int]


LOOPS = {
    Loop.ON_POLICY: LoopFunctions(assemble_on_policy, on_policy_loop, rollout_bytes),
    Loop.OFF_POLICY: LoopFunctions(assemble_off_policy, off_policy_loop, off_policy_bytes),
    Loop.OFFLINE: LoopFunctions(assemble_offline, offline_loop, offline_bytes),
}
