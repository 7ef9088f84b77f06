"""The claim calls of one dispatcher, and the questions before them."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Final

from tenantfair import claim
from tenantfair.claim.base import ClaimBatch, Preference

_MORE_SECONDS: Final = 0.25

# The dispatchers of one process ask and claim one after the other. Woken together, they would otherwise queue
# for the policy row, all told that there is work, which the first of them takes.
_turns: Final[defaultdict[str, threading.Lock]] = defaultdict(threading.Lock)


class Calls:
    """Claims on one database alias and remembers what the last call says about the next.

    `asked_at` is when the last call was made, `more_until` until when it lets more work be expected: a
    quarter of a second after a call that was filled. `seconds` sums up what questions and calls have taken.
    """

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._preference: Preference = "ready"
        self.asked_at = 0.0
        self.more_until = 0.0
        self.seconds = 0.0

    def claim(self, demand: int, *, asks: bool, until: tuple[int, int] | None = None) -> ClaimBatch | None:
        """Make one call; None, and no call, when it `asks` first and nothing could be granted.

        The question is left out while more work is expected anyway. With `until`, calls that are granted
        nothing go on to that place of the cursor.
        """
        with _turns[self._alias]:
            began = self.asked_at = time.monotonic()
            try:
                if asks and began >= self.more_until:
                    if not claim.due_work_exists(using=self._alias):
                        return None
                    self.asked_at = time.monotonic()
                batch = claim.claim_due(
                    demand,
                    preference=self._preference if demand == 1 else None,
                    using=self._alias,
                    until=until,
                )
            finally:
                self.seconds += time.monotonic() - began
        if demand == 1 and len(batch.earlier) % 2 == 0:
            # After an even number of calls it is this one's turn again.
            self._preference = "expired" if self._preference == "ready" else "ready"
        filled = batch.call.outcomes >= demand
        self.more_until = time.monotonic() + _MORE_SECONDS if filled else 0.0
        return batch
