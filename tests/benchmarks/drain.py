"""Claims until nothing is left or the time is up; nothing completes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.benchmarks.bench import Bench
from tests.benchmarks.claimers import claimer
from tests.benchmarks.rows import percentile

_EMPTY_CALLS = 3


@dataclass(frozen=True, slots=True)
class Drained:
    """What one client did: seconds of its first call, of each later one with a grant, and of its run."""

    first: float
    claimed: int
    seconds: float
    calls: list[float]
    refused: int


def prepare(variant: str, url: str, demand: int, seconds: float) -> Callable[[], Drained]:
    """Run in a client process: connect, and return the measurement."""
    claim = claimer(variant, url, demand)
    # A session makes its plans at its first call; here it has done so before the clients start together.
    first = time.perf_counter()
    claim()
    first = time.perf_counter() - first

    def measure() -> Drained:
        calls: list[float] = []
        claimed = empty = refused = 0
        start = last = time.perf_counter()
        while empty < _EMPTY_CALLS and (before := time.perf_counter()) - start < seconds:
            found = claim()
            if found is None:
                refused += 1
            elif not found:
                empty += 1
            else:
                last = time.perf_counter()
                calls.append(last - before)
                claimed += len(found)
                empty = 0
        return Drained(first, claimed, last - start, calls, refused)

    return measure


@dataclass(frozen=True, slots=True)
class Rate:
    per_second: float
    first_ms: float
    p50_ms: float
    p99_ms: float
    refused: int


def drain(bench: Bench, template: str, variant: str, *, demand: int, clients: int) -> Rate:
    """Drain a fresh copy of `template` with that many client processes."""
    with bench.databases.copy(template) as name:
        url = bench.databases.url(name)
        call = {"variant": variant, "url": url, "demand": demand, "seconds": bench.seconds}
        return _rate(bench.clients.run(prepare, [call] * clients))


def _rate(found: Sequence[Drained]) -> Rate:
    calls = [seconds for drained in found for seconds in drained.calls]
    if not calls:
        raise RuntimeError("nothing was claimed")
    return Rate(
        per_second=sum(drained.claimed for drained in found) / max(drained.seconds for drained in found),
        first_ms=percentile([drained.first for drained in found], 0.5) * 1e3,
        p50_ms=percentile(calls, 0.5) * 1e3,
        p99_ms=percentile(calls, 0.99) * 1e3,
        refused=sum(drained.refused for drained in found),
    )
