"""Small pieces of HTML, without inline style, that several pages show."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.timezone import is_aware, localtime, now
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

# A payload of the largest permitted size would make a page of a megabyte.
LONGEST_TEXT: Final = 20_000

STATE_LABELS: Final = {
    "queued": _("queued"),
    "ready": _("ready"),
    "claimed": _("claimed"),
    "scheduled": _("scheduled"),
    "waiting": _("waiting"),
    "poisoned": _("poisoned"),
    "completed": _("completed"),
    "failed": _("failed"),
    "cancelled": _("cancelled"),
}


def state_badge(state: str) -> SafeString:
    """Return the state in words, with a class for its colour."""
    return format_html('<span class="tenantfair-state tenantfair-{}">{}</span>', state, STATE_LABELS[state])


def moment(when: datetime | None) -> SafeString:
    """Return how far off a point in time is, exact to the second on hover."""
    if when is None:
        return SafeString("-")
    ahead = when - now()
    text = gettext("in %(span)s") if ahead > timedelta(0) else gettext("%(span)s ago")
    # Without USE_TZ times are naive, and local already.
    exact = (localtime(when) if is_aware(when) else when).isoformat(" ", "seconds")
    words = text % {"span": duration(abs(ahead))}
    return format_html('<time datetime="{0}" title="{0}">{1}</time>', exact, words)


def code(text: object) -> SafeString:
    """Return an identifier in the fixed-width font."""
    return format_html('<code class="tenantfair-code">{}</code>', text)


def block(text: str) -> SafeString:
    """Return text as it is, cut where it would make the page too long."""
    if len(text) > LONGEST_TEXT:
        text = gettext("%(start)s\n… (%(number)d more characters)") % {
            "start": text[:LONGEST_TEXT],
            "number": len(text) - LONGEST_TEXT,
        }
    return format_html('<pre class="tenantfair-block">{}</pre>', text)


def json_block(value: Any) -> SafeString:
    """Return a JSON value, indented."""
    return block(json.dumps(value, indent=2, ensure_ascii=False))


def error_list(errors: list[dict[str, str]], *, with_traceback: bool) -> SafeString:
    """Return the recorded errors, newest first: the exception's class and, on demand, its traceback."""
    hidden = gettext("Tracebacks are shown to people who may see payloads.")
    return format_html_join(
        "",
        '<details class="tenantfair-error"{}><summary>{}</summary>{}</details>',
        (
            (
                SafeString(" open") if number == 0 and with_traceback else "",
                code(error.get("exception_class_path", "")),
                block(error.get("traceback", "")) if with_traceback else hidden,
            )
            for number, error in enumerate(reversed(errors))
        ),
    )


def duration(span: timedelta | None) -> str:
    """Return a span in its two largest units, such as `2 h 5 min`."""
    if span is None:
        return "-"
    seconds = max(int(span.total_seconds()), 0)
    days, hours, minutes = seconds // 86_400, seconds // 3_600 % 24, seconds // 60 % 60
    if days:
        return gettext("%(days)d d %(hours)d h") % {"days": days, "hours": hours}
    if hours:
        return gettext("%(hours)d h %(minutes)d min") % {"hours": hours, "minutes": minutes}
    if minutes:
        return gettext("%(minutes)d min %(seconds)d s") % {"minutes": minutes, "seconds": seconds % 60}
    return gettext("%(seconds)d s") % {"seconds": seconds}
