"""What a worker process needs before it can make an environment: imported files, and a pickled object."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import gymnasium as gym

from rl_training.errors import EnvError
from rl_training.plugins.given import GivenEnv, find_given, has_given, is_given_id, put_given
from rl_training.plugins.user_code import FILE_MODULE, code_for, load_code

REMEDY = "define its class or function at the top level of a module or of the script, not in a notebook or a function"


@dataclass(frozen=True)
class WorkerCode:
    """Code of one environment and of its wrappers; picklable."""

    env_id: str
    code: str | None
    """The module or file that defines or registers the environment."""
    others: tuple[str, ...]
    """Files of the wrappers."""
    given: bytes | None
    """The pickled function that makes a `python:` environment."""

    @classmethod
    def of(cls, env_id: str, wrappers: Sequence[str], *, is_sent: bool) -> WorkerCode:
        """What this process has imported and was given for an environment; with `is_sent`, it must be picklable."""
        others = [code for name in wrappers if (code := code_for(name)) is not None]
        if not is_given_id(env_id):
            return cls(env_id, code_for(env_id), tuple(others), None)
        make = find_given(env_id).make
        module = sys.modules.get(str(getattr(make, "__module__", None)))
        is_file = module is not None and module.__name__.startswith(FILE_MODULE)
        code = str(module.__file__) if module is not None and is_file else None
        return cls(env_id, code, tuple(others), _pickled(env_id, make) if is_sent else None)

    def load(self) -> None:
        """Import the code in a worker process; where it is imported already, this does nothing."""
        for place in self.others:
            load_code(place)
        if is_given_id(self.env_id):
            self._load_given()
        elif self.code is not None and self.env_id not in gym.registry:
            load_code(self.code)
            if ":" not in self.env_id and self.env_id not in gym.registry:
                raise EnvError(
                    f"environment '{self.env_id}' is registered in the main process, but not where '{self.code}' is"
                    " imported, as worker processes do: register it in that module, or above"
                    " `if __name__ == '__main__':`"
                )

    def _load_given(self) -> None:
        if has_given(self.env_id) or self.given is None:
            return
        if self.code is not None:
            load_code(self.code)
        try:
            make = pickle.loads(self.given)
        except Exception as error:
            raise EnvError(
                f"environment '{self.env_id}' cannot be made in a worker process"
                f" ({type(error).__name__}: {error}): {REMEDY}, or use backend: sync"
            ) from error
        put_given(self.env_id, GivenEnv(make))


def _pickled(env_id: str, make: object) -> bytes:
    try:
        return pickle.dumps(make)
    except Exception as error:
        raise EnvError(
            f"environment '{env_id}' cannot be sent to the worker processes of backend: async"
            f" ({type(error).__name__}: {error}): {REMEDY}, or use backend: sync"
        ) from None
