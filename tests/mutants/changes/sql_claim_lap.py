"""Going on around the ring: the procedure, what reads its answer, and who calls it."""

from tests.mutants.mutant import Mutant

LAP = "sql/tenantfair_claim_lap.v1.sql"
TESTS = "test_claim_lap.py::test_"

MUTANTS = (
    Mutant(
        name="lap-in-one-transaction",
        file=LAP,
        old="        COMMIT;\n",
        new="",
        breaks="every call is a transaction of its own (contract 3, decision 0017)",
        killed_by=(f"{TESTS}every_call_is_a_transaction_of_its_own",),
    ),
    Mutant(
        name="lap-waits-for-the-disk",
        file=LAP,
        old="set_config('synchronous_commit', 'off', true)",
        new="set_config('synchronous_commit', 'on', true)",
        breaks="a claim that granted nothing does not wait for the disk (decision 0010)",
        killed_by=(f"{TESTS}every_call_is_a_transaction_of_its_own",),
    ),
    Mutant(
        name="lap-goes-on-after-a-grant",
        file=LAP,
        old="                AND v_claimed.outcome_count = 0\n",
        new="",
        breaks="a walk never claims more than its demand (contract 3, decision 0017)",
        killed_by=(f"{TESTS}a_call_that_is_granted_less_than_was_wanted_is_the_last",),
    ),
    Mutant(
        name="lap-around-an-empty-ring",
        file=LAP,
        old="                AND v_claimed.inspections > 0\n",
        new="",
        breaks="an empty ring is one call (D11)",
        killed_by=(f"{TESTS}an_empty_ring_means_one_call",),
    ),
    Mutant(
        name="lap-without-an-end",
        file=LAP,
        old="(v_claimed.laps_after, v_claimed.cursor_after) < (p_laps, p_cursor)",
        new="p_laps + p_cursor >= 0",
        breaks="a walk ends a lap after where it began, whoever moved the cursor (D11)",
        killed_by=(
            f"{TESTS}the_walk_ends_where_it_was_told_to",
            f"{TESTS}a_place_that_is_passed_already_means_one_call",
        ),
    ),
    Mutant(
        name="lap-of-any-length",
        file=LAP,
        old="c_calls CONSTANT integer := 32;",
        new="c_calls CONSTANT integer := 33;",
        breaks="an exchange is 32 calls at most, so that a worker soon hears of anything else (decision 0017)",
        killed_by=(f"{TESTS}no_more_than_32_calls_are_made_at_once",),
    ),
    Mutant(
        name="lap-of-any-time",
        file=LAP,
        old=" OR clock_timestamp() - statement_timestamp() > c_time",
        new="",
        breaks="an exchange is short, so that a worker soon hears of anything else (decision 0017)",
        killed_by=(f"{TESTS}slow_calls_are_not_put_together",),
    ),
    Mutant(
        name="lap-inside-a-transaction",
        file="claim/__init__.py",
        old="(until is not None or not allow_in_transaction)",
        new="(not allow_in_transaction)",
        breaks="a walk is refused inside a transaction, tests included (D9, decision 0017)",
        killed_by=(f"{TESTS}it_is_refused_inside_a_transaction_whatever_a_single_call_may",),
    ),
    Mutant(
        name="lap-hands-out-leases-before-they-are-on-disk",
        file="claim/__init__.py",
        old="        waits = own and not unflushed\n",
        new="        waits = own and not unflushed and not plan.lap\n",
        breaks="claim commits are synchronous by default (contract 7, decision 0010)",
        killed_by=(
            f"{TESTS}leases_wait_for_the_disk_where_claims_do",
            f"{TESTS}leases_whose_wait_for_the_disk_failed_are_handed_to_nobody",
        ),
    ),
    Mutant(
        name="lap-loses-calls",
        file="claim/observe.py",
        old="        for call in self.earlier:\n",
        new="        for call in self.earlier[:0]:\n",
        breaks="every call is observed (contract 7, item 172)",
        killed_by=(f"{TESTS}each_call_is_observed_and_all_share_the_time",),
    ),
    Mutant(
        name="lap-times-of-another-zone",
        file="claim/lap.py",
        old="found.astimezone(zone)",
        new="found",
        breaks="a lease is the same whichever way it was claimed (contract 3, decision 0017)",
        killed_by=(f"{TESTS}a_lease_is_what_a_single_call_returns",),
    ),
    Mutant(
        name="lap-spoilt-by-one-row",
        file=LAP,
        old="'kwargs', v_claimed.kwargs::text,",
        new="'kwargs', v_claimed.kwargs,",
        breaks="one bad row never strands its neighbours (contract 7)",
        killed_by=(f"{TESTS}a_number_that_python_cannot_read_spoils_its_own_lease_alone",),
    ),
    Mutant(
        name="lap-in-one-exchange-per-call",
        file="worker/dispatcher.py",
        old="until=end if fruitless else None",
        new="until=None",
        breaks="a walk in vain is one exchange with the server (decision 0017)",
        killed_by=("test_dispatcher.py::test_a_walk_in_vain_goes_on_in_one_exchange_with_the_server",),
    ),
)
