"""What is done to the soak, one thing after another, chosen by a seeded chance."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg

from tenantfair.sql import load
from tests.faults.proxy import Proxy, Rule

if TYPE_CHECKING:
    from tests.faults.soak_unit import Soak

# By name and share; a soak may also have fewer, or others that `Meddler` knows.
FAULTS = {
    "edit cap": 6,
    "lose reply": 6,
    "terminate": 4,
    "cancel": 4,
    "kill": 3,
    "stop": 2,
    "hold policy": 2,
    "hold runs": 2,
    "hold snapshot": 1,
    "cut": 1,
    "restart": 1,
    "kill backend": 1,
}
EDITED_TENANTS = 10
EDITED_CAPS = (1, 2, 3, 4, 5, 6)
LARGEST_CAP = 2**31 - 1
# When a fault has stopped all claims, the next comes after so long.
_LONGEST_BETWEEN = 2.0

_OURS = (
    "SELECT pid FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name <> 'checker'"
)


class Meddler:
    """Does a fault at each `meddle()`; after `calm()` none is under way."""

    def __init__(self, soak: Soak, proxy: Proxy, chance: random.Random) -> None:
        self._soak = soak
        self._proxy = proxy
        self._chance = chance
        self._claimed = 0
        self._stopped: dict[int, float] = {}
        self._rules: list[Rule] = []
        self._threads: list[threading.Thread] = []
        self.counts: Counter[str] = Counter()
        self._faults: dict[Callable[[], None], int] = {
            getattr(self, f"_{name.replace(' ', '_')}"): share for name, share in soak.faults.items()
        }

    def meddle(self) -> None:
        """Wait until the last fault has been worked past, and do another."""
        deadline = time.monotonic() + _LONGEST_BETWEEN
        while (
            self._soak.claimed() < self._claimed + self._soak.claims_per_fault and time.monotonic() < deadline
        ):
            self._continue_stopped()
            time.sleep(0.05)
        self._claimed = self._soak.claimed()
        (fault,) = self._chance.choices(list(self._faults), list(self._faults.values()))
        with suppress(psycopg.OperationalError):  # the server may be on its way back from the last one
            fault()
            self.counts[fault.__name__.strip("_").replace("_", " ")] += 1

    def calm(self) -> None:
        """Let everything go on."""
        self._proxy.rules.clear()
        if self._rules:
            # What was asked for is not what came to pass.
            self.counts["lose reply"] = sum(rule.count for rule in self._rules)
        for thread in self._threads:
            thread.join(20)
        for number in list(self._stopped):
            self._soak.claimers[number].signal(signal.SIGCONT)
        self._stopped.clear()

    def _continue_stopped(self) -> None:
        for number, until in list(self._stopped.items()):
            if time.monotonic() > until:
                del self._stopped[number]
                self._soak.claimers[number].signal(signal.SIGCONT)

    def _running(self) -> int:
        return self._chance.choice([number for number in self._soak.claimers if number not in self._stopped])

    def _kill(self) -> None:
        number = self._running()
        self._soak.claimers[number].end()
        self._soak.start_claimer(number)

    def _stop(self) -> None:
        """Stop a claimer past its leases; it goes on as if nothing had been."""
        from tests.faults.soak_unit import LEASE_SECONDS

        if not self._stopped:
            number = self._running()
            self._soak.claimers[number].signal(signal.SIGSTOP)
            self._stopped[number] = time.monotonic() + LEASE_SECONDS + 0.5

    def _sessions(self, connection: psycopg.Connection[Any]) -> list[int]:
        pids = [row[0] for row in connection.execute(_OURS)]
        return self._chance.sample(pids, min(len(pids), self._chance.randint(1, 3)))

    def _terminate(self) -> None:
        with self._soak.stage.connect() as connection:
            for pid in self._sessions(connection):
                connection.execute("SELECT pg_terminate_backend(%s)", [pid])

    def _cancel(self) -> None:
        with self._soak.stage.connect() as connection:
            for pid in self._sessions(connection):
                connection.execute("SELECT pg_cancel_backend(%s)", [pid])

    def _kill_backend(self) -> None:
        """Kill one server process as a crash would: the server ends all others and recovers."""
        with self._soak.stage.connect() as connection:
            pids = self._sessions(connection)
        for pid in pids[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _restart(self) -> None:
        self._soak.stage.server.restart("immediate")

    def _lose_reply(self) -> None:
        # A claim, an outcome, an enqueue's commit: what the proxied claimer sends next of the kind.
        marker = self._chance.choice([b"tenantfair_claim(", b"AS outcome ("])
        self._rules.append(self._proxy.rule(marker, self._chance.choice(["drop reply", "reset"]), times=3))

    def _cut(self) -> None:
        self._proxy.cut()

    def _edit_cap(self) -> None:
        """Set a tenant's cap, up or down, by the package's own statement."""
        self._set_cap(f"tenant {self._chance.randrange(EDITED_TENANTS)}", self._chance.choice(EDITED_CAPS))

    def _flip_cap(self) -> None:
        """Take a tenant's cap to the largest there is, and to one, again and again."""
        tenant = f"tenant {self._chance.randrange(EDITED_TENANTS)}"
        for _ in range(5):
            for cap in (LARGEST_CAP, 1):
                self._set_cap(tenant, cap)
                time.sleep(0.02)

    def _reset_cap(self) -> None:
        """Take an override away, by which the default holds, and put it back."""
        tenant = f"tenant {self._chance.randrange(EDITED_TENANTS)}"
        for cap in (None, 1, None, 6):
            self._set_cap(tenant, cap)
            time.sleep(0.02)

    def _set_cap(self, tenant: str, cap: int | None) -> None:
        lowered = self._soak.checker.lowered
        lowered[tenant] = None
        with self._soak.stage.connect() as connection:
            connection.execute(load("put_override"), {"scope_key": tenant, "cap": cap, "expected": None})
        lowered[tenant] = time.time()

    def _hold_policy(self) -> None:
        self._hold("SELECT FROM tenantfair_policy FOR UPDATE", 0.4)

    def _hold_snapshot(self) -> None:
        """Keep an old snapshot, for which the server may throw no dead row away."""
        self._hold("SELECT txid_current(), count(*) FROM tenantfair_run", 3.0, isolation="REPEATABLE READ")

    def _hold_table(self) -> None:
        """Lock the table of runs against everybody, as VACUUM FULL and ALTER TABLE do."""
        self._hold("LOCK TABLE tenantfair_run IN ACCESS EXCLUSIVE MODE", 0.5)

    def _rewrite_table(self) -> None:
        with self._soak.stage.connect() as connection:
            connection.execute("VACUUM FULL tenantfair_run")

    def _cross(self) -> None:
        """Lock rows of all tables in the order opposite to the claim's: whoever meets it may deadlock."""
        self._hold(
            "SELECT 1 FROM tenantfair_run WHERE status = 'running' ORDER BY id DESC LIMIT 20 FOR UPDATE;"
            "SELECT 1 FROM tenantfair_schedule ORDER BY ring_position DESC LIMIT 5 FOR UPDATE;"
            "SELECT 1 FROM tenantfair_partition ORDER BY scope_key DESC LIMIT 5 FOR UPDATE;"
            "SELECT 1 FROM tenantfair_policy FOR UPDATE",
            0.05,
        )

    def _come_and_go(self) -> None:
        """Create a tenant by its first run, and delete all of it."""
        tenant = f"guest {self._chance.randrange(3)}"
        with self._soak.stage.connect() as connection:
            connection.execute(
                "INSERT INTO tenantfair_run (tenant_id, task_path, wake_at)"
                " VALUES (%s, 'none', now() + interval '1 day')",
                [tenant],
            )
            with connection.transaction():
                connection.execute("DELETE FROM tenantfair_run WHERE tenant_id = %s", [tenant])
            connection.execute("DELETE FROM tenantfair_partition WHERE scope_key = %s", [tenant])

    def _replace_function(self) -> None:
        """Install the claim function again, as a migration does."""
        with self._soak.stage.connect() as connection:
            row = connection.execute("SELECT pg_get_functiondef('tenantfair_claim'::regproc)").fetchone()
            assert row is not None
            connection.execute(row[0])

    def _freeze_server(self) -> None:
        """Stop the server's main process: nobody new gets in, those inside go on."""
        pid = self._soak.stage.server.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        time.sleep(2.0)
        os.kill(pid, signal.SIGCONT)

    def _fill_disk(self) -> None:
        """Take all room there is for a while; a server that went down over it is started again."""
        disk = self._soak.world.disk
        assert disk is not None
        filler = disk / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
        time.sleep(1.5)
        filler.unlink()
        self._soak.stage.server.start()

    def _take_all_sessions(self) -> None:
        """Open sessions until the server has no more to give, and drop those that are left of the others."""
        taken: list[psycopg.Connection[Any]] = []
        with suppress(psycopg.OperationalError):
            while len(taken) < 500:
                taken.append(self._soak.stage.connect())
        with suppress(psycopg.OperationalError):
            self._proxy.cut()
            time.sleep(0.5)
        for connection in taken:
            connection.close()

    def _hold_runs(self) -> None:
        self._hold("SELECT FROM tenantfair_run WHERE status = 'running' LIMIT 40 FOR UPDATE SKIP LOCKED", 1.0)

    def _hold(self, statement: Any, seconds: float, isolation: str = "READ COMMITTED") -> None:
        """Keep rows locked for a while, as somebody's forgotten transaction does."""

        def hold() -> None:
            with (
                suppress(psycopg.OperationalError),
                self._soak.stage.connect() as connection,
                connection.transaction(),
            ):
                connection.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
                connection.execute(statement)
                time.sleep(seconds)

        self._threads.append(threading.Thread(target=hold, daemon=True))
        self._threads[-1].start()
