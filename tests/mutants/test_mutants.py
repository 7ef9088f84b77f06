"""Every mutant fits the code as it is and names tests that are there; the runner knows a survivor."""

from __future__ import annotations

import ast
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache

from tests.mutants.catalog import ALL, PYTHON, SQL
from tests.mutants.mutant import Mutant, NotApplicable
from tests.mutants.verdict import verdicts
from tests.mutants.workshop import ROOT


def applied(mutant: Mutant) -> str:
    return mutant.applied_to((ROOT / "tenantfair" / mutant.file).read_text(encoding="utf-8"))


def fitting(mutants: Iterable[Mutant]) -> Iterator[tuple[Mutant, str]]:
    """The mutants that fit their files, which one test sees to, with the changed text."""
    for mutant in mutants:
        with suppress(NotApplicable):
            yield mutant, applied(mutant)


@cache
def names_in(file: str) -> frozenset[str]:
    """The tests of a file below `tests/`: `test_a`, `TestB::test_c`."""
    body = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8")).body
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(
        [node.name for node in body if isinstance(node, functions)]
        + [
            f"{group.name}::{node.name}"
            for group in body
            if isinstance(group, ast.ClassDef)
            for node in group.body
            if isinstance(node, functions)
        ]
    )


def test_there_are_as_many_as_promised_and_each_has_a_name_of_its_own() -> None:
    assert len(SQL) >= 40
    assert len(PYTHON) >= 60
    assert [name for name, times in Counter(mutant.name for mutant in ALL).items() if times > 1] == []


def test_every_mutant_fits_the_file_that_it_changes() -> None:
    """After a change of the package: renew the text of those that are named here."""
    misfits = []
    for mutant in ALL:
        try:
            applied(mutant)
        except NotApplicable as error:
            misfits.append(str(error))
    assert not misfits, "\n".join(misfits)


def test_every_mutant_changes_its_file_in_a_way_of_its_own() -> None:
    changed = Counter((mutant.file, text) for mutant, text in fitting(ALL))
    assert [file for (file, _), times in changed.items() if times > 1] == []


def test_mutated_python_compiles() -> None:
    for mutant, text in fitting(PYTHON):
        compile(text, mutant.name, "exec")


def test_every_named_test_is_there_and_every_mutant_names_its_rule() -> None:
    missing = [
        (mutant.name, test)
        for mutant in ALL
        for test in mutant.killed_by
        if test.partition("::")[2] not in names_in(test.partition("::")[0])
    ]
    assert missing == []
    assert [mutant.name for mutant in ALL if not mutant.killed_by or not mutant.breaks] == []


QUICK = Mutant(
    name="a comment",
    file="payloads.py",
    old="if depth == self.max_depth:",
    new="if depth == self.max_depth:  # as deep as it may be",
    breaks="nothing",
    killed_by=("test_payloads.py::test_the_error_of_a_cycle_is_its_depth",),
)


def test_a_mutant_that_changes_nothing_survives_and_only_a_failed_test_is_a_kill() -> None:
    chosen = [
        QUICK,
        replace(QUICK, name="no depth", new="if depth < 0:"),
        replace(QUICK, name="no import", new="if depth == self.max_depth"),
        replace(QUICK, name="no such text", old="if depth == self.least_depth:"),
        replace(QUICK, name="no such test", killed_by=("test_payloads.py::test_that_nobody_wrote",)),
    ]
    # No database is made, because the test needs none.
    found = {verdict.mutant.name: verdict for verdict in verdicts(chosen, [os.environ["DATABASE_URL"]] * 2)}

    assert {name: verdict.word for name, verdict in found.items()} == {
        "a comment": "SURVIVED",
        "no depth": "killed",
        "no import": "error",
        "no such text": "error",
        "no such test": "error",
    }, [verdict.error for verdict in found.values()]
    assert found["no depth"].killer == QUICK.killed_by[0]
