"""How long to wait after the nth failure in a row."""

from __future__ import annotations

import random

_FIRST_SECONDS = 0.05


def backoff(failures: int, *, longest: float) -> float:
    """Return a pause in seconds: doubling from 50 ms to `longest`, with jitter, never zero."""
    ceiling = min(longest, _FIRST_SECONDS * 2.0 ** min(failures, 30))
    return random.uniform(ceiling / 2, ceiling)  # noqa: S311 - jitter
