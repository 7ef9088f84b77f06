"""The first state of a schedule, written as a script that puts the domain into it from whatever it is in.

It is run with triggers off, so counts and ring positions are written as they must be. Rows are deleted and
inserted: a TRUNCATE of twenty files costs more than all the steps together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

_FINISHED = ("completed", "failed", "cancelled")
_LONG_AGO = "'2020-01-01 00:00:0{second}+00'"

# The columns beside the names; {old} is a time long ago that follows the run's number.
_SHAPES: Mapping[str, Mapping[str, str]] = {
    "queued": {"wake_at": "{old}"},
    "ready": {"wake_at": "{old}", "tenant_admitted_at": "{old}"},
    "scheduled": {"wake_at": "now() + interval '1 day'"},
    "claimed": {
        "claim_token": "{token}",
        "claimed_at": "now()",
        "tenant_admitted_at": "{old}",
        "claim_attempts": "1",
    },
    "expired": {
        "claim_token": "{token}",
        "claimed_at": "{old}",
        "tenant_admitted_at": "{old}",
        "claim_attempts": "1",
    },
    "waiting": {"status": "'waiting'"},
    "poisoned": {"poisoned_at": "{old}", "poison_reason": "'test'"},
    **{state: {"status": f"'{state}'", "finished_at": "{old}"} for state in _FINISHED},
}


def run_id(name: str) -> UUID:
    """Return the id of the run called r1, r2, ..."""
    return UUID(int=int(name[1:]))


def token(name: str) -> UUID:
    """Return the claim token that a run has when a schedule begins with it claimed."""
    return UUID(int=(0xA << 120) + int(name[1:]))


@dataclass(frozen=True)
class RunRow:
    name: str
    scope: str
    state: str
    changes: Mapping[str, str] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, str]:
        number = int(self.name[1:])
        old = _LONG_AGO.format(second=number)
        shape = {
            column: value.format(old=old, token=f"'{token(self.name)}'")
            for column, value in _SHAPES[self.state].items()
        }
        return {
            "id": str(number),
            "run_id": f"'{run_id(self.name)}'",
            "tenant_id": f"'{self.scope}'" if self.scope else "NULL",
            "task_path": "'tests.tasks_for_tests.add'",
            "args": "'[1]'",
            "started_at": old if "claim_attempts" in shape else "NULL",
            **shape,
            **self.changes,
        }


@dataclass(frozen=True)
class State:
    """`runs` in FIFO order; `scopes` in ring order with their overrides, those of runs included by
    themselves.
    """

    runs: Sequence[RunRow] = ()
    cap: int = 1
    scopes: Mapping[str, int | None] = field(default_factory=dict)
    cursor: int = 0

    @property
    def names(self) -> list[str]:
        return [run.name for run in self.runs]

    def script(self) -> str:
        scopes = {**dict.fromkeys(sorted({run.scope for run in self.runs})), **self.scopes}
        unfinished = Counter(run.scope for run in self.runs if run.state not in _FINISHED)
        lines = [
            *(
                f"DELETE FROM tenantfair_{table}"
                for table in ("run", "schedule", "partition", "policy", "pending")
            ),
            "INSERT INTO tenantfair_policy (id, admission_mode, max_active, configured_max_active,"
            " policy_version, initialized_at, scan_ring_position)"
            f" VALUES (1, 'tenant_fair', {self.cap}, {self.cap}, 1, now(), {self.cursor})",
        ]
        for place, (scope, cap) in enumerate(scopes.items(), start=1):
            lines += [
                "INSERT INTO tenantfair_partition (scope_key, max_active, partition_version)"
                f" VALUES ('{scope}', {cap or 'NULL'}, 1)",
                "INSERT INTO tenantfair_schedule (scope_key, ring_position, unfinished_count)"
                f" OVERRIDING SYSTEM VALUE VALUES ('{scope}', {place}, {unfinished[scope]})",
            ]
        for run in self.runs:
            values = run.values
            lines.append(
                f"INSERT INTO tenantfair_run ({', '.join(values)}) VALUES ({', '.join(values.values())})"
            )
        # No identity handed out the positions above: those of new scopes must be beyond them all.
        lines.append("PERFORM setval(pg_get_serial_sequence('tenantfair_schedule', 'ring_position'), 100)")
        return "".join(f"{line};\n" for line in lines)


def runs(**states: str) -> list[RunRow]:
    """Return runs by name: `runs(r1="a queued", r2="b claimed")`; a scope of `-` is the tenantless one."""
    found = []
    for name, words in states.items():
        scope, state = words.split()
        found.append(RunRow(name, "" if scope == "-" else scope, state))
    return found
