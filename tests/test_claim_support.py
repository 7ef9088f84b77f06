"""The bench of the claim tests keeps to its own database, whoever runs tests beside it on the same server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.claim_support import Bench, Gate, bench, connect


@pytest.fixture
def domain(db: None) -> Iterator[Bench]:
    with bench() as found:
        yield found


@pytest.mark.django_db
def test_a_gate_is_not_reached_by_somebody_in_another_database(domain: Bench) -> None:
    gate = Gate(domain)
    with connect(dbname="postgres") as elsewhere:
        elsewhere.execute("SELECT pg_advisory_lock_shared(7301)")
        assert not gate.somebody_came()
    domain.session().execute("SELECT pg_advisory_lock_shared(7301)")
    assert gate.somebody_came()


def test_whoever_looks_at_locks_or_sessions_of_the_server_says_whose() -> None:
    """By database or by process: a statement that names neither sees those of the tests beside it."""
    own = ("LOCKED_HERE", "current_database()", "pg_backend_pid()", "pid =", "pg_blocking_pids(pid)")
    careless = []
    for path in Path(__file__).parent.rglob("*.py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        for place, line in enumerate(lines):
            if ("FROM pg_locks" in line or "FROM pg_stat_activity" in line) and path != Path(__file__):
                around = " ".join(lines[max(0, place - 2) : place + 4])
                if not any(word in around for word in own):
                    careless.append(f"{path.name}:{place + 1}")
    assert careless == []
