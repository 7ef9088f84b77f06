"""W8: enqueueing and finishing beside strangers' open transactions; and what counting costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from tests.benchmarks import seeds, site
from tests.benchmarks.bench import Bench
from tests.benchmarks.claimers import FACADE, FLOOR_FINISH
from tests.benchmarks.rows import FLOOR, OWN_FLOOR, at_most, make_row
from tests.benchmarks.server import connect

CLIENTS, STRANGERS = 4, 4
TENANTS = [f"t{number}" for number in range(8)]

_LONGEST_WAIT_MS = 50.0
_BATCH = 200

Found = dict[str, float]


def prepare(variant: str, url: str, tenants: list[str], seconds: float, place: int) -> Callable[[], Found]:
    """Run in a client process: enqueue one by one, then finish one by one what was claimed before."""
    if variant == FLOOR:
        return _prepare_floor(url, seconds, place)
    site.use(url)
    from django.db import connection

    from tenantfair import runs
    from tenantfair.claim import claim_due
    from tests.benchmarks.tasks import started_at

    leases = [lease for _ in range(_BATCH // 8) for lease in claim_due(8).leases]
    outcomes = iter([runs.Completed(lease, None) for lease in leases])
    with connection.cursor() as cursor:
        # A wait beyond this is an error, however busy the machine is.
        cursor.execute(f"SET lock_timeout = '{_LONGEST_WAIT_MS:g}ms'")
    turn = iter(range(10**9))

    def enqueue() -> None:
        runs.enqueue(started_at, tenant_id=tenants[next(turn) % len(tenants)])

    def finish() -> bool:
        outcome = next(outcomes, None)
        return outcome is not None and bool(runs.finish([outcome]))

    return lambda: {**_repeated("enqueue", enqueue, seconds), **_repeated("finish", finish, seconds)}


def _prepare_floor(url: str, seconds: float, place: int) -> Callable[[], Found]:
    session = connect(url)
    fresh, old = (
        iter(range(place * 10**8 + 10**6, 10**12)),
        iter(range(place * _BATCH + 1, (place + 1) * _BATCH + 1)),
    )

    def enqueue() -> None:
        session.execute("INSERT INTO job (id, tenant, payload) VALUES (%s, 't0', 'x')", [next(fresh)])

    def finish() -> bool:
        found = next(old, None)
        return found is not None and session.execute(FLOOR_FINISH, [[found]]).rowcount == 1

    return lambda: {**_repeated("enqueue", enqueue, seconds), **_repeated("finish", finish, seconds)}


def _repeated(name: str, action: Callable[[], object], seconds: float) -> Found:
    """Repeat until `action` says False or the time is up."""
    times, errors = [], 0
    start = time.perf_counter()
    while (before := time.perf_counter()) - start < seconds:
        try:
            if action() is False:
                break
        except Exception as error:
            if getattr(error.__cause__, "sqlstate", None) not in {"55P03", "40P01"}:
                raise
            errors += 1
        times.append(time.perf_counter() - before)
    spent = max(sum(times), 1e-9)
    return {
        f"{name} per second": len(times) / spent,
        f"{name} slowest": max(times, default=0.0) * 1e3,
        f"{name} refused": errors,
    }


def run_w8(bench: Bench) -> None:
    template = seeds.make(bench.databases, "seed_w8", seeds.many_tenants(len(TENANTS), CLIENTS * _BATCH // 4))
    _behind_strangers(bench, template)
    bench.databases.drop(template)
    template = seeds.make(bench.databases, "seed_w8", seeds.one_tenant(CLIENTS * _BATCH + _BATCH))
    _cost_of_counting(bench, template)
    bench.databases.drop(template)


def _behind_strangers(bench: Bench, template: str) -> None:
    bench.say("W8: behind strangers")
    slowest, refused, deadlocks = [], [], []
    for _ in range(bench.rounds):
        with bench.databases.copy(template) as name, _strangers(bench.databases.url(name)):
            found = _four(bench, FACADE, bench.databases.url(name), TENANTS)
            with connect(bench.databases.url(name)) as session:
                row = session.execute(
                    "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
                ).fetchone()
        slowest.append({FACADE: max(max(one["enqueue slowest"], one["finish slowest"]) for one in found)})
        refused.append({FACADE: sum(one["enqueue refused"] + one["finish refused"] for one in found)})
        deadlocks.append({FACADE: float(row[0])})
    common = {"clients": CLIENTS, "through": "runs.enqueue(), runs.finish()"}
    bench.add(
        make_row(
            "W8",
            "slowest call behind strangers",
            slowest,
            FACADE,
            unit="ms",
            note="the machine's own pauses included",
            **common,
        ),
        make_row("W8", "lock waits above 50 ms", refused, FACADE, unit="waits", target=at_most(0), **common),
        make_row("W8", "deadlocks", deadlocks, FACADE, unit="deadlocks", target=at_most(0), **common),
    )


@contextmanager
def _strangers(url: str) -> Iterator[None]:
    """Sessions that have enqueued for every tenant, in different orders, and commit only at the end."""
    with ExitStack() as stack:
        sessions = [stack.enter_context(connect(url)) for _ in range(STRANGERS)]
        for place, session in enumerate(sessions):
            session.execute("BEGIN")
            for tenant in TENANTS if place % 2 else reversed(TENANTS):
                session.execute(
                    "INSERT INTO tenantfair_run (tenant_id, task_path, wake_at) VALUES (%s, 'x', now())",
                    [tenant],
                )
        yield
        for session in sessions:
            session.execute("COMMIT")


def _cost_of_counting(bench: Bench, template: str) -> None:
    bench.say("W8: one tenant, four clients")
    samples = []
    for _ in range(bench.rounds):
        sample = {}
        for variant in (FLOOR, OWN_FLOOR, FACADE):
            with bench.databases.copy(template) as name:
                url = bench.databases.url(name)
                if variant == OWN_FLOOR:
                    with connect(url) as session:
                        session.execute("ALTER TABLE tenantfair_run DISABLE TRIGGER USER")
                sample[variant] = _four(bench, variant, url, ["t0"])
        samples.append(sample)
    for action in ("enqueue", "finish"):
        found = [
            {name: sum(one[f"{action} per second"] for one in four) for name, four in sample.items()}
            for sample in samples
        ]
        bench.add(
            make_row(
                "W8",
                f"one tenant, single {action}",
                found,
                FACADE,
                unit="runs/s",
                clients=CLIENTS,
                through=f"runs.{action}()",
                note="the floor on our table is the same call without triggers",
            )
        )


def _four(bench: Bench, variant: str, url: str, tenants: list[str]) -> list[Found]:
    calls = [
        {"variant": variant, "url": url, "tenants": tenants, "seconds": bench.seconds, "place": place}
        for place in range(CLIENTS)
    ]
    return bench.clients.run(prepare, calls)
