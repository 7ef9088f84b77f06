"""A certificate is refused to builds that break a rule: altered copies of the shipped claim function."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from tenantfair.certify import Certificate, Reason, Rule
from tests.certify.scene import certified, claim
from tests.claim_support import SHIPPED, Bench, bench

pytestmark = pytest.mark.django_db(transaction=True)

WRITES_CURSOR = re.compile(r"UPDATE tenantfair_policy AS policy\n.*?;\n", re.DOTALL)


@pytest.fixture
def domain() -> Iterator[Bench]:
    with bench() as found:
        yield found


def altered(pattern: str | re.Pattern[str], replacement: Callable[[str], str] | str) -> str:
    """The shipped function with each match replaced; it has at least one."""
    change = replacement if callable(replacement) else lambda found: replacement
    text, number = re.subn(pattern, lambda found: change(found[0]), SHIPPED)
    assert number
    return text


def rolled_back(statement: str) -> str:
    return f"BEGIN {statement} RAISE EXCEPTION 'undone'; EXCEPTION WHEN raise_exception THEN NULL; END;\n"


def certificate_of(domain: Bench, text: str, calls: int = 6, demand: int = 1) -> Certificate:
    """The certificate on calls of an altered function, on a ring of a hot scope and a target."""
    function = domain.function("tests_altered", text)
    return certified(lambda: [claim(domain, demand, function) for _ in range(calls)])


def rules(certificate: Certificate) -> set[Rule]:
    return {violation.rule for violation in certificate.violations}


def two_scopes(domain: Bench, runs: int = 30) -> None:
    domain.policy(50)
    domain.ready("hot", runs)
    domain.queued("target", runs)


def test_the_shipped_function_is_certified(domain: Bench) -> None:
    two_scopes(domain)
    certificate = certificate_of(domain, SHIPPED)
    assert certificate.holds
    assert certificate.violations == []
    assert certificate.calls == 6
    assert len(certificate.contended) == 4
    assert certificate.ineligible == {Reason.BEGAN: 2, Reason.OPEN: 1}
    assert certificate.ratio == 1


def test_cursor_that_is_not_written_is_found_out(domain: Bench) -> None:
    two_scopes(domain)
    certificate = certificate_of(domain, altered(r"scan_ring_position = v_cursor,\s+scan_laps = v_laps,", ""))
    assert not certificate.holds
    assert rules(certificate) == {Rule.CURSOR}
    assert {violation.scope for violation in certificate.violations} == {"hot"}
    assert len(certificate.violations) == 6


def test_cursor_that_is_written_and_rolled_back_is_found_out(domain: Bench) -> None:
    two_scopes(domain)
    certificate = certificate_of(domain, altered(WRITES_CURSOR, rolled_back))
    assert rules(certificate) == {Rule.CURSOR}


def test_cursor_that_goes_round_to_the_same_place_is_found_out(domain: Bench) -> None:
    two_scopes(domain)
    claim(domain)
    certificate = certificate_of(
        domain,
        altered(
            r"scan_ring_position = v_cursor,\s+scan_laps = v_laps,",
            "scan_ring_position = v_policy.scan_ring_position, scan_laps = v_policy.scan_laps + 1,",
        ),
    )
    assert Rule.FAILURES in rules(certificate)
    assert not certificate.holds


def test_cursor_that_stands_at_no_place_is_found_out(domain: Bench) -> None:
    two_scopes(domain)
    astray = altered("scan_ring_position = v_cursor,", "scan_ring_position = v_cursor + 1000,")
    assert Rule.WALK in rules(certificate_of(domain, astray))


def test_position_that_is_passed_by_is_found_out(domain: Bench) -> None:
    two_scopes(domain)
    domain.db.execute(
        "CREATE VIEW tests_blind AS SELECT * FROM tenantfair_schedule WHERE scope_key <> 'target'"
    )
    blind = altered(r"FROM tenantfair_schedule AS", "FROM tests_blind AS")
    try:
        certificate = certificate_of(domain, blind)
    finally:
        domain.db.execute("DROP VIEW tests_blind")
    assert rules(certificate) == {Rule.FAILURES}
    assert {violation.scope for violation in certificate.violations} == {"target"}


def test_quantum_that_is_ignored_is_found_out(domain: Bench) -> None:
    two_scopes(domain)
    greedy = altered(r"c_quantum\s+CONSTANT integer := 8;", "c_quantum CONSTANT integer := 16;")
    certificate = certificate_of(domain, greedy, calls=1, demand=32)
    assert rules(certificate) == {Rule.QUANTUM, Rule.BOUND}


def test_epoch_that_is_not_moved_is_found_out(domain: Bench) -> None:
    two_scopes(domain)
    still = altered(r"part.admission_epoch \+ v_repeat", "part.admission_epoch")
    certificate = certificate_of(domain, still, calls=2)
    assert rules(certificate) == {Rule.EPOCH}
    assert {violation.scope for violation in certificate.violations} == {"hot", "target"}


def test_cap_that_is_ignored_is_found_out(domain: Bench) -> None:
    domain.policy(2)
    domain.queued("hot", 9)
    domain.queued("target", 9)
    loose = altered(r"v_policy\.max_active\b(?! IS)", "v_policy.max_active + 1")
    certificate = certificate_of(domain, loose, calls=3, demand=2)
    assert rules(certificate) == {Rule.CAP}
    assert {(peak.admitted, peak.cap) for peak in certificate.peaks.values()} == {(3, 2)}


def test_grants_outside_of_a_claim_are_found_out(domain: Bench) -> None:
    domain.policy(5)
    (run,) = domain.queued("target")

    def by_hand() -> None:
        domain.db.execute(
            "UPDATE tenantfair_run SET wake_at = NULL, claim_token = gen_random_uuid(), claimed_at = now(),"
            " tenant_admitted_at = now() WHERE id = %s",
            [run],
        )

    assert rules(certified(by_hand)) == {Rule.CURSOR}
