"""The claim function against the model in plain Python, on random states of a domain, in two processes."""

from __future__ import annotations

import time
from collections.abc import Iterator

from tests.proof.record import Row
from tests.proof.spread import spread

PART = "model"
STATES = 100_000
QUICK_STATES = 2_000
UNIT = 1_000
QUICK_UNIT = 500
_BLOCK = 50


def rows(*, quick: bool, done: frozenset[str]) -> Iterator[Row]:
    states, unit = (QUICK_STATES, QUICK_UNIT) if quick else (STATES, UNIT)
    units = [range(first, first + unit) for first in range(0, states, unit)]
    yield from spread([seeds for seeds in units if name(seeds) not in done], compare)


def name(seeds: range) -> str:
    return f"states {seeds[0]}-{seeds[-1]}"


def compare(seeds: range) -> Row:
    """Compare the calls on the state of each seed. The first difference ends the unit."""
    from tests import test_claim_model

    begun = time.monotonic()
    tried, failures, note = 0, 0, ""
    with test_claim_model.arena(seeds[0]) as bench:
        places = bench.positions()
        for seed in seeds:
            tried += 1
            try:
                test_claim_model.compare(bench, seed, places)
            except AssertionError as difference:
                what = str(difference).partition("\n")[0]
                failures, note = 1, f"TENANTFAIR_MODEL_SEED={seed}: {what}"
                print(f"seed {seed}, ring of seed {seeds[0]}: {difference}", flush=True)
                break
            if tried % _BLOCK == 0:
                bench.db.execute("VACUUM tenantfair_run")
    return Row(
        PART,
        name(seeds),
        "random states: the claim function does what the model says",
        tried,
        None,
        f"{seeds[0]}-{seeds[0] + tried - 1}",
        failures,
        time.monotonic() - begun,
        note,
    )
