"""Child processes that never outlive their starter's wish: management commands and workers."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO

MANAGE = Path(__file__).resolve().parent / "manage.py"

# A worker that has been asked to stop finishes what it runs, which takes the example's tasks no time.
_GRACE_SECONDS = 15.0
_LOG_LINES = 20


class ChildFailed(Exception):
    """A child process ended badly; the text holds the end of what it said."""


class Stopped(BaseException):
    """The process has been asked to stop; `code` is the exit code that says so."""

    def __init__(self, signum: int) -> None:
        self.code = 128 + signum
        super().__init__(signal.Signals(signum).name)


@contextmanager
def stoppable() -> Iterator[None]:
    """Turn the first Ctrl-C, SIGTERM or hang-up in the block into `Stopped`, and ignore further ones."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def stop(signum: int, frame: FrameType | None) -> None:
        for each in signals:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(signum)

    before = {each: signal.signal(each, stop) for each in signals}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def manage(*arguments: str, environment: Mapping[str, str], stdin: str | None = None) -> None:
    """Run one management command to its end; `ChildFailed` unless it exits with 0."""
    with child(*arguments, environment=environment, stdin=stdin) as command:
        command.wait()


@contextmanager
def child(
    *arguments: str, environment: Mapping[str, str], stdin: str | None = None, quiet: bool = True
) -> Iterator["Child"]:
    """Run a management command beside the block and end it with the block; `quiet` keeps what it says."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as log:
        given.write((stdin or "").encode())
        given.seek(0)
        process = subprocess.Popen(
            [sys.executable, str(MANAGE), *arguments],
            env={**os.environ, **environment},
            stdin=given,
            stdout=log if quiet else None,
            stderr=log if quiet else None,
            process_group=0,  # Ctrl-C reaches the starter alone, which then ends its children in order
        )
        running = Child(arguments[0], process, log)
        try:
            yield running
        finally:
            running.stop()


class Child:
    """A management command that runs."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        self._name, self._process, self._log = name, process, log

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """`ChildFailed` when it has ended."""
        code = self._process.poll()
        if code is not None:
            raise self._failure(f"ended with code {code}")

    def wait(self, seconds: float | None = None) -> None:
        """Wait for its end; `ChildFailed` unless that comes in time and with code 0."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise self._failure(f"did not end within {seconds:g} s") from error
        if code != 0:
            raise self._failure(f"ended with code {code}")

    def ask_to_stop(self) -> None:
        """Send SIGTERM, unless it has ended."""
        if self._process.poll() is None:
            self._process.terminate()

    def stop(self) -> None:
        """End it: by SIGTERM, and by SIGKILL when that does not help."""
        self.ask_to_stop()
        try:
            self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _failure(self, what: str) -> ChildFailed:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()
        return ChildFailed("\n".join([f"{self._name} {what}", *lines[-_LOG_LINES:]]))


def pause(seconds: float, *children: Child) -> None:
    """Sleep, then make sure that the children still run."""
    time.sleep(seconds)
    for each in children:
        each.check()
