"""The meetings S1-S22, each in one or more cases. S22 is every other one with a rollback at each stop."""

from tests.interleavings.case import Case
from tests.interleavings.specs import claims, holders, lives

CASES: dict[str, Case] = {case.name: case for case in (*claims.CASES, *holders.CASES, *lives.CASES)}


def spec_of(case: Case) -> str:
    """Return the number of a case's specification: S1, S2, ..."""
    return case.name.split()[0]
