"""Everything the doctor can find. Ids are stable; the reference lists each as it is worded here."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

__all__ = ["KINDS", "MISFITS", "Kind", "Severity"]


class Severity(StrEnum):
    """How bad a finding is, worst first.

    Grave: work is held up or lost, or a promise is broken. Wrong: a rule is broken, and nobody waits for it.
    Worth a look: no rule is broken, and somebody should know.
    """

    GRAVE = "grave"
    WRONG = "wrong"
    LOOK = "worth a look"


class Kind(NamedTuple):
    """One thing that can be found: a stable id, what it means, and what to do."""

    id: str
    severity: Severity
    meaning: str
    remedy: str


_FIX: Final = "Run `manage.py tenantfair_doctor --fix`."
_ROW: Final = 'See "Rows that break a rule" in the repair guide.'

KINDS: Final = {
    kind.id: kind
    for kind in (
        # The gravest first: a report is in this order within each severity.
        Kind(
            "count_too_low",
            Severity.GRAVE,
            "A count is lower than the scope's unfinished runs. At 0 the scope has left the ring and is never"
            " served; above, its last runs cannot be finished.",
            _FIX,
        ),
        Kind(
            "schema",
            Severity.GRAVE,
            "The schema is not the one this version needs: something is missing, disabled or not validated.",
            "Run `manage.py migrate tenantfair`, then `manage.py tenantfair_doctor --reinstall --fix`; for"
            ' what is left see "When objects are missing" in the upgrade guide.',
        ),
        Kind(
            "function_body",
            Severity.GRAVE,
            "An installed function is not the text that this version ships.",
            "Run `manage.py tenantfair_doctor --reinstall`.",
        ),
        Kind(
            "policy_missing",
            Severity.GRAVE,
            "The policy row is gone, so nothing is claimed.",
            f"{_FIX} Then restart a worker, which writes the settings' cap into it.",
        ),
        Kind(
            "policy_extra",
            Severity.GRAVE,
            "There is more than one policy row.",
            "Delete all but the one in force, and restore the primary key and the constraint"
            " tenantfair_policy_shape.",
        ),
        Kind(
            "policy_shape",
            Severity.GRAVE,
            "The policy row holds a value that cannot be, so claims are refused or judge wrongly.",
            "Correct the row, and restore the constraint that was off.",
        ),
        Kind(
            "partition_missing",
            Severity.GRAVE,
            "A scope has unfinished runs or a place on the ring, but no partition: it is never served.",
            _FIX,
        ),
        Kind(
            "ring_position_missing",
            Severity.GRAVE,
            "A partition has no place on the ring: it is never served, and enqueuing for it fails.",
            _FIX,
        ),
        Kind(
            "ring_position_wrong",
            Severity.GRAVE,
            "Scopes share a place on the ring, or have one that was never handed out.",
            'See "Places on the ring" in the repair guide.',
        ),
        Kind(
            "partition_shape",
            Severity.GRAVE,
            "A partition holds a cap or a version that cannot be.",
            "Reset the override by `manage.py tenantfair_caps reset`, and restore the constraint.",
        ),
        Kind(
            "identity_behind",
            Severity.GRAVE,
            "The next number handed out is taken, so the next run or the next new scope is refused.",
            _FIX,
        ),
        Kind(
            "identity_missing",
            Severity.GRAVE,
            "A table no longer numbers its rows by itself.",
            'Restore the identity of the column: see "Places on the ring" in the repair guide.',
        ),
        Kind(
            "unreadable_time",
            Severity.GRAVE,
            "A time lies outside the years 1 to 9999: no worker can load the row, and the claim that meets it"
            " fails.",
            _ROW,
        ),
        Kind(
            "unreadable_json",
            Severity.GRAVE,
            "A run's JSON holds a number of more than 4,300 digits or is nested 500 deep: no worker can load"
            " the row, and the claim that meets it fails.",
            _ROW,
        ),
        Kind(
            "run_lists",
            Severity.GRAVE,
            "A list of workers, errors or signals is no JSON array: the claim that meets the run fails.",
            _ROW,
        ),
        Kind(
            "run_unreachable",
            Severity.GRAVE,
            "A run is neither due at any time nor claimed: it is never started.",
            _ROW,
        ),
        Kind(
            "run_due_and_claimed",
            Severity.GRAVE,
            "A claimed run is due as well: it can be started twice.",
            _ROW,
        ),
        Kind(
            "run_inert_holds",
            Severity.GRAVE,
            "A finished, waiting or poisoned run holds a wake time, a claim or a slot.",
            _ROW,
        ),
        Kind(
            "claim_shared",
            Severity.GRAVE,
            "Runs share a claim token, so that the holder of one could write to the other.",
            "Call `runs.interrupt()` for each of them.",
        ),
        Kind(
            "claim_unmarked",
            Severity.GRAVE,
            "A claimed run has no admission marker: it counts towards no cap, and is not recovered.",
            "Call `runs.interrupt()` for each of them.",
        ),
        Kind(
            "policy_locked",
            Severity.GRAVE,
            "Somebody holds the policy row or the lock in front of it, so that no claim gets past.",
            "End the session or the transaction: `SELECT pg_terminate_backend(pid)`, or ROLLBACK PREPARED.",
        ),
        Kind(
            "stalled",
            Severity.GRAVE,
            "There is due work and there are free slots, but nothing has been started for a while.",
            "See that workers run, reach this database, are not all busy with long tasks, and what their logs"
            " say of refused claims.",
        ),
        Kind(
            "count_too_high",
            Severity.WRONG,
            "A count is higher than the scope's unfinished runs: claims look at the scope for nothing.",
            _FIX,
        ),
        Kind(
            "notes_left",
            Severity.WRONG,
            "Transactions have ended without folding their notes into the counts.",
            _FIX,
        ),
        Kind(
            "cursor_impossible",
            Severity.WRONG,
            "The cursor stands where no place on the ring ever was.",
            "The next claim moves it to a place that is; if it stays, see that workers run.",
        ),
        Kind(
            "scope_malformed",
            Severity.WRONG,
            "A scope has a key that is no tenant id, so no API can name it.",
            _ROW,
        ),
        Kind(
            "run_claim_pair",
            Severity.WRONG,
            "A claim has a token without a time, or a time without a token.",
            _ROW,
        ),
        Kind(
            "run_poison_shape",
            Severity.WRONG,
            "A run is poisoned without a reason or has one without poison, or is poisoned and not running.",
            _ROW,
        ),
        Kind(
            "run_status",
            Severity.WRONG,
            "A run's status is unknown or does not go with its end: finished without a time, or unfinished"
            " with one.",
            _ROW,
        ),
        Kind(
            "run_tenant",
            Severity.WRONG,
            "A run's tenant is the empty text, which no tenant may be called.",
            _ROW,
        ),
        Kind(
            "run_counters",
            Severity.WRONG,
            "A run's attempts, abandons, failures, checkpoints or retry limit are below zero.",
            _ROW,
        ),
        Kind(
            "admission_parked",
            Severity.WRONG,
            "A run occupies a slot, but is neither claimed nor due.",
            "Call `runs.interrupt()` for each of them, or wait until they are due.",
        ),
        Kind(
            "claim_expired",
            Severity.WRONG,
            "Claims ran out long ago, and nobody has recovered them.",
            "See that workers run; any of them recovers expired claims.",
        ),
        Kind(
            "task_unknown",
            Severity.WRONG,
            "Unfinished runs name a task that this host cannot find; workers on such hosts give them back.",
            "Deploy the task, leave an alias under its old name, or cancel the runs.",
        ),
        Kind(
            "row_security",
            Severity.WRONG,
            "Row-level security is on, so that workers may not see every run.",
            "`ALTER TABLE ... DISABLE ROW LEVEL SECURITY`.",
        ),
        Kind(
            "schema_creators",
            Severity.LOOK,
            "Roles besides the owners may create in the schema, and what they put there can run in place of"
            " what functions of ours call.",
            "`REVOKE CREATE ON SCHEMA ... FROM ...`, unless you trust the role as you trust the owner of the"
            " tables.",
        ),
        Kind(
            "run_attempts",
            Severity.LOOK,
            "A run was started more often than the policy now allows; the next claim poisons it.",
            "Nothing, if MAX_ATTEMPTS was lowered.",
        ),
        Kind(
            "run_arguments",
            Severity.LOOK,
            "A run's arguments are no JSON array and object: it fails when it is started.",
            "Cancel the run and enqueue it anew.",
        ),
        Kind(
            "tasks_unchecked",
            Severity.LOOK,
            "There are more kinds of tasks than are looked up; only the most frequent were.",
            "Nothing.",
        ),
        Kind(
            "old_snapshot",
            Severity.LOOK,
            "An old snapshot keeps vacuum from rows that every claim rewrites, which makes claims slow.",
            "End the transaction: `SELECT pg_terminate_backend(pid)`, ROLLBACK PREPARED, or drop the slot.",
        ),
        Kind(
            "recording_left",
            Severity.LOOK,
            "A recording of tenantfair_certify was left behind. It writes nothing any more, but costs each"
            " statement a little.",
            "`manage.py tenantfair_certify --clean`.",
        ),
        Kind(
            "debt",
            Severity.LOOK,
            "More runs are admitted than the cap allows: it was lowered, and nothing is revoked.",
            "Nothing: nobody is admitted there until the debt is worked off.",
        ),
    )
}

# With any of these the database is not one to repair rows in.
MISFITS: Final = frozenset({"schema", "function_body"})
