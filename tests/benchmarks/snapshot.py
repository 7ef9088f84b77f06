"""W9: somebody holds a snapshot open while 100,000 claims at demand one go by."""

from __future__ import annotations

import statistics
import time

from tests.benchmarks import seeds, site
from tests.benchmarks.bench import Bench
from tests.benchmarks.claimers import FACADE, FLOOR, OWN_FLOOR, THROUGH, Claim, claimer
from tests.benchmarks.rows import at_most, make_row
from tests.benchmarks.server import connect

CLAIMS = 100_000

_WINDOW = 500
_WITHIN = 3.0
_RECOVERED = 1.3
_RECOVERY_SECONDS = 60.0
_LONGEST_SECONDS = 240.0


def run_w9(bench: Bench, claims: int = CLAIMS) -> None:
    template = seeds.make(bench.databases, "seed_w9", seeds.many_tenants(1_000, claims // 1_000 + 30))
    growth, held, recovery = {}, {}, {}
    for variant in (FLOOR, OWN_FLOOR, FACADE):
        bench.say(f"W9: {variant}")
        with bench.databases.copy(template) as name:
            url = bench.databases.url(name)
            claim = claimer(variant, url, 1)
            with connect(url) as holder:
                fresh = _window(claim)
                holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                holder.execute("SELECT count(*) FROM tenantfair_policy")
                done = _go_by(claim, claims - 2 * _WINDOW)
                held[variant] = _window(claim)
                growth[variant] = held[variant] / fresh
                holder.execute("COMMIT")
            recovery[variant] = _recovery(claim, fresh)
            site.leave()
    bench.databases.drop(template)
    common = {"demand": 1, "through": THROUGH[FACADE]}
    note = "" if done >= claims - 2 * _WINDOW else f"stopped by the clock after {done:,} claims"
    bench.add(
        make_row("W9", "p50 behind a held snapshot", [held], FACADE, unit="ms", note=note, **common),
        make_row(
            "W9", "the same against fresh", [growth], FACADE, unit="x", target=at_most(_WITHIN), **common
        ),
        make_row(
            "W9",
            "back to 1.3 x fresh after release",
            # A multiple of no time at all would say nothing.
            [{FACADE: recovery[FACADE]}],
            FACADE,
            unit="s",
            target=at_most(_RECOVERY_SECONDS),
            **common,
        ),
    )


def _window(claim: Claim) -> float:
    """The median of a window of claims, in ms."""
    times = []
    for _ in range(_WINDOW):
        start = time.perf_counter()
        claim()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def _go_by(claim: Claim, number: int) -> int:
    start = time.monotonic()
    for done in range(number):
        if time.monotonic() - start > _LONGEST_SECONDS:
            return done
        claim()
    return number


def _recovery(claim: Claim, fresh: float) -> float:
    start = time.monotonic()
    while (passed := time.monotonic() - start) < 2 * _RECOVERY_SECONDS:
        if _window(claim) <= _RECOVERED * fresh:
            return passed
        time.sleep(2)  # autovacuum needs time of its own: how long it takes is the figure
    return passed
