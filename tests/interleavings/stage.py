"""Moves the sessions one step at a time and knows when a step is over.

A step opens the gate at which a session stands. It is over when every session stands at a gate, has ended,
or waits for a lock of another session under test. There is no sleep but the wait for the sessions' own
events; when none comes within half a millisecond the server is asked who waits for whom.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any

import psycopg
from psycopg.pq import ExecStatus

from tests.interleavings.actors import COMMIT, DEADLINE_SECONDS, ROLLBACK, TERMINATE, Actor, Event, Job
from tests.interleavings.bed import connect
from tests.interleavings.gates import LOCK_CLASS
from tests.interleavings.look import LOOK
from tests.interleavings.seen import End, Seen, Work

_FIRST_WAIT_SECONDS = 0.001
_POLL_SECONDS = 0.0005
_VACUUM_EVERY = 150

_OPEN = b"SELECT pg_advisory_unlock($1::int, $2::int)"
_CLOSE = b"SELECT pg_advisory_lock($1::int, $2::int)"
_CLOSE_AND_OPEN = b"SELECT pg_advisory_lock($1::int, $2::int), pg_advisory_unlock($1::int, $3::int)"
_BLOCKED = b"SELECT pid FROM unnest($1::int[]) AS pid WHERE pg_blocking_pids(pid) && $2::int[]"


class Stuck(Exception):
    """A step was not over after five seconds; the message holds the locks of the server."""


class Stage:
    def __init__(self, database: str) -> None:
        self.database = database
        self.control = connect(database)
        self.control.execute("SET session_replication_role = replica")
        self.control.execute(f"SET lock_timeout = '{DEADLINE_SECONDS}s'")
        for name, statement in (
            ("open", _OPEN),
            ("close", _CLOSE),
            ("both", _CLOSE_AND_OPEN),
            ("blocked", _BLOCKED),
        ):
            self._checked(self.control.pgconn.prepare(name.encode(), statement))
        self._checked(self.control.pgconn.prepare(b"look", LOOK))
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._actors: dict[str, Actor] = {}
        self._opened: dict[str, int | None] = {}
        self._played = 0
        # Of the schedule that is being played; see Seen.
        self.trace: list[str] = []

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        for actor in self._actors.values():
            actor.close()
        self.control.close()

    def play(
        self,
        works: Mapping[str, Work],
        ends: Mapping[str, End],
        choose: Callable[[int, str], str],
        *,
        looks_between: bool = True,
    ) -> Seen:
        """Bring the domain to its first state, run the sessions to their ends in the order chosen, and
        look.

        `choose` is given the number of the step and the letters of the sessions that can be moved. The
        domain is looked at whenever a session has ended, or only after the last where one may have a whole
        table locked.
        """
        self.reset()
        play = _Play(self, works, ends, looks_between)
        self.trace = play.seen.trace
        while movable := play.movable():
            play.step(choose(len(play.seen.order), movable))
        return play.seen

    def look(self) -> str:
        return self._ask(b"look")[0][0].decode()

    def actor(self, letter: str) -> Actor:
        if letter not in self._actors:
            self._actors[letter] = Actor(letter, self.database, self._events)
            self._opened[letter] = None
            for parity in (b"0", b"1"):
                self._ask(b"close", self._lock(letter), parity)
        return self._actors[letter]

    def event(self, seconds: float) -> Event:
        return self._events.get(timeout=seconds)

    def open(self, letter: str, number: int) -> None:
        """Let a session pass a gate inside a function; the one that it passed before is closed again."""
        parity, opened = number % 2, self._opened[letter]
        if opened is None:
            self._ask(b"open", self._lock(letter), b"%d" % parity)
        else:
            self._ask(b"both", self._lock(letter), b"%d" % opened, b"%d" % parity)
        self._opened[letter] = parity

    def abort(self, letter: str, how: str) -> None:
        """Cancel the statement or end the backend of a session, wherever it stands."""
        function = "pg_cancel_backend" if how == ROLLBACK else "pg_terminate_backend"
        self.control.execute(f"SELECT {function}({self._actors[letter].pid})")
        if (opened := self._opened[letter]) is not None:
            # Its next gate would have this one's parity.
            self._ask(b"close", self._lock(letter), b"%d" % opened)
            self._opened[letter] = None

    def blocked(self, letters: Sequence[str], among: Sequence[str]) -> set[str]:
        """Return which of the sessions wait for a lock of one under test."""
        pids = {self._actors[letter].pid: letter for letter in letters}
        all_pids = ",".join(str(self._actors[letter].pid) for letter in among)
        rows = self._ask(b"blocked", f"{{{','.join(map(str, pids))}}}".encode(), f"{{{all_pids}}}".encode())
        return {pids[int(pid)] for (pid,) in rows}

    def locks(self) -> str:
        rows = self.control.execute(
            "SELECT pid, locktype, relation::regclass, mode, granted, pg_blocking_pids(pid) FROM pg_locks"
            " WHERE database IS NULL"
            " OR database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            " ORDER BY pid"
        ).fetchall()
        names = {actor.pid: letter for letter, actor in self._actors.items()}
        return "\n".join(f"{names.get(row[0], ' ')} {row}" for row in rows)

    def prepare(self, script: str, gate: str) -> None:
        """Make `reset` bring about the state that this script does, and put the rows' gate in or out."""
        self.control.execute(gate)
        self.control.execute(
            f"CREATE OR REPLACE PROCEDURE tests_reset() LANGUAGE plpgsql AS $$ BEGIN {script} END $$"
        )

    def reset(self) -> None:
        self._played += 1
        if self._played % _VACUUM_EVERY == 0:
            self.control.execute(
                "VACUUM tenantfair_run, tenantfair_partition, tenantfair_schedule, tenantfair_policy"
            )
        self._checked(self.control.pgconn.exec_(b"CALL tests_reset()"))

    def _lock(self, letter: str) -> bytes:
        return b"%d" % (LOCK_CLASS + self._actors[letter].index)

    def _ask(self, statement: bytes, *params: bytes) -> list[tuple[bytes, ...]]:
        found = self._checked(self.control.pgconn.exec_prepared(statement, params))
        columns = range(found.nfields)
        return [tuple(found.get_value(row, column) for column in columns) for row in range(found.ntuples)]

    def _checked(self, found: Any) -> Any:
        if found.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            raise psycopg.OperationalError(found.error_message.decode())
        return found


class _Play:
    """One schedule on its way."""

    def __init__(
        self,
        stage: Stage,
        works: Mapping[str, Work],
        ends: Mapping[str, End],
        looks_between: bool,
    ) -> None:
        self.stage = stage
        self._looks_between = looks_between
        self.seen = Seen()
        self._ends = ends
        self._stops = dict.fromkeys(works, 0)
        self._at: dict[str, Event] = {}
        self._moving: set[str] = set()
        self._blocked: set[str] = set()
        self._letters = "".join(works)
        for letter, work in works.items():
            actor = stage.actor(letter)
            self.seen.jobs[letter] = job = Job(work.perform, work.points, work.autocommit)
            actor.start(job)
            self._moving.add(letter)
        self._settle()
        self.seen.trace.clear()

    def movable(self) -> str:
        return "".join(letter for letter in self._letters if letter in self._at)

    def step(self, letter: str) -> None:
        self.seen.enabled.append(self.movable())
        self.seen.order += letter
        stop = self._at.pop(letter)
        end, here = self._ends[letter], self._stops[letter] - 1
        actor = self.stage.actor(letter)
        self._moving.add(letter)
        if end.how != COMMIT and (here == end.at or (end.at is None and stop.point == "end")):
            self.seen.jobs[letter].is_aborted = True
            if stop.number is not None:
                self.stage.abort(letter, end.how)
            else:
                if end.how == TERMINATE:
                    self.stage.abort(letter, end.how)
                actor.go_on(abort=end.how)
        elif stop.number is None:
            actor.go_on()
        else:
            self.stage.open(letter, stop.number)
        self._settle()

    def _settle(self) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        arrived: list[Event] = []
        patience = _FIRST_WAIT_SECONDS
        while True:
            while self._moving or (self._blocked and not self._at):
                try:
                    event = self.stage.event(patience)
                except Empty:
                    patience = _POLL_SECONDS
                    waiting = (
                        self.stage.blocked(sorted(self._moving), self._letters) if self._moving else set()
                    )
                    self._moving -= waiting
                    self._blocked |= waiting
                    if time.monotonic() > deadline:
                        raise Stuck(f"{self.seen.order}: {self._moving}\n{self.stage.locks()}") from None
                else:
                    self._moving.discard(event.letter)
                    self._blocked.discard(event.letter)
                    arrived.append(event)
                    if event.point != "done":
                        self._at[event.letter] = event
                        self._stops[event.letter] += 1
            if not self._blocked:
                break
            freed = self._blocked - self.stage.blocked(sorted(self._blocked), self._letters)
            if not freed:
                break
            self._blocked -= freed
            self._moving |= freed
        arrived.sort(key=lambda event: event.letter)
        self.seen.trace += [f"{event.letter}:{event.point}" for event in arrived]
        if any(event.point == "done" for event in arrived) and (self._looks_between or not self._at):
            self.seen.texts.append(self.stage.look())
