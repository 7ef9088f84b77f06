"""A witness of live claims: what the database itself says of their order, their commit and their outcomes.

Triggers write a journal in the transaction of whatever they see, so what is rolled back is not in it; calls
hold the policy row to their end, so its order is theirs. What a caller tells of a call is only looked up, by
the call's transaction and cursor. What was admissible is read by the rules, without the package.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from psycopg import IsolationLevel

from tests.claim_support import LEASE, NOW, Bench, Claimed, Session, at, connect
from tests.oracle import Call, Cursor, Event, Refused, Ring, Rule, Trace, Visit

_JOURNAL = """
CREATE TABLE tests_journal (
    seq      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    xid      xid8 NOT NULL DEFAULT pg_current_xact_id(),
    kind     text NOT NULL,
    scope    text,
    old_laps bigint,
    old      bigint,
    new_laps bigint,
    new      bigint
);
CREATE FUNCTION tests_journal_policy() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (OLD.scan_laps, OLD.scan_ring_position) <> (NEW.scan_laps, NEW.scan_ring_position) THEN
        INSERT INTO tests_journal (kind, old_laps, old, new_laps, new)
        VALUES ('call', OLD.scan_laps, OLD.scan_ring_position, NEW.scan_laps, NEW.scan_ring_position);
    END IF;
    IF to_jsonb(OLD) - '{scan_laps,scan_ring_position,scan_fruitless,updated_at}'::text[]
        IS DISTINCT FROM to_jsonb(NEW) - '{scan_laps,scan_ring_position,scan_fruitless,updated_at}'::text[]
    THEN
        INSERT INTO tests_journal (kind, new) VALUES ('policy', NEW.scan_budget);
    END IF;
    RETURN NULL;
END $$;
CREATE FUNCTION tests_journal_partition() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.admission_epoch <> NEW.admission_epoch THEN
        INSERT INTO tests_journal (kind, scope, new)
        VALUES ('epoch', NEW.scope_key, NEW.admission_epoch - OLD.admission_epoch);
    END IF;
    IF (OLD.max_active, OLD.partition_version) IS DISTINCT FROM (NEW.max_active, NEW.partition_version) THEN
        INSERT INTO tests_journal (kind) VALUES ('policy');
    END IF;
    RETURN NULL;
END $$;
CREATE FUNCTION tests_journal_schedule() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF coalesce(OLD.unfinished_count, 0) > 0 AND coalesce(NEW.unfinished_count, 0) = 0 THEN
        INSERT INTO tests_journal (kind, scope) VALUES ('left', OLD.scope_key);
    ELSIF coalesce(OLD.unfinished_count, 0) = 0 AND NEW.unfinished_count > 0 THEN
        INSERT INTO tests_journal (kind, scope, new) VALUES ('joined', NEW.scope_key, NEW.ring_position);
    END IF;
    RETURN NULL;
END $$;
CREATE FUNCTION tests_journal_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO tests_journal (kind, scope, new) VALUES ('outcome', NEW.scope_key, 1);
    RETURN NULL;
END $$;
CREATE TRIGGER tests_journal AFTER INSERT OR UPDATE OR DELETE ON tenantfair_policy
    FOR EACH ROW EXECUTE FUNCTION tests_journal_policy();
CREATE TRIGGER tests_journal AFTER UPDATE ON tenantfair_partition
    FOR EACH ROW EXECUTE FUNCTION tests_journal_partition();
CREATE TRIGGER tests_journal AFTER INSERT OR UPDATE OR DELETE ON tenantfair_schedule
    FOR EACH ROW EXECUTE FUNCTION tests_journal_schedule();
CREATE TRIGGER tests_journal AFTER UPDATE ON tenantfair_run
    FOR EACH ROW
    WHEN (
        NEW.claim_token <> coalesce(OLD.claim_token, '00000000-0000-0000-0000-000000000000')
        OR NEW.poisoned_at IS NOT NULL AND OLD.poisoned_at IS NULL
    )
    EXECUTE FUNCTION tests_journal_run();
"""
_REMOVE = """
DROP FUNCTION tests_journal_policy, tests_journal_partition, tests_journal_schedule, tests_journal_run
    CASCADE;
DROP TABLE tests_journal;
"""
_STATE = """
SELECT pg_current_snapshot()::text AS snapshot, scan_laps, scan_ring_position, scan_budget,
    (SELECT array_agg(oid || ' ' || xmin ORDER BY oid) FROM pg_proc WHERE proname ^@ 'tenantfair_')
        AS functions
FROM tenantfair_policy
"""
_RING = "SELECT ring_position, scope_key FROM tenantfair_schedule WHERE unfinished_count > 0 ORDER BY 1"
_SINCE = "SELECT * FROM tests_journal WHERE NOT pg_visible_in_snapshot(xid, %s::pg_snapshot) ORDER BY seq"
_ADMISSIBLE = """
SELECT DISTINCT run.scope_key
FROM tenantfair_run AS run JOIN tenantfair_partition AS part USING (scope_key), tenantfair_policy AS policy
WHERE run.status = 'running' AND run.poisoned_at IS NULL AND (
    run.tenant_admitted_at IS NOT NULL AND (run.wake_at <= %(now)s OR run.claimed_at < %(cutoff)s)
    OR run.wake_at <= %(now)s AND coalesce(part.max_active, policy.max_active) > (
        SELECT count(*) FROM tenantfair_run AS admitted
        WHERE admitted.scope_key = run.scope_key AND admitted.tenant_admitted_at IS NOT NULL
    )
)
"""


@dataclass(frozen=True)
class Record:
    """One call as its caller tells it, and what was read beside it in its transaction."""

    found: Claimed
    demand: int
    admissible: frozenset[str]
    functions: tuple[str, ...]

    @property
    def key(self) -> tuple[int, Cursor]:
        call = self.found.call
        return call.transaction_id, (call.laps_before, call.cursor_before)

    def visits(self) -> tuple[Visit, ...]:
        return tuple(
            Visit(
                row.visit_ordinal,
                row.cursor_before,
                row.cursor_after,
                row.scope_key,
                row.disposition,
                row.outcome_count,
                row.epoch_delta,
            )
            for row in self.found.inspections
        )


class Witness:
    """Sees everything from its making on."""

    def __init__(self, bench: Bench) -> None:
        self.records: list[Record] = []
        self._bench = bench
        self._reader = bench.session()
        self._reader.isolation_level = IsolationLevel.REPEATABLE_READ
        with self._reader.transaction():
            self._opening = self._reader.execute(_STATE).fetchone()
            self._ring: Ring = tuple(tuple(row) for row in self._reader.execute(_RING).fetchall())

    def begin(self, demand: int = 1, function: str = "tenantfair_claim") -> Session:
        """Make and record a call in a transaction that is left open."""
        session = self._bench.session()
        session.execute("BEGIN")
        times = {"now": NOW, "cutoff": at(-LEASE)}
        admissible = frozenset(row.scope_key for row in session.execute(_ADMISSIBLE, times).fetchall())
        found = self._bench.claim(demand, by=session, function=function)
        # Read after the call: a replacement that comes between counts as one before it.
        functions = tuple(session.execute(_STATE).fetchone().functions)
        self.records.append(Record(found, demand, admissible, functions))
        return session

    def claim(self, demand: int = 1, function: str = "tenantfair_claim") -> Claimed:
        self.begin(demand, function).execute("COMMIT")
        return self.records[-1].found

    def trace(self, records: Iterable[Record] | None = None) -> Trace:
        """Put records, in whatever order they come, where the journal says. Raises Refused."""
        told = {record.key: record for record in (self.records if records is None else records)}
        with self._reader.transaction():
            closing = self._reader.execute(_STATE).fetchone()
            journal = self._reader.execute(_SINCE, [self._opening.snapshot]).fetchall()
            known = {(int(row.xid), (row.old_laps, row.old)) for row in journal if row.kind == "call"}
            undone = {record.key[1] for key, record in told.items() if key not in known}
            for xid, _ in told.keys() - known:
                self._require_rolled_back(xid)
        return Trace(
            self._ring,
            (self._opening.scan_laps, self._opening.scan_ring_position),
            list(self._entries(journal, told, undone)),
            (closing.scan_laps, closing.scan_ring_position),
            self._opening.scan_budget,
        )

    def _require_rolled_back(self, xid: int) -> None:
        status = self._reader.execute("SELECT pg_xact_status(%s::text::xid8)", [xid]).fetchone()[0]
        if status != "aborted":
            raise Refused(Rule.EVIDENCE if status == "committed" else Rule.COMMITTED, xid)

    def _entries(
        self, journal: list[Any], told: dict[tuple[int, Cursor], Record], undone: set[Cursor]
    ) -> Iterator[Call | Event]:
        ring, functions = dict(self._ring), tuple(self._opening.functions)
        epochs: dict[int, Counter[str]] = defaultdict(Counter)
        outcomes: dict[int, Counter[str]] = defaultdict(Counter)
        for row in journal:
            match row.kind:
                case "epoch":
                    epochs[row.xid][row.scope] += row.new
                case "outcome":
                    outcomes[row.xid][row.scope] += row.new
                case "policy":
                    yield Event("the policy changed", visits=row.new)
                case "joined":
                    ring[row.new] = row.scope
                    yield Event("a scope joined the ring", ring=tuple(sorted(ring.items())))
                case "left":
                    ring = {position: scope for position, scope in ring.items() if scope != row.scope}
                    yield Event("a scope left the ring", ring=tuple(ring.items()))
                case "call":
                    before, after = (row.old_laps, row.old), (row.new_laps, row.new)
                    record = told.get((int(row.xid), before))
                    if before in undone:
                        yield Event("a call was rolled back")
                    if record and record.functions != functions:
                        functions = record.functions
                        yield Event("a function was replaced")
                    yield Call(
                        record.demand if record else 0,
                        before,
                        after,
                        record.visits() if record else None,
                        record.admissible if record else frozenset(),
                        epochs.pop(row.xid, Counter()),
                        outcomes.pop(row.xid, Counter()),
                    )
        if epochs or outcomes:
            raise Refused(Rule.EVIDENCE, "grants outside a call")


@contextmanager
def journal() -> Iterator[None]:
    """Keep the journal. Around a bench, whose sessions are closed then and hold no locks."""
    with connect() as session:
        session.execute(_JOURNAL)
    try:
        yield
    finally:
        with connect() as session:
            session.execute(_REMOVE)
