"""The processes of the soak: claimers and a producer, which use the public API alone and keep diaries.

They go on whatever the database does: an error costs the connection and a short pause, and an outcome is sent
again, with the same tokens, until it is answered. They end when told by SIGTERM.
"""

from __future__ import annotations

import random
import signal
import time
import uuid
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.db import Error, connection, transaction

from tenantfair import runs
from tenantfair.claim import Lease, claim_due
from tenantfair.exceptions import ClaimUnavailable, RunBusy, RunNotActive, RunNotFound
from tests.faults.diary import Diary
from tests.faults.tasks import work

_PAUSE_SECONDS = 0.02
_PRODUCER_PAUSE_SECONDS = 0.1
_ERROR = {"exception_class_path": "builtins.ValueError", "traceback": "as the soak wants it"}
# In hundredths. What is not named is given up, as by a worker that has lost it: its lease ends.
_SHARES = {"completed": 34, "snoozed": 32, "yielded": 12, "released": 5, "retried": 8, "failed": 8}
_RENEWS = 0.05
_GIVES_UP = 0.002


class _Told:
    """Whether SIGTERM has come."""

    def __init__(self) -> None:
        self.to_end = False
        signal.signal(signal.SIGTERM, self._end)

    def _end(self, *_: object) -> None:
        self.to_end = True


def claim(diary_path: str, demand: str, seed: str) -> None:
    """Claim up to `demand` runs, or else walk on for a lap; say so, finish them in one batch, and so on."""
    told, chance, diary = _Told(), random.Random(seed), Diary(Path(diary_path))
    end: tuple[int, int] | None = None
    while not told.to_end:
        try:
            batch = claim_due(int(demand), until=end)
        except ClaimUnavailable:
            end = None
            time.sleep(_PAUSE_SECONDS)
            continue
        except Error:
            end = None
            _start_over()
            continue
        if end is None and not batch.call.outcomes:
            laps, cursor = batch.call.before
            end = (laps + 1, cursor)
            continue
        end = None
        if not batch.leases:
            time.sleep(_PAUSE_SECONDS)
            continue
        diary.write_at(
            "c",
            [
                [
                    lease.run_id.hex,
                    lease.claim_token.hex,
                    lease.tenant_id,
                    lease.claimed_at.timestamp(),
                    lease.attempt,
                ]
                for lease in batch.leases
            ],
        )
        if chance.random() < _RENEWS:
            _renew(diary, batch.leases)
        _finish(diary, [_outcome(lease, chance) for lease in batch.leases if chance.random() > _GIVES_UP])


def _renew(diary: Diary, leases: Any) -> None:
    asked = time.time()
    try:
        held = runs.heartbeat(leases)
    except Error:
        _start_over()
        return
    diary.write("h", asked, [lease.claim_token.hex for lease in leases if lease.run_id in held])


def _outcome(lease: Lease, chance: random.Random) -> tuple[str, runs.Outcome]:
    (kind,) = chance.choices(list(_SHARES), list(_SHARES.values()))
    made: runs.Outcome
    match kind:
        case "completed":
            made = runs.Completed(lease, lease.claim_token.hex)
        case "snoozed":
            made = runs.Snoozed(lease, delay=timedelta(0))
        case "yielded":
            made = runs.Yielded(lease)
        case "released":
            made = runs.Released(lease, started=lease.attempt > 1 or chance.random() < 0.5)
        case "retried":
            made = runs.Retry(lease, _ERROR, timedelta(0))
            if lease.failures >= lease.retry_limit:
                kind = "failed"
        case _:
            made = runs.Failed(lease, _ERROR)
    return kind, made


def _finish(diary: Diary, outcomes: list[tuple[str, runs.Outcome]]) -> None:
    """Send the outcomes until they are answered; what a lost answer leaves open is called neither."""
    if not outcomes:
        return
    tokens = {outcome.lease.run_id: outcome.lease.claim_token.hex for _, outcome in outcomes}
    diary.write_at("f", [[tokens[outcome.lease.run_id], kind] for kind, outcome in outcomes])
    open_ended = False
    while True:
        try:
            accepted = runs.finish([outcome for _, outcome in outcomes])
        except Error:
            open_ended = True
            _start_over()
            continue
        refused = () if open_ended else tokens.keys() - accepted
        diary.write_at("a", [tokens[run] for run in accepted], [tokens[run] for run in refused])
        return


def _start_over() -> None:
    connection.close()
    time.sleep(_PAUSE_SECONDS)


def produce(diary_path: str, tenants: str, backlog: str, seed: str) -> None:
    """Keep about `backlog` runs unfinished, for tenants named with their shares, and revoke some."""
    told, chance, diary = _Told(), random.Random(seed), Diary(Path(diary_path))
    shares = {name: int(share) for name, share in (each.split("=") for each in tenants.split(","))}
    recent: list[uuid.UUID] = []
    while not told.to_end:
        try:
            if _unfinished() > int(backlog):
                _revoke(diary, chance, recent)
                time.sleep(_PRODUCER_PAUSE_SECONDS)
                continue
            recent = [*recent, *_enqueue(diary, chance, shares, min(250, int(backlog)))][-1000:]
        except Error:
            _start_over()


def _unfinished() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT coalesce(sum(unfinished_count), 0) FROM tenantfair_schedule")
        return int(cursor.fetchone()[0])


def _enqueue(diary: Diary, chance: random.Random, shares: dict[str, int], count: int) -> list[uuid.UUID]:
    """Enqueue runs of a few tenants in one transaction, which now and then is rolled back."""
    ids = [uuid.uuid4() for _ in range(count)]
    names = chance.choices(list(shares), list(shares.values()), k=count)
    new = [
        runs.NewRun(task=work, tenant_id=name, run_id=run_id) for name, run_id in zip(names, ids, strict=True)
    ]
    told = [run_id.hex for run_id in ids]
    diary.write_at("e", "", told)
    with transaction.atomic():
        runs.enqueue_many(new)
        if chance.random() < 0.05:
            diary.write("r", told)
            transaction.set_rollback(True)
            return []
    diary.write("k", told)
    return ids


def _revoke(diary: Diary, chance: random.Random, recent: list[uuid.UUID]) -> None:
    if not recent:
        return
    run_id = chance.choice(recent)
    diary.write_at("x", run_id.hex)
    try:
        # It may have ended, or somebody is just at it.
        with suppress(RunBusy, RunNotActive, RunNotFound):
            chance.choice([runs.cancel, runs.interrupt, runs.interrupt])(run_id)
    finally:
        diary.write_at("y", run_id.hex)
