"""The domain as committed, in one statement, and what must always hold of it (invariants I1-I10).

Committed rows change only where a session ends its transaction, so that is when the stage looks.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import Any

# Nothing in it changes from one schedule to the next but what the sessions did, so equal texts are equal
# domains.
LOOK = b"""
SELECT json_build_object(
    'policies', (
        SELECT json_agg(json_build_object(
            'admission_mode', admission_mode, 'max_active', max_active, 'max_attempts', max_attempts,
            'scan_laps', scan_laps, 'scan_ring_position', scan_ring_position
        ))
        FROM tenantfair_policy
    ),
    'partitions', (
        SELECT json_object_agg(
            scope_key, json_build_object('max_active', max_active, 'epoch', admission_epoch)
            ORDER BY scope_key
        )
        FROM tenantfair_partition
    ),
    'ring', (
        SELECT json_object_agg(scope_key, json_build_object(
            'position', ring_position, 'count', unfinished_count, 'in_ring', in_ring
        ) ORDER BY scope_key)
        FROM tenantfair_schedule
    ),
    'pending', (SELECT count(*) FROM tenantfair_pending),
    'runs', (
        SELECT json_object_agg(
            'r' || ltrim(right(run_id::text, 12), '0'),
            json_build_object(
                'scope', scope_key, 'status', status, 'token', claim_token,
                'is_timed', claimed_at IS NOT NULL,
                'is_live', claimed_at > clock_timestamp() - interval '1 minute',
                'is_waking', wake_at IS NOT NULL, 'is_due', wake_at <= clock_timestamp(),
                'is_admitted', tenant_admitted_at IS NOT NULL, 'is_poisoned', poisoned_at IS NOT NULL,
                'is_finished', finished_at IS NOT NULL, 'attempts', claim_attempts, 'signals', pending_signals
            )
            ORDER BY run_id
        )
        FROM tenantfair_run
    )
)::text
"""

TERMINAL = frozenset({"completed", "failed", "cancelled"})


def run_name(run_id: str) -> str:
    """Return the short name of a run whose id was made by `state.run_id`: r1, r2, ..."""
    return f"r{int(run_id.replace('-', ''), 16)}"


class Domain:
    """All rows that matter, as one snapshot showed them."""

    def __init__(self, text: str) -> None:
        found = json.loads(text)
        self.text = text
        self.policies: list[dict[str, Any]] = found["policies"] or []
        self.partitions: dict[str, Any] = found["partitions"] or {}
        self.ring: dict[str, Any] = found["ring"] or {}
        self.pending: int = found["pending"]
        self.runs: dict[str, Any] = found["runs"] or {}

    @property
    def policy(self) -> dict[str, Any]:
        return self.policies[0] if self.policies else {}

    @property
    def cursor(self) -> tuple[int, int]:
        return (self.policy.get("scan_laps", 0), self.policy.get("scan_ring_position", 0))

    def cap(self, scope: str) -> int:
        return (self.partitions.get(scope, {}).get("max_active")) or self.policy.get("max_active") or 0

    def admitted(self, scope: str) -> list[str]:
        return [name for name, run in self.runs.items() if run["scope"] == scope and run["is_admitted"]]

    def word(self, name: str) -> str:
        """Return how a run stands, as people see it, and whose token it has."""
        run = self.runs[name]
        if run["status"] != "running":
            return str(run["status"])
        if run["is_poisoned"]:
            return "poisoned"
        if run["token"]:
            return f"claimed@{run['token'].partition('@')[2] or '?'}"
        if not run["is_due"]:
            return "scheduled"
        return "ready" if run["is_admitted"] else "queued"

    @cached_property
    def words(self) -> str:
        return ", ".join(f"{name} {self.word(name)}" for name in sorted(self.runs))


def violations(now: Domain, first: Domain, *, may_owe: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield what is broken. `first` is the domain before the schedule; `may_owe` may have more admitted
    than the cap.
    """
    yield from _runs(now)
    yield from _counts(now)
    yield from _ring(now, first)
    for scope in {run["scope"] for run in now.runs.values()} - may_owe:
        if now.policy.get("admission_mode") == "tenant_fair" and len(now.admitted(scope)) > now.cap(scope):
            yield f"I1 {scope!r} has {now.admitted(scope)} admitted and a cap of {now.cap(scope)}"


def _runs(now: Domain) -> Iterator[str]:
    tokens = Counter(run["token"] for run in now.runs.values() if run["token"])
    yield from (f"I4 a token is held {n} times" for n in tokens.values() if n > 1)
    for name, run in now.runs.items():
        healthy = run["status"] == "running" and not run["is_poisoned"]
        if run["token"] and not (healthy and run["is_admitted"]):
            yield f"I2 {name} has a token and is not admitted, or not running, or poisoned"
        if run["is_admitted"] and not (healthy and (run["token"] or run["is_due"])):
            yield f"I3 {name} is admitted and neither claimed nor due"
        if bool(run["token"]) != bool(run["is_timed"]):
            yield f"I4 {name} has a token without its time, or the time without a token"
        if healthy and bool(run["token"]) == bool(run["is_waking"]):
            yield f"I3 {name} is healthy and is both due at a time and claimed, or neither"
        if run["attempts"] > now.policy.get("max_attempts", 5):
            yield f"I9 {name} was started {run['attempts']} times"
        if run["is_poisoned"] and (run["token"] or run["is_admitted"] or run["is_waking"]):
            yield f"I10 {name} is poisoned and claimed, admitted or due"
        if (run["status"] in TERMINAL) != run["is_finished"]:
            yield f"I10 {name} is {run['status']} and its end is {run['is_finished']}"
        if run["status"] in TERMINAL and (run["token"] or run["is_admitted"] or run["is_waking"]):
            yield f"I10 {name} is {run['status']} and claimed, admitted or due"


def _counts(now: Domain) -> Iterator[str]:
    unfinished = Counter(run["scope"] for run in now.runs.values() if run["status"] not in TERMINAL)
    for scope in unfinished.keys() | now.ring.keys():
        counted = now.ring.get(scope, {}).get("count")
        if unfinished[scope] and (scope not in now.partitions or counted is None):
            yield f"I6 {scope!r} has unfinished runs and no partition or no ring position"
        elif (counted or 0) != unfinished[scope]:
            yield f"I5 {scope!r} counts {counted} and has {unfinished[scope]} unfinished"
    for scope, row in now.ring.items():
        if row["in_ring"] != (unfinished[scope] > 0):
            yield f"I6 {scope!r} is on the ring: {row['in_ring']}, with {unfinished[scope]} unfinished"
        if scope not in now.partitions:
            yield f"I6 {scope!r} has a ring position and no partition"
    if now.pending:
        yield f"I5 {now.pending} notes were never folded"


def _ring(now: Domain, first: Domain) -> Iterator[str]:
    old = {scope: row["position"] for scope, row in first.ring.items()}
    for scope, row in now.ring.items():
        if scope in old and row["position"] < old[scope]:
            yield f"I7 {scope!r} moved back to {row['position']}"
        if row["position"] not in old.values() and row["position"] <= max(old.values(), default=0):
            yield f"I7 {scope!r} is new at {row['position']}, below {max(old.values())}"
    if len({row["position"] for row in now.ring.values()}) != len(now.ring):
        yield "I7 two scopes share a ring position"
    if len(now.policies) > 1 or (first.policies and not now.policies and now.runs):
        yield f"I8 there are {len(now.policies)} policy rows"
    positions = {row["position"] for row in [*first.ring.values(), *now.ring.values()]}
    if now.cursor[1] not in positions | {0}:
        yield f"I8 the cursor is at {now.cursor[1]}, where there never was a scope"
