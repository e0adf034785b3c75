"""Signals that ask a study to stop."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def handling_signals(handle: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call `handle` on SIGINT, SIGTERM and SIGHUP within the block; does nothing outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        handle(signal.Signals(number))

    numbers = [signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before: dict[signal.Signals, Callable[..., object] | int | None] = {
        number: signal.signal(number, on_signal) for number in numbers if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
