"""Forks processes from one that has loaded Django, so that a process under test costs a few milliseconds.

Each is a process like any other, with a session and connections of its own; it is forked before the nursery
has opened any.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.processes.stage import ROOT


class Child:
    """One process; what `subprocess.Popen` offers, as far as the tests use it."""

    def __init__(self) -> None:
        self.pid = 0
        self.returncode: int | None = None
        self._born = threading.Event()
        self._gone = threading.Event()

    def born(self, pid: int) -> None:
        self.pid = pid
        self._born.set()

    def gone(self, code: int) -> None:
        self.returncode = code
        self._born.set()
        self._gone.set()

    def until_born(self) -> None:
        if not self._born.wait(20):
            raise TimeoutError("the nursery has not answered")

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self._gone.wait(timeout):
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        # The nursery reaps, so the number may be somebody else's once the end is known.
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def until_stopped(self, seconds: float = 60.0) -> None:
        """Wait until the process has stopped itself."""
        deadline = time.monotonic() + seconds
        while self.state() != "T":
            if self.returncode is not None or time.monotonic() > deadline:
                raise AssertionError(f"process {self.pid} did not stop itself, code {self.returncode}")
            time.sleep(0.002)

    def state(self) -> str:
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return "Z"


class Nursery:
    """Starts the forking process with the first child; closing it ends all children."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._children: dict[int, Child] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._listener: threading.Thread | None = None

    def start(
        self, function: str, arguments: Sequence[str], *, environment: Mapping[str, str], log: Path
    ) -> Child:
        """Run `function`, which is `module:name`, with `arguments` in a child whose output goes to `log`."""
        child = Child()
        with self._lock:
            process = self._running()
            number = next(self._numbers)
            self._children[number] = child
            order = {
                "number": number,
                "function": function,
                "arguments": list(arguments),
                "environment": dict(environment),
                "log": str(log),
            }
            assert process.stdin is not None
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
        child.until_born()
        return child

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.nursery_process"],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT), "DATABASE_URL": "postgresql:///nowhere"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            self._listener = threading.Thread(target=self._listen, args=[self._process], daemon=True)
            self._listener.start()
        return self._process

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as told:
            for line in told:
                word, number, value = line.split()
                child = self._children[int(number)]
                if word == b"born":
                    child.born(int(value))
                else:
                    child.gone(int(value))

    def close(self) -> None:
        """Kill the children that still run, and the nursery itself."""
        if self._process is None:
            return
        for child in self._children.values():
            child.kill()
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._listener is not None
        self._listener.join(10)
        self._process = None
