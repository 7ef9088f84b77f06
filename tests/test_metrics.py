"""Counters: what is counted, under which labels, and how it is printed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tenantfair import metrics
from tenantfair.signals import claim_observed


@pytest.fixture(autouse=True)
def counting() -> Iterator[None]:
    """Counters start at nothing and are fed by the signal."""
    metrics.connect()
    metrics.reset()
    yield
    metrics.reset()


def observe(**values: Any) -> None:
    """Send what a claim call sends."""
    claim_observed.send(
        sender=object,
        **{
            "using": "default",
            "engine": "tenant_fair",
            "result": "ok",
            "phase": None,
            "demand": 4,
            "duration": 0.5,
            "inspections": 3,
            "outcomes": {},
            "denials": {},
            "claim_attempts": 0,
            **values,
        },
    )


def value(name: str, **labels: str) -> float:
    return metrics.snapshot().get((name, tuple(labels.items())), 0)


def test_a_claim_adds_to_the_sums() -> None:
    observe(claim_attempts=5)
    observe(demand=2, duration=0.25)

    assert value("tenantfair_claim_calls_total", engine="tenant_fair", result="ok") == 2
    assert value("tenantfair_claim_demand_total") == 6
    assert value("tenantfair_claim_seconds_total") == 0.75
    assert value("tenantfair_claim_inspections_total") == 6
    assert value("tenantfair_claim_attempts_total") == 5


@pytest.mark.conformance(173)
def test_each_kind_of_outcome_has_a_counter_of_its_own() -> None:
    observe(outcomes={"promotion": 3, "reacquire": 2, "steal": 1, "admitted_poison": 4, "queued_poison": 5})

    counted = {
        kind: value("tenantfair_claim_outcomes_total", outcome=kind)
        for kind in ("promotion", "reacquire", "steal", "admitted_poison", "queued_poison")
    }
    assert counted == {"promotion": 3, "reacquire": 2, "steal": 1, "admitted_poison": 4, "queued_poison": 5}
    assert value("tenantfair_admission_releases_total", reason="poison") == 4


@pytest.mark.conformance(172)
def test_a_contended_policy_row_is_one_contention_and_success_none() -> None:
    observe()
    assert not [key for key in metrics.snapshot() if key[0] == "tenantfair_claim_contentions_total"]

    observe(result="lock_contention", phase="policy_cursor")

    assert value("tenantfair_claim_contentions_total", phase="policy_cursor") == 1
    assert value("tenantfair_claim_calls_total", engine="tenant_fair", result="lock_contention") == 1


def test_denials_are_counted_by_disposition() -> None:
    observe(denials={"cap_debt_denial": 7, "empty_page": 0})

    assert value("tenantfair_claim_denials_total", disposition="cap_debt_denial") == 7
    assert "empty_page" not in metrics.render()


@pytest.mark.conformance(172)
def test_no_caller_can_make_an_identity_a_label() -> None:
    observe(engine="acme", result="acme", phase="acme", outcomes={"acme": 1}, denials={"acme": 1})
    metrics.increment("tenantfair_task_outcomes_total", outcome="acme")

    assert "acme" not in metrics.render()
    assert value("tenantfair_task_outcomes_total", outcome="other") == 1


@pytest.mark.conformance(172)
def test_no_label_name_speaks_of_an_identity() -> None:
    names = {label for family in metrics.FAMILIES for label in family.labels}

    assert names.isdisjoint(
        {"tenant", "scope", "run", "task", "task_path", "cursor", "token", "worker", "queue"}
    )


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("tenantfair_no_such_total", {}),
        ("tenantfair_claim_demand_total", {"tenant": "acme"}),
        ("tenantfair_task_outcomes_total", {}),
    ],
)
def test_an_unknown_family_or_label_is_an_error_of_the_caller(name: str, labels: dict[str, str]) -> None:
    with pytest.raises(KeyError):
        metrics.increment(name, **labels)


def test_connecting_twice_counts_once() -> None:
    metrics.connect()

    observe()

    assert value("tenantfair_claim_demand_total") == 4


def test_a_snapshot_does_not_move() -> None:
    observe()
    before = metrics.snapshot()

    observe()

    assert before["tenantfair_claim_demand_total", ()] == 4


def test_threads_lose_no_count() -> None:
    def count() -> None:
        for _ in range(1000):
            metrics.increment("tenantfair_task_outcomes_total", outcome="completed")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert value("tenantfair_task_outcomes_total", outcome="completed") == 4000


def test_the_text_declares_every_family_and_prints_what_moved() -> None:
    observe(outcomes={"promotion": 2, "steal": 1})

    lines = metrics.render().splitlines()

    for family in metrics.FAMILIES:
        assert f"# HELP {family.name} {family.help}" in lines
        assert f"# TYPE {family.name} counter" in lines
    samples = [line for line in lines if not line.startswith("#")]
    assert 'tenantfair_claim_outcomes_total{outcome="promotion"} 2' in samples
    assert 'tenantfair_claim_calls_total{engine="tenant_fair",result="ok"} 1' in samples
    assert "tenantfair_claim_seconds_total 0.5" in samples
    assert "tenantfair_task_seconds_total 0" in samples
    assert len(samples) == len(set(samples))
    assert metrics.render().endswith("\n")


def test_counters_are_named_as_counters() -> None:
    for family in metrics.FAMILIES:
        assert family.name.startswith("tenantfair_")
        assert family.name.endswith("_total")
