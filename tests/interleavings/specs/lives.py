"""S15-S19, S21: signals, pruning, partitions, counters of several tenants at once, a flush."""

from __future__ import annotations

from dataclasses import replace

from tests.interleavings.case import Case
from tests.interleavings.operations import (
    claims,
    deletes_partition,
    enqueues,
    enqueues_many,
    flushes,
    prunes,
    retries,
    settles,
    signals,
)
from tests.interleavings.specs.rules import no_signal_lost, of
from tests.interleavings.state import State, runs

HELD = runs(r1="a claimed")
BOTH_HELD = runs(r1="a claimed", r2="b claimed")
TABLES = ("tenantfair_policy", "tenantfair_partition", "tenantfair_schedule", "tenantfair_run")
ALL_FOUR = of("enqueued | enqueued | r6 queued, r7 queued, r8 queued, r9 queued")

CASES = [
    # A wait that meets its signal while the row is locked is not recorded; the holder comes again.
    Case(
        "S15",
        State(HELD),
        {"A": settles("waiting", "r1"), "B": signals("r1", row=True)},
        of(
            "accepted | told claimed | r1 queued",
            "accepted | told queued | r1 queued",
            "busy | told claimed | r1 claimed@old",
        ),
        no_signal_lost,
    ),
    Case(
        "S15 claim",
        State(runs(r1="a waiting")),
        {"A": claims(), "B": signals("r1", row=True)},
        of("nothing | told queued | r1 queued", "r1 | told queued | r1 claimed@A"),
        no_signal_lost,
    ),
    Case(
        "S15 three",
        State(HELD),
        {
            "A": settles("waiting", "r1", row=False),
            "B": signals("r1"),
            "C": claims(only=("policy", "partitions", "recheck")),
        },
        of(
            "accepted | told claimed | nothing | r1 queued",
            "accepted | told queued | nothing | r1 queued",
            "accepted | told claimed | r1 | r1 claimed@C",
            "accepted | told queued | r1 | r1 claimed@C",
            "busy | told claimed | nothing | r1 claimed@old",
        ),
        no_signal_lost,
    ),
    Case(
        "S16",
        State(runs(r1="a failed")),
        {"A": prunes(), "B": retries("r1", row=True)},
        of("pruned 0 | queued | r1 queued", "pruned 1 | RunNotFound | "),
    ),
    Case(
        "S16 claim",
        State(runs(r1="a failed")),
        {"A": claims(), "B": retries("r1", row=True)},
        of("nothing | queued | r1 queued", "r1 | queued | r1 claimed@A"),
    ),
    Case(
        "S17",
        State(scopes={"a": None}),
        {"A": deletes_partition("a"), "B": enqueues("r9", scopes="a")},
        of("IntegrityError | enqueued | r9 queued", "deleted | enqueued | r9 queued"),
    ),
    Case(
        "S17 two",
        State(scopes={"a": None, "b": None}),
        {"A": deletes_partition("a"), "B": enqueues("r8", "r9", scopes="ab")},
        of("IntegrityError | enqueued | r8 queued, r9 queued", "deleted | enqueued | r8 queued, r9 queued"),
    ),
    Case(
        "S18",
        State(),
        {"A": enqueues("r6", "r7", scopes="ab"), "B": enqueues("r8", "r9", scopes="ba")},
        ALL_FOUR,
    ),
    Case(
        "S18 known",
        State(scopes={"a": None, "b": None}),
        {"A": enqueues("r6", "r7", scopes="ab"), "B": enqueues("r8", "r9", scopes="ba")},
        ALL_FOUR,
    ),
    Case(
        "S18 three",
        State(scopes={"b": None}),
        {"A": enqueues("r4", "r5", "r6", scopes="abc"), "B": enqueues("r7", "r8", "r9", scopes="cba")},
        of(f"enqueued | enqueued | {', '.join(f'r{number} queued' for number in range(4, 10))}"),
    ),
    Case(
        "S19",
        State(BOTH_HELD),
        {
            "A": settles("completed", "r1", "r2", scopes="ab"),
            "B": enqueues_many("r8", "r9", scopes="ba"),
        },
        of("accepted | enqueued | r1 completed, r2 completed, r8 queued, r9 queued"),
    ),
    Case(
        "S19 new",
        State(BOTH_HELD),
        {
            "A": settles("completed", "r2", "r1", scopes="ba"),
            "B": enqueues_many("r7", "r8", "r9", scopes="cab"),
        },
        of("accepted | enqueued | r1 completed, r2 completed, r7 queued, r8 queued, r9 queued"),
    ),
    # TRUNCATE waits for whoever has touched a table, and everybody for it.
    Case(
        "S21",
        State(runs(r1="a queued")),
        {"A": claims(), "B": flushes(TABLES)},
        of("r1 | flushed | ", "refused: not_initialized | flushed | "),
        is_ring_judged=False,
    ),
    Case(
        "S21 apart",
        State(runs(r1="a queued")),
        {"A": claims(), "B": flushes(TABLES, autocommit=True)},
        of(
            "r1 | flushed | ",
            "refused: malformed_policy | flushed | ",
            "refused: not_initialized | flushed | ",
        ),
        is_ring_judged=False,
    ),
    # Two that lock several tables in orders of their own may deadlock; the server ends one, and all is as
    # it was.
    Case(
        "S21 enqueue",
        State(runs(r1="a queued")),
        {
            "A": replace(enqueues("r9", scopes="a"), errors=("DeadlockDetected",)),
            "B": replace(flushes(TABLES, autocommit=True), errors=("DeadlockDetected",)),
        },
        of("enqueued | flushed | ", "enqueued | flushed | r9 queued"),
        is_ring_judged=False,
    ),
]
