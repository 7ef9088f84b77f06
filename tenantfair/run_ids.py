"""Ids of new runs: unique anywhere, and in the order of time, so that the index keeps neighbours together.

A claim, a heartbeat and an outcome each add an entry there. Random ids spread these over all of the index, of
which PostgreSQL logs each page in full when it first changes after a checkpoint (decision 0016).
Imports nothing of ours: the models and their migration depend on it.
"""

from __future__ import annotations

import os
import time
from uuid import UUID

__all__ = ["new_run_id"]

_VERSION_AND_VARIANT = 0x7 << 76 | 0b10 << 62


def new_run_id() -> UUID:
    """Return a new version 7 UUID (RFC 9562).

    It holds 48 bits of milliseconds since 1970, 12 bits of the millisecond's fraction and 62 random bits. So
    whoever sees the id can tell when the run was created; nobody can guess another one.
    """
    milliseconds, nanoseconds = divmod(time.time_ns(), 1_000_000)
    fraction = nanoseconds * 4096 // 1_000_000
    random = int.from_bytes(os.urandom(8)) >> 2
    return UUID(int=milliseconds << 80 | fraction << 64 | random | _VERSION_AND_VARIANT)
