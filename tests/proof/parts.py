"""The parts of the proof, in the order of the table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """`module` has `rows(*, quick, done)`. A part that is `alone` keeps both cores busy, or measures time."""

    name: str
    module: str
    alone: bool = True
    in_quick: bool = True


PARTS = {
    part.name: part
    for part in (
        Part("oracle", "tests.proof.oracle", alone=False),
        Part("cases", "tests.proof.cases", alone=False),
        Part("certificate", "tests.certify.proof", alone=False),
        Part("model", "tests.proof.model"),
        Part("machine", "tests.proof.machine"),
        Part("schedules", "tests.interleavings.proof"),
        Part("faults", "tests.faults.proof"),
        Part("soak", "tests.faults.soak"),
        Part("mutants", "tests.mutants.proof", in_quick=False),
    )
}
