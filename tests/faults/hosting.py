"""What runs in a process of its own: hosts whose connections are not as the package would have them."""

from __future__ import annotations

import os
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from django.db import Error, connection, connections, transaction
from psycopg import IsolationLevel

from tenantfair import claim, runs
from tenantfair.exceptions import ClaimUnavailable
from tenantfair.models import Run, Schedule
from tests.faults.calls import assert_sound, session
from tests.faults.operations import CLAIMS, FAULTY, OPERATIONS, READS, attempt, boot, faulty
from tests.faults.tasks import work

_LONGEST_WAIT_SECONDS = 20


def isolation(level: str) -> None:
    """Do everything at another isolation level: all of it works, and claims are refused."""
    boot()
    for name, operation in OPERATIONS.items():
        faulty(OPTIONS={"options": f"-c default_transaction_isolation={level}"})
        material = operation.prepare()
        error = attempt(operation, material)
        if name in CLAIMS:
            assert isinstance(error, ClaimUnavailable), error
            assert error.reason == "unsupported_isolation", error.reason
        else:
            assert error is None, (name, error)
            assert operation.applied(material), name
    assert_sound()


def isolation_of_django(level: str) -> None:
    """Do everything with Django's own setting, which is for transactions: a claim, being none, works."""
    boot()
    _all_works(OPTIONS={"isolation_level": IsolationLevel[level]})


def read_only(options: str) -> None:
    """Do everything in transactions that are read only: it is refused, and nothing has changed."""
    boot()
    _nothing_written(OPTIONS={"options": options})


def read_only_server(host: str, port: str) -> None:
    """Do everything on a server that cannot be written to."""
    boot()
    _nothing_written(HOST=host, PORT=port)


def elsewhere(host: str, port: str) -> None:
    """Do everything through another address that leads to the same database."""
    boot()
    _all_works(HOST=host, PORT=port)


def _nothing_written(**changes: Any) -> None:
    told: Counter[str] = Counter()
    for name, operation in OPERATIONS.items():
        faulty(**changes)
        material = operation.prepare()
        error = attempt(operation, material)
        if name in READS:
            assert error is None, (name, error)
            continue
        assert error is not None, name
        assert not operation.applied(material), (name, error)
        told[getattr(error, "reason", None) or getattr(error.__cause__, "sqlstate", "")] += 1
    assert set(told) == {"read_only_transaction", "25006"}, told
    assert_sound()


def usual(options: str) -> None:
    """Do everything on a connection that is only unusual: all of it works."""
    boot()
    _all_works(OPTIONS={"options": options})


def pooled() -> None:
    """Do everything on connections of Django's own pool."""
    boot()
    _all_works(OPTIONS={"pool": {"min_size": 1, "max_size": 2}}, CONN_MAX_AGE=0)
    connections[FAULTY].close_pool()  # type: ignore[attr-defined]


def _all_works(**changes: Any) -> None:
    faulty(**changes)
    for name, operation in OPERATIONS.items():
        material = operation.prepare()
        error = attempt(operation, material)
        assert error is None, (name, error)
        assert operation.applied(material), name
        connections[FAULTY].close()
    assert_sound()


def idle_in_transaction() -> None:
    """Let the server end a transaction that has enqueued and then sits there: nothing of it is left."""
    boot()
    faulty(OPTIONS={"options": "-c idle_in_transaction_session_timeout=50"})
    run_id, tenant = uuid.uuid4(), f"tenant {uuid.uuid4()}"
    raised = None
    try:
        with transaction.atomic(using=FAULTY):
            runs.enqueue(work, tenant_id=tenant, run_id=run_id, using=FAULTY)
            ours = connections[FAULTY].connection.info.backend_pid
            with session() as looking:
                ended = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s)"
                _until(lambda: looking.execute(ended, [ours]).fetchone()[0])
            runs.enqueue(work, tenant_id=tenant, using=FAULTY)
    except Error as error:
        raised = error
    assert raised is not None
    assert not Run.objects.filter(tenant_id=tenant).exists()
    assert not Schedule.objects.filter(partition_id=tenant).exists()
    assert_sound()


def old_transaction(seconds: str) -> None:
    """Enqueue and manage in a transaction whose own time is long past: the clock decides, not its begin."""
    boot()
    other = runs.enqueue(work, tenant_id="acme")
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SELECT now()")
            (began,) = cursor.fetchone()
        # Only waiting makes a transaction old: nothing else moves its now() away from the clock.
        time.sleep(float(seconds))
        run_id = runs.enqueue(work, tenant_id="acme")
        runs.cancel(other)
        with pytest.raises(ClaimUnavailable, match="open_transaction"):
            claim.claim_due(1)
    row = Run.objects.get(run_id=run_id)
    assert row.wake_at is not None
    assert (row.wake_at - began).total_seconds() >= float(seconds)
    assert (Run.objects.get(run_id=other).finished_at - began).total_seconds() >= float(seconds)
    assert_sound()


def same_seeds(parents: str) -> None:
    """Claim in several forks whose random numbers are the same: the server's tokens differ all the same."""
    boot()
    for _ in range(int(parents) * 8):
        runs.enqueue(work, tenant_id=f"tenant {uuid.uuid4()}")
    connections.close_all()
    children = []
    for _ in range(int(parents)):
        reader, writer = os.pipe()
        if (child := os.fork()) == 0:
            random.seed(1)
            os.urandom = random.randbytes  # type: ignore[assignment]
            tokens: list[str] = []
            while len(tokens) < 8:
                with suppress(ClaimUnavailable):  # the others are at it
                    tokens += [lease.claim_token.hex for lease in claim.claim_due(2).leases]
            os.write(writer, "".join(tokens).encode())
            os._exit(0)
        os.close(writer)
        children.append((child, reader))
    told = []
    for child, reader in children:
        with os.fdopen(reader) as heard:
            told.append(heard.read())
        assert os.waitpid(child, 0)[1] == 0
    tokens = [text[place : place + 32] for text in told for place in range(0, len(text), 32)]
    assert len(tokens) == len(set(tokens)) == int(parents) * 8, (len(tokens), len(set(tokens)))
    assert_sound()


def far_numbers() -> None:
    """Put the ids, the places in the ring and the cursor's laps near the end of their range."""
    boot()
    with session() as owner:
        near = 2**63 - 500
        for table, column in (("tenantfair_run", "id"), ("tenantfair_schedule", "ring_position")):
            owner.execute("SELECT setval(pg_get_serial_sequence(%s, %s), %s)", [table, column, near])
        owner.execute("UPDATE tenantfair_policy SET scan_laps = %s", [near])
    _all_works()


def no_room() -> None:
    """Do everything while the server has no session to give, and again when it has one."""
    boot()
    taken = []
    for name, operation in OPERATIONS.items():
        material = operation.prepare()
        with suppress(psycopg.OperationalError):
            while True:
                taken.append(session())
        faulty()
        assert attempt(operation, material) is not None, name
        if name not in READS:
            assert not operation.applied(material), name
        # One for the operation, one for the look at the end of a batch.
        for _ in range(2):
            taken.pop().close()
        _until_room()
        assert attempt(operation, material) is None, name
        assert operation.applied(material), name
        connections[FAULTY].close()
    for held in taken:
        held.close()
    _until_room()
    assert_sound()


def no_lock_left() -> None:
    """Do everything while one session holds all the places of the server's lock table, and again afterwards.

    Some of it needs no place there. What does is refused, and has changed nothing.
    """
    boot()
    hoarder = session()
    refused = set()
    for name, operation in OPERATIONS.items():
        material = operation.prepare()
        # Locks of a session stay when the statement that took them fails.
        with pytest.raises(psycopg.errors.OutOfMemory):
            hoarder.execute("SELECT count(pg_advisory_lock(n)) FROM generate_series(1, 1000000) AS n")
        faulty()
        error = attempt(operation, material)
        hoarder.execute("SELECT pg_advisory_unlock_all()")
        if error is not None:
            refused.add(name)
            if name not in READS:
                assert not operation.applied(material), name
            assert attempt(operation, material) is None, name
        assert operation.applied(material), name
        connections[FAULTY].close()
    hoarder.close()
    assert refused >= CLAIMS, refused
    assert_sound()


def _until_room() -> None:
    """A session that has been closed is given again a moment later."""

    def room() -> bool:
        try:
            session().close()
        except psycopg.OperationalError:
            return False
        return True

    _until(room)


def _until(condition: Callable[[], bool]) -> None:
    """Poll what the server does by itself, and tells nobody."""
    deadline = time.monotonic() + _LONGEST_WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)
