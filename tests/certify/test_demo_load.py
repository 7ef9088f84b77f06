"""The certificate on the demo's load: real workers, the real command."""

from __future__ import annotations

import os

import pytest

from tests.certify.demo_load import certify_demo


def test_the_demos_load_is_certified(capsys: pytest.CaptureFixture[str]) -> None:
    found = certify_demo(os.environ["DATABASE_URL"], noisy=600, quiet=20, each=3)
    with capsys.disabled():
        print(f"\n{found}")
    assert found.code == 0, found.said
    assert found.document["certified"] is True
    assert found.document["windows"]["with_competitors"] >= 1
    assert 0 < found.document["ratio"] <= 1
    assert found.document["ended_by"] == "signal"
    assert found.left == 0


def test_a_build_whose_cursor_is_not_durable_gets_no_certificate() -> None:
    found = certify_demo(os.environ["DATABASE_URL"], noisy=200, quiet=5, each=2, durable=False)
    assert found.code == 1, found.said
    assert found.document["certified"] is False
    assert {violation["rule"] for violation in found.document["violations"]} == {"cursor"}
    assert found.left == 0
