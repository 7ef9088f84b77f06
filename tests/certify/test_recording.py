"""A recording is short, harms nobody, and leaves nothing behind, whatever ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections
from psycopg import errors

from tenantfair import doctor, policy, schema
from tenantfair.certify import (
    Limits,
    RecordingFailed,
    RecordingLeft,
    RecordingNotAllowed,
    certify,
    clean,
    recorder,
    triggers,
)
from tenantfair.certify.triggers import Unstoppable
from tenantfair.claim import claim_due
from tenantfair.sql import load
from tests.certify.scene import Scene, certified, claim
from tests.claim_support import Bench, Session, bench
from tests.domains import migrate, scratch_alias
from tests.rows import in_background, result

pytestmark = pytest.mark.django_db(transaction=True)

JOURNAL = "tenantfair_certify_journal"
LEFT = """
SELECT relname FROM pg_class WHERE starts_with(relname, 'tenantfair_certify_')
UNION ALL SELECT proname FROM pg_proc WHERE starts_with(proname, 'tenantfair_certify_')
UNION ALL SELECT tgname FROM pg_trigger WHERE starts_with(tgname, 'tenantfair_certify_')
"""


@pytest.fixture
def domain() -> Iterator[Bench]:
    with bench() as found:
        found.policy(50)
        found.ready("hot", 20)
        found.queued("target", 20)
        yield found
        clean()


def left(domain: Bench) -> list[str]:
    return [name for (name,) in domain.db.execute(LEFT).fetchall()]


def rows(domain: Bench) -> int:
    (number,) = domain.db.execute(f"SELECT count(*) FROM {JOURNAL}").fetchone()
    return int(number)


def lost(domain: Bench) -> bool:
    (found,) = domain.db.execute("SELECT is_called FROM tenantfair_certify_lost").fetchone()
    return bool(found)


def a_recording(seconds: float = 60.0, most: int = 1000) -> None:
    """Begin one, as a process does that then dies."""
    until = datetime.now(UTC) + timedelta(seconds=seconds)
    triggers.begin("default", until)
    triggers.put_on("default", Unstoppable(), until=until, most=most)


def test_nothing_is_left_of_a_recording(domain: Bench) -> None:
    assert certified(lambda: claim(domain)).calls == 1
    assert left(domain) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit])
def test_nothing_is_left_when_it_is_broken_off(domain: Bench, error: type[BaseException]) -> None:
    def play() -> None:
        claim(domain)
        raise error

    with pytest.raises(error):
        certified(play)
    assert left(domain) == []


def test_nothing_is_left_when_its_connection_dies(domain: Bench) -> None:
    def play() -> None:
        (pid,) = recorder.execute("default", "SELECT pg_backend_pid()")[0]
        domain.db.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])

    class Dying(Scene):
        def wait(self, seconds: float) -> None:
            self.play()

    with pytest.raises(Exception, match=r"terminat|closed"):
        certify(stop=Dying(play))
    assert left(domain) == []


@pytest.mark.parametrize(
    ("limits", "ended_by"),
    [
        (Limits(seconds=0.3), "seconds"),
        (Limits(calls=3), "calls"),
        (Limits(rows=6), "rows"),
    ],
)
def test_it_ends_by_the_limit_that_comes_first(domain: Bench, limits: Limits, ended_by: str) -> None:
    class Busy(Unstoppable):
        def wait(self, seconds: float) -> None:
            claim(domain)
            super().wait(seconds)

    certificate = certify(limits=limits, stop=Busy())
    assert certificate.ended_by == ended_by
    assert certificate.seconds < 10


def test_claims_go_on_when_the_recorder_breaks(domain: Bench) -> None:
    served = []

    def play() -> None:
        domain.db.execute(f"ALTER TABLE {JOURNAL} RENAME COLUMN n TO m")
        served.extend(claim(domain).scopes + claim(domain).scopes)
        domain.queued("third")

    with pytest.raises(RecordingFailed, match="could not write"):
        certify(stop=Playing(play))
    assert served == ["hot", "target"]
    assert left(domain) == []


class Playing(Scene):
    """Plays at the first wait, and lets the recording go on."""

    def wait(self, seconds: float) -> None:
        play, self.play = self.play, lambda: None
        play()


@pytest.mark.parametrize("what", ["TABLE tenantfair_certify_journal", "SEQUENCE tenantfair_certify_calls"])
def test_claims_go_on_when_the_journal_is_gone(domain: Bench, what: str) -> None:
    served = []

    def play() -> None:
        domain.db.execute(f"DROP {what} CASCADE")
        served.extend(claim(domain).scopes + claim(domain).scopes)

    with pytest.raises(RecordingFailed):
        certify(stop=Playing(play))
    assert served == ["hot", "target"]
    assert left(domain) == []


def test_what_passed_by_the_triggers_makes_the_recording_void(domain: Bench) -> None:
    def play() -> None:
        domain.db.execute("ALTER TABLE tenantfair_run DISABLE TRIGGER tenantfair_certify_deleted")
        domain.db.execute("DELETE FROM tenantfair_run WHERE scope_key = 'hot'")

    with pytest.raises(RecordingFailed, match="missing"):
        certified(play)


def test_schema_and_doctor_do_not_mind_a_recording(domain: Bench) -> None:
    found: list[Any] = []

    def look() -> None:
        found.extend([schema.problems(), doctor.examine().findings])
        schema.verify()

    with bench() as own:
        own.policy(50)
        certified(look)
    assert found == [[], ()]


def test_two_recordings_do_not_go_on_at_the_same_time(domain: Bench) -> None:
    with pytest.raises(RecordingFailed, match="goes on until"):
        certified(lambda: certified(lambda: None))
    assert left(domain) == []


def test_recording_that_somebody_ends_proves_nothing(domain: Bench) -> None:
    with pytest.raises(RecordingFailed, match="removed"):
        certify(stop=Playing(lambda: result(in_background(ended))))
    assert left(domain) == []


def ended() -> None:
    clean()
    connections.close_all()


def test_what_a_killed_recorder_leaves_stops_by_itself(domain: Bench) -> None:
    a_recording(seconds=1.0)
    claim(domain)
    written = rows(domain)
    assert written
    domain.db.execute("SELECT pg_sleep(1)")
    assert claim(domain).scopes == ["target"]
    domain.queued("third")
    assert rows(domain) == written

    (finding,) = [found for found in doctor.examine().findings if found.id == "recording_left"]
    assert f"table {JOURNAL}" in finding.examples
    assert clean() is not None
    assert left(domain) == []
    assert clean() is None


def test_what_a_killed_recorder_leaves_is_removed_by_the_next(domain: Bench) -> None:
    a_recording(seconds=0.0)
    assert certified(lambda: claim(domain)).calls == 1
    assert left(domain) == []


def test_what_a_killed_recorder_leaves_stops_after_so_many_statements(domain: Bench) -> None:
    a_recording(most=4)
    for _ in range(6):
        assert len(claim(domain).scopes) == 1
    assert lost(domain)


def test_table_that_stays_locked_is_not_waited_for(domain: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triggers, "PATIENCE_SECONDS", 0.0)
    writer = domain.holding("INSERT INTO tenantfair_run (task_path, wake_at) VALUES ('tests.task', now())")
    with pytest.raises(RecordingFailed, match="tenantfair_run stays locked"):
        certified(lambda: claim(domain))
    writer.rollback()
    assert clean() is None or left(domain) == []


def test_claims_do_not_fail_while_a_recording_waits_for_a_table(domain: Bench) -> None:
    """A host's long transaction holds the run table; claims wait behind the try, and get through."""
    writer = domain.holding("INSERT INTO tenantfair_run (task_path, wake_at) VALUES ('tests.task', now())")
    served: list[str] = []
    done = threading.Event()

    def claims() -> None:
        session = domain.session()
        while not done.is_set() and len(served) < 20:
            served.extend(claim(domain, by=session).scopes)
        writer.rollback()

    background = in_background(claims)
    certificate = certified(lambda: None)
    done.set()
    result(background)
    assert len(served) == 20
    assert certificate.violations == []


def test_triggers_that_cannot_be_taken_off_are_named_and_can_be_later(
    domain: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers = []

    def play() -> None:
        writers.append(
            domain.holding("INSERT INTO tenantfair_run (task_path, wake_at) VALUES ('tests.task', now())")
        )
        claim(domain)
        monkeypatch.setattr(triggers, "PATIENCE_AT_THE_END_SECONDS", 0.0)

    with pytest.raises(RecordingLeft, match=r"tenantfair_run stayed locked.*--clean"):
        certified(play)
    assert rows(domain) == 0
    assert len(claim(domain).scopes) == 1
    writers[0].rollback()
    clean()
    assert left(domain) == []


def test_only_the_owner_may_record(domain: Bench) -> None:
    domain.db.execute("CREATE ROLE tf_recorder")
    try:
        domain.db.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO tf_recorder")
        recorder.execute("default", "SET ROLE tf_recorder")
        with pytest.raises(RecordingNotAllowed, match="owns"):
            certified(lambda: None)
    finally:
        recorder.execute("default", "RESET ROLE")
        domain.db.execute("DROP OWNED BY tf_recorder")
        domain.db.execute("DROP ROLE tf_recorder")
    assert left(domain) == []


def test_role_that_owns_nothing_is_recorded(domain: Bench) -> None:
    """Workers and web processes need no rights on the journal."""
    domain.db.execute("CREATE ROLE tf_worker")
    for table in ("policy", "partition", "run"):
        domain.db.execute(f"GRANT SELECT, INSERT, UPDATE ON tenantfair_{table} TO tf_worker")
    domain.db.execute("GRANT SELECT ON tenantfair_schedule TO tf_worker")
    worker = domain.session()
    worker.execute("SET ROLE tf_worker")
    try:
        assert certified(lambda: [claim(domain, by=worker) for _ in range(2)]).calls == 2
    finally:
        worker.execute("RESET ROLE")
        domain.db.execute("DROP OWNED BY tf_worker")
        domain.db.execute("DROP ROLE tf_worker")


@pytest.mark.parametrize("broken", [False, True], ids=["whole", "broken"])
def test_role_that_may_only_enqueue_is_recorded_and_harmed_by_no_fault(domain: Bench, broken: bool) -> None:
    domain.db.execute("CREATE ROLE tf_web; GRANT INSERT ON tenantfair_run TO tf_web")
    web = domain.session()
    web.execute("SET ROLE tf_web")
    try:
        a_recording()
        if broken:
            domain.db.execute(f"ALTER TABLE {JOURNAL} RENAME COLUMN n TO m")
        web.execute(
            "INSERT INTO tenantfair_run (tenant_id, task_path, wake_at) VALUES ('web', 'tests.task', now())"
        )
        assert (rows(domain) > 0) is not broken
        assert lost(domain) is broken
    finally:
        web.execute("RESET ROLE")
        domain.db.execute("DROP OWNED BY tf_web; DROP ROLE tf_web")


@pytest.fixture
def outsider(domain: Bench) -> Iterator[Session]:
    """A session of a role with no rights on any table of ours."""
    domain.db.execute("CREATE ROLE tf_outsider")
    session = domain.session()
    session.execute("SET SESSION AUTHORIZATION tf_outsider")
    yield session
    session.close()
    domain.db.execute("DROP OWNED BY tf_outsider; DROP ROLE tf_outsider")


INSERT, UPDATE, DELETE = (
    "INSERT INTO decoy VALUES ('target', 1)",
    "UPDATE decoy SET n = 2",
    "DELETE FROM decoy",
)
EACH_ROW, EACH_STATEMENT = "FOR EACH ROW EXECUTE FUNCTION", "FOR EACH STATEMENT EXECUTE FUNCTION"


@pytest.mark.parametrize(
    ("statement", "trigger"),
    [
        (INSERT, f"REFERENCING NEW TABLE AS new_runs {EACH_STATEMENT} tenantfair_certify_inserted(9)"),
        (UPDATE, f"REFERENCING NEW TABLE AS new_runs {EACH_STATEMENT} tenantfair_certify_updated(9)"),
        (DELETE, f"REFERENCING OLD TABLE AS old_runs {EACH_STATEMENT} tenantfair_certify_deleted(9)"),
        (UPDATE, f"REFERENCING NEW TABLE AS new_partitions {EACH_STATEMENT} tenantfair_certify_epochs(9)"),
        (INSERT, f"{EACH_ROW} tenantfair_certify_cap()"),
        (UPDATE, f"{EACH_ROW} tenantfair_certify_ring()"),
        (UPDATE, f"{EACH_ROW} tenantfair_certify_policy()"),
    ],
)
def test_nothing_is_recorded_by_our_functions_on_a_table_of_somebody_else(
    domain: Bench, outsider: Session, statement: str, trigger: str
) -> None:
    """They run as the owner, and anybody can create a trigger that calls them."""
    a_recording()
    outsider.execute("CREATE TEMP TABLE decoy (scope_key text, max_active int, n int)")
    outsider.execute("INSERT INTO decoy VALUES ('target', 1)")
    outsider.execute(f"CREATE TRIGGER decoy AFTER {statement.split(maxsplit=1)[0]} ON decoy {trigger}")
    with pytest.raises(errors.IntegrityConstraintViolation, match="decoy fires for tenantfair_"):
        outsider.execute(statement)
    assert rows(domain) == 0
    assert not lost(domain)


def test_nobody_else_can_make_a_recording_void(domain: Bench, outsider: Session) -> None:
    a_recording()
    with pytest.raises(errors.InsufficientPrivilege):
        outsider.execute("SELECT tenantfair_certify_lose()")
    assert not lost(domain)


# Each fits a call better than PostgreSQL's own form, and would be taken though its schema comes later.
OVERLOADS = """
CREATE FUNCTION trapped() RETURNS void LANGUAGE plpgsql AS $$
DECLARE v_stack text;
BEGIN
    GET DIAGNOSTICS v_stack = PG_CONTEXT;
    IF v_stack LIKE '%tenantfair_certify_%' OR v_stack LIKE '%inline_code_block%' THEN
        PERFORM nextval('traps'::regclass);
    END IF;
END $$;
CREATE FUNCTION nextval(text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN PERFORM trapped(); RETURN nextval($1::regclass); END $$;
CREATE FUNCTION format(text, text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN PERFORM trapped(); RETURN pg_catalog.format($1, VARIADIC ARRAY[$2]); END $$;
CREATE FUNCTION trap(varchar, varchar) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN PERFORM trapped(); RETURN $1::text = $2::text; END $$;
CREATE FUNCTION trap(numeric, integer) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN PERFORM trapped(); RETURN $1 = $2::numeric; END $$;
CREATE FUNCTION trap(oid, regclass) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN PERFORM trapped(); RETURN $1 <> $2::oid; END $$;
CREATE OPERATOR = (LEFTARG = varchar, RIGHTARG = varchar, FUNCTION = trap);
CREATE OPERATOR = (LEFTARG = numeric, RIGHTARG = integer, FUNCTION = trap);
CREATE OPERATOR <> (LEFTARG = oid, RIGHTARG = regclass, FUNCTION = trap);
"""


def test_no_overload_in_the_schema_is_called_by_what_runs_as_the_owner() -> None:
    """Who may create in the schema does not act by it as the owner."""
    with scratch_alias("tf_overloads") as alias:
        migrate(alias)
        policy.synchronize(using=alias)
        execute = partial(recorder.execute, alias)
        execute("CREATE SEQUENCE traps")
        execute(OVERLOADS)

        def play() -> None:
            execute("INSERT INTO tenantfair_run (task_path, wake_at) VALUES ('tests.task', now())")
            policy.put_override(None, 3, using=alias)
            assert len(claim_due(1, using=alias).leases) == 1
            policy.put_scan_budget(40, using=alias)
            execute("DELETE FROM tenantfair_run")

        assert certify(alias, stop=Scene(play)).calls == 1
        assert execute("SELECT is_called FROM traps") == [(False,)]


@pytest.mark.parametrize(
    "options", [{"server_side_binding": True}, {"pool": True}], ids=lambda found: next(iter(found))
)
def test_parameters_bound_by_the_server_and_pools_are_fine(options: dict[str, bool]) -> None:
    with scratch_alias("tf_certify", **options) as alias:
        migrate(alias)
        policy.synchronize(using=alias)
        assert certify(alias, stop=Scene(lambda: claim_due(1, using=alias))).calls == 0
        assert triggers.left(alias) is None
        connections[alias].close()
        if "pool" in options:
            connections[alias].close_pool()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "prepare", [Bench.pristine, lambda domain: domain.db.execute("DELETE FROM tenantfair_policy")]
)
def test_domain_without_turns_has_nothing_to_record(prepare: Callable[[Bench], Any]) -> None:
    with bench() as domain:
        prepare(domain)
        with pytest.raises(RecordingFailed, match="mode tenant_fair"):
            certified(lambda: None)
        assert left(domain) == []
        domain.db.execute("INSERT INTO tenantfair_policy (id) VALUES (1) ON CONFLICT DO NOTHING")


def test_bulk_work_is_one_row_and_what_rolls_back_none(domain: Bench) -> None:
    a_recording()
    domain.queued("bulk", 5000)
    kinds = domain.db.execute(
        f"SELECT kind, n FROM {JOURNAL} WHERE scope_key = 'bulk' ORDER BY step"
    ).fetchall()
    assert [tuple(row) for row in kinds if row.kind == "run"] == [("run", 5000)]
    written = rows(domain)
    domain.holding("DELETE FROM tenantfair_run WHERE scope_key = 'bulk'").rollback()
    domain.db.execute("DELETE FROM tenantfair_run WHERE finished_at IS NOT NULL")
    assert rows(domain) == written


def test_claims_and_heartbeats_write_no_touch(domain: Bench) -> None:
    """A row for each statement that changes nothing for the bound is little only where those are few."""
    a_recording()
    leases = claim(domain, 8).leases + claim(domain, 8).leases
    held = {what: [getattr(lease, what) for lease in leases] for what in ("run_id", "claim_token")}
    assert all(extended for _, extended in domain.db.execute(load("heartbeat_leases"), held).fetchall())
    assert rows(domain)
    assert not domain.db.execute(f"SELECT FROM {JOURNAL} WHERE kind = 'touch'").fetchall()


def test_flush_is_possible_while_it_records(domain: Bench) -> None:
    with pytest.raises(RecordingFailed):
        certified(lambda: call_command("flush", interactive=False, verbosity=0))
    assert left(domain) == []
