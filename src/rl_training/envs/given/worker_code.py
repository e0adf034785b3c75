"""What a worker process needs before it can make an environment: imported files, and a `python:` object."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler

import gymnasium as gym

from rl_training.envs.given.makers import Maker, plain_name
from rl_training.errors import EnvError
from rl_training.plugins.given import GivenEnv, find_given, has_given, is_given_id, put_given
from rl_training.plugins.user_code import code_for, find_maker, load_code

REMEDY = "define its class or function at the top level of a module or of the script, not in a notebook or a function"


@dataclass(frozen=True)
class WorkerCode:
    """Code of one environment and of its wrappers; sent to worker processes."""

    env_id: str
    code: str | None
    """The module or file that defines or registers the environment."""
    others: tuple[str, ...]
    """Files of the wrappers."""
    given: Maker | str | None = None
    """What makes a `python:` environment, or where a worker process finds it."""

    @classmethod
    def of(cls, env_id: str, wrappers: Sequence[str], *, is_sent: bool) -> WorkerCode:
        """What this process has imported and was given for an environment; with `is_sent`, it must be picklable."""
        others = tuple(code for name in wrappers if (code := code_for(name)) is not None)
        if not is_given_id(env_id):
            return cls(env_id, code_for(env_id), others)
        make = find_given(env_id).make
        if not is_sent:
            return cls(env_id, None, others)
        return cls(env_id, None, others, plain_name(make) or _checked(env_id, make))

    def load(self) -> None:
        """Import the code in a worker process; where it is imported already, this does nothing."""
        for place in self.others:
            load_code(place)
        if is_given_id(self.env_id):
            self._put_given()
        elif self.code is not None and self.env_id not in gym.registry:
            load_code(self.code)
            if ":" not in self.env_id and self.env_id not in gym.registry:
                raise EnvError(
                    f"environment '{self.env_id}' is registered in the main process, but not where '{self.code}' is"
                    " imported, as worker processes do: register it in that module, or above"
                    " `if __name__ == '__main__':`"
                )

    def _put_given(self) -> None:
        make = find_maker(self.given) if isinstance(self.given, str) else self.given
        if make is not None and not has_given(self.env_id):
            put_given(self.env_id, GivenEnv(make))


def _checked(env_id: str, make: Maker) -> Maker:
    """`make`, if worker processes can receive it."""
    try:
        data = bytes(ForkingPickler.dumps(make))
        fault = "it is defined in no file" if b"__main__" in data and not _has_script() else None
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
    if fault is not None:
        raise EnvError(
            f"environment '{env_id}' cannot be sent to the worker processes of backend: async ({fault}): {REMEDY}, or"
            " use backend: sync"
        )
    return make


def _has_script() -> bool:
    return hasattr(sys.modules["__main__"], "__file__")
