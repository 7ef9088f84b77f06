"""Which runs a list shows: every filter walks a partial index in its own order, a bounded way.

Where an index holds exactly the wanted rows, the list is that index from its start. Where it holds others
too, and where the runs of one scope lie in several, the list is made of the rows that come first there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from tenantfair.admin.markup import STATE_LABELS
from tenantfair.admin.object_ids import TENANTLESS_ID, to_scope_key
from tenantfair.models import Run

# How many index entries are looked at where an index holds more than the wanted rows.
WINDOW: Final = 5_000
# How many of them a list then shows; as many ids go back to the database.
MOST_SIFTED: Final = 1_000

STATE: Final = "state"
SCOPE: Final = "scope"
SEARCH: Final = "q"
OLDER: Final = "id__lt"

NEWEST_FIRST: Final = ("-id",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """Rows that a partial index holds and an order that it has, for the domain and for a single scope."""

    rows: Q
    order: tuple[str, ...]
    scope_rows: Q
    scope_order: tuple[str, ...]

    def of(self, queryset: QuerySet[Run], scope_key: str | None) -> QuerySet[Run]:
        """Return the slice's rows of one scope, or of all, in index order."""
        if scope_key is None:
            return queryset.filter(self.rows).order_by(*self.order)
        return queryset.filter(self.scope_rows, scope_key=scope_key).order_by(*self.scope_order)


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """How the runs of one state are found; a sifted list shows only those of the slice in that state."""

    slice: Slice
    note: Any = ""
    scope_note: Any = ""
    sift: bool = False
    sift_scope: bool = False

    def sifts(self, scope: str | None) -> bool:
        """Return whether the asked list is sifted: that of one scope, or of all."""
        return self.sift_scope if scope else self.sift


# Each condition spells out that of the index meant for it: tenantfair_run_due names the status and serves the
# domain, tenantfair_run_queued and tenantfair_run_ready do not and serve one scope.
_WAKES: Final = Q(wake_at__isnull=False)
_UNADMITTED: Final = Q(tenant_admitted_at__isnull=True)
_ADMITTED: Final = Q(tenant_admitted_at__isnull=False)
_DUE: Final = Q(wake_at__lte=Now())
_LATER: Final = Q(wake_at__gt=Now())
_CLAIM: Final = Q(claim_token__isnull=False)
_WAIT: Final = Q(status="waiting")
_POISON: Final = Q(poisoned_at__isnull=False)
_END: Final = Q(finished_at__isnull=False)

_QUEUED: Final = Slice(
    rows=_WAKES & Q(status="running") & _DUE & _UNADMITTED,
    order=("wake_at", "id"),
    scope_rows=_WAKES & _DUE & _UNADMITTED,
    scope_order=("wake_at", "id"),
)
_SCHEDULED: Final = Slice(
    rows=_WAKES & Q(status="running") & _LATER,
    order=("wake_at", "id"),
    scope_rows=_WAKES & _LATER & _UNADMITTED,
    scope_order=("wake_at", "id"),
)
_READY: Final = Slice(
    rows=_WAKES & _DUE & _ADMITTED,
    order=("scope_key", "wake_at", "id"),
    scope_rows=_WAKES & _DUE & _ADMITTED,
    scope_order=("wake_at", "id"),
)
_CLAIMED: Final = Slice(
    rows=_CLAIM,
    order=("scope_key", "claimed_at", "id"),
    scope_rows=_CLAIM,
    scope_order=("claimed_at", "id"),
)
_WAITING: Final = Slice(rows=_WAIT, order=("scope_key", "id"), scope_rows=_WAIT, scope_order=("id",))
_POISONED: Final = Slice(rows=_POISON, order=("scope_key", "id"), scope_rows=_POISON, scope_order=("id",))
_FINISHED: Final = Slice(rows=_END, order=("-finished_at", "-id"), scope_rows=_END, scope_order=("-id",))
_FAILED: Final = Slice(rows=Q(status="failed"), order=NEWEST_FIRST, scope_rows=_END, scope_order=("-id",))
_CANCELLED: Final = Slice(
    rows=Q(status="cancelled"), order=NEWEST_FIRST, scope_rows=_END, scope_order=("-id",)
)

_NEXT_FIRST: Final = _("In the order they become due.")
_BY_SCOPE: Final = _("By scope, the oldest first.")
_OF_FINISHED: Final = _("Only among the %(window)d runs that finished last.")

LISTINGS: Final[dict[str, Listing]] = {
    "queued": Listing(slice=_QUEUED, note=_NEXT_FIRST, scope_note=_NEXT_FIRST),
    "ready": Listing(slice=_READY, note=_BY_SCOPE, scope_note=_BY_SCOPE),
    "claimed": Listing(slice=_CLAIMED, note=_BY_SCOPE, scope_note=_BY_SCOPE),
    "scheduled": Listing(slice=_SCHEDULED, note=_NEXT_FIRST, scope_note=_NEXT_FIRST),
    "waiting": Listing(slice=_WAITING, note=_BY_SCOPE, scope_note=_BY_SCOPE),
    "poisoned": Listing(slice=_POISONED, note=_BY_SCOPE, scope_note=_BY_SCOPE),
    "completed": Listing(
        slice=_FINISHED, note=_OF_FINISHED, scope_note=_OF_FINISHED, sift=True, sift_scope=True
    ),
    "failed": Listing(slice=_FAILED, scope_note=_OF_FINISHED, sift_scope=True),
    "cancelled": Listing(slice=_CANCELLED, scope_note=_OF_FINISHED, sift_scope=True),
}
_EVERY_SLICE: Final = (_QUEUED, _SCHEDULED, _READY, _CLAIMED, _WAITING, _POISONED, _FINISHED)
_NEWEST_OF_SCOPE: Final = _("Only the %(most)d newest runs of the scope.")


def chosen_state(request: HttpRequest) -> str | None:
    """Return the state that the address asks for, or None; an unknown one is an incorrect lookup."""
    state = request.GET.get(STATE)
    if state is not None and state not in LISTINGS:
        raise IncorrectLookupParameters
    return state


def chosen_scope(request: HttpRequest) -> str | None:
    """Return the scope that the address asks for, or None; one that cannot be is an incorrect lookup."""
    given = request.GET.get(SCOPE)
    if not given:
        return None
    scope_key = to_scope_key(given if given == TENANTLESS_ID else given.strip())
    if scope_key is None:
        raise IncorrectLookupParameters
    return scope_key


def ordering(request: HttpRequest) -> tuple[str, ...]:
    """Return the order of the asked list: that of the index that it is read from, else newest first."""
    listing = LISTINGS.get(request.GET.get(STATE, ""))
    if listing is None or listing.sifts(request.GET.get(SCOPE)) or request.GET.get(SEARCH):
        return NEWEST_FIRST
    return listing.slice.scope_order if request.GET.get(SCOPE) else listing.slice.order


def note(request: HttpRequest) -> str:
    """Return what the reader of the asked list should know about it."""
    if request.GET.get(SEARCH):
        return ""
    listing = LISTINGS.get(request.GET.get(STATE, ""))
    if listing is not None:
        chosen = listing.scope_note if request.GET.get(SCOPE) else listing.note
        return str(chosen) % {"window": WINDOW}
    return str(_NEWEST_OF_SCOPE) % {"most": MOST_SIFTED} if request.GET.get(SCOPE) else ""


def in_state(queryset: QuerySet[Run], state: str, scope_key: str | None) -> QuerySet[Run]:
    """Return the runs in one state, of one scope or of all."""
    listing = LISTINGS[state]
    rows = listing.slice.of(queryset, scope_key)
    if not (listing.sift if scope_key is None else listing.sift_scope):
        return rows
    looked_at = rows.values_list("pk", "status")[:WINDOW]
    return queryset.filter(pk__in=[pk for pk, status in looked_at if status == state][:MOST_SIFTED])


def of_scope(queryset: QuerySet[Run], scope_key: str) -> QuerySet[Run]:
    """Return the newest runs of one scope, whatever their state."""
    newest = [
        rows if rows.query.order_by == NEWEST_FIRST else rows.reverse()
        for rows in (one.of(queryset, scope_key) for one in _EVERY_SLICE)
    ]
    first, *others = (rows.values_list("pk", flat=True)[:MOST_SIFTED] for rows in newest)
    return queryset.filter(pk__in=sorted(first.union(*others, all=True), reverse=True)[:MOST_SIFTED])


class StateFilter(admin.SimpleListFilter):
    """One state; it takes the scope into account, because each of the two decides where to look."""

    title = _("state")
    parameter_name = STATE

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return list(STATE_LABELS.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Run]) -> QuerySet[Run]:
        state, scope_key = chosen_state(request), chosen_scope(request)
        if state is None:
            return queryset
        if request.GET.get(SEARCH):
            return queryset.filter(Q(derived=state))
        return in_state(queryset, state, scope_key)


class ScopeFilter(admin.ListFilter):
    """One scope, written out: there may be too many to list."""

    title = _("scope")
    template = "tenantfair/admin/scope_filter.html"

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        params.pop(SCOPE, None)
        self.given = request.GET.get(SCOPE, "")

    def has_output(self) -> bool:
        return True

    def expected_parameters(self) -> list[str | None]:
        return [SCOPE]

    def choices(self, changelist: Any) -> Iterator[dict[str, Any]]:
        yield {
            "name": SCOPE,
            "value": "" if self.given == TENANTLESS_ID else self.given,
            "others": [(key, value) for key, value in changelist.params.items() if key not in {SCOPE, "p"}],
            "all": {"selected": not self.given, "query": changelist.get_query_string({SCOPE: None})},
            "tenantless": {
                "selected": self.given == TENANTLESS_ID,
                "query": changelist.get_query_string({SCOPE: TENANTLESS_ID}),
            },
        }

    def queryset(self, request: HttpRequest, queryset: QuerySet[Run]) -> QuerySet[Run]:
        scope_key = chosen_scope(request)
        if scope_key is None:
            return queryset
        if request.GET.get(SEARCH):
            return queryset.filter(scope_key=scope_key)
        return of_scope(queryset, scope_key) if chosen_state(request) is None else queryset
