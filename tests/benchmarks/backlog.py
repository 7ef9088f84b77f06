"""W5: the price of one claim at 10,000, 100,000 and a million ready runs, of one and of 1,000 tenants."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping

from tests.benchmarks import seeds, site
from tests.benchmarks.bench import Bench
from tests.benchmarks.claimers import FACADE, FLOOR, FUNCTION, OWN_FLOOR, THROUGH, VARIANTS, Claim, claimer
from tests.benchmarks.rows import Sample, at_most, make_row

SIZES = (10_000, 100_000, 1_000_000)

_CALLS = 30
_FLAT = 1.3
_OF_THE_FLOOR = 3.0


def run_w5(bench: Bench, sizes: tuple[int, ...] = SIZES) -> None:
    for tenants in (1, 1_000):
        case = "one tenant" if tenants == 1 else f"{tenants:,} tenants"
        smallest: list[Sample] = []
        for size in sizes:
            bench.say(f"W5: {size:,} ready, {case}")
            samples = _samples(bench, tenants, size)
            smallest = smallest or samples
            growth = [
                {name: found[name] / first[name] for name in VARIANTS}
                for found, first in zip(samples, smallest, strict=True)
            ]
            for variant in (FUNCTION, FACADE):
                common = {"demand": 1, "through": THROUGH[variant]}
                target = at_most(_OF_THE_FLOOR, "ratio")
                bench.add(
                    make_row(
                        "W5", f"{size:,} ready, {case}", samples, variant, unit="ms", target=target, **common
                    )
                )
                if size != sizes[0]:
                    name = f"{size:,} ready, {case}: against {sizes[0]:,}"
                    target = at_most(_FLAT)
                    bench.add(make_row("W5", name, growth, variant, unit="x", target=target, **common))


def _samples(bench: Bench, tenants: int, size: int) -> list[dict[str, float]]:
    """One sample per round; so few runs go that one database serves all the rounds."""
    name = seeds.make(bench.databases, "seed_w5", seeds.many_tenants(tenants, size // tenants))
    url = bench.databases.url(name)
    try:
        claims = {variant: claimer(variant, url, 1) for variant in (FLOOR, OWN_FLOOR, FUNCTION, FACADE)}
        for claim in claims.values():
            claim()
        return [_alternated(claims) for _ in range(bench.rounds)]
    finally:
        site.leave()
        bench.databases.drop(name)


def _alternated(claims: Mapping[str, Claim]) -> dict[str, float]:
    """Medians in ms of calls that take turns, so that a pause of the machine meets all variants alike."""
    times: dict[str, list[float]] = {variant: [] for variant in claims}
    for _ in range(_CALLS):
        for variant, claim in claims.items():
            start = time.perf_counter()
            claim()
            times[variant].append(time.perf_counter() - start)
    return {variant: statistics.median(found) * 1e3 for variant, found in times.items()}
