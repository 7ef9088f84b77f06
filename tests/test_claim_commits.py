"""`CLAIM_COMMITS`: whether a claim's own commit is waited for. Nothing else ever goes without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from tenantfair import runs
from tenantfair.claim import ClaimBatch, claim_due
from tenantfair.conf import get_settings
from tenantfair.exceptions import ConfigurationError
from tests.factories import policy_in_force, run_in
from tests.rows import LOCKED_HERE, in_background, result, sessions

pytestmark = pytest.mark.django_db(transaction=True)

DOOR = "8386095534873608192 | 'tenantfair_policy'::regclass::oid::bigint"
WAITS_AT_THE_DOOR = f"SELECT true FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND {LOCKED_HERE}"


@pytest.fixture(params=["tenant_fair", "legacy"], autouse=True)
def engine(request: pytest.FixtureRequest, settings: Any) -> str:
    mode = "required" if request.param == "tenant_fair" else "none"
    settings.TENANTFAIR = {**settings.TENANTFAIR, "TENANT_MODE": mode, "ENGINE": request.param}
    policy_in_force(admission_mode=request.param)
    return str(request.param)


@pytest.fixture(autouse=True)
def witness() -> Iterator[None]:
    """A trigger that notes how each change of a run is going to be committed."""
    with connection.cursor() as cursor:
        # Whatever the server of these tests has as its default.
        cursor.execute("SET synchronous_commit = on")
        cursor.execute("CREATE TABLE commits (place serial, kind text, setting text)")
        cursor.execute("""
            CREATE FUNCTION note_commit() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                INSERT INTO commits (kind, setting) VALUES (
                    CASE WHEN NEW.finished_at IS NOT NULL THEN 'finish'
                         WHEN NEW.claim_token IS NOT NULL THEN 'claim' ELSE 'other' END,
                    current_setting('synchronous_commit'));
                RETURN NULL;
            END $$
        """)
        cursor.execute("""
            CREATE FUNCTION note_cursor_commit() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                INSERT INTO commits (kind, setting) VALUES ('cursor', current_setting('synchronous_commit'));
                RETURN NULL;
            END $$
        """)
        # Deferred, so it runs when the transaction is about to commit.
        cursor.execute(
            "CREATE CONSTRAINT TRIGGER zz_note_commit AFTER UPDATE ON tenantfair_run"
            " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note_commit()"
        )
    yield
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit TO DEFAULT")
        cursor.execute("DROP TRIGGER zz_note_commit ON tenantfair_run")
        cursor.execute("DROP TRIGGER IF EXISTS zz_note_commit ON tenantfair_policy")
        cursor.execute("DROP FUNCTION note_commit(), note_cursor_commit()")
        cursor.execute("DROP TABLE commits")


def commits_of(settings: Any, commits: str) -> None:
    settings.TENANTFAIR = {**settings.TENANTFAIR, "CLAIM_COMMITS": commits}


def noted() -> list[tuple[str, str]]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT kind, setting FROM commits ORDER BY place")
        return list(cursor.fetchall())


def session_setting() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW synchronous_commit")
        return str(cursor.fetchone()[0])


def claim_and_finish() -> None:
    run_in("queued", tenant_id=None)
    (lease,) = claim_due(1).leases
    assert runs.finish([runs.Completed(lease, None)]) == {lease.run_id}


def test_claims_are_synchronous_by_default() -> None:
    claim_and_finish()

    assert noted() == [("claim", "on"), ("finish", "on")]


def test_asynchronous_is_for_the_claim_alone(settings: Any) -> None:
    commits_of(settings, "asynchronous")

    claim_and_finish()

    assert noted() == [("claim", "off"), ("finish", "on")]
    assert session_setting() == "on"


def test_a_claim_that_grants_nothing_is_not_waited_for(engine: str) -> None:
    """It wrote the cursor alone. Inside somebody's transaction it leaves the commit to them."""
    if engine == "legacy":
        assert claim_due(1).leases == []  # and wrote nothing at all
        return
    run_in("scheduled", tenant_id=None)
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE CONSTRAINT TRIGGER zz_note_commit AFTER UPDATE ON tenantfair_policy DEFERRABLE"
            " INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note_cursor_commit()"
        )
    claim_due(1)
    with transaction.atomic():
        claim_due(1, allow_in_transaction=True)

    assert noted() == [("cursor", "off"), ("cursor", "on")]
    assert session_setting() == "on"


@pytest.mark.parametrize("commits", ["synchronous", "asynchronous"])
def test_a_claim_is_one_statement_either_way(settings: Any, commits: str) -> None:
    commits_of(settings, commits)
    run_in("queued", tenant_id=None)

    with CaptureQueriesContext(connection) as log:
        assert len(claim_due(1).leases) == 1

    assert len(log) == 1


def claim_behind_another(claim: Callable[[], Any]) -> Any:
    """Return what `claim` does in a session that finds the door taken, and then free."""
    with sessions() as another:
        holder, observer = another(), another()
        holder.execute(f"SELECT pg_advisory_lock({DOOR})")
        claiming = in_background(claim)
        while not observer.execute(WAITS_AT_THE_DOOR).fetchone():
            assert not claiming.done(), "the claim waited for nobody"
        holder.execute(f"SELECT pg_advisory_unlock({DOOR})")
        return result(claiming)


def claim_and_statements() -> tuple[ClaimBatch, list[str]]:
    with CaptureQueriesContext(connection) as log:
        batch = claim_due(1)
    connection.close()
    return batch, [query["sql"] for query in log]


@pytest.mark.parametrize("engine", ["tenant_fair"], indirect=True)
@pytest.mark.parametrize("commits", ["synchronous", "asynchronous"])
def test_a_claim_that_found_the_door_taken_waits_for_the_disk_when_it_is_out(
    settings: Any, commits: str
) -> None:
    """So those behind it do not; and nobody has its leases before it has waited."""
    commits_of(settings, commits)
    run_in("queued", tenant_id=None)

    batch, statements = claim_behind_another(claim_and_statements)

    assert len(batch.leases) == 1
    assert noted() == [("claim", "off")]
    flushes = ["pg_logical_emit_message" in statement for statement in statements]
    assert flushes == ([False, True] if commits == "synchronous" else [False])


@pytest.mark.parametrize("engine", ["tenant_fair"], indirect=True)
def test_a_claim_that_found_the_door_taken_and_nothing_to_claim_waits_for_no_disk() -> None:
    run_in("scheduled", tenant_id=None)

    batch, statements = claim_behind_another(claim_and_statements)

    assert (batch.leases, len(statements)) == ([], 1)


@pytest.mark.parametrize("engine", ["tenant_fair"], indirect=True)
def test_leases_whose_wait_for_the_disk_failed_are_handed_to_nobody() -> None:
    def lost(execute: Any, sql: str, *rest: Any) -> Any:
        if "pg_logical_emit_message" in sql:
            raise OperationalError("the connection is gone")
        return execute(sql, *rest)

    def claim() -> None:
        with connection.execute_wrapper(lost), pytest.raises(OperationalError):
            claim_due(1)
        connection.close()

    run = run_in("queued", tenant_id=None)
    claim_behind_another(claim)

    run.refresh_from_db()
    assert run.claim_token is not None


@pytest.mark.parametrize("commits", ["synchronous", "asynchronous"])
def test_a_host_that_never_waits_for_the_disk_is_left_alone(settings: Any, commits: str) -> None:
    commits_of(settings, commits)
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = off")

    claim_and_finish()

    assert noted() == [("claim", "off"), ("finish", "off")]


def test_a_claim_inside_a_transaction_leaves_its_durability_alone(settings: Any) -> None:
    commits_of(settings, "asynchronous")
    run_in("queued", tenant_id=None)

    with transaction.atomic():
        assert len(claim_due(1, allow_in_transaction=True).leases) == 1
        assert session_setting() == "on"

    assert noted() == [("claim", "on")]


def test_any_other_word_is_refused(settings: Any) -> None:
    commits_of(settings, "maybe")

    with pytest.raises(ConfigurationError, match="CLAIM_COMMITS"):
        get_settings()
