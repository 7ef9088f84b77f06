"""What a partition's row and page show, all of it from its inspection."""

from __future__ import annotations

from typing import Final

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.forms import CheckboxInput
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from tenantfair.admin.markup import duration
from tenantfair.admin.object_ids import scope_label, to_object_id
from tenantfair.admin.partition_list import inspection_of
from tenantfair.models import Partition

COLUMNS: Final = (
    "scope",
    "cap",
    "queued",
    "admitted_ready",
    "admitted_claimed",
    "debt",
    "unfinished",
    "oldest_wait",
    "ring_position",
    "grants",
)


class PartitionColumns:
    """The columns of the list, which are the read-only fields of the page too."""

    @admin.display(description=gettext_lazy("select"))
    def action_checkbox(self, obj: Partition) -> SafeString:
        """Like Django's, but its value is the object id: a browser sends an empty one as `on`."""
        label = _("Select this object for an action - %(scope)s") % {"scope": scope_label(obj.scope_key)}
        box = CheckboxInput({"class": "action-select", "aria-label": label}, lambda _value: False)
        return box.render(ACTION_CHECKBOX_NAME, to_object_id(obj.scope_key))

    @admin.display(description=gettext_lazy("scope"))
    def scope(self, obj: Partition) -> SafeString:
        return format_html('<span class="tenantfair-scope">{}</span>', scope_label(obj.scope_key))

    @admin.display(description=gettext_lazy("cap"))
    def cap(self, obj: Partition) -> SafeString:
        found = inspection_of(obj)
        source = _("override") if found.source == "override" else _("default")
        value = "-" if found.cap is None else found.cap
        return format_html('<span class="tenantfair-cap">{} <small>{}</small></span>', value, source)

    @admin.display(description=gettext_lazy("queued"))
    def queued(self, obj: Partition) -> int:
        return inspection_of(obj).queued

    @admin.display(description=gettext_lazy("ready"))
    def admitted_ready(self, obj: Partition) -> int:
        return inspection_of(obj).admitted_ready

    @admin.display(description=gettext_lazy("claimed"))
    def admitted_claimed(self, obj: Partition) -> int:
        return inspection_of(obj).admitted_claimed

    @admin.display(description=gettext_lazy("debt"))
    def debt(self, obj: Partition) -> str | SafeString:
        debt = inspection_of(obj).debt
        return format_html('<strong class="tenantfair-alert">{}</strong>', debt) if debt else "0"

    @admin.display(description=gettext_lazy("unfinished"))
    def unfinished(self, obj: Partition) -> int:
        return inspection_of(obj).unfinished

    @admin.display(description=gettext_lazy("oldest wait"))
    def oldest_wait(self, obj: Partition) -> str:
        return duration(inspection_of(obj).oldest_due_wait)

    @admin.display(description=gettext_lazy("ring position"))
    def ring_position(self, obj: Partition) -> int | None:
        return inspection_of(obj).ring_position

    @admin.display(description=gettext_lazy("grants so far"))
    def grants(self, obj: Partition) -> int:
        return obj.admission_epoch
