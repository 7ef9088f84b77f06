"""A machine that does to a domain whatever the public API can do, in any order, and checks every step.

What it expects comes from `tests/reference.py`, what a claim grants from `tests/model.py`; the rules of
`tests/invariants.py` hold after each step.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from django.db import transaction
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tenantfair import policy, runs
from tenantfair.claim import claim_due
from tenantfair.exceptions import ClaimUnavailable, RunNotFound
from tests.arena import OTHER, Arena
from tests.factories import policy_in_force
from tests.invariants import Watcher
from tests.machine_steps import Step, Steps
from tests.reference import LEASE

# Jumps are whole numbers of 6,000 seconds, and no delay or lease is: what is due when does not depend on how
# long the steps themselves take.
JUMPS = (6_000, 42_000, 240_000)
DELAYS = (0, 0, 0, 39_000, 219_000)
KINDS = (
    "completed",
    "completed",
    "completed",
    "failed",
    "retry",
    "retry",
    "backoff",
    "yielded",
    "snoozed",
    "until",
    "waiting",
    "released",
    "returned",
    "abandoned",
)

tenants = st.sampled_from(("a", "b", "c", None))
delays = st.sampled_from(DELAYS)
# Counted from the latest, which matters most often.
numbers = st.one_of(st.integers(0, 3), st.integers(0, 30))
rarely = st.sampled_from((False,) * 9 + (True,))
caps = st.integers(1, 4)
# From the stored version to the expected one; None expects nothing.
offsets = st.sampled_from((None, None, 0, 0, 1, -1))
demands = st.sampled_from((1, 1, 2, 3, 5, 8, 9, 40))
ends = st.tuples(st.sampled_from(KINDS), delays, st.sampled_from((None, 1, "two")), st.integers(0, 2))
outcomes = st.tuples(numbers, ends).map(lambda found: (found[0], *found[1]))
steps: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("enqueue"), tenants, delays, st.integers(0, 2), rarely),
    st.tuples(st.just("enqueue_many"), st.lists(st.tuples(tenants, delays), max_size=6), rarely),
    st.tuples(st.just("finish"), st.lists(outcomes, min_size=1, max_size=4)),
    st.tuples(st.just("heartbeat"), st.lists(numbers, min_size=1, max_size=4)),
    st.tuples(st.just("checkpoint"), numbers, st.integers(1, 3)),
    st.tuples(st.just("outside"), st.sampled_from(("cancel", "interrupt", "retry", "signal")), numbers),
    st.tuples(st.just("put_default"), caps, offsets),
    st.tuples(st.just("put_override"), tenants, caps, offsets),
    st.tuples(st.just("reset_override"), tenants, offsets),
    st.tuples(st.just("put_scan_budget"), st.sampled_from((32, 33, 64)), offsets),
)


class Machine(RuleBasedStateMachine):
    """`looks` counts how often everything was compared, of all machines of the class."""

    arena: ClassVar[Arena]
    looks: ClassVar[int] = 0
    steps: Steps

    @initialize(cap=caps, attempts=st.integers(1, 3))
    def begin(self, cap: int, attempts: int) -> None:
        self.arena.clear()
        policy_in_force(max_active=cap, max_attempts=attempts, lease_seconds=LEASE)
        self.begun = time.monotonic()
        self.watcher = Watcher()
        self.steps = Steps(self.arena, cap=cap, attempts=attempts)

    @rule(step=steps)
    def by_itself(self, step: Step) -> None:
        self.steps.do(step)

    @rule(many=st.lists(st.tuples(tenants, delays), min_size=1, max_size=8))
    def more_work(self, many: Sequence[tuple[str | None, int]]) -> None:
        self.steps.do(("enqueue_many", many, False))

    @rule(demand=demands, wanted=st.lists(ends, min_size=1, max_size=8))
    def claim_and_finish(self, demand: int, wanted: Sequence[Any]) -> None:
        known = len(self.steps.leases)
        self.steps.claim(demand, None)
        new = range(len(self.steps.leases) - known)
        self.steps.do(("finish", [(number, *end) for number, end in zip(new, wanted, strict=False)]))

    @rule(number=st.integers(0, 30), end=ends)
    def somebody_comes_late(self, number: int, end: Any) -> None:
        """Of all leases ever given out any, most often one that is no good any more."""
        self.steps.do(("finish", [(number, *end)]))

    @rule(some=st.lists(steps, min_size=1, max_size=4), end=st.sampled_from(("commit", "rollback", "kill")))
    def in_a_transaction(self, some: Sequence[Step], end: str) -> None:
        before = self.steps.remember()
        if end == "kill":
            with self.arena.killed():
                for step in some:
                    self.steps.do(step, OTHER)
        else:
            with transaction.atomic():
                for step in some:
                    self.steps.do(step)
                transaction.set_rollback(end == "rollback")
        if end != "commit":
            self.steps.recall(before)

    @rule(first=steps, undone=st.lists(steps, min_size=1, max_size=3), last=steps)
    def with_a_savepoint_rolled_back(self, first: Step, undone: Sequence[Step], last: Step) -> None:
        with transaction.atomic():
            self.steps.do(first)
            before = self.steps.remember()
            with transaction.atomic():
                for step in undone:
                    self.steps.do(step)
                transaction.set_rollback(True)
            self.steps.recall(before)
            self.steps.do(last)

    @rule(demand=demands, preference=st.sampled_from((None, "ready", "expired")), walking=st.booleans())
    def claim(self, demand: int, preference: Any, walking: bool) -> None:
        self.steps.claim(demand, preference, walking=walking)

    @rule(demand=demands, locked=st.sets(numbers, max_size=3), scopes=st.sets(tenants, max_size=2))
    def claim_beside_locks(self, demand: int, locked: set[int], scopes: set[str | None]) -> None:
        held = {row.id for place, row in enumerate(self.arena.rows().values()) if place in locked}
        names = {scope or "" for scope in scopes}
        with self.arena.locked([*held], [*names]):
            self.steps.claim(demand, None, held, names)

    @rule(demand=demands, end=st.sampled_from(("refused", "rollback", "kill")))
    def claim_that_is_undone(self, demand: int, end: str) -> None:
        """The leases of a claim that never committed are no good."""
        if end == "kill":
            with self.arena.killed():
                self.steps.leases += claim_due(demand, using=OTHER, allow_in_transaction=True).leases
            return
        with transaction.atomic():
            if end == "rollback":
                self.steps.leases += claim_due(demand, allow_in_transaction=True).leases
                transaction.set_rollback(True)
                return
            with pytest.raises(ClaimUnavailable, match="open_transaction"):
                claim_due(demand)

    @rule(seconds=st.sampled_from(JUMPS))
    def time_goes_by(self, seconds: int) -> None:
        self.arena.shift(timedelta(seconds=seconds))
        self.steps.domain.now += seconds
        self.watcher.forgive()

    @rule(older_than=st.sampled_from((3_000, 63_000)))
    def prune(self, older_than: int) -> None:
        expected = runs.PruneResult(self.steps.domain.prune(older_than), 0)
        assert runs.prune(older_than=timedelta(seconds=older_than)) == expected

    @rule(tenant=tenants)
    def inspect(self, tenant: str | None) -> None:
        found = policy.inspect(tenant)
        domain = self.steps.domain
        mine = [run for run in domain.runs.values() if run.tenant == tenant]
        states = [domain.state(run) for run in mine]
        cap, version = self.steps.overrides.get(tenant or "", (None, 0))
        effective = self.steps.cap if cap is None else cap
        assert (found.cap, found.default_version) == (effective, self.steps.version)
        assert (found.source, found.override_version or 0) == (
            "default" if cap is None else "override",
            version,
        )
        assert (found.queued, found.admitted_ready) == (states.count("queued"), states.count("ready"))
        assert found.admitted_claimed == states.count("claimed")
        assert found.debt == max(0, states.count("ready") + states.count("claimed") - effective)
        assert found.unfinished == sum(run.finished is None for run in mine)

    @rule(number=numbers)
    def get(self, number: int) -> None:
        if not self.steps.ids:
            return
        run_id = self.steps.ids[-1 - number % len(self.steps.ids)]
        run = self.steps.domain.runs.get(run_id)
        try:
            found = runs.get(run_id)
        except RunNotFound:
            assert run is None
            return
        assert run is not None
        assert found.state == self.steps.domain.state(run)
        assert (found.failures, found.result) == (run.failures, run.result)

    # After every step

    @invariant()
    def nothing_is_broken(self) -> None:
        if hasattr(self, "steps"):
            assert self.watcher.look(self.arena.eye) == []
            type(self).looks += 1

    @invariant()
    def everything_is_as_predicted(self) -> None:
        if not hasattr(self, "steps"):
            return
        domain = self.steps.domain
        rows = self.arena.rows()
        assert rows.keys() == domain.runs.keys()
        for run_id, row in rows.items():
            run = domain.runs[run_id]
            found = _columns(row)
            assert found == {name: getattr(run, name) for name in found}, run_id
            for shown, moment in ((row.wake, run.wake), (row.claimed, run.claimed)):
                assert (shown is None) == (moment is None), run_id
                late = 0 if moment is None else moment - domain.now - shown
                assert -1 < late < time.monotonic() - self.begun + 1, run_id
        self._caps_are_as_predicted()

    def _caps_are_as_predicted(self) -> None:
        steps = self.steps
        stored = self.arena.row("SELECT max_active, policy_version, scan_budget FROM tenantfair_policy")
        assert tuple(stored) == (steps.cap, steps.version, steps.budget)
        partitions = self.arena.pairs(
            "SELECT scope_key, ARRAY[max_active, partition_version] FROM tenantfair_partition"
        )
        assert steps.overrides.keys() <= partitions.keys()
        for scope, override in partitions.items():
            assert tuple(override) == steps.overrides.get(scope, (None, 0)), scope
        steps.partitions = set(partitions)


def _columns(row: Any) -> dict[str, Any]:
    """What a stored row says, in the words of the reference."""
    return {
        "tenant": row.tenant_id,
        "retry_limit": row.retry_limit,
        "status": row.status,
        "token": row.claim_token,
        "admitted": row.tenant_admitted_at is not None,
        "poisoned": row.poisoned_at is not None,
        "attempts": row.claim_attempts,
        "abandons": row.claim_abandons,
        "failures": row.failures,
        "seq": row.checkpoint_seq,
        "saved": row.state,
        "result": row.result,
        "signals": row.pending_signals,
    }
