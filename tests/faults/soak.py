"""The part "soak" of the proof: a million claims while faults happen, no tenant above its cap."""

from __future__ import annotations

import time
from collections.abc import Iterator

from tests.faults.server import World
from tests.faults.soak_unit import Soak
from tests.proof.record import Row

PART = "soak"
CLAIMS = 1_000_000
QUICK_CLAIMS = 50_000
CLAIMS_OF_A_UNIT = 50_000
_QUICK_UNITS = 1
_MOST_NAMED = 3


def rows(*, quick: bool, done: frozenset[str]) -> Iterator[Row]:
    """Yield one row per unit of 50,000 claims, each on a domain of its own with a seed of its own."""
    units = _QUICK_UNITS if quick else CLAIMS // CLAIMS_OF_A_UNIT
    wanted = [seed for seed in range(1, units + 1) if _unit(seed) not in done]
    if not wanted:
        return
    with World() as world:
        for seed in wanted:
            began = time.monotonic()
            figures = Soak(world, CLAIMS_OF_A_UNIT, seed).run()
            yield Row(
                part=PART,
                unit=_unit(seed),
                what="claims under faults, judged by rows and by diaries",
                done=figures.claims,
                of=None,
                seeds=str(seed),
                failures=len(figures.violations),
                seconds=time.monotonic() - began,
                note="; ".join(figures.violations[:_MOST_NAMED]) or str(figures),
            )


def _unit(seed: int) -> str:
    return f"seed {seed}"
