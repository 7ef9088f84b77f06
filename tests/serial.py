"""Whether what several sessions did to one run, all at once, can be told as one after the other.

`tests/reference.py` says what each of them does alone; here every order is tried. What a session answered is
one word or value for each: a bool for a write with a fence, a token or None for a claim, the state that was
returned or `NOT_ACTIVE` for what needs no claim.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from tests.reference import Domain, NotActive, Run

NOT_ACTIVE = "not active"
RUN = "the run"
# Times of claims: long ago, so that a claim may take the run over, and now.
_EXPIRED, _RENEWED = -1, 0


def claimed_run(token: Any, *, retry_limit: int) -> Domain:
    """A domain with one run, claimed with `token` so long ago that it may be taken over."""
    run = Run("acme", retry_limit, None, token=token, claimed=_EXPIRED, admitted=True, attempts=1)
    return Domain(now=_RENEWED, runs={RUN: run})


def explained(domain: Domain, lease: Any, answers: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Whether some order of the operations in `answers` gives each its answer and leaves `row`."""
    if not answers:
        return shown(domain) == row
    return any(
        explained(after, lease, {other: answers[other] for other in answers if other != name}, row)
        for name in answers
        for after in _done(domain, lease, name, answers[name])
    )


def shown(domain: Domain) -> dict[str, Any]:
    """The run, as `explained` compares it."""
    run = domain.runs[RUN]
    return {
        "state": domain.state(run),
        "token": run.token,
        "admitted": run.admitted,
        "attempts": run.attempts,
        "abandons": run.abandons,
        "failures": run.failures,
        "seq": run.seq,
        "saved": run.saved,
        "result": run.result,
        "signals": run.signals,
        "finished": run.finished is not None,
    }


def _done(domain: Domain, lease: Any, name: str, answer: Any) -> Iterator[Domain]:
    """Yield what the domain may be after `name`, if it can answer so now."""
    passes_by = (name == "steal" and answer is None) or (
        name == "heartbeat" and answer is True and domain.holds(lease)
    )
    if passes_by:
        # A row that somebody has locked at that moment: no claim takes it, and its lease counts as held.
        yield domain
    after = deepcopy(domain)
    try:
        found = _do(after, lease, name, answer)
    except NotActive:
        found = NOT_ACTIVE
    if found == answer:
        yield after


def _do(domain: Domain, lease: Any, name: str, answer: Any) -> Any:
    run = domain.runs[RUN]
    match name:
        case "complete":
            return domain.finish("completed", lease, value=1)
        case "retry":
            return domain.finish("retry", lease)
        case "checkpoint":
            return domain.checkpoint(lease, 1)
        case "heartbeat":
            return domain.heartbeat(lease)
        case "steal":
            if domain.state(run) not in ("queued", "ready") and run.claimed != _EXPIRED:
                return None
            domain.lease(RUN, answer)
            return answer
        case "cancel":
            domain.cancel(RUN)
        case "interrupt":
            domain.interrupt(RUN)
        case "signal":
            domain.signal(RUN, 1)
    return domain.state(run)
