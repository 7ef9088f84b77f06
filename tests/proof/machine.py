"""Random machines over the public API, in two processes: predictions and invariants after every step."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator

from tests.proof.record import Row
from tests.proof.spread import spread

PART = "machine"
STEPS = 50
MACHINES = 25
UNITS = 80
QUICK_MACHINES = 20
QUICK_UNITS = 2


def rows(*, quick: bool, done: frozenset[str]) -> Iterator[Row]:
    machines, units = (QUICK_MACHINES, QUICK_UNITS) if quick else (MACHINES, UNITS)
    wanted = [(number, machines) for number in range(units) if f"seed {number}" not in done]
    yield from spread(wanted, explore)


def explore(wanted: tuple[int, int]) -> Row:
    """Run the machines of one seed. The first failing one ends them, and is told by its steps."""
    from hypothesis import Phase

    from tests import test_state_machine

    number, machines = wanted
    begun = time.monotonic()
    looks, failures, note = 0, 0, ""
    try:
        looks = test_state_machine.run(machines, STEPS, number, phases=[Phase.generate, Phase.shrink])
    except Exception as failure:
        where = traceback.extract_tb(failure.__traceback__)[-1]
        size = f"TENANTFAIR_MACHINES={machines} TENANTFAIR_MACHINE_STEPS={STEPS}"
        failures = 1
        note = f"TENANTFAIR_MACHINE_SEED={number} {size}: {type(failure).__name__} at {where.line}"
        traceback.print_exception(failure)
    return Row(
        PART,
        f"seed {number}",
        f"steps of machines of {STEPS}: as predicted, I1-I12 after each",
        looks,
        None,
        f"{number}",
        failures,
        time.monotonic() - begun,
        note,
    )
