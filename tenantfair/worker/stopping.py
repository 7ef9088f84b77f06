"""Signals that stop a worker, taken without doing anything in the handler.

A handler runs between any two instructions of the main thread, inside a lock or a COMMIT as likely as not. So
it only counts; a byte that the interpreter itself writes into a pipe wakes whoever waits.

A child that a task forks is no worker: SIGTERM ends it and SIGINT interrupts it, as in any other process.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Mapping
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Final, Self

_CHILD_HANDLERS: Final[Mapping[int, Any]] = {
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
}
_SIGNALS = tuple(_CHILD_HANDLERS)


class StopRequests:
    """Counts requests to stop: signals, when used as a context manager in the main thread, and `add()`."""

    def __init__(self) -> None:
        self.count = 0
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._previous: dict[int, Any] = {}
        self._previous_fd: int | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous_fd = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
            self._previous = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._previous_fd is not None:
            signal.set_wakeup_fd(self._previous_fd)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1

    def add(self) -> None:
        """Count one request and wake the waiter; for any thread."""
        self.count += 1
        self.poke()

    def poke(self) -> None:
        """Wake the waiter without a request."""
        with suppress(OSError):  # full, so the waiter wakes anyway, or closed, so nobody waits
            os.write(self._writer, b"\0")

    def wait(self, seconds: float) -> None:
        """Wait for a signal or a poke, at most `seconds`."""
        select.select([self._reader], [], [], max(0.0, seconds))
        with suppress(BlockingIOError):
            while os.read(self._reader, 512):
                pass

    def close(self) -> None:
        """Give the pipe back."""
        # A late poke must not reach a file that has taken over the number.
        reader, writer, self._writer = self._reader, self._writer, -1
        os.close(reader)
        os.close(writer)


def _obey_in_child() -> None:
    """In a forked child, take a worker's handlers off, and its pipe, which is still the parent's as well."""
    for number, handler in _CHILD_HANDLERS.items():
        if isinstance(getattr(signal.getsignal(number), "__self__", None), StopRequests):
            signal.signal(number, handler)
            signal.set_wakeup_fd(-1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_obey_in_child)
