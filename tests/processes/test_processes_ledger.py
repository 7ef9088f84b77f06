"""The judge of the process tests: executions end with their attempts; gates let everybody through."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.processes import ledger
from tests.processes.ledger import Ledger
from tests.processes.stage import LONGEST_WAIT_SECONDS, Gate, until
from tests.processes.tasks import pass_gate


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setenv(ledger.VARIABLE, str(tmp_path / "ledger"))
    return Ledger(tmp_path / "ledger")


def attempt(run: str, number: int) -> SimpleNamespace:
    """What a task is handed, as far as the ledger looks at it."""
    return SimpleNamespace(run_id=run, tenant_id="acme", attempt=number, still_owner=lambda: True)


def test_an_attempt_that_raised_has_ended_before_the_next_begins(book: Ledger) -> None:
    with pytest.raises(FileNotFoundError), ledger.execution(attempt("a", 1)):
        raise FileNotFoundError
    with ledger.execution(attempt("b", 1)):
        pass
    with ledger.execution(attempt("a", 2)):
        pass

    assert [line["event"] for line in book.lines()] == ["start", "end"] * 3
    assert book.most_at_once() == {"acme": 1}


def test_two_attempts_of_one_process_at_one_run_count_twice(book: Ledger) -> None:
    with ledger.execution(attempt("a", 1)), ledger.execution(attempt("a", 2)):
        pass

    assert book.most_at_once() == {"acme": 2}


def test_what_a_process_had_not_ended_when_it_was_killed_counts_until_then(book: Ledger) -> None:
    with ledger.execution(attempt("a", 1)):
        (started,) = book.lines()

        assert book.most_at_once() == {"acme": 1}
        assert book.most_at_once(gone={started["pid"]: started["at"]}) == {"acme": 0}


def test_whoever_comes_while_a_gate_opens_passes(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    passed: list[int] = []
    failed: list[OSError] = []
    opened = threading.Event()

    def come_again_and_again() -> None:
        try:
            for number in range(100):
                pass_gate(str(gate))
                passed.append(number)
                opened.wait(LONGEST_WAIT_SECONDS)
        except OSError as error:
            failed.append(error)

    comers = [threading.Thread(target=come_again_and_again) for _ in range(20)]
    for comer in comers:
        comer.start()
    gate.open()
    until(lambda: len(passed) >= 20 or failed, "each has passed once")
    opened.set()
    for comer in comers:
        comer.join(LONGEST_WAIT_SECONDS)
    gate.close()

    assert failed == []
    assert len(passed) == 2000
