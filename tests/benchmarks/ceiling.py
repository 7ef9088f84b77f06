"""W1, one tenant with 20,000 ready runs, and W2, 2,000 tenants with 50 each: how fast a claim can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.benchmarks import seeds
from tests.benchmarks.bench import Bench
from tests.benchmarks.claimers import FACADE, FUNCTION, THROUGH, VARIANTS
from tests.benchmarks.drain import Rate, drain
from tests.benchmarks.rows import FLOOR, OWN_FLOOR, Row, Target, at_least, at_most, make_row
from tests.benchmarks.server import Connection

W1, W2 = "W1", "W2"
ONE, CAPPED, MANY = "one tenant", "one tenant, cap 15,000", "2,000 tenants"
CAP = 15_000

_OF_THE_FLOOR = {1: 0.40, 8: 0.33, 32: 0.33}
_KEPT = 0.9
_LONGEST_MS = {8: 20.0, 32: 60.0}


def run_w1(bench: Bench) -> None:
    template = seeds.make(bench.databases, "seed_w1", seeds.one_tenant())
    for demand in (8,) if bench.quick else (1, 8, 32):
        crowds = (1,) if demand == 1 else (1, 8) if bench.quick else (1, 4, 8)
        samples = _samples(bench, template, demand, crowds)
        for clients in crowds:
            target = at_least(_OF_THE_FLOOR[demand]) if clients == 1 else None
            rows = _rates(W1, ONE, samples[clients], demand, clients, target)
            if demand == 1:
                rows += _first(samples[clients])
            if clients > 1:
                rows += _kept(samples[clients], samples[1], demand, clients)
            bench.add(*rows)
    bench.databases.drop(template)
    template = seeds.make(bench.databases, "seed_w1", seeds.one_tenant(), _put_cap)
    for demand in (8,) if bench.quick else (1, 8, 32):
        samples = _samples(bench, template, demand, (1,), (FLOOR, OWN_FLOOR, FACADE))[1]
        bench.add(*_rates(W1, CAPPED, samples, demand, 1, None))
    bench.databases.drop(template)


def _put_cap(connection: Connection) -> None:
    connection.execute("UPDATE tenantfair_policy SET max_active = %s", [CAP])


def run_w2(bench: Bench) -> None:
    template = seeds.make(bench.databases, "seed_w2", seeds.many_tenants())
    for demand in (8,) if bench.quick else (1, 8, 32):
        crowds = (1, 4) if demand == 32 else (1,)
        for clients, samples in _samples(bench, template, demand, crowds).items():
            bench.add(*_rates(W2, MANY, samples, demand, clients, None))
    bench.databases.drop(template)


def _samples(
    bench: Bench, template: str, demand: int, crowds: Sequence[int], variants: Sequence[str] = VARIANTS
) -> dict[int, list[dict[str, Rate]]]:
    """Samples by number of clients; each round goes through all of them and all variants."""
    samples: dict[int, list[dict[str, Rate]]] = {clients: [] for clients in crowds}
    for _ in range(bench.rounds):
        bench.say(f"{template}: demand {demand}, {crowds} clients")
        for clients in crowds:
            samples[clients].append(
                {
                    variant: drain(bench, template, variant, demand=demand, clients=clients)
                    for variant in variants
                }
            )
    return samples


def _rates(
    workload: str,
    case: str,
    samples: Sequence[Mapping[str, Rate]],
    demand: int,
    clients: int,
    target: Target | None,
) -> list[Row]:
    per_second = [{name: rate.per_second for name, rate in sample.items()} for sample in samples]
    return [
        make_row(
            workload,
            case,
            per_second,
            variant,
            unit="claims/s",
            demand=demand,
            clients=clients,
            target=target,
            through=THROUGH[variant],
            note=_times([sample[variant] for sample in samples]),
        )
        for variant in (FUNCTION, FACADE)
        if variant in samples[0]
    ]


def _first(samples: Sequence[Mapping[str, Rate]]) -> list[Row]:
    """The first call of a session, which makes its plans and is part of no other figure."""
    first = [{name: rate.first_ms for name, rate in sample.items()} for sample in samples]
    return [
        make_row(
            W1,
            f"{ONE}, first claim of a session",
            first,
            variant,
            unit="ms",
            demand=1,
            through=THROUGH[variant],
        )
        for variant in (FUNCTION, FACADE)
    ]


def _kept(
    samples: Sequence[Mapping[str, Rate]], alone: Sequence[Mapping[str, Rate]], demand: int, clients: int
) -> list[Row]:
    """What more clients keep of the rate of one, and how long the slowest calls take."""
    rows = []
    for variant in (FUNCTION, FACADE):
        shares = [
            {name: together[name].per_second / single[name].per_second for name in VARIANTS}
            for together, single in zip(samples, alone, strict=True)
        ]
        slowest = [{name: rate.p99_ms for name, rate in sample.items()} for sample in samples]
        common = {"demand": demand, "clients": clients, "through": THROUGH[variant]}
        kept = at_least(_KEPT, "value")
        longest = at_most(_LONGEST_MS[demand])
        rows.append(
            make_row(W1, f"{ONE}, kept of one client", shares, variant, unit="x", target=kept, **common)
        )
        rows.append(make_row(W1, f"{ONE}, p99", slowest, variant, unit="ms", target=longest, **common))
    return rows


def _times(rates: Sequence[Rate]) -> str:
    middle = sorted(rates, key=lambda rate: rate.per_second)[len(rates) // 2]
    refused = f", {middle.refused} refused" if middle.refused else ""
    return f"p50 {middle.p50_ms:.2f} ms, p99 {middle.p99_ms:.2f} ms{refused}"
