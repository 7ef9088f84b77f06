"""What the soak's processes did, in one file each, outside the database: what they asked and heard.

A line is a letter and JSON. Times are seconds of the machine's clock, which is the server's too.

    c   claimed:      time, [[run, token, tenant, claimed at, class], ...]
    h   renewed:      time of the request, [token, ...] that were held
    f   will finish:  time, [[token, kind], ...]
    a   finished:     time, [token, ...] accepted, [token, ...] refused
    e   will enqueue: time, tenant, [run, ...]
    k   enqueued:     [run, ...] whose commit was answered
    r   rolled back:  [run, ...] whose transaction was never committed
    x   will revoke:  time, run; by cancel or interrupt
    y   revoked:      time, run; or refused, or failed: it has had its effect by then or never will
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Diary:
    """Appends lines; each is one write, so a process that is killed tears none."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, letter: str, *facts: Any) -> None:
        os.write(self._handle, f"{letter} {json.dumps(facts, separators=(',', ':'))}\n".encode())

    def write_at(self, letter: str, *facts: Any) -> None:
        """Write the present time first."""
        self.write(letter, time.time(), *facts)


def read(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield each line that has been written whole."""
    with path.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                yield chr(line[0]), json.loads(line[2:])
