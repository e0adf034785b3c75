"""Several objects, each around one environment, that carry out commands: here, in this process, one after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym

from rl_training.envs.state.shared_changes import watch_call
from rl_training.errors import EnvError
from rl_training.plugins.user_code import trace_from_user

Arguments = Sequence[tuple[Any, ...] | None]


class Member(Protocol):
    """An object of a pool; the names of its methods are the commands."""

    def close(self) -> None:
        """Close its environment."""


MakeMember = Callable[[], Member]


@dataclass(frozen=True)
class Fault:
    """How one environment failed."""

    what: str
    """It raised ..., its process exited, it hung."""
    trace: str
    """Its traceback from the user's code on, as far as there is one."""
    cause: BaseException | None = None
    call: str | None = None
    """In which of its methods, where that is not the command."""

    @classmethod
    def from_error(cls, error: BaseException, member: Member | None = None) -> Fault:
        """What an environment raised; an error of ours says all by itself."""
        call = getattr(member, "failed_call", None)
        if isinstance(error, EnvError):
            return cls(str(error), "", error, call)
        return cls(describe_error(error), trace_from_user(error), error, call)


class Pool(ABC):
    """Members that survive each other's faults."""

    size: int

    def start(self) -> list[tuple[int, Fault]]:
        """Start the processes of the members, if they have any; returns those that failed."""
        return []

    @abstractmethod
    def run(self, command: str, arguments: Arguments, seconds: float | None = None) -> list[Any]:
        """Let each member that has arguments carry out a command; an item of the answer may be a `Fault`.

        A member of another process that needs more than `seconds` (default: the pool's own limit) has hung.
        """

    @abstractmethod
    def replace(self, index: int) -> Fault | None:
        """Make one member anew."""

    @abstractmethod
    def close(self) -> list[tuple[int, Fault]]:
        """Close every member; returns those that failed to."""

    def run_one(self, index: int, command: str, *values: Any, seconds: float | None = None) -> Any:
        """Let one member carry out a command; the answer may be a `Fault`."""
        return self.run(command, [values if other == index else None for other in range(self.size)], seconds)[index]


class SyncPool(Pool):
    """All members in this process."""

    def __init__(self, make: MakeMember, size: int) -> None:
        self.size = size
        self._make = make
        self.members: list[Member] = []
        try:
            self.members += [make() for _ in range(size)]
        except BaseException:
            self.close()
            raise

    def run(self, command: str, arguments: Arguments, seconds: float | None = None) -> list[Any]:
        """Let the members carry out a command, one after the other."""
        results: list[Any] = []
        for member, values in zip(self.members, arguments, strict=True):
            try:
                results.append(None if values is None else getattr(member, command)(*values))
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                results.append(Fault.from_error(error, member))
        return results

    def replace(self, index: int) -> Fault | None:
        """Close what is left of a member, and make another."""
        _try_to(self.members[index].close)
        return _try_to(self._make_at, index)

    def close(self) -> list[tuple[int, Fault]]:
        """Close all, also those after one that fails to."""
        faults = [(index, _try_to(member.close)) for index, member in enumerate(self.members)]
        self.members.clear()
        return [(index, fault) for index, fault in faults if fault is not None]

    def _make_at(self, index: int) -> None:
        self.members[index] = self._make()


def _try_to(call: Callable[..., None], *values: Any) -> Fault | None:
    try:
        call(*values)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Fault.from_error(error)
    return None


def close_example(env: gym.Env[Any, Any]) -> None:
    """Close an environment that was made only to be looked at; those that are used will tell if they cannot close."""
    with watch_call(type(env.unwrapped), "close"):
        _try_to(env.close)


def describe_error(error: BaseException) -> str:
    """An exception in one line."""
    return f"it raised {type(error).__name__}: {error}"
