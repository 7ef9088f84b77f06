"""A window that is open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tenantfair.certify.bound import Counts
from tenantfair.certify.verdict import Reason

_NOTHING: Final = Counts(0, 0, 0)


@dataclass(slots=True)
class Opening:
    """A window that has not closed, and why it is not eligible if it is not.

    What spoils a window also has its counts begin anew, at the next call that nothing disturbs; until then it
    is `stale`. The bound holds from any call on, so the rest of a spoiled window can fail, but never pass.
    `first` are the totals at the call that the window may have opened with, `certain` those at the call from
    which on its scope was surely admissible: what counts must fit the bound from both.
    """

    certain: Counts = _NOTHING
    first: Counts | None = None
    passes: int = 0
    failures: int = 0
    reason: Reason | None = None
    stale: bool = True
