"""The database's own record of who was served when: installing it, and reading it for the judge."""

from datetime import datetime
from typing import Any

import psycopg

from example_project.database import load_sql
from example_project.record import Record, RunMoved, ScopeChanged, Snapshot, Turn


def install(url: str) -> None:
    """Have a migrated database keep a record from now on."""
    with psycopg.connect(url) as connection:
        connection.execute(load_sql("journal"))


def read(url: str) -> Record:
    """Return the whole record, in the order in which it was written."""
    with psycopg.connect(url) as connection:
        return Record(
            turns=[_turn(*row) for row in connection.execute(load_sql("journal_turns"))],
            runs=[RunMoved(*row) for row in connection.execute(load_sql("journal_runs"))],
            scopes=[ScopeChanged(*row) for row in connection.execute(load_sql("journal_scopes"))],
        )


def _turn(xid: int, snapshot: str, is_call: bool, at: datetime, *rest: Any) -> Turn:
    laps_before, cursor_before, laps_after, cursor_after, cap, budget = rest
    return Turn(
        xid=xid,
        snapshot=Snapshot.parse(snapshot),
        is_call=is_call,
        at=at,
        before=(laps_before, cursor_before),
        after=(laps_after, cursor_after),
        cap=cap,
        budget=budget,
    )
