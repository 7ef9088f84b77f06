"""The domain at a glance: totals, the longest backlogs, full scopes, and who is next on the ring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from django.db.models import Count, Q, QuerySet, Sum
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from tenantfair.admin.markup import duration
from tenantfair.admin.object_ids import quoted_id, scope_label
from tenantfair.admin.partition_list import attach_inspections, full_scopes, inspection_of
from tenantfair.conf import get_settings
from tenantfair.models import Partition, Policy

if TYPE_CHECKING:
    from tenantfair.admin.partitions import PartitionAdminMixin

SHOWN: Final = 10
# Seconds between two reloads, where a person asks for them.
REFRESH_SECONDS: Final = 15


def overview(page: PartitionAdminMixin, request: HttpRequest) -> TemplateResponse:
    """Return the page, computed from the counters of scopes and from admitted runs alone."""
    visible = page.get_queryset(request)
    stored = Policy.objects.using(get_settings().database).filter(id=1).first()
    totals = visible.aggregate(
        unfinished=Sum("schedule__unfinished_count", default=0),
        on_ring=Count("scope_key", filter=Q(schedule__in_ring=True)),
        overrides=Count("max_active"),
        grants=Sum("admission_epoch", default=0),
    )
    on_ring = visible.filter(schedule__in_ring=True)
    backlogs = list(on_ring.order_by("-schedule__unfinished_count", "scope_key")[:SHOWN])
    following = _following(on_ring, 0 if stored is None else stored.scan_ring_position)
    full = full_scopes()
    crowded = {partition.scope_key: partition for partition in visible.filter(pk__in=list(full))}
    fullest = [crowded[scope_key] for scope_key in full if scope_key in crowded]
    attach_inspections([*backlogs, *following, *fullest[:SHOWN]])
    refreshing = "refresh" in request.GET
    request.current_app = page.admin_site.name
    response = TemplateResponse(
        request,
        "tenantfair/admin/overview.html",
        {
            **page.admin_site.each_context(request),
            "title": _("Overview"),
            "opts": page.opts,
            "media": page.media,
            "policy": stored,
            "totals": totals,
            "full": len(fullest),
            "in_debt": sum(full[partition.scope_key] for partition in fullest),
            "tables": [
                (_("Longest backlogs"), [_row(page, partition) for partition in backlogs]),
                (_("At or over their cap"), [_row(page, partition) for partition in fullest[:SHOWN]]),
                (_("Next on the ring"), [_row(page, partition) for partition in following]),
            ],
            "refreshing": refreshing,
            "refresh_seconds": REFRESH_SECONDS,
            "changelist_url": page.url("changelist"),
        },
    )
    if refreshing:
        response.headers["Refresh"] = str(REFRESH_SECONDS)
    return response


def _following(on_ring: QuerySet[Partition], cursor: int) -> list[Partition]:
    """Return the scopes that the next claim inspects first, in ring order from the cursor."""
    ordered = on_ring.order_by("schedule__ring_position")
    ahead = list(ordered.filter(schedule__ring_position__gt=cursor)[:SHOWN])
    wrapped = list(ordered.filter(schedule__ring_position__lte=cursor)[: SHOWN - len(ahead)])
    return ahead + wrapped


def _row(page: PartitionAdminMixin, partition: Partition) -> dict[str, object]:
    found = inspection_of(partition)
    return {
        "label": scope_label(partition.scope_key),
        "url": page.url("change", quoted_id(partition.scope_key)),
        "inspection": found,
        "admitted": found.admitted_ready + found.admitted_claimed,
        "oldest_wait": duration(found.oldest_due_wait),
    }
