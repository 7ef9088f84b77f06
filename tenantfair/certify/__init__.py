"""A certificate: how often scopes were passed over in reality, against the bound.

`certify` records what the running workers claim for a while, goes through the record by rules of its own, and
removes all of it. What the record cannot tell makes a window ineligible, never good.
"""

from __future__ import annotations

from hashlib import sha256

from tenantfair import schema
from tenantfair.certify import recorder, triggers
from tenantfair.certify.bound import Counts
from tenantfair.certify.errors import RecordingFailed, RecordingLeft, RecordingNotAllowed
from tenantfair.certify.recorder import Limits, Recording
from tenantfair.certify.replay import replay
from tenantfair.certify.report import Certificate
from tenantfair.certify.triggers import Left, Stop, Unstoppable
from tenantfair.certify.verdict import Reason, Rule, Violation, Window
from tenantfair.conf import get_settings

__all__ = [
    "Certificate",
    "Counts",
    "Left",
    "Limits",
    "Reason",
    "RecordingFailed",
    "RecordingLeft",
    "RecordingNotAllowed",
    "Rule",
    "Violation",
    "Window",
    "certify",
    "clean",
]


def certify(
    using: str | None = None, *, limits: Limits | None = None, failures: int = 0, stop: Stop | None = None
) -> Certificate:
    """Record claims and judge every window among them.

    `failures` is L: how many inspections of a scope in a row may be in vain because somebody outside of
    tenantfair holds locks on its rows. Raises what `recorder.make` raises.
    """
    alias = using or get_settings().database
    recording = recorder.make(alias, limits or Limits(), stop or Unstoppable())
    source = schema.function_sources(alias).get("tenantfair_claim", "")
    return _certificate(alias, recording, failures, sha256(source.encode()).hexdigest())


def clean(using: str | None = None) -> Left | None:
    """Remove a recording whose maker is gone, or end one that goes on; return what there was.

    Raises `RecordingNotAllowed` and `RecordingLeft`.
    """
    alias = using or get_settings().database
    found = triggers.left(alias)
    if found:
        triggers.require_rights(alias)
        triggers.take_off(alias, Unstoppable())
    return found


def _certificate(alias: str, recording: Recording, failures: int, claim_function: str) -> Certificate:
    replayed = replay(recording.record, failures=failures)
    return Certificate(
        database=alias,
        started_at=recording.started_at,
        seconds=recording.seconds,
        ended_by=recording.ended_by,
        calls=replayed.judge.calls,
        rows=len(recording.record.rows),
        failures=failures,
        claim_function=claim_function,
        windows=replayed.judge.windows,
        ineligible=replayed.judge.ineligible,
        violations=replayed.judge.violations,
        peaks=replayed.peaks,
    )
