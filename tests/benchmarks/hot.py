"""W3: a tenant with 100,000 runs in front of 200 small ones; claim, complete at once, go on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.benchmarks import seeds
from tests.benchmarks.bench import Bench
from tests.benchmarks.claimers import FACADE, FLOOR, OWN_FLOOR, THROUGH, claimer, finisher
from tests.benchmarks.rows import at_least, at_most, make_row

SMALL = 200

_HOT_BEFORE_LAST = 2
_PER_SECOND = 4_000
_LONGEST_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Served:
    """`hot` runs were claimed before the last of the small tenants had its first, or until time was up."""

    hot: int
    small: int
    per_second: float


def prepare(variant: str, url: str, demand: int, seconds: float) -> Callable[[], Served]:
    """Run in a client process: until all the small ones are served, then `seconds` more for the rate."""
    claim, finish = claimer(variant, url, demand), finisher(variant, url)

    def measure() -> Served:
        small: set[str | None] = set()
        hot = claimed = 0
        in_claims = 0.0
        start = time.perf_counter()
        # A floor takes the hot tenant first and would not see the small ones for long.
        patience = seconds if variant in (FLOOR, OWN_FLOOR) else _LONGEST_SECONDS
        while len(small) < SMALL and time.perf_counter() - start < patience:
            found = claim() or []
            hot += sum(tenant == "hot" for tenant, _ in found)
            small |= {tenant for tenant, _ in found if tenant != "hot"}
            finish([handle for _, handle in found])
        start = time.perf_counter()
        while (before := time.perf_counter()) - start < seconds:
            found = claim() or []
            in_claims += time.perf_counter() - before
            claimed += len(found)
            finish([handle for _, handle in found])
        return Served(hot, len(small), claimed / in_claims)

    return measure


def run_w3(bench: Bench) -> None:
    template = seeds.make(bench.databases, "seed_w3", seeds.hot_tenant())
    for demand in (1, 8):
        bench.say(f"W3: demand {demand}")
        samples = []
        for _ in range(bench.rounds):
            sample = {}
            for variant in (FLOOR, OWN_FLOOR, FACADE):
                with bench.databases.copy(template) as name:
                    seconds = bench.seconds if bench.quick else 3.0
                    call = {
                        "variant": variant,
                        "url": bench.databases.url(name),
                        "demand": demand,
                        "seconds": seconds,
                    }
                    (sample[variant],) = bench.clients.run(prepare, [call])
            samples.append(sample)
        hot = [{name: float(served.hot) for name, served in sample.items()} for sample in samples]
        small = [{name: float(served.small) for name, served in sample.items()} for sample in samples]
        rate = [{name: served.per_second for name, served in sample.items()} for sample in samples]
        common = {"demand": demand, "through": f"{THROUGH[FACADE]}, runs.finish()"}
        bench.add(
            make_row(
                "W3",
                "hot runs before the last small tenant",
                hot,
                FACADE,
                unit="runs",
                target=at_most(_HOT_BEFORE_LAST),
                note="the floors were stopped by the clock",
                **common,
            ),
            make_row(
                "W3",
                "small tenants served",
                small,
                FACADE,
                unit="tenants",
                target=at_least(SMALL, "value"),
                **common,
            ),
            make_row(
                "W3",
                "claims after that",
                rate,
                FACADE,
                unit="claims/s",
                target=at_least(_PER_SECOND, "value") if demand == 8 else None,
                note="per second spent in claim calls",
                **common,
            ),
        )
    bench.databases.drop(template)
