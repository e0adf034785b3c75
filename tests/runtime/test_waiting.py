"""Threads wait asleep while other processes need the processors, and spin again when they do not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import torch

from rl_training.runtime import waiting
from rl_training.runtime.waiting import adaptive_waiting, busy_seconds, is_crowded


@pytest.fixture(autouse=True)
def no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in waiting.CHOICES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(waiting, "SECONDS_OF_FIRST_LOOK", 0.01)
    monkeypatch.setattr(waiting, "SECONDS_BETWEEN_LOOKS", 0.01)


def threads_named(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("others", "num_threads", "num_processors", "expected"),
    [
        (0.1, 2, 2, False),
        (1.0, 2, 2, True),
        (1.0, 2, 4, False),  # two processors are left for the others
        (2.5, 2, 4, True),
    ],
)
def test_the_machine_is_crowded_when_others_need_our_processors(
    others: float, num_threads: int, num_processors: int, expected: bool
) -> None:
    assert is_crowded(2 * others, 2.0, num_threads, num_processors) is expected


def test_idle_threads_come_and_go_with_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    load = {"crowded": True}
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(waiting, "busy_seconds", lambda: 0.0)
    monkeypatch.setattr(waiting, "is_crowded", lambda *_: load["crowded"])
    x = torch.linspace(0.0, 1.0, 200_000)
    expected = x.exp()
    with adaptive_waiting(2):
        wait_until(lambda: threads_named("idle-team") > 0)
        assert torch.equal(x.exp(), expected)
        load["crowded"] = False
        wait_until(lambda: threads_named("idle-team") == 0)
        load["crowded"] = True
        wait_until(lambda: threads_named("idle-team") > 0)
    assert threads_named("idle-team") == threads_named("load-watch") == 0


@pytest.mark.parametrize("num_processors", [1, 64])
def test_there_are_none_where_they_would_change_nothing(
    num_processors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: num_processors)
    watch = waiting.LoadWatch(2)
    watch._adapt(True)
    assert threads_named("idle-team") == 0
    watch.close()


@pytest.mark.parametrize("reason", ["one thread", "chosen", "unknown load"])
def test_nothing_is_watched_where_it_would_be_of_no_use(
    reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason == "chosen":
        monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    if reason == "unknown load":
        monkeypatch.setattr(waiting, "busy_seconds", lambda: None)
    with adaptive_waiting(1 if reason == "one thread" else 2):
        assert threads_named("load-watch") == 0


@pytest.mark.skipif(busy_seconds() is None, reason="this system has no /proc/stat")
def test_the_processor_time_of_the_machine_includes_our_own() -> None:
    busy, own = busy_seconds(), time.process_time()
    while time.process_time() < own + 0.3:
        pass
    assert (busy_seconds() or 0.0) - (busy or 0.0) > 0.2
