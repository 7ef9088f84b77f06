"""Judges the diaries of the soak: what was claimed, by whom and how long, without a look at the claims' rows.

`verdict()` names each violation by its invariant:

    I4   a claim token is never given out twice
    I9   a claim's attempt never exceeds the domain's limit
    I13  a run is claimed again only after its outcome was sent, its claim was revoked, or its lease ended
    I14  an enqueued run is there; a rolled back one is not; nothing is there that nobody enqueued
    I15  of the outcomes of one claim one is accepted, a final one is the run's last, and it is the stored one
    I16  by the clock, no tenant has more claims in progress than its cap

The execution of a claim is as long as its holder can prove it: from the moment the claim was answered, to the
moment before its outcome was sent, its revocation was asked for, or its lease ended. A process that is
killed or stopped holds its claims until their leases end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

from tests.faults.diary import read

FINAL = {"completed": "completed", "failed": "failed"}
_MOST_NAMED = 20


@dataclass(slots=True)
class Claim:
    """One claim as its holder saw it; times are None for what did not happen."""

    run: str
    token: str
    tenant: str
    claimed_at: float
    seen_at: float
    attempt: int = 1
    renewed_at: float = 0.0
    sent_at: float | None = None
    kind: str = ""
    # True, False, or None when no answer came: such an outcome may have been accepted.
    accepted: bool | None = None


@dataclass
class History:
    """Everything the diaries say."""

    claims: dict[str, Claim] = field(default_factory=dict)
    enqueued: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)
    rolled_back: set[str] = field(default_factory=set)
    # By run, the times between which a revocation had its effect, if it had one.
    revoked: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    faults: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, paths: Iterable[Path]) -> History:
        history = cls()
        for path in paths:
            for letter, facts in read(path):
                history.add(letter, facts)
        return history

    def add(self, letter: str, facts: Any) -> None:
        match letter:
            case "c":
                self._claimed(*facts)
            case "h":
                for token in facts[1]:
                    claim = self.claims[token]
                    claim.renewed_at = max(claim.renewed_at, facts[0])
            case "f":
                for token, kind in facts[1]:
                    self._sent(self.claims[token], facts[0], kind)
            case "a":
                self._answered(facts[1], facts[2])
            case "e":
                self.asked.update(facts[2])
            case "k":
                self.enqueued.update(facts[0])
            case "r":
                self.rolled_back.update(facts[0])
            case "x":
                self.revoked[facts[1]].append((facts[0], inf))
            case "y":
                asked, _ = self.revoked[facts[1]].pop()
                self.revoked[facts[1]].append((asked, facts[0]))

    def _claimed(self, seen_at: float, leases: list[list[Any]]) -> None:
        for run, token, tenant, claimed_at, attempt in leases:
            if token in self.claims:
                self.faults.append(
                    f"I4 token {token} was given out for {self.claims[token].run} and for {run}"
                )
            self.claims[token] = Claim(run, token, tenant, claimed_at, seen_at, attempt)

    @staticmethod
    def _sent(claim: Claim, at: float, kind: str) -> None:
        if claim.sent_at is None:
            claim.sent_at, claim.kind = at, kind

    def _answered(self, accepted: list[str], refused: list[str]) -> None:
        for token in accepted:
            claim = self.claims[token]
            if claim.accepted is not None:
                self.faults.append(f"I15 the outcome of {token} of run {claim.run} was accepted twice")
            claim.accepted = True
        for token in refused:
            if self.claims[token].accepted is None:
                self.claims[token].accepted = False

    def by_run(self) -> Iterator[tuple[str, list[Claim]]]:
        """Yield the claims of each run in the order of their times."""
        found: dict[str, list[Claim]] = defaultdict(list)
        for claim in self.claims.values():
            found[claim.run].append(claim)
        for run, claims in found.items():
            yield run, sorted(claims, key=lambda claim: claim.claimed_at)


@dataclass(frozen=True)
class Stored:
    """A run's row at the end."""

    status: str
    result: Any


def verdict(
    history: History,
    rows: Mapping[str, Stored],
    *,
    lease: float,
    caps: Mapping[str, int],
    max_attempts: int,
) -> list[str]:
    """Return every violation found, the first of each kind with what is needed to look into it."""
    claims = verdict_of_claims(history, lease=lease, caps=caps, max_attempts=max_attempts)
    return [*claims, *_strays(history, rows), *_outcomes(history, rows)][:_MOST_NAMED]


def verdict_of_claims(
    history: History, *, lease: float, caps: Mapping[str, int], max_attempts: int
) -> list[str]:
    """Return the violations that need no look at the rows."""
    attempts = (
        f"I9 run {claim.run} started as attempt {claim.attempt} of {max_attempts}"
        for claim in history.claims.values()
        if claim.attempt > max_attempts
    )
    found = [*history.faults, *attempts, *_overlaps(history, lease), *_overshoots(history, lease, caps)]
    return found[:_MOST_NAMED]


def held_until(history: History, claim: Claim, lease: float) -> float:
    """Return the last moment at which the claim was certainly still its holder's."""
    ends = [max(claim.claimed_at, claim.renewed_at) + lease]
    # A refused outcome has ended nothing; one without an answer may have.
    if claim.sent_at is not None and claim.accepted is not False:
        ends.append(claim.sent_at)
    # One that was asked for before may have waited for this very claim.
    revoked = history.revoked.get(claim.run, ())
    ends += [max(asked, claim.claimed_at) for asked, answered in revoked if answered >= claim.claimed_at]
    return min(ends)


def _overlaps(history: History, lease: float) -> Iterator[str]:
    for run, claims in history.by_run():
        for claim, following in pairwise(claims):
            until = held_until(history, claim, lease)
            if following.claimed_at < until:
                yield (
                    f"I13 run {run} was claimed by {following.token} at {following.claimed_at:.6f}, while"
                    f" {claim.token} of {claim.claimed_at:.6f} held it until {until:.6f}"
                )


def _strays(history: History, rows: Mapping[str, Stored]) -> Iterator[str]:
    for run in history.enqueued - rows.keys():
        yield f"I14 run {run} was enqueued and has vanished"
    for run in history.rolled_back & rows.keys():
        yield f"I14 run {run} was rolled back and is there"
    for run in rows.keys() - history.asked:
        yield f"I14 run {run} is there and nobody has enqueued it"
    for claim in history.claims.values():
        if claim.run not in rows:
            yield f"I14 run {claim.run} was claimed and has vanished"


def _outcomes(history: History, rows: Mapping[str, Stored]) -> Iterator[str]:
    for run, claims in history.by_run():
        row = rows.get(run)
        if row is None:
            continue
        for place, claim in enumerate(claims):
            if claim.kind in FINAL and claim.accepted:
                if place + 1 < len(claims):
                    yield f"I15 run {run} was claimed again after {claim.token} had ended it"
                if row.status != FINAL[claim.kind]:
                    yield f"I15 run {run} was {claim.kind} by {claim.token} and is {row.status}"
        if row.status == "completed":
            tokens = [
                claim.token for claim in claims if claim.kind == "completed" and claim.accepted is not False
            ]
            # A claim whose reply was lost is in no diary, but then nobody could have completed it.
            if row.result not in tokens:
                yield f"I15 run {run} holds the result {row.result!r}, which no accepted outcome brought"


def _overshoots(history: History, lease: float, caps: Mapping[str, int]) -> Iterator[str]:
    moves: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for claim in history.claims.values():
        until = held_until(history, claim, lease)
        if until > claim.seen_at:
            moves[claim.tenant] += [(claim.seen_at, 1), (until, -1)]
    for tenant, changes in moves.items():
        running = 0
        for at, change in sorted(changes):
            running += change
            if running > caps[tenant]:
                cap = caps[tenant]
                yield f"I16 tenant {tenant} had {running} claims in progress at {at:.6f}, its cap is {cap}"
                break


def most_at_once(history: History, lease: float) -> dict[str, int]:
    """Return the largest number of claims in progress of each tenant."""
    most: dict[str, int] = defaultdict(int)
    running: dict[str, int] = defaultdict(int)
    moves = []
    for claim in history.claims.values():
        if (until := held_until(history, claim, lease)) > claim.seen_at:
            moves += [(claim.seen_at, 1, claim.tenant), (until, -1, claim.tenant)]
    for _, change, tenant in sorted(moves):
        running[tenant] += change
        most[tenant] = max(most[tenant], running[tenant])
    return most
