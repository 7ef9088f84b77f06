"""What every workload is handed: databases, clients, how long to measure, and where its rows go."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field, replace

from tests.benchmarks.clients import Clients
from tests.benchmarks.rows import Row
from tests.benchmarks.server import Databases


@dataclass
class Bench:
    """`rounds` alternated rounds a cell; `seconds` is the longest a cell of one round measures."""

    databases: Databases
    clients: Clients
    quick: bool
    rounds: int
    seconds: float
    rows: list[Row] = field(default_factory=list)

    def add(self, *rows: Row) -> None:
        """Keep the rows of one cell with a probe of the machine taken right after it."""
        facts = {**self.databases.probe(), "at": time.strftime("%H:%M:%S")}
        self.rows += [replace(row, facts=facts) for row in rows]

    def say(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
