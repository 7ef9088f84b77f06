"""Every fault of the list is shown by something, or the list says why not."""

from __future__ import annotations

import re

from tests.docs_pages import ROOT
from tests.faults import matrix
from tests.faults.points import POINTS


def test_each_of_the_39_faults_is_shown_or_explained() -> None:
    assert list(matrix.FAULTS) == [f"F{number}" for number in range(1, 40)]
    for number, fault in matrix.FAULTS.items():
        assert matrix.scenarios_of(number) or fault.tests or fault.missing, number


def test_every_scenario_shows_a_fault_of_the_list() -> None:
    for unit, each in matrix.scenarios().items():
        assert each.faults, unit
        assert set(each.faults) <= matrix.FAULTS.keys(), unit


def test_the_thirteen_points_are_struck_in_both_ways() -> None:
    assert len(POINTS) == 13
    assert {f"F1 kill {point}" for point in POINTS} == set(matrix.scenarios_of("F1"))
    assert {f"F2 term {point}" for point in POINTS} == set(matrix.scenarios_of("F2"))


def test_the_tests_it_names_are_there() -> None:
    for node in matrix.tests():
        file, _, test = node.partition("::")
        source = (ROOT / file).read_text()
        assert not test or re.search(rf"^def {test}\(", source, re.MULTILINE), node
