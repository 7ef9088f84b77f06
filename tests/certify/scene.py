"""A recording whose stage manager is the test: what it does happens between opening and closing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from tenantfair.certify import Certificate, certify
from tests.claim_support import LEASE, Bench, Claimed, Session


class Scene:
    """Plays once when the recording waits for its end, and ends it."""

    def __init__(self, play: Callable[[], Any]) -> None:
        self.play = play
        self.count = 0

    def wait(self, seconds: float) -> None:
        self.play()
        self.count = 1


def certified(play: Callable[[], Any], **options: Any) -> Certificate:
    """The certificate on what `play` does."""
    return certify(stop=Scene(play), **options)


def claim(
    domain: Bench, demand: int = 1, function: str = "tenantfair_claim", by: Session | None = None
) -> Claimed:
    """A call as a worker makes it: at the clock's time, without a trace, committed at once."""
    now = datetime.now(UTC)
    return domain.claim(
        demand, by=by, now=now, cutoff=now - timedelta(seconds=LEASE), trace=False, function=function
    )
