"""The list of items itself: each has a test that names it, and no test names an item that is not there."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.conformance_items import DECIDED, ITEMS, NOT_APPLICABLE, RESTATED

TESTS = Path(__file__).parent


def named_items() -> set[int]:
    """Read the numbers in every `conformance(...)` marker from the sources of the tests."""
    found: set[int] = set()
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "conformance":
                for argument in node.args:
                    assert isinstance(argument, ast.Constant), f"{path.name}: a marker names items as numbers"
                    found.add(argument.value)
    return found


def test_every_item_is_named_by_a_test_and_no_test_names_another() -> None:
    assert named_items() == set(ITEMS) - NOT_APPLICABLE


def test_the_list_is_whole() -> None:
    assert set(ITEMS) == set(range(1, 179))
    assert set(ITEMS) >= DECIDED | RESTATED | NOT_APPLICABLE
