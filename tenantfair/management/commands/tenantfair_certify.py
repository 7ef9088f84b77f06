"""`manage.py tenantfair_certify`: how often were scopes passed over, against the bound?"""

from __future__ import annotations

import secrets
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any, Final

from django.core.management.base import CommandError, CommandParser

from tenantfair import certify
from tenantfair.certify import Certificate, Limits, RecordingFailed, RecordingLeft, Violation, Window
from tenantfair.management.base import (
    EXIT_USAGE,
    DomainCommand,
    add_common_arguments,
    as_json,
    as_table,
    checked_alias,
    exit_codes,
    row_limit,
    scope_label,
)
from tenantfair.worker.stopping import StopRequests

# Nothing was proven, which must not look like a passed certificate.
EXIT_NOTHING: Final = EXIT_USAGE
_LONGEST_SECONDS: Final = 3600.0
_HEADER: Final = ("SCOPE", "WINDOWS", "GRANTS", "OUTCOMES", "CALLS", "RATIO", "A", "H", "S", "L")


def seconds(text: str) -> float:
    """Return `text` as a number of seconds in 0.1..3600; `ArgumentTypeError` otherwise."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0.1 <= found <= _LONGEST_SECONDS:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds in 0.1..{_LONGEST_SECONDS:.0f}")
    return found


def count(text: str) -> int:
    """Return `text` as an integer of one or more; `ArgumentTypeError` otherwise."""
    found = row_limit(text)
    if not found:
        raise ArgumentTypeError("0 is not an integer of one or more")
    return found


class Command(DomainCommand):
    help = (
        "Record what the running workers claim for a while, hold every window against the bound, and remove"
        " the recording. Needs the role that owns the tables. Exit codes: 0 nothing is above the bound and"
        " something was proven, 1 a rule was broken, 2 nothing could be proven, or wrong usage, 78 for"
        " settings, rights or a schema that do not fit."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        defaults = Limits()
        parser.add_argument(
            "--seconds",
            type=seconds,
            default=defaults.seconds,
            metavar="SECONDS",
            help=f"how long to record, 0.1..3600 (default: {defaults.seconds:g}); a signal ends it earlier",
        )
        parser.add_argument(
            "--calls",
            type=count,
            default=defaults.calls,
            metavar="N",
            help=f"end after so many claims (default: {defaults.calls})",
        )
        parser.add_argument(
            "--rows",
            type=count,
            default=defaults.rows,
            metavar="N",
            help=f"end after so many recorded rows (default: {defaults.rows})",
        )
        parser.add_argument(
            "--failures",
            type=row_limit,
            default=0,
            metavar="L",
            help="how many inspections of a scope in a row may be in vain, because code of yours locks its"
            " rows (default: 0)",
        )
        parser.add_argument(
            "--limit",
            type=row_limit,
            default=10,
            metavar="N",
            help="show at most so many scopes (default: 10)",
        )
        parser.add_argument(
            "--anonymous", action="store_true", help="show numbers, new ones each time, instead of scopes"
        )
        parser.add_argument(
            "--clean", action="store_true", help="only remove a recording that was left behind, or end one"
        )
        add_common_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        with exit_codes():
            alias = checked_alias(options["database"])
            try:
                if options["clean"]:
                    left = certify.clean(alias)
                    self.stdout.write("the recording was removed" if left else "nothing to remove")
                    return
                found = _certificate(alias, options)
            except (RecordingFailed, RecordingLeft) as error:
                raise CommandError(str(error), returncode=EXIT_NOTHING) from error
        label = _anonymous() if options["anonymous"] else scope_label
        if options["format"] == "json":
            self.stdout.write(as_json(_document(found, label, options["limit"])))
        else:
            self.stdout.write("\n".join(_lines(found, label, options["limit"])))
        if found.violations:
            raise CommandError(_summary(found), returncode=1)
        if not found.holds:
            raise CommandError(_summary(found), returncode=EXIT_NOTHING)


def _certificate(alias: str, options: dict[str, Any]) -> Certificate:
    limits = Limits(seconds=options["seconds"], calls=options["calls"], rows=options["rows"])
    stop = StopRequests()
    try:
        with stop:
            return certify.certify(alias, limits=limits, failures=options["failures"], stop=stop)
    finally:
        stop.close()


def _anonymous() -> Callable[[str], str]:
    key = secrets.token_bytes(32)
    return lambda scope: blake2b(scope.encode(), key=key, digest_size=6).hexdigest()


def _summary(found: Certificate) -> str:
    if found.violations:
        return f"NOT certified: {len(found.violations)} times a rule was broken"
    if not found.holds:
        return "nothing to certify: no eligible window of a scope with competitors"
    shares = ", ".join(f"{what} {share:.2f}" for what, share in found.ratios.items())
    return f"certified: {len(found.contended)} eligible windows, of the bound at most {shares}"


def _lines(found: Certificate, label: Callable[[str], str], limit: int) -> Iterator[str]:
    yield (
        f"recorded {found.calls} claims in {found.seconds:.1f} s ({found.rows} rows, ended by"
        f" {found.ended_by})"
    )
    worst = found.worst()
    if worst:
        yield as_table(_HEADER, [_cells(window, number, label) for window, number in worst[:limit]])
    if len(worst) > limit:
        yield f"and {len(worst) - limit} more scopes, each further from its bound"
    alone = len(found.windows) - len(found.contended)
    if alone:
        yield f"not counted: {alone} windows of a scope alone on the ring"
    for reason, number in sorted(found.ineligible.items(), key=lambda item: -item[1]):
        yield f"not eligible: {number}, {reason}"
    for scope, peak in _peaks(found, limit):
        yield f"most admitted at a time: {peak.admitted} of {peak.cap}, {label(scope)}"
    for violation in found.violations[:limit]:
        yield f"BROKEN: {_told(violation, label)}"
    if len(found.violations) > limit:
        yield f"and {len(found.violations) - limit} more"
    yield _summary(found)


def _peaks(found: Certificate, limit: int) -> list[tuple[str, Any]]:
    """The scope nearest to its cap, or above it."""
    return sorted(found.peaks.items(), key=lambda item: item[1].cap - item[1].admitted)[: min(1, limit)]


def _cells(window: Window, number: int, label: Callable[[str], str]) -> list[object]:
    shares = (f"{seen}/{limit}" for seen, limit in zip(window.seen, window.limit, strict=True))
    sizes = (window.cohort, window.ring, window.budget, window.failures)
    return [label(window.scope), number, *shares, f"{window.ratio:.2f}", *sizes]


def _told(violation: Violation, label: Callable[[str], str]) -> str:
    where = "" if violation.call is None else f", claim {violation.call}"
    whose = "" if violation.scope is None else f", {label(violation.scope)}"
    return f"{violation.rule}: {violation.detail}{whose}{where}"


def _document(found: Certificate, label: Callable[[str], str], limit: int) -> dict[str, Any]:
    return {
        "database": found.database,
        "started_at": found.started_at.isoformat(),
        "seconds": round(found.seconds, 3),
        "ended_by": found.ended_by,
        "calls": found.calls,
        "rows": found.rows,
        "failures": found.failures,
        "claim_function": found.claim_function,
        "certified": found.holds,
        "ratio": round(found.ratio, 4),
        "ratios": {what: round(share, 4) for what, share in found.ratios.items()},
        "windows": {
            "eligible": len(found.windows),
            "with_competitors": len(found.contended),
            "ineligible": {reason.name.lower(): number for reason, number in found.ineligible.items()},
        },
        "scopes": [
            {
                "scope": label(window.scope),
                "windows": number,
                "ratio": round(window.ratio, 4),
                "seen": window.seen._asdict(),
                "bound": window.limit._asdict(),
                "A": window.cohort,
                "H": window.ring,
                "S": window.budget,
                "L": window.failures,
            }
            for window, number in found.worst()[:limit]
        ],
        "peaks": [
            {"scope": label(scope), "admitted": peak.admitted, "cap": peak.cap}
            for scope, peak in _peaks(found, limit)
        ],
        "violations": [
            {
                "rule": violation.rule.name.lower(),
                "meaning": violation.rule.value,
                "scope": None if violation.scope is None else label(violation.scope),
                "call": violation.call,
                "detail": violation.detail,
            }
            for violation in found.violations[:limit]
        ],
        "violation_count": len(found.violations),
    }
