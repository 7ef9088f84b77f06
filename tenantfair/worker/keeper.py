"""The worker's side of the keeper: a small process that renews leases while this one cannot.

A C call that keeps the interpreter's lock stops every thread here, the heartbeat included, and would lose the
leases of healthy work. So leases are also written into memory shared with a child process, together with the
time of the last renewal; `keeper_process` renews them when that falls silent and this process is still given
CPU time. A stopped, dead or deadlocked worker uses none: its leases end as they should (decision 0006).
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tenantfair.claim.base import Lease
from tenantfair.logs import log_safely
from tenantfair.sql import load
from tenantfair.worker import keeper_process

logger = logging.getLogger("tenantfair.worker")

_EMPTY: Final = bytes(keeper_process.ROW_BYTES)
# How long a process may take to see that it is not wanted any more; one that is connecting does not look.
_CLOSING_SECONDS: Final = 0.5


class Keeper:
    """Starts the keeper process and gives it what it needs; `supported` is False where it cannot run."""

    supported: Final = os.name == "posix"

    def __init__(
        self,
        *,
        places: int,
        interval: float,
        params: Callable[[], Mapping[str, Any]],
        role: str | None = None,
        worker_id: str,
    ) -> None:
        self._places = places
        self._interval = interval
        self._params = params
        self._role = role
        self._worker_id = worker_id
        self._process: subprocess.Popen[bytes] | None = None
        # The parameters that the process has, and until when they are not compared again.
        self._told: dict[str, Any] = {}
        self._told_until = 0.0
        size = keeper_process.HEADER_BYTES + places * keeper_process.ROW_BYTES
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop()
        self._file.truncate(size)
        self._table = mmap.mmap(self._file.fileno(), size)
        self.renewed(time.monotonic())

    def renewed(self, began: float) -> None:
        """Note that a renewal of all leases, which began at `began`, has succeeded."""
        if self._table.closed:
            return
        struct.pack_into(keeper_process.HEADER, self._table, 0, began)

    def write_place(self, place: int, lease: Lease | None) -> None:
        """Put a lease into row `place`, or clear it."""
        if self._table.closed:
            return  # stopped; a task that outlives its worker ends late
        row = _EMPTY if lease is None else lease.run_id.bytes + lease.claim_token.bytes
        start = keeper_process.HEADER_BYTES + place * keeper_process.ROW_BYTES
        self._table[start : start + keeper_process.ROW_BYTES] = row

    @property
    def pid(self) -> int | None:
        """The process id of the running keeper."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def ensure_running(self) -> None:
        """Start the process, again if it has died. Without it the heartbeat thread still renews.

        One that runs is told, once per interval, when connections are made with other parameters by now, as
        with credentials that last for minutes.
        """
        try:
            self._ensure_running()
        except Exception:  # the host's database backend makes the parameters, and may raise anything
            log_safely(
                logger,
                logging.WARNING,
                "The keeper process cannot be given what it needs",
                exc_info=True,
                extra=self._extra("keeper_failed"),
            )

    def _ensure_running(self) -> None:
        if self.pid is not None:
            if time.monotonic() >= self._told_until:
                self._told_until = time.monotonic() + self._interval
                self._tell()
            return
        if self._process is not None:
            self._close_process()
            log_safely(
                logger,
                logging.WARNING,
                "The keeper process has died; starting another",
                extra=self._extra("keeper_died"),
            )
        configuration = self._configuration()
        self._told_until = time.monotonic() + self._interval
        command = [sys.executable, "-P", str(Path(keeper_process.__file__))]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own file
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[self._file.fileno()],
                # Signals meant for the worker must not reach it, or leases would end with the first of them.
                start_new_session=True,
            )
            assert self._process.stdin is not None  # noqa: S101 - a pipe was asked for
            self._process.stdin.write(_line(configuration))
            self._process.stdin.flush()
            # From now on it may be slow to read, which must hold up nobody here.
            os.set_blocking(self._process.stdin.fileno(), False)
        except OSError:
            log_safely(
                logger,
                logging.WARNING,
                "The keeper process cannot be started",
                exc_info=True,
                extra=self._extra("keeper_failed"),
            )

    def _tell(self) -> None:
        params = self._storable_params()
        if params == self._told:
            return
        assert self._process is not None  # noqa: S101 - it runs
        assert self._process.stdin is not None  # noqa: S101 - a pipe was asked for
        line = _line(params)
        try:
            written = os.write(self._process.stdin.fileno(), line)
        except OSError:  # full or closed
            written = 0
        if written == len(line):
            self._told = params
        else:
            # It does not read, or has half a line now: the next look starts another, with these.
            self._process.kill()

    def stop(self) -> None:
        """End the process; it notices that its input has closed."""
        self._close_process()
        self._table.close()
        self._file.close()

    def _close_process(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None  # noqa: S101 - a pipe was asked for
        with suppress(OSError):  # it may have died before it read its configuration
            process.stdin.close()
        try:
            process.wait(timeout=_CLOSING_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _storable_params(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in self._params().items()
            if isinstance(value, (str, int, float)) and name != "prepare_threshold"
        }

    def _configuration(self) -> dict[str, Any]:
        # Passed through the pipe, because the password must not be in the list of processes.
        self._told = self._storable_params()
        return {
            "path": sys.path,
            "worker": os.getpid(),
            "table": self._file.fileno(),
            "places": self._places,
            "interval": self._interval,
            "params": self._told,
            "role": self._role,
            "sql": load("heartbeat_leases"),
        }

    def _extra(self, event: str) -> dict[str, str]:
        return {"event": event, "worker_id": self._worker_id}


def _line(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"
