"""The single steps of the state machine: each done for real and to the reference, the answers compared."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from typing import Any

from tenantfair import policy, runs
from tenantfair.claim import claim_due, due_work_exists
from tenantfair.exceptions import RunExists, RunNotActive, RunNotFound, StaleClaim, StaleVersion
from tests import model, reference
from tests.arena import Arena
from tests.machine_outcomes import backoff, outcome
from tests.tasks_for_tests import add

# What is due at a random time gets this delay instead.
PUT_OFF = 39_000

Step = Sequence[Any]
Override = tuple[int | None, int]


class Steps:
    """`ids` are those of all runs there ever were, `leases` all that were ever given out, good or not."""

    def __init__(self, arena: Arena, *, cap: int, attempts: int) -> None:
        self.arena = arena
        self.domain = reference.Domain()
        self.ids: list[uuid.UUID] = []
        self.leases: list[Any] = []
        self.cap, self.version, self.budget, self.attempts = cap, 1, 32, attempts
        self.partitions: set[str] = set()
        self.overrides: dict[str, Override] = {}

    def remember(self) -> Any:
        """Return what `recall` needs when a transaction is rolled back."""
        return deepcopy((self.domain, self.cap, self.version, self.budget, self.partitions, self.overrides))

    def recall(self, before: Any) -> None:
        self.domain, self.cap, self.version, self.budget, self.partitions, self.overrides = before

    def do(self, step: Step, using: str = "default") -> None:
        """Do one step in whatever transaction the alias has open."""
        name, *arguments = step
        action: Callable[..., None] = getattr(self, name)
        action(*arguments, using=using)

    # Enqueue

    def enqueue(self, tenant: str | None, delay: int, limit: int, again: bool, *, using: str) -> None:
        """Enqueue one run, `again` under an id that was used before."""
        run_id = self.ids[-1] if again and self.ids else uuid.uuid4()
        arguments = {"tenant_id": _named(tenant), "run_after": timedelta(seconds=delay), "retry_limit": limit}
        try:
            found = runs.enqueue(add, args=[1], run_id=run_id, using=using, **arguments)
        except RunExists:
            assert run_id in self.domain.runs
            return
        assert found == run_id
        assert run_id not in self.domain.runs
        self._enqueued(run_id, tenant, delay, limit)

    def enqueue_many(self, many: Sequence[tuple[str | None, int]], again: bool, *, using: str) -> None:
        new = [
            runs.NewRun(
                task=add, tenant_id=_named(tenant), run_after=timedelta(seconds=delay), run_id=uuid.uuid4()
            )
            for tenant, delay in many
        ]
        if again and self.ids and new:
            new[-1] = replace(new[-1], run_id=self.ids[-1])
        ids = [each.run_id for each in new]
        try:
            assert runs.enqueue_many(new, using=using) == ids
        except RunExists:
            assert set(ids) & self.domain.runs.keys()
            return
        assert not set(ids) & self.domain.runs.keys()
        for run_id, (tenant, delay) in zip(ids, many, strict=True):
            self._enqueued(run_id, tenant, delay, 3)

    def _enqueued(self, run_id: Any, tenant: str | None, delay: int, limit: int) -> None:
        if run_id not in self.ids:
            self.ids.append(run_id)
        self.domain.runs[run_id] = reference.Run(tenant, limit, self.domain.now + delay)

    # By holders

    def finish(self, wanted: Sequence[tuple[int, str, int, Any, int]], *, using: str) -> None:
        if not self.leases:
            return
        batch: list[Any] = []
        expected = set()
        random_times = []
        for number, kind, delay, value, wants in wanted:
            lease = self.leases[-1 - number % len(self.leases)]
            is_first = all(lease.run_id != earlier.lease.run_id for earlier in batch)
            consumed = min(wants, len(lease.signals))
            batch.append(outcome(lease, kind, delay, value, consumed))
            if not is_first:
                continue
            at_random = kind in ("backoff", "abandoned")
            said = {"backoff": "retry", "until": "snoozed"}.get(kind, kind)
            waits = PUT_OFF if at_random else delay
            carries = kind in ("yielded", "snoozed", "until", "waiting")
            if self.domain.finish(said, lease, delay=waits, value=value, consumed=consumed if carries else 0):
                expected.add(lease.run_id)
                if at_random and self.domain.runs[lease.run_id].wake is not None:
                    random_times.append((kind, lease))
        begun = time.monotonic()
        assert runs.finish(batch, using=using) == expected
        for kind, lease in random_times:
            low, high = backoff(kind, lease)
            found = self.arena.put_off(lease.run_id, PUT_OFF, using)
            assert low - (time.monotonic() - begun) <= found <= high, (kind, found)

    def heartbeat(self, numbers: Sequence[int], *, using: str) -> None:
        chosen = [self.leases[-1 - number % len(self.leases)] for number in numbers if self.leases]
        expected = {lease.run_id for lease in chosen if self.domain.heartbeat(lease)}
        assert runs.heartbeat(chosen, using=using) == expected

    def checkpoint(self, number: int, state: int, *, using: str) -> None:
        if not self.leases:
            return
        lease = self.leases[-1 - number % len(self.leases)]
        is_accepted = self.domain.checkpoint(lease, state)
        try:
            seq = runs.checkpoint(lease, state, using=using)
        except StaleClaim:
            assert not is_accepted
            return
        assert is_accepted
        assert seq == lease.checkpoint_seq + 1
        self.leases.append(lease._replace(checkpoint_seq=seq))

    # By anybody

    def outside(self, name: str, number: int, *, using: str) -> None:
        if not self.ids:
            return
        run_id = self.ids[-1 - number % len(self.ids)]
        payload = [number] if name == "signal" else []
        expected: type[Exception] | None = None
        if run_id not in self.domain.runs:
            expected = RunNotFound
        else:
            try:
                getattr(self.domain, name)(run_id, *payload)
            except reference.NotActive:
                expected = RunNotActive
        try:
            found = getattr(runs, name)(run_id, *payload, using=using)
        except RunNotFound:
            assert expected is RunNotFound
            return
        except RunNotActive:
            assert expected is RunNotActive
            return
        assert expected is None
        assert found.state == self.domain.state(self.domain.runs[run_id])

    # Caps

    def put_default(self, cap: int, offset: int | None, *, using: str) -> None:
        if self._is_written(self.version, offset, lambda seen: policy.put_default(cap, using=using, **seen)):
            self.cap, self.version = cap, self.version + 1

    def put_scan_budget(self, budget: int, offset: int | None, *, using: str) -> None:
        if self._is_written(
            self.version, offset, lambda seen: policy.put_scan_budget(budget, using=using, **seen)
        ):
            self.budget, self.version = budget, self.version + 1

    def put_override(self, tenant: str | None, cap: int, offset: int | None, *, using: str) -> None:
        _, version = self.overrides.get(tenant or "", (None, 0))
        if self._is_written(
            version, offset, lambda seen: policy.put_override(tenant, cap, using=using, **seen)
        ):
            self.overrides[tenant or ""] = cap, version + 1
            self.partitions.add(tenant or "")

    def reset_override(self, tenant: str | None, offset: int | None, *, using: str) -> None:
        scope = tenant or ""
        _, version = self.overrides.get(scope, (None, 0))
        if self._is_written(
            version if scope in self.partitions else None,
            offset,
            lambda seen: policy.reset_override(tenant, using=using, **seen),
        ):
            self.overrides[scope] = None, version + 1

    def _is_written(
        self, version: int | None, offset: int | None, write: Callable[[dict[str, int]], Any]
    ) -> bool:
        """Write, expecting a version `offset` away from the stored one; say whether it must have worked."""
        seen = {} if offset is None else {"expected_version": max(0, (version or 0) + offset)}
        fits = version is not None and seen.get("expected_version", version) == version
        try:
            found = write(seen)
        except StaleVersion:
            assert not fits
            return False
        assert fits
        assert found.version == (version or 0) + 1
        return True

    # Claims

    def claim(
        self,
        demand: int,
        preference: Any,
        locked: Collection[int] = (),
        scopes: Collection[str] = (),
        *,
        walking: bool = False,
    ) -> None:
        """Claim, and be granted exactly what the model says; if `walking`, by a walk that is over at once."""
        rows = self.arena.rows()
        told = self._told(rows, locked, scopes)
        now = self.arena.row("SELECT clock_timestamp()")[0]
        call = told.claim(
            now=now,
            expired_before=now - timedelta(seconds=reference.LEASE),
            demand=demand,
            preference=preference,
        )
        assert due_work_exists() or not call.outcomes
        found = claim_due(demand, preference=preference, until=(0, 0) if walking else None)
        assert found.earlier == ()
        names = {row.id: row.run_id for row in rows.values()}
        granted = [lease for lease in call.outcomes if not lease.poison]
        poisoned = [names[lease.id] for lease in call.outcomes if lease.poison]
        assert [(lease.run_id, lease.work_class, lease.attempt) for lease in found.leases] == [
            (names[lease.id], lease.work_class, lease.attempt) for lease in granted
        ]
        assert [run.run_id for run in found.poisoned] == poisoned
        denials = Counter(each.disposition for each in call.inspections if each.disposition != "grant")
        assert {reason: number for reason, number in found.call.denials.items() if number} == dict(denials)
        assert (found.call.inspections, found.call.outcomes) == (len(call.inspections), len(call.outcomes))
        assert found.call.after == (told.laps, told.cursor)
        epochs = self.arena.pairs("SELECT scope_key, admission_epoch FROM tenantfair_partition")
        assert epochs == {scope: told.epochs[scope] for scope in epochs}
        for lease in found.leases:
            run = self.domain.runs[lease.run_id]
            assert (lease.tenant_id, lease.checkpoint_seq, lease.failures) == (
                run.tenant,
                run.seq,
                run.failures,
            )
            assert (lease.state, lease.signals, lease.abandons) == (run.saved, run.signals, run.abandons)
            self.domain.lease(lease.run_id, lease.claim_token)
        for run_id in poisoned:
            self.domain.poison(run_id)
        self.leases += found.leases

    def _told(self, rows: dict[Any, Any], locked: Collection[int], scopes: Collection[str]) -> model.Domain:
        """What the model is told of the domain: the reference's rows, at the stored times."""
        laps, cursor = self.arena.row("SELECT scan_laps, scan_ring_position FROM tenantfair_policy")
        told = []
        for run_id, run in self.domain.runs.items():
            parked = "poisoned" if run.poisoned else None if run.status == "running" else run.status
            row = rows[run_id]
            told.append(
                model.Row(
                    row.id,
                    run.tenant or "",
                    row.wake_at,
                    row.claimed_at,
                    run.admitted,
                    run.attempts,
                    parked,
                    row.id in locked,
                )
            )
        return model.Domain(
            positions=self.arena.pairs("SELECT scope_key, ring_position FROM tenantfair_schedule"),
            rows=told,
            cap=self.cap,
            overrides={scope: cap for scope, (cap, _) in self.overrides.items() if cap is not None},
            locked_scopes=set(scopes),
            budget=self.budget,
            max_attempts=self.attempts,
            cursor=cursor,
            laps=laps,
            epochs=Counter(self.arena.pairs("SELECT scope_key, admission_epoch FROM tenantfair_partition")),
        )


def _named(tenant: str | None) -> Any:
    return runs.TENANTLESS if tenant is None else tenant
