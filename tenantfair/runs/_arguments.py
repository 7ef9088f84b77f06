"""The checks that several operations share: ids, points in time, counts, the database alias."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from django.conf import settings
from django.utils import timezone

from tenantfair.conf import get_settings
from tenantfair.exceptions import InvalidRun

# The latest `now() + delay` must stay before year 10000 whatever the database clock says.
MAX_DELAY: Final = timedelta(days=36_525)
_LABEL_BYTES: Final = 255


def database(using: str | None) -> str:
    """Return `using`, or the alias that the settings name."""
    return using if using is not None else get_settings().database


def run_id(value: object) -> UUID:
    """Return `value` as a UUID; strings are read, anything else is `InvalidRun`."""
    if isinstance(value, UUID):
        return value
    if isinstance(value, str):
        try:
            return UUID(value)
        except ValueError:
            pass
    raise InvalidRun(f"a run id is a UUID, not {value!r:.80}")


def delay(value: object, *, what: str) -> timedelta:
    """Return `value` when it is a timedelta of zero to 36,525 days; else `InvalidRun`."""
    if not isinstance(value, timedelta):
        raise InvalidRun(f"{what} is a timedelta, not {type(value).__name__}")
    if not timedelta(0) <= value <= MAX_DELAY:
        raise InvalidRun(f"{what} is a timedelta of zero to {MAX_DELAY.days} days, not {value}")
    return value


def moment(value: object, *, what: str) -> datetime:
    """Return `value` as a datetime in UTC; `InvalidRun` when it is naive under USE_TZ or not storable."""
    if not isinstance(value, datetime):
        raise InvalidRun(f"{what} is a datetime, not {type(value).__name__}")
    if timezone.is_naive(value):
        if settings.USE_TZ:
            raise InvalidRun(f"{what} is an aware datetime while USE_TZ is on")
        value = timezone.make_aware(value)
    try:
        if not settings.USE_TZ:
            # Sessions show times in the zone of the project then, and none outside these years can be read.
            value = value.astimezone(timezone.get_default_timezone())
        return value.astimezone(UTC)
    except OverflowError as error:
        raise InvalidRun(f"{what} lies between years 1 and 9999 in UTC and in the project's zone") from error


def due(value: object, *, what: str) -> tuple[datetime | None, timedelta | None]:
    """Split a time or a delay into (time, delay); both None when there is none.

    A delay is added to the database's clock, so it is right whatever the clock of this host says.
    """
    if value is None:
        return None, None
    if isinstance(value, timedelta):
        return None, delay(value, what=what)
    return moment(value, what=what), None


def count(value: object, *, what: str, low: int, high: int) -> int:
    """Return `value` as a plain integer when it is one in `low`..`high`; booleans are not integers here."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidRun(f"{what} is an integer in {low}..{high}, not {value!r:.80}")
    return int(value)


def label(value: object, *, what: str) -> str:
    """Return `value` as a plain string when it is a printable one of 1..255 bytes; else `InvalidRun`."""
    if isinstance(value, str) and value.isprintable() and 1 <= len(value.encode()) <= _LABEL_BYTES:
        # As with a tenant id, an Enum's member is its value.
        return str.__str__(value)
    raise InvalidRun(f"{what} is a printable string of 1..{_LABEL_BYTES} bytes, not {value!r:.80}")
