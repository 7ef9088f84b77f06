"""The statements of a domain: the legacy engine, adoption, the idle check, caps, inspection."""

from tests.mutants.mutant import Mutant

LEGACY = "sql/legacy_claim.sql"
IDLE = "sql/due_work_exists.sql"
INSPECT = "sql/inspect_scopes.sql"

MUTANTS = (
    Mutant(
        name="adoption-at-the-time-of-the-switch",
        file="sql/adopt_claims.sql",
        old="SET tenant_admitted_at = claimed_at",
        new="SET tenant_admitted_at = now()",
        breaks="an adopted claim is marked with its claimed_at (D10)",
        killed_by=(
            "test_boot.py::test_the_switch_to_tenant_fair_adopts_healthy_claims_at_the_time_they_were_claimed",
        ),
    ),
    Mutant(
        name="adoption-of-the-queue",
        file="sql/adopt_claims.sql",
        old="SET tenant_admitted_at = claimed_at\nWHERE claim_token IS NOT NULL\n",
        new="SET tenant_admitted_at = coalesce(claimed_at, now())\nWHERE status = 'running'\n    AND poisoned_at IS NULL\n",
        breaks="the switch marks claimed runs and leaves the rest queued (item 140)",
        killed_by=(
            "test_boot.py::test_the_switch_to_tenant_fair_adopts_healthy_claims_at_the_time_they_were_claimed",
        ),
    ),
    Mutant(
        name="legacy-sets-a-marker",
        file=LEGACY,
        old="THEN run.tenant_admitted_at END",
        new="THEN coalesce(run.tenant_admitted_at, clock.now) END",
        breaks="the legacy engine never sets a marker (contract 3, item 139)",
        killed_by=("test_claim_engines.py::test_legacy_keeps_a_marker_and_never_sets_one",),
    ),
    Mutant(
        name="legacy-in-a-tenant-fair-domain",
        file=LEGACY,
        old="gate.admission_mode = 'legacy'",
        new="gate.admission_mode IS NOT NULL",
        breaks="the engines never admit together: each goes on only in its own mode (contract 3, item 137)",
        killed_by=("test_claim_engines.py::test_legacy_is_inactive_in_a_tenant_fair_domain",),
    ),
    Mutant(
        name="legacy-without-the-policy-lock",
        file=LEGACY,
        old="    FOR SHARE SKIP LOCKED\n",
        new="",
        breaks="both engines lock the policy row (contract 3)",
        killed_by=("test_claim_engines.py::test_open_legacy_claim_keeps_the_other_engine_out",),
    ),
    Mutant(
        name="legacy-one-start-more",
        file=LEGACY,
        old="run.claim_attempts < clock.max_attempts",
        new="run.claim_attempts <= clock.max_attempts",
        times=7,
        breaks="a run is started exactly as often as the limit says (contract 4, item 95)",
        killed_by=("test_claim_engines.py::test_run_is_started_max_attempts_times_in_all",),
    ),
    Mutant(
        name="legacy-steals-live-claims",
        file=LEGACY,
        old="run.claimed_at < (SELECT clock.expired_before FROM clock)",
        new="run.claimed_at < (SELECT clock.now FROM clock)",
        breaks="a live claim is nobody else's (D8)",
        killed_by=("test_claim_engines.py::test_due_and_expired_are_claimed_and_nothing_else",),
    ),
    Mutant(
        name="override-without-compare",
        file="sql/put_override.sql",
        old="    OR existing.partition_version = %(expected)s::bigint\n",
        new="    OR existing.partition_version >= %(expected)s::bigint\n",
        breaks="an override is changed by compare-and-set (contract 6, item 130)",
        killed_by=(
            "test_policy.py::test_of_concurrent_writes_that_expect_one_version_exactly_one_succeeds",
            "test_policy.py::test_an_override_of_a_new_scope_creates_it_at_version_1_with_a_ring_row",
            "test_policy.py::test_a_stale_override_changes_nothing",
        ),
    ),
    Mutant(
        name="policy-row-waits-for-its-writer",
        file="sql/restore_policy_row.sql",
        old="WHERE NOT EXISTS (\n    SELECT\n    FROM tenantfair_policy\n    WHERE id = 1\n)\n",
        new="",
        breaks="an existing policy row is neither changed nor waited for (contract 2)",
        killed_by=("test_boot.py::test_post_migrate_waits_for_nobody_who_writes_the_row",),
    ),
    Mutant(
        name="lock-wait-beyond-the-callers",
        file="sql/bound_lock_wait.sql",
        old="WHEN lock_timeout::interval BETWEEN interval '1 ms' AND interval '250 ms' THEN lock_timeout",
        new="WHEN lock_timeout::interval BETWEEN interval '1 s' AND interval '2 s' THEN lock_timeout",
        breaks="a lower lock_timeout of the caller is obeyed (contract 4)",
        killed_by=(
            "test_runs_manage.py::test_a_lock_is_waited_for_as_long_as_the_caller_would_and_250_ms_at_most",
        ),
    ),
    Mutant(
        name="idle-check-overlooks-expired-claims",
        file=IDLE,
        old="run.claim_token IS NOT NULL AND run.claimed_at < (SELECT clock.expired_before FROM clock)",
        new="run.claim_token IS NOT NULL AND run.claimed_at < (SELECT clock.expired_before - interval '1 year' FROM clock)",
        breaks="the idle check says yes to an expired claim (D12)",
        killed_by=("test_idle_check.py::test_yes_to_the_one_thing_that_can_be_granted",),
    ),
    Mutant(
        name="idle-check-ignores-the-cap",
        file=IDLE,
        old="                    AND cap.n > (",
        new="                    AND cap.n >= (",
        breaks="a full scope is nothing to claim (D12)",
        killed_by=("test_idle_check.py::test_no_where_nothing_can_be_granted",),
    ),
    Mutant(
        name="idle-check-looks-at-64-scopes-and-says-no",
        file=IDLE,
        old="                WHERE queued.place > 64\n                    OR (",
        new="                WHERE (",
        breaks="too many scopes to look at is a yes: a wrong no would cost work (D12)",
        killed_by=("test_idle_check.py::test_too_many_scopes_to_look_at_is_yes",),
    ),
    Mutant(
        name="idle-check-without-a-policy-row",
        file=IDLE,
        old="    NOT EXISTS (SELECT FROM clock)\n    OR (",
        new="    (",
        breaks="every doubt of the idle check is a yes (D12)",
        killed_by=("test_idle_check.py::test_a_missing_policy_row_is_yes",),
    ),
    Mutant(
        name="inspect-counts-live-legacy-claims",
        file=INSPECT,
        old="        AND claim_token IS NOT NULL\n        AND tenant_admitted_at IS NOT NULL\n",
        new="        AND claim_token IS NOT NULL\n",
        breaks="a claim without a marker is not admitted (contract 2, item 133)",
        killed_by=("test_policy.py::test_a_claim_without_a_marker_is_not_admitted",),
    ),
    Mutant(
        name="inspect-hides-debt-that-is-not-due",
        file=INSPECT,
        old="ready.due + ready.early + claimed.admitted",
        new="ready.due + claimed.admitted",
        breaks="debt is all that is admitted beyond the cap (contract 2, item 133)",
        killed_by=("test_policy.py::test_debt_includes_admitted_runs_that_are_not_due_yet",),
    ),
    Mutant(
        name="inspect-counts-future-runs-as-queued",
        file=INSPECT,
        old="        AND tenant_admitted_at IS NULL\n        AND wake_at <= statement_timestamp()\n",
        new="        AND tenant_admitted_at IS NULL\n",
        breaks="future runs are inactive, not queued (contract 2, item 133)",
        killed_by=("test_policy.py::test_inspect_counts_each_admission_state_and_nothing_else",),
    ),
)
