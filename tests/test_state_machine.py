"""Anything that the public API can do, in any order: the domain is as predicted after every step.

TENANTFAIR_MACHINES says how many machines are run (default 8), TENANTFAIR_MACHINE_STEPS how many steps each
makes, TENANTFAIR_MACHINE_SEED where they begin. A failure prints the steps that lead to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import DatabaseError
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tenantfair.runs import finishing
from tenantfair.sql import install, load
from tests.arena import arena
from tests.claim_support import connect
from tests.machine import Machine

MACHINES = int(os.environ.get("TENANTFAIR_MACHINES", "8"))
STEPS = int(os.environ.get("TENANTFAIR_MACHINE_STEPS", "40"))
SEED = int(os.environ.get("TENANTFAIR_MACHINE_SEED", "0"))

# A broken build must be found within so many machines.
ENOUGH = 60


def run(machines: int, steps: int, number: int, **options: Any) -> int:
    """Run machines of `steps` steps that the seed `number` chooses, and return how many steps were compared.

    Raises what the first failing one does, with the steps that lead to it in its notes.
    """

    class Seeded(Machine):
        pass

    with arena() as found:
        Seeded.arena = found
        run_state_machine_as_test(
            seed(number)(Seeded),
            settings=settings(
                max_examples=machines,
                stateful_step_count=steps,
                deadline=None,
                database=None,
                print_blob=True,
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
                **options,
            ),
        )
    return Seeded.looks


@pytest.mark.django_db(transaction=True)
def test_domain_is_as_predicted_after_every_step() -> None:
    print(f"TENANTFAIR_MACHINE_SEED={SEED}")
    assert run(MACHINES, STEPS, SEED) > 0


def statement(module: Any, name: str, old: str, new: str) -> Callable[[pytest.MonkeyPatch], Any]:
    """A build in which one statement of a module says something else."""

    @contextmanager
    def broken(patch: pytest.MonkeyPatch) -> Iterator[None]:
        text = load(name)
        assert old in text
        patch.setattr(
            module, "load", lambda wanted: text.replace(old, new) if wanted == name else load(wanted)
        )
        yield

    return broken


def function(name: str, old: str, new: str) -> Callable[[pytest.MonkeyPatch], Any]:
    """A build in which one of the installed functions says something else."""

    @contextmanager
    def broken(patch: pytest.MonkeyPatch) -> Iterator[None]:
        text = install(name)
        assert old in text
        with connect() as session:
            session.execute(text.replace(old, new))
            try:
                yield
            finally:
                session.execute(text)

    return broken


BROKEN = {
    "finish without a fence": statement(
        finishing, "finish_runs", "AND run.claim_token = outcome.claim_token", ""
    ),
    "complete without a fence": statement(
        finishing, "complete_runs", "AND run.claim_token IS NOT DISTINCT FROM outcome.claim_token", ""
    ),
    "failures forgotten": statement(finishing, "finish_runs", "failures = run.failures +", "failures ="),
    "count not lowered at an end": function("tenantfair_run_unfinished.v1", "ELSE -1 END", "ELSE 0 END"),
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", BROKEN)
def test_broken_build_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # By the machine, or by a constraint that the domain still has.
    with BROKEN[name](monkeypatch), pytest.raises((AssertionError, DatabaseError)):
        run(ENOUGH, STEPS, SEED, phases=[Phase.generate])
