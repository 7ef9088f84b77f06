"""Several claims at once, and what would go wrong if the count did not wait for the partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from threading import Barrier

import pytest

from tests.claim_support import NOW, SHIPPED, Bench, Session, at, bench, inserted
from tests.rows import in_background, result

pytestmark = pytest.mark.django_db

BARRIER = "        PERFORM tests_barrier();"
BEFORE_THE_PARTITIONS = "v_tried := NULL;"
COUNT_TOO_EARLY = """
        v_known_scope := v_scope[:v_planned];
        SELECT array_agg((SELECT count(*) FROM tenantfair_run AS run WHERE run.scope_key = visit.scope
            AND run.tenant_admitted_at IS NOT NULL)::integer)
        INTO v_known_admitted FROM unnest(v_known_scope) AS visit (scope);
"""


@pytest.fixture
def domain(db: None) -> Iterator[Bench]:
    with bench() as found:
        yield found


def claim_together(domain: Bench, session: Session, together: Barrier) -> tuple[int, set[str]]:
    together.wait(timeout=20)
    found = domain.claim(by=session)
    assert found.error is None
    return len(found.leases), set(found.dispositions) - {"grant"}


@pytest.mark.conformance(65, 174)
@pytest.mark.parametrize("connections", [2, 4])
def test_last_slot_goes_to_one_of_several_connections(domain: Bench, connections: int) -> None:
    domain.policy(cap=1)
    for _ in range(10):
        rows = domain.queued("a", 5)
        together = Barrier(connections)
        calls = [
            in_background(partial(claim_together, domain, domain.session(), together))
            for _ in range(connections)
        ]
        found = [result(each) for each in calls]
        assert Counter(leases for leases, _ in found) == {1: 1, 0: connections - 1}
        assert all(denied == {"cap_debt_denial"} for leases, denied in found if not leases)
        assert domain.admitted("a") == rows[:1]
        domain.finish(*rows)


@pytest.mark.conformance(65, 174)
def test_random_claims_and_finishes_never_pass_a_cap_nor_claim_twice(domain: Bench) -> None:
    domain.policy(cap=3)
    for scope in "abcdef":
        domain.queued(scope, 30)
    start = Barrier(4)

    def work(number: int, session: object) -> list[object]:
        start.wait(timeout=20)
        claimed: list[object] = []
        for turn in range(25):
            found = domain.claim((1, 4, 9, 33)[(number + turn) % 4], by=session, trace=False)
            claimed += [row.claim_token for row in found.outcomes]
            over = session.execute(
                "SELECT scope_key FROM tenantfair_run WHERE tenant_admitted_at IS NOT NULL"
                " GROUP BY scope_key HAVING count(*) > 3"
            ).fetchall()
            assert over == []
            session.execute(
                "UPDATE tenantfair_run SET status = 'completed', finished_at = now(), claim_token = NULL,"
                " claimed_at = NULL, tenant_admitted_at = NULL WHERE claim_token = ANY (%s)",
                [[row.claim_token for row in found.outcomes if (number + turn) % 3]],
            )
        return claimed

    calls = [in_background(lambda number=number: work(number, domain.session())) for number in range(4)]
    tokens = [token for each in calls for token in result(each)]
    assert len(tokens) == len(set(tokens))
    assert domain.db.execute("SELECT max(claim_attempts) FROM tenantfair_run").fetchone()[0] == 1


@pytest.mark.conformance(136)
@pytest.mark.parametrize("others", [0, 1], ids=["queue alone", "beside admitted work"])
def test_override_that_commits_before_the_partition_is_locked_holds_for_the_visit(
    domain: Bench, others: int
) -> None:
    rows = domain.ready("a", others) + domain.queued("a", 5 - others)
    stopped = domain.function("claim_stopped", inserted(SHIPPED, BARRIER, before=BEFORE_THE_PARTITIONS))
    found = domain.while_stopped(lambda: domain.override("a", 4), stopped, demand=5)
    assert domain.ids(found.outcomes) == rows[:4]
    assert domain.admitted("a") == rows[:4]


@pytest.mark.conformance(90)
def test_queued_poison_waits_for_a_slot_that_was_taken_under_the_visit(domain: Bench) -> None:
    domain.claimed("a")
    poison = domain.queued("a", claim_attempts=5)[0]
    stopped = domain.function("claim_stopped", inserted(SHIPPED, BARRIER, before=BEFORE_THE_PARTITIONS))
    found = domain.while_stopped(lambda: domain.override("a", 1), stopped, demand=2)
    assert (found.outcomes, found.dispositions[0]) == ([], "cap_debt_denial")
    assert domain.run(poison).poisoned_at is None


@pytest.mark.conformance(175)
@pytest.mark.parametrize(("mutant", "admitted"), [(True, 2), (False, 1)])
def test_only_a_count_under_the_partition_lock_is_safe(domain: Bench, mutant: bool, admitted: int) -> None:
    """Somebody admits a run under the partition lock while a call stands right before taking it."""
    domain.policy(cap=1)
    first, second = domain.queued("a", 2)
    text = inserted(SHIPPED, (COUNT_TOO_EARLY if mutant else "") + BARRIER, before=BEFORE_THE_PARTITIONS)
    stopped = domain.function("claim_stopped", text)

    def admit() -> None:
        stranger = domain.locking_partition("a")
        domain.change(second, by=stranger, tenant_admitted_at=NOW, wake_at=at(3600))
        stranger.execute("COMMIT")

    found = domain.while_stopped(admit, stopped)
    assert len(domain.admitted("a")) == admitted
    assert set(found.dispositions) == ({"grant"} if mutant else {"cap_debt_denial"})
    assert (domain.run(first).claim_token is not None) == mutant
