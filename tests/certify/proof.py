"""The certificate on the demo's load; and builds that break a rule get none."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from tests.certify.demo_load import certify_demo
from tests.proof import pytests
from tests.proof.record import Row

PART = "certificate"
UNITS = {
    "judges": ("certificate's judge against the tests' judge", "tests/certify/test_judges_agree.py"),
    "builds": ("builds that break a rule, each refused a certificate", "tests/certify/test_builds.py"),
    "windows": ("windows of real claims, eligible or not", "tests/certify/test_windows.py"),
}
LONG = {"judges", "windows"}


def rows(*, quick: bool, done: frozenset[str]) -> Iterator[Row]:
    for unit, (what, path) in UNITS.items():
        if unit not in done and not (quick and unit in LONG):
            yield pytests.run(PART, unit, what, path)
    if "demo" not in done:
        yield on_the_demos_load(*((600, 20, 3) if quick else (5000, 40, 5)))
    if "forgetful" not in done:
        yield without_a_durable_cursor()


def on_the_demos_load(noisy: int, quiet: int, each: int) -> Row:
    begun = time.monotonic()
    found = certify_demo(os.environ["DATABASE_URL"], noisy=noisy, quiet=quiet, each=each)
    windows = found.document["windows"]["with_competitors"] if found.document else 0
    failures = 0 if found.code == 0 and found.left == 0 else 1
    return Row(
        PART,
        "demo",
        "eligible windows of the demo's load within the bound",
        windows,
        None,
        "",
        failures,
        time.monotonic() - begun,
        str(found) if found.document else found.said,
    )


def without_a_durable_cursor() -> Row:
    begun = time.monotonic()
    found = certify_demo(os.environ["DATABASE_URL"], noisy=200, quiet=5, each=2, durable=False)
    return Row(
        PART,
        "forgetful",
        "the demo's load on a build whose cursor is not durable: refused",
        int(found.code == 1),
        1,
        "",
        int(found.code != 1),
        time.monotonic() - begun,
        f"{found.document['violation_count']} violations" if found.document else found.said,
    )
