"""The policy of a bundle: actions for observations, in NumPy."""

from __future__ import annotations

from types import EllipsisType
from typing import Any

import numpy as np

from rl_training.bundle.program import Program
from rl_training.bundle.reading import Array
from rl_training.bundle.spaces import BundleSpaces
from rl_training.errors import ConfigError
from rl_training.spaces.given import check_masks, read_state

NO_STATE: EllipsisType = ...
"""Default of `state`: the caller does not ask for the next policy state."""


class BundlePolicy:
    """A deterministic policy that was loaded from a bundle, and has reproduced its golden pairs."""

    def __init__(self, program: Program, spaces: BundleSpaces, manifest: dict[str, Any]) -> None:
        self._program = program
        self.spaces = spaces
        """What the policy reads and returns: `spaces.observation`, `spaces.action`, `spaces.state_size`."""
        self.manifest = manifest
        """Content of manifest.json: versions, algorithm, environment, and the hash of each file."""

    def act(self, obs: Any, state: Any = NO_STATE, mask: Any = None) -> Any:
        """Environment action for one observation, or actions for a batch.

        With `state` the result is a pair: the actions, and the policy state to pass with the next observations. Pass
        `state=None` at the first step of an episode. A policy with memory requires it; for others the next state is
        None. `mask` marks the valid actions, one row per observation.
        """
        leaves, is_batch = self.spaces.as_batch(obs)
        before = self._state_before(state, len(leaves[0]), is_batch=is_batch)
        masks = self._masks(obs, mask, len(leaves[0]), is_batch=is_batch)
        actions, after = self._program.run(leaves, before, masks)
        if state is NO_STATE:
            return actions if is_batch else actions[0]
        if is_batch or after is None:
            return actions if is_batch else actions[0], after
        return actions[0], after[0]

    def __repr__(self) -> str:
        what = f"{self.manifest['algorithm']} on {self.manifest['env_id'] or 'a dataset'}"
        parts = ", ".join(f"{leaf.name or 'obs'} {leaf.dtype}{list(leaf.shape)}" for leaf in self.spaces.observation)
        action = self.spaces.action
        options = f" of {list(action.choices)} options" if action.choices else ""
        memory = f", memory of {self.spaces.state_size}" if self.spaces.state_size else ""
        return f"<BundlePolicy {what}: {parts:.200} -> {action.dtype}{list(action.shape)}{options:.60}{memory}>"

    def _state_before(self, state: Any, count: int, *, is_batch: bool) -> Array | None:
        size = self.spaces.state_size
        if not size:
            if state is not NO_STATE and state is not None:
                raise ConfigError("this policy has no memory, so it has no state: pass state=None or leave it out")
            return None
        if state is NO_STATE:
            raise ConfigError(
                "this policy has memory: pass state=None at the first step of an episode, and afterwards the state"
                " that act returned: action, state = policy.act(obs, state=state)"
            )
        if state is None:
            return np.zeros((count, size), np.float32)
        return read_state(state, count, (size,), is_batch=is_batch)

    def _masks(self, obs: Any, mask: Any, count: int, *, is_batch: bool) -> Array | None:
        use = self.spaces.mask_use
        if mask is None and use == "required":
            mask = self.spaces.mask_in(obs)
            if mask is None:
                raise ConfigError(
                    "this policy was trained with action masks: pass mask=…, one boolean for each action (all true"
                    " permits every action)"
                )
        if mask is None:
            return None
        if use == "none":
            raise ConfigError("mask is given, but this policy does not obey action masks: leave it out")
        return check_masks(mask, count, self.spaces.action.choices, is_batch=is_batch)
