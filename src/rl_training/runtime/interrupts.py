"""Ctrl-C, SIGTERM and SIGHUP: the first asks the run to stop and save, the second leaves at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from rl_training.experiment.run_folder import INTERRUPTED
from rl_training.runtime.trainer import TrainerState
from rl_training.terminal.streams import tell


@contextlib.contextmanager
def stop_on_signals(state: TrainerState, on_request: Callable[[], None] | None = None) -> Iterator[None]:
    """Turn signals into a request to stop while the block runs (in the main thread; elsewhere do nothing).

    The first signal calls `on_request`, which must not print: the signal may have come while something was printed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    seen: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)
        state.request_stop(INTERRUPTED + signal.Signals(number).name)
        if on_request is not None:
            on_request()

    before = {number: signal.signal(number, handle) for number in _signals_to_handle()}
    try:
        yield
    except KeyboardInterrupt:
        # Said here: in the handler, printing fails if the signal came while something was being printed.
        tell("interrupted again: leaving without saving")
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _signals_to_handle() -> list[signal.Signals]:
    """A terminal that closes sends SIGHUP, which `nohup` has the program ignore."""
    hang_up: signal.Signals | None = getattr(signal, "SIGHUP", None)
    is_handled = hang_up is not None and signal.getsignal(hang_up) is not signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([hang_up] if hang_up is not None and is_handled else [])]
