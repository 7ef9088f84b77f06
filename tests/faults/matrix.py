"""Every fault of the list, and what shows it: scenarios here, tests elsewhere, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass

from tests.faults import hosts, lifecycle, outside, servers, statements, under_load, workers
from tests.faults.scenario import SCENARIOS, Scenario

# They enter their scenarios when they are imported.
__all__ = ["hosts", "lifecycle", "outside", "servers", "statements", "under_load", "workers"]

_CRASH = "tests/processes/test_processes_crash.py"
_SIGNALS = "tests/processes/test_processes_signals.py"
_SERVER = "tests/processes/test_processes_server.py"
_HOSTS = "tests/test_counter_hosts.py"


@dataclass(frozen=True)
class Fault:
    """`tests` are node ids of tests elsewhere; `missing` says what of it is not done, and why."""

    what: str
    tests: tuple[str, ...] = ()
    missing: str = ""


FAULTS: dict[str, Fault] = {
    "F1": Fault(
        "kill -9 at thirteen points of a worker's life",
        (f"{_CRASH}::test_a_run_of_a_killed_worker_is_taken_over_when_its_lease_ends",),
    ),
    "F2": Fault(
        "SIGTERM at the same", (f"{_SIGNALS}::test_signals_at_any_moment_lose_no_run_and_leave_none_claimed",)
    ),
    "F3": Fault(
        "stopped past the lease, then continued",
        (f"{_CRASH}::test_a_worker_stopped_past_its_lease_can_write_nothing_when_it_resumes",),
    ),
    "F4": Fault(
        "killed for want of memory",
        (f"{_CRASH}::test_a_task_that_kills_its_worker_starts_as_often_as_it_may_and_frees_its_slot",),
    ),
    "F5": Fault("duplicate worker ids, cloned random seeds"),
    "F6": Fault(
        "fork after connect",
        ("tests/cases/test_tf_frozen.py::test_a_forked_child_ends_with_the_task_and_touches_no_session",),
    ),
    "F7": Fault(
        "a thread that outlives its task",
        ("tests/cases/test_tf_frozen.py::test_whatever_opened_a_transaction_it_ends_with_its_task",),
        "what such a thread does with connections of its own is the host's affair",
    ),
    "F8": Fault(
        "the interpreter's lock held past the lease",
        (f"{_CRASH}::test_tasks_that_compute_past_their_lease_run_once",),
    ),
    "F9": Fault(
        "sessions terminated in claim, heartbeat, finish, on the listener",
        ("tests/test_listener.py::test_a_lost_listener_comes_back_and_wakes_for_what_it_may_have_missed",),
    ),
    "F10": Fault("statements cancelled"),
    "F11": Fault("statement_timeout 1 ms to 1 s on every call"),
    "F12": Fault("lock_timeout 0, 1 ms, 250 ms"),
    "F13": Fault("idle_in_transaction timeout after an enqueue"),
    "F14": Fault(
        "provoked deadlocks",
        ("tests/test_counter_locks.py::test_rivals_over_a_few_tenants_never_deadlock_and_count_exactly",),
    ),
    "F15": Fault(
        "callers at other isolation levels, READ ONLY, DEFERRABLE",
        (f"{_SERVER}::test_a_host_that_runs_serializable_by_default_works_all_the_same",),
    ),
    "F16": Fault(
        "claims in an outer transaction, savepoints, PREPARE TRANSACTION",
        (
            f"{_HOSTS}::test_prepared_transaction_counts_when_it_ends",
            "tests/test_claim_arguments.py::test_savepoint_takes_the_whole_claim_back",
        ),
    ),
    "F17": Fault(
        "a user's locks on rows and tables", ("tests/test_claim_cap.py::test_locked_head_is_never_bypassed",)
    ),
    "F18": Fault(
        "immediate restart under load, fsync on",
        (f"{_SERVER}::test_a_server_crash_under_load_loses_nothing_and_breaks_no_cap",),
    ),
    "F19": Fault("one server process killed"),
    "F20": Fault("the server's main process frozen"),
    "F21": Fault("disk full, log and tables"),
    "F22": Fault("no session left; no place left in the lock table"),
    "F23": Fault("a standby promoted that lost the last moments"),
    "F24": Fault("a server that is read only"),
    "F25": Fault(
        "an old snapshot held",
        (),
        "a million updates beside it are a matter of speed, which the benchmarks measure",
    ),
    "F26": Fault("identities, places and laps near the end of a bigint"),
    "F27": Fault("a network that delays, drops, resets, splits, falls silent"),
    "F28": Fault(
        "PgBouncer in transaction mode, Django's pool",
        ("tests/cases/test_tf_pooler.py::test_a_session_is_given_back_as_it_was",),
    ),
    "F29": Fault("a name that does not resolve"),
    "F30": Fault("workers whose clocks are an hour apart"),
    "F31": Fault(
        "the server's clock steps back; a night of daylight saving time",
        (
            "tests/test_daylight_saving.py::test_a_lease_lasts_through_the_night_of_a_change",
            "tests/test_daylight_saving.py::test_enqueued_with_a_delay",
            "tests/test_daylight_saving.py::test_put_off_by_a_delay",
        ),
    ),
    "F32": Fault(
        "calls in a transaction that began long ago",
        (),
        "ten minutes are half a second here: only that now() stands still matters",
    ),
    "F33": Fault(
        "values that cannot be stored, odd tenants, odd times",
        (
            "tests/cases/test_odd_tenants.py",
            "tests/cases/test_tf_batch.py",
            "tests/cases/test_tf_time.py",
            "tests/test_payloads.py::test_what_cannot_be_stored_is_refused_by_one_error",
        ),
    ),
    "F34": Fault("caps flipped during claims, overrides added and reset"),
    "F35": Fault("tenants created and deleted in a loop"),
    "F36": Fault(
        "TRUNCATE, flush, loaddata",
        (
            "tests/test_ring_truncate.py::test_flush_command_leaves_a_usable_domain",
            "tests/cases/test_tf_copy.py",
            "tests/test_doctor_repair.py",
        ),
    ),
    "F37": Fault(
        "direct SQL by a hostile role",
        (
            "tests/test_claim_arguments.py::test_hostile_search_path_and_shadow_tables_change_nothing",
            "tests/test_counter_hosts.py::test_hostile_search_path_and_shadow_tables_change_no_count",
            "tests/test_ring.py",
        ),
        "the package ships no roles of its own",
    ),
    "F38": Fault(
        "function replaced under load",
        (f"{_SERVER}::test_a_claim_function_that_is_replaced_by_one_like_it_disturbs_nothing",),
        "old and new code on one schema needs a second release",
    ),
    "F39": Fault("a task unknown to half the fleet"),
}


def scenarios() -> dict[str, Scenario]:
    """Return all scenarios by unit, in their order."""
    return SCENARIOS


def scenarios_of(fault: str) -> list[str]:
    """Return the units that show one fault."""
    return [unit for unit, each in SCENARIOS.items() if fault in each.faults]


def tests() -> list[str]:
    """Return the node ids of the tests that show a fault elsewhere."""
    return sorted({test for fault in FAULTS.values() for test in fault.tests})
