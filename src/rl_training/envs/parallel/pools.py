"""Pools of environments that run commands and return failures as values; here, the pool in this process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rl_training.envs.state.aliases import Env
from rl_training.envs.state.unsaved_state import watch_call
from rl_training.errors import EnvError
from rl_training.plugins.user_code import trace_from_user

Arguments = Sequence[tuple[Any, ...] | None]


class Member(Protocol):
    """One environment of a pool; commands are the names of its methods."""

    def close(self) -> None:
        """Close the environment."""


MakeMember = Callable[[], Member]


@dataclass(frozen=True)
class Fault:
    """The failure of one environment."""

    what: str
    """'it raised ...', 'its process exited ...' or 'it hung ...'."""
    trace: str
    """Traceback from the first frame of user code; empty if there is none."""
    cause: BaseException | None = None
    call: str | None = None
    """The method that failed, where it is not the command."""

    @classmethod
    def from_error(cls, error: BaseException, member: Member | None = None) -> Fault:
        """Describe an exception; an `EnvError` is already complete and gets no traceback."""
        call = getattr(member, "failed_call", None)
        if isinstance(error, EnvError):
            return cls(str(error), "", error, call)
        return cls(describe_error(error), trace_from_user(error), error, call)


class Pool(ABC):
    """Base class: members whose failures do not affect each other."""

    size: int

    def start(self) -> list[tuple[int, Fault]]:
        """Start the worker processes, if any; returns the failures by index."""
        return []

    @abstractmethod
    def run(self, command: str, arguments: Arguments, seconds: float | None = None) -> list[Any]:
        """Run a command in each member whose arguments are not None; a result may be a `Fault`.

        A worker process without an answer after `seconds` (default: the pool's timeout) counts as hung.
        """

    @abstractmethod
    def replace(self, index: int) -> Fault | None:
        """Recreate one member."""

    @abstractmethod
    def close(self) -> list[tuple[int, Fault]]:
        """Close every member; returns the failures by index."""

    def run_one(self, index: int, command: str, *values: Any, seconds: float | None = None) -> Any:
        """Run a command in one member; the result may be a `Fault`."""
        return self.run(
            command, [values if other == index else None for other in range(self.size)], seconds
        )[index]


def faults_in(results: Sequence[Any]) -> list[tuple[int, Fault]]:
    """The failures among the results of all members, by index."""
    return [(index, result) for index, result in enumerate(results) if isinstance(result, Fault)]


def try_to(call: Callable[..., None], *values: Any) -> Fault | None:
    """Call a function; returns a `Fault` if it fails."""
    try:
        call(*values)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Fault.from_error(error)
    return None


def close_example(env: Env) -> None:
    """Close an environment that was made to read its spaces; an error is ignored."""
    with watch_call(type(env.unwrapped), "close"):
        try_to(env.close)


def describe_error(error: BaseException) -> str:
    """Describe an exception in one line."""
    return f"it raised {type(error).__name__}: {error}"
