"""What is written down while runs are worked on, to be judged by `tests/history.py`.

Whoever runs real workers writes down what they did, outside the database or by triggers; every record is
optional, and what was not recorded is not judged. Times are seconds of one clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from tests import oracle


@dataclass(frozen=True)
class Executed:
    """The task of a run ran from `start` to `end`; `lease_ok` when its lease held all that time."""

    run: str
    tenant: str
    token: str
    start: float
    end: float
    lease_ok: bool = True


@dataclass(frozen=True)
class Accepted:
    """The database accepted this outcome of this claim; `outcome` is a final status, or another word."""

    run: str
    token: str
    outcome: str


@dataclass(frozen=True)
class Enqueued:
    """An enqueue whose transaction committed, or did not; None when its answer was lost."""

    run: str
    committed: bool | None


@dataclass(frozen=True)
class Claimed:
    """A claim answered `at` this time under this cap; `promoted` when it took a slot that was free."""

    run: str
    tenant: str
    token: str
    at: float
    cap: int
    promoted: bool = True


@dataclass(frozen=True)
class Promoted:
    """In the order they happened. `visible` is since when others certainly saw it queued, None if unknown.

    `at` is when the promoting call began: what was visible and due by then must not be passed over.
    """

    tenant: str
    run: str
    wake_at: float
    id: int
    at: float
    visible: float | None = None


@dataclass(frozen=True)
class Inspected:
    """The cursor went from `before` to `after`, this scope's place. `locked` rows were tried."""

    before: int
    after: int
    scope: str
    outcomes: int = 0
    locked: int = 0


@dataclass(frozen=True)
class Called:
    """A claim call in the order of the database; `before` and `after` are (laps, cursor)."""

    before: tuple[int, int]
    after: tuple[int, int]
    visits: Sequence[Inspected]
    committed: bool = True


@dataclass(frozen=True)
class Window:
    """A trace for the judge of rotation: its target, who may be granted, how often the target may fail."""

    trace: oracle.Trace
    target: str
    cohort: Set[str]
    failures: int


@dataclass(frozen=True)
class Due:
    """A tenant had due work and a free slot `since`; it was granted `at`, or never; `within` is in time."""

    tenant: str
    since: float
    at: float | None
    within: float


@dataclass(frozen=True)
class Held:
    """A claim that was there when faults stopped; `gone` is when it had ended, None if it never did."""

    run: str
    is_live: bool
    stopped: float
    gone: float | None
    lease: float
    poll: float


@dataclass(frozen=True)
class Trouble:
    """A statement of ours ended with this SQLSTATE, waited for a lock in a claim, or a session idled."""

    sqlstate: str = ""
    claim_waited: float = 0.0
    idle_in_transaction: float = 0.0


@dataclass(frozen=True)
class History:
    """`stored` is each run's status at the end; `epochs` are what each scope's epoch moved by in all.

    `removed` were pruned or deleted, `revived` retried by hand; `steady` scopes were always on the ring.
    `logged` are the SQLSTATEs of the server's errors, `allowed` those that were provoked.
    """

    executed: Sequence[Executed] = ()
    accepted: Sequence[Accepted] = ()
    enqueued: Sequence[Enqueued] = ()
    stored: Mapping[str, str] | None = None
    removed: Set[str] = frozenset()
    revived: Set[str] = frozenset()
    claimed: Sequence[Claimed] = ()
    promoted: Sequence[Promoted] = ()
    calls: Sequence[Called] = ()
    epochs: Mapping[str, int] | None = None
    steady: Set[str] = frozenset()
    windows: Sequence[Window] = ()
    due: Sequence[Due] = ()
    held: Sequence[Held] = ()
    troubles: Sequence[Trouble] = ()
    logged: Sequence[str] = ()
    allowed: Set[str] = field(default_factory=frozenset)
