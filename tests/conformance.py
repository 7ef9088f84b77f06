"""Run the tests that prove the conformance items and print them item by item: `python -m tests.conformance`.

Exits 1 when an item has no test, or a test of one fails.
"""

from __future__ import annotations

import sys
from collections import defaultdict

import pytest

from tests.conformance_items import DECIDED, ITEMS, NOT_APPLICABLE, RESTATED


class Collector:
    """Notes which test proves which items, and how each test ended."""

    def __init__(self) -> None:
        self.tests: dict[int, set[str]] = defaultdict(set)
        self.unknown: dict[int, set[str]] = defaultdict(set)
        self.failed: set[str] = set()
        self.passed: set[str] = set()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for marker in item.iter_markers("conformance"):
                for number in marker.args:
                    (self.tests if number in ITEMS else self.unknown)[number].add(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)
        elif report.when == "call" and report.passed:
            self.passed.add(report.nodeid)


def main(arguments: list[str]) -> int:
    """Return the process's exit code."""
    collector = Collector()
    code = pytest.main(["-q", "-m", "conformance", "--no-header", *arguments], plugins=[collector])
    print()
    missing, broken = [], []
    for number, text in ITEMS.items():
        tests = collector.tests[number]
        failing = tests & collector.failed or {test for test in tests if test not in collector.passed}
        kind = "decided differently" if number in DECIDED else "restated" if number in RESTATED else ""
        if number in NOT_APPLICABLE:
            state = "n/a"
        elif not tests:
            state = "NO TEST"
            missing.append(number)
        elif failing:
            state = "FAILED"
            broken.append(number)
        else:
            state = "proved"
        print(f"{number:>4}  {state:<8} {text}" + (f"  [{kind}]" if kind else ""))
        for test in sorted({name.partition("[")[0] for name in tests}):
            print(f"{'':>15}{test}")
    for number, tests in sorted(collector.unknown.items()):
        print(f"{number:>4}  is no item of this list, named by {', '.join(sorted(tests))}")
    proved = len(ITEMS) - len(missing) - len(broken) - len(NOT_APPLICABLE)
    print(
        f"\n{proved} of {len(ITEMS)} items proved, {len(NOT_APPLICABLE)} not applicable,"
        f" {len(broken)} failing, {len(missing)} without a test {missing or ''}"
    )
    return 1 if missing or broken or collector.unknown or code != pytest.ExitCode.OK else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
