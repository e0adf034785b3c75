"""SIGINT (Ctrl-C), SIGTERM and SIGHUP: the first signal stops and saves the run, the second exits at once."""

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
    """Turn signals into `state.request_stop` inside the block. Does nothing outside the main thread.

    The first signal calls `on_request`, which must not print: the signal may have interrupted a print.
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
        # Printed here: in the handler it would fail if the signal had interrupted a print.
        tell("interrupted again: exiting without saving")
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _signals_to_handle() -> list[signal.Signals]:
    """Signals that stop a run. SIGHUP, sent when a terminal closes, is left alone if `nohup` ignores it."""
    hang_up: signal.Signals | None = getattr(signal, "SIGHUP", None)
    is_handled = hang_up is not None and signal.getsignal(hang_up) is not signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([hang_up] if hang_up is not None and is_handled else [])]
