"""The keeper: renews a worker's leases while the worker is busy but silent. Run as a script, without Django.

Reads one line of JSON from its input, then looks at the shared table once per heartbeat interval. Further
lines are connection parameters, for the next connection. It renews only when the worker's last renewal is
more than one and a half intervals old and the worker has used CPU time since the last look. It connects when
that first happens, and ends when its input closes or its parent is another process.

Renewals are fenced by run id and claim token: a stale or half written row of the table renews nothing.
"""

import json
import mmap
import os
import select
import signal
import struct
import subprocess
import sys
import time
from typing import Any
from uuid import UUID

HEADER = "=d"
HEADER_BYTES = 8
ROW_BYTES = 32

_SILENCE = 1.5


def main() -> None:
    """Keep the leases of the worker that the configuration names, as long as it lives."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    lines = _Lines(sys.stdin.fileno())
    while lines.open and not lines.found:
        lines.read()
    if lines.found:
        _Keeping(json.loads(lines.found.pop(0)), lines).run()


class _Lines:
    """What comes from the worker, unbuffered, so that waiting for input sees all there is."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.open = True
        self.found: list[bytes] = []
        self._rest = b""

    def read(self) -> None:
        """Wait for something and take it, or note that the worker has closed its end."""
        received = os.read(self.number, 65_536)
        self.open = bool(received)
        *lines, self._rest = (self._rest + received).split(b"\n")
        self.found += lines


class _Keeping:
    def __init__(self, configuration: dict[str, Any], lines: _Lines) -> None:
        self._lines = lines
        self._worker: int = configuration["worker"]
        self._interval: float = configuration["interval"]
        self._params: dict[str, Any] = configuration["params"]
        self._role: str | None = configuration["role"]
        self._sql: str = configuration["sql"]
        size = HEADER_BYTES + configuration["places"] * ROW_BYTES
        self._table = mmap.mmap(configuration["table"], size, access=mmap.ACCESS_READ)
        self._connection: Any = None
        self._failing = False
        # What the worker can import, so can this.
        sys.path[:] = configuration["path"]

    def run(self) -> None:
        used = cpu_time(self._worker)
        due = time.monotonic() + self._interval
        while os.getppid() == self._worker:
            while self._lines.found:
                self._params = json.loads(self._lines.found.pop(0))
            if select.select([self._lines.number], [], [], max(0.0, due - time.monotonic()))[0]:
                self._lines.read()
                if not self._lines.open:
                    return
                continue
            due = time.monotonic() + self._interval
            before, used = used, cpu_time(self._worker)
            (renewed_at,) = struct.unpack_from(HEADER, self._table)
            if time.monotonic() - renewed_at > _SILENCE * self._interval and used != before:
                self._renew()

    def _renew(self) -> None:
        leases = self._leases()
        if not leases:
            return
        import psycopg  # noqa: PLC0415 - most keepers never connect
        from psycopg import sql  # noqa: PLC0415

        try:
            if self._connection is None:
                self._connection = psycopg.connect(**self._params, autocommit=True, prepare_threshold=None)
                if self._role is not None:
                    statement = sql.SQL("SET ROLE {}").format(sql.Identifier(self._role))
                    self._connection.execute(statement)
            run_ids, tokens = zip(*leases, strict=True)
            self._connection.execute(self._sql, {"run_id": list(run_ids), "claim_token": list(tokens)})
            self._failing = False
        except psycopg.Error as error:
            if not self._failing:
                print(f"tenantfair keeper of worker {self._worker}: {error}", file=sys.stderr, flush=True)  # noqa: T201
            self._failing = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _leases(self) -> list[tuple[UUID, UUID]]:
        table = self._table[HEADER_BYTES:]
        rows = (table[start : start + ROW_BYTES] for start in range(0, len(table), ROW_BYTES))
        return [(UUID(bytes=row[:16]), UUID(bytes=row[16:])) for row in rows if any(row[16:])]


def cpu_time(pid: int) -> str:
    """Return the CPU time that a process has used, in whatever form the system tells it."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            # The name, in parentheses, may hold anything. The state follows as field 3, utime and stime
            # are fields 14 and 15.
            after_name = stat.read().rpartition(")")[2].split()
        return " ".join(after_name[11:13])
    except OSError:
        command = ["ps", "-o", "time=", "-p", str(pid)]
        answer = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
        return answer.stdout.strip()


if __name__ == "__main__":
    main()
