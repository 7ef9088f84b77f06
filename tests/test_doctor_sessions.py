"""The doctor names who holds what everybody needs."""

from __future__ import annotations

import struct
from contextlib import closing
from typing import LiteralString

import pytest
from psycopg.pq import ExecStatus

from tenantfair import doctor
from tenantfair.doctor import Limits
from tests.doctor_damage import (
    BY_SESSIONS,
    SCHEMA,
    alias,
    connect_there,
    ids,
    until,
)
from tests.rows import (
    Session,
    connect,
    script,
    sessions,
)

__all__ = ["alias"]

pytestmark = pytest.mark.django_db(transaction=True)


def test_who_holds_the_policy_row_or_an_old_snapshot_is_named(alias: str) -> None:
    limits = Limits(locked_after=0.0, snapshot_after=0.0)
    with sessions() as another:
        holder = another(options=f"-c search_path={SCHEMA}", application_name="holder")
        script(holder, "BEGIN", "SELECT FROM tenantfair_policy FOR NO KEY UPDATE")
        reader = another(options=f"-c search_path={SCHEMA}", application_name="reader")
        script(reader, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT FROM tenantfair_run")

        found = {one.id: one.examples for one in doctor.examine(alias, limits).findings}

        assert any(
            f"pid {holder.info.backend_pid}, application 'holder', idle in" in one
            for one in found["policy_locked"]
        )
        assert not any("'reader'" in one for one in found["policy_locked"])
        assert any(
            f"pid {reader.info.backend_pid}, application 'reader'" in one for one in found["old_snapshot"]
        )
        assert BY_SESSIONS.isdisjoint(ids(doctor.examine(alias)))


CLAIM: LiteralString = (
    "SELECT FROM tenantfair_claim(clock_timestamp(), clock_timestamp() - interval '1 min', 1, 5, NULL, false)"
)
# The lock that a claim took, once more and for the whole session.
TAKE_THE_DOOR: LiteralString = """
    SELECT pg_advisory_lock((classid::bigint << 32) | objid::bigint)
    FROM pg_locks
    WHERE locktype = 'advisory' AND pid = pg_backend_pid()
"""


def test_who_stands_in_the_door_is_named(alias: str) -> None:
    """The door is the lock that a claim takes before the policy row."""
    with sessions() as another:
        holder = another(options=f"-c search_path={SCHEMA}", application_name="door")
        script(holder, "BEGIN", CLAIM, TAKE_THE_DOOR, "COMMIT", "BEGIN", "SELECT")

        (finding,) = doctor.examine(alias, Limits(locked_after=0.0)).findings

        assert finding.id == "policy_locked"
        assert "application 'door'" in finding.examples[0]


def test_who_stands_in_the_door_without_a_transaction_is_named(alias: str) -> None:
    """The lock is the session's, which did no more than take it, and has been idle since."""
    with sessions() as another:
        holder = another(options=f"-c search_path={SCHEMA}", application_name="door")
        script(holder, "BEGIN", CLAIM, TAKE_THE_DOOR, "COMMIT")
        until(
            another(),
            "SELECT state = 'idle' AND state_change < clock_timestamp() FROM pg_stat_activity"
            " WHERE pid = %s::integer",
            str(holder.info.backend_pid),
        )

        (finding,) = doctor.examine(alias, Limits(locked_after=0.0)).findings

        assert finding.id == "policy_locked"
        assert f"pid {holder.info.backend_pid}, application 'door', idle, outside" in finding.examples[0]
        assert doctor.examine(alias, Limits(locked_after=3600.0)).findings == ()


def test_a_prepared_transaction_is_named(alias: str) -> None:
    with closing(connect_there()) as session:
        script(
            session,
            "BEGIN",
            "UPDATE tenantfair_policy SET scan_budget = 64",
            "PREPARE TRANSACTION 'tenantfair-doctor'",
        )
        try:
            report = doctor.examine(alias, Limits(locked_after=0.0, snapshot_after=0.0))
        finally:
            session.execute("ROLLBACK PREPARED 'tenantfair-doctor'")

    found = {one.id: one.examples for one in report.findings}
    for kind in BY_SESSIONS:
        assert any("prepared transaction 'tenantfair-doctor'" in example for example in found[kind])


def test_an_unused_slot_that_holds_a_snapshot_is_named(alias: str) -> None:
    """As a standby leaves it that has asked for its snapshot to be kept, and is gone."""
    slot = "tenantfair_doctor"
    with closing(connect_there()) as session:
        session.execute("SELECT pg_create_physical_replication_slot(%s, true)", [slot])
        try:
            with closing(connect(replication="true")) as standby:
                hold_a_snapshot(
                    standby, slot, session.execute("SELECT pg_current_xact_id()::text").fetchone()[0]
                )
                until(session, "SELECT xmin IS NOT NULL FROM pg_replication_slots WHERE slot_name = %s", slot)
                assert "old_snapshot" not in ids(doctor.examine(alias))
            until(session, "SELECT NOT active FROM pg_replication_slots WHERE slot_name = %s", slot)
            (finding,) = doctor.examine(alias).findings
        finally:
            session.execute("SELECT pg_drop_replication_slot(%s)", [slot])

    assert finding.id == "old_snapshot"
    assert finding.examples[0].startswith("replication slot 'tenantfair_doctor', not in use, ")


def hold_a_snapshot(standby: Session, slot: str, transaction_id: str) -> None:
    """Speak as a standby does: stream from a slot and ask for the rows that `transaction_id` may need."""
    epoch, xmin = divmod(int(transaction_id), 2**32)
    position = standby.pgconn.exec_(b"IDENTIFY_SYSTEM").get_value(0, 2)
    started = standby.pgconn.exec_(
        b"START_REPLICATION SLOT %b PHYSICAL %b" % (slot.encode(), position or b"")
    )
    assert started.status == ExecStatus.COPY_BOTH, started.error_message
    standby.pgconn.put_copy_data(b"h" + struct.pack("!qIIII", 0, xmin, epoch, 0, 0))
    standby.pgconn.flush()
