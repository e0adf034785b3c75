"""How the episodes of a given vector environment end and begin: only ways that keep reset steps out of a buffer."""

from __future__ import annotations

from typing import Any

from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from rl_training.errors import EnvError

REMEDY = (
    "let it reset within the step that ends an episode (AutoresetMode.SAME_STEP, the last observation in"
    " infos['final_obs']), or on request (AutoresetMode.DISABLED, reset(options={'reset_mask': mask}))"
)


def resets_within_step(env: VectorEnv[Any, Any, Any]) -> bool:
    """Whether ended episodes are reset within the step; False: on request, by `reset` with a `reset_mask`.

    Raises an `EnvError` for a vector environment that would return steps which only reset an environment.
    """
    name = type(env.unwrapped).__name__
    try:
        mode = AutoresetMode(env.metadata.get("autoreset_mode"))
    except ValueError:
        raise EnvError(f"metadata['autoreset_mode'] of {name} is not set to an AutoresetMode: {REMEDY}") from None
    if mode is not AutoresetMode.NEXT_STEP:
        return mode is AutoresetMode.SAME_STEP
    if not _takes_reset_mask(env.unwrapped):
        gymnasium = "; for one of gymnasium.make_vec give vectorization_mode='sync'" if env.unwrapped.spec else ""
        raise EnvError(
            f"{name} resets in the step after an episode's end, and that step would be stored: {REMEDY}{gymnasium}"
        )
    return False


def _takes_reset_mask(core: Any) -> bool:
    """Whether it is one of Gymnasium's own, which do not reset again after a `reset_mask`."""
    kinds: tuple[Any, ...] = (SyncVectorEnv, AsyncVectorEnv)
    kind = next((kind for kind in kinds if isinstance(core, kind)), None)
    if kind is None or (type(core).step, type(core).reset) != (kind.step, kind.reset):
        return False
    # Without shared memory, workers of Gymnasium 1.4 reset again in the next step all the same.
    return kind is SyncVectorEnv or (core.shared_memory and core.worker is None)
