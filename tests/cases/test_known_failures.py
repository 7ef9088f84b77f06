"""The page of known failures names tests that exist."""

from __future__ import annotations

import re

from tests.docs_pages import DOCS, ROOT

PAGE = DOCS / "explanation" / "known-failures.md"


def test_every_failure_is_shown_by_a_test_that_is_there() -> None:
    named = re.findall(r"`((?:\w+/)?test_\w+\.py)(?:::(test_\w+))?`", PAGE.read_text())
    assert len(named) > 28
    for file, test in named:
        source = (ROOT / "tests" / file).read_text()
        assert f"def {test}(" in source or not test, (file, test)
