"""The soak: claimers and a producer on a durable server, faults all the time, judged by rows and by diaries.

A unit is a fresh domain that lives until its claims are counted: faults stop, the queue is worked off, all
admissions return to zero, and then every diary is read against every row.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from tests.faults.judge import History, Stored, most_at_once, verdict
from tests.faults.proxy import Proxy
from tests.faults.server import FaultStage, World
from tests.faults.soak_checker import Checker
from tests.faults.soak_faults import EDITED_CAPS, EDITED_TENANTS, FAULTS, LARGEST_CAP, Meddler
from tests.processes.stage import WorkerProcess, until

# Whatever still runs, is claimed or is admitted; poisoned runs are none of these.
_LEFT_SQL = """
    SELECT 1
    FROM tenantfair_run
    WHERE (status = 'running' AND poisoned_at IS NULL)
        OR claim_token IS NOT NULL
        OR tenant_admitted_at IS NOT NULL
    LIMIT 1
"""
LEASE_SECONDS = 2
MAX_ATTEMPTS = 5
CLAIMERS = 3
DEMAND = 64
TENANTS = 50
HOT_CAP = 24
BACKLOG = 2_500
CLAIMS_PER_FAULT = 900
CALM_SECONDS = 60.0


def tenants() -> dict[str, int]:
    """Return the caps: fifty tenants of one to six, and one that has far more to do than any."""
    return {f"tenant {number}": 1 + number % 6 for number in range(TENANTS)} | {"hot": HOT_CAP}


@dataclass
class Figures:
    """What one unit came to."""

    claims: int = 0
    seconds: float = 0.0
    runs: int = 0
    checks: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    fullest: int = 0

    def __str__(self) -> str:
        faults = ", ".join(f"{count} {name}" for name, count in sorted(self.faults.items()))
        return (
            f"{self.claims} claims of {self.runs} runs, {self.claims / self.seconds:.0f}/s,"
            f" {self.checks} snapshots, {self.fullest} tenants at their cap; {faults}"
        )


class Soak:
    """One unit on one stage."""

    def __init__(
        self,
        world: World,
        claims: int,
        seed: int,
        faults: Mapping[str, int] = FAULTS,
        *,
        backlog: int = BACKLOG,
        claims_per_fault: int = CLAIMS_PER_FAULT,
    ) -> None:
        self.world = world
        self._backlog = backlog
        self.faults = faults
        self.claims_per_fault = claims_per_fault
        self._claims = claims
        self._chance = random.Random(seed)
        self._seed = seed
        self.caps = tenants()
        self.stage: FaultStage = world.stage(
            DEFAULT_MAX_ACTIVE_RUNS=2, LEASE_SECONDS=LEASE_SECONDS, MAX_ATTEMPTS=MAX_ATTEMPTS, LISTEN=False
        )
        self.checker = Checker(self.stage.connect)
        self.diaries: dict[Path, list[int]] = {}
        self.claimers: dict[int, WorkerProcess] = {}
        self._through: dict[int, dict[str, str]] = {}
        self._producer: WorkerProcess | None = None

    def run(self) -> Figures:
        """Work through the unit and judge it."""
        figures = Figures()
        self.initialize()
        socket = self.world.server.socket_dir / f".s.PGSQL.{self.world.server.port}"
        with Proxy(socket) as proxy:
            self.checker.start()
            began = time.monotonic()
            self._start_all(proxy)
            meddler = Meddler(self, proxy, self._chance)
            while self.claimed() < self._claims:
                meddler.meddle()
            meddler.calm()
            self._end(self._producer)
            self._until_idle()
            figures.seconds = time.monotonic() - began
            self.checker.stop()
            for claimer in self.claimers.values():
                self._end(claimer)
        figures.faults = meddler.counts
        figures.checks = self.checker.checks
        figures.violations = [*self.checker.found, *self._judge(figures)]
        self.world.discard(self.stage)
        return figures

    def initialize(self) -> None:
        self.stage.query(
            "UPDATE tenantfair_policy SET admission_mode = 'tenant_fair', max_active = 2, policy_version = 1,"
            " configured_max_active = 2, initialized_at = now(), lease_seconds = %s, max_attempts = %s",
            LEASE_SECONDS,
            MAX_ATTEMPTS,
        )
        for name, cap in self.caps.items():
            self.stage.query(
                "INSERT INTO tenantfair_partition (scope_key, max_active, partition_version)"
                " VALUES (%s, %s, 1)",
                name,
                cap,
            )

    def _start_all(self, proxy: Proxy) -> None:
        # The first claimer goes through the proxy, which loses replies.
        self._through = {0: {"DATABASE_URL": proxy.url(self.stage.database)}}
        self.start_producer()
        for number in range(CLAIMERS):
            self.start_claimer(number)

    def start_producer(self, **environment: str) -> None:
        shares = ",".join(f"{name}={cap}" for name, cap in self.caps.items())
        self._producer = self.stage.start(
            "tests.faults.soak_actors:produce",
            self._diary("producer"),
            shares,
            str(self._backlog),
            f"{self._seed}",
            **environment,
        )

    def start_claimer(self, number: int, **environment: str) -> None:
        """Start a claimer, in the place of one that has been killed if there was one."""
        self.claimers[number] = self.stage.start(
            "tests.faults.soak_actors:claim",
            self._diary(f"claimer-{number}"),
            str(DEMAND),
            f"{self._seed} {self._chance.random()}",
            **self._through.get(number, {}),
            **environment,
        )

    def stop_all(self) -> None:
        """Let all processes end what they are at."""
        for process in [self._producer, *self.claimers.values()]:
            self._end(process)

    def _diary(self, name: str) -> str:
        path = self.stage.folder / f"{name}.{len(self.diaries)}.diary"
        path.touch()
        self.diaries[path] = [0, 0]
        return str(path)

    def claimed(self) -> int:
        """Count the claims that the diaries name so far."""
        for path, (offset, _) in self.diaries.items():
            with path.open("rb") as lines:
                lines.seek(offset)
                for line in lines:
                    if not line.endswith(b"\n"):
                        break
                    self.diaries[path][0] += len(line)
                    if line.startswith(b"c "):
                        # Each lease names its tenant between two ids.
                        self.diaries[path][1] += line.count(b"],[") + 1
        return sum(count for _, count in self.diaries.values())

    def _until_idle(self) -> None:
        """Work everything off: nothing due, nothing claimed, no admission left."""
        until(self._is_idle, "the queue is worked off once the faults have stopped", CALM_SECONDS)

    def _is_idle(self) -> bool:
        try:
            with self.stage.connect() as connection:
                return not connection.execute(_LEFT_SQL).fetchall()
        except psycopg.OperationalError:
            return False  # the server is still on its way back

    @staticmethod
    def _end(process: WorkerProcess | None) -> None:
        assert process is not None
        process.signal(signal.SIGTERM)
        assert process.exit_code() == 0, process.said()

    def _judge(self, figures: Figures) -> list[str]:
        history = History.read(self.diaries)
        rows = {
            row["run_id"].hex: Stored(row["status"], row["result"])
            for row in self.stage.query("SELECT run_id, status, result FROM tenantfair_run")
        }
        figures.claims, figures.runs = len(history.claims), len(rows)
        most = most_at_once(history, LEASE_SECONDS)
        figures.fullest = sum(1 for name, count in most.items() if count >= self.caps[name])
        with self.stage.connect() as connection:
            self.checker.check(connection)
        # What a cap was at each moment is the checker's business; the diaries know the highest.
        highest = LARGEST_CAP if "flip cap" in self.faults else max(EDITED_CAPS)
        edited = {f"tenant {number}": highest for number in range(EDITED_TENANTS)}
        return verdict(history, rows, lease=LEASE_SECONDS, caps=self.caps | edited, max_attempts=MAX_ATTEMPTS)
