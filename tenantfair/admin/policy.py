"""The policy: one page for the domain's default cap and what goes with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from tenantfair import policy
from tenantfair.admin.mixins import BoundedAdminMixin, CompareAndSetMixin
from tenantfair.admin.partition_forms import cap_field, conflict, version_field
from tenantfair.admin.partition_list import full_scopes
from tenantfair.conf import get_settings
from tenantfair.models import MAX_SCAN_BUDGET, MIN_SCAN_BUDGET, Partition, Policy

if TYPE_CHECKING:
    _PolicyForm = forms.ModelForm[Policy]
else:
    _PolicyForm = forms.ModelForm

POLICY_ID = "1"


class PolicyForm(_PolicyForm):
    """The two values that people set at run time."""

    max_active = cap_field(
        gettext_lazy("Default cap"),
        gettext_lazy(
            "How many runs of one scope may be admitted at once, unless the scope has an override. When the"
            " setting DEFAULT_MAX_ACTIVE_RUNS has changed, the next worker start writes it here; while it has"
            " not, the value here stays."
        ),
        required=True,
    )
    scan_budget = forms.IntegerField(
        label=gettext_lazy("Scan budget"),
        help_text=gettext_lazy("How many ring positions one claim inspects at most."),
        min_value=MIN_SCAN_BUDGET,
        max_value=MAX_SCAN_BUDGET,
    )
    expected_version = version_field()

    class Meta:
        model = Policy
        fields = ("max_active", "scan_budget")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial["expected_version"] = self.instance.policy_version

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        if not self.errors and cleaned["expected_version"] != self.instance.policy_version:
            raise conflict(
                stored=_values(self.initial), wanted=_values(cleaned), version=self.instance.policy_version
            )
        return cleaned


def _values(of: Mapping[str, Any]) -> str:
    return _("default cap %(cap)s, scan budget %(budget)s") % {
        "cap": of["max_active"] or "-",
        "budget": of["scan_budget"],
    }


class PolicyAdminMixin(CompareAndSetMixin[Policy], BoundedAdminMixin[Policy]):
    """The one policy row; its list leads straight to it."""

    form = PolicyForm
    change_form_template = "tenantfair/admin/policy_form.html"
    readonly_fields = (
        "admission_mode",
        "configured_max_active",
        "lease_seconds",
        "max_attempts",
        "scan_ring_position",
        "scan_laps",
        "scan_fruitless",
        "policy_version",
        "initialized_at",
        "updated_at",
    )

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def key_of(self, object_id: str) -> int | None:
        return int(POLICY_ID) if object_id == POLICY_ID else None

    def get_fieldsets(self, request: HttpRequest, obj: Policy | None = None) -> Any:
        editable = ("expected_version",) if self.has_change_permission(request, obj) else ()
        return [
            (None, {"fields": ("max_active", "scan_budget", *editable)}),
            (
                _("From the settings"),
                {
                    "fields": ("admission_mode", "configured_max_active", "lease_seconds", "max_attempts"),
                    "description": _("A worker start brings these into line with the settings."),
                },
            ),
            (
                _("As it stands"),
                {
                    "fields": (
                        "scan_ring_position",
                        "scan_laps",
                        "scan_fruitless",
                        "policy_version",
                        "initialized_at",
                        "updated_at",
                    )
                },
            ),
        ]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Go to the one row; without it, say how it comes back."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        if self.get_queryset(request).filter(pk=POLICY_ID).exists():
            return HttpResponseRedirect(self.url("change", POLICY_ID))
        self.message_user(
            request,
            _("There is no policy row. A worker start puts it back, and so does `migrate`."),
            messages.WARNING,
        )
        return super().changelist_view(request, extra_context)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        overview_url = self.link_to(request, Partition, "tenantfair_overview")
        context = {"subtitle": None, "overview_url": overview_url, **(extra_context or {})}
        return super().change_view(request, object_id, form_url, context)

    def save_model(self, request: HttpRequest, obj: Policy, form: Any, change: bool) -> None:
        """Write what was changed through the facade; never the row itself."""
        version = form.cleaned_data["expected_version"]
        with transaction.atomic(using=get_settings().database):
            if "max_active" in form.changed_data:
                version = policy.put_default(
                    form.cleaned_data["max_active"], expected_version=version
                ).version
            if "scan_budget" in form.changed_data:
                version = policy.put_scan_budget(obj.scan_budget, expected_version=version).version
        obj.policy_version = version
        if "max_active" in form.changed_data and (number := sum(full_scopes().values())):
            text = ngettext(
                "%d scope is in debt: its admitted runs keep running, and nothing more is admitted until it"
                " is worked off.",
                "%d scopes are in debt: their admitted runs keep running, and nothing more is admitted"
                " until it is worked off.",
                number,
            )
            self.message_user(request, text % number, messages.WARNING)

    def construct_change_message(
        self, request: HttpRequest, form: Any, formsets: Any, add: bool = False
    ) -> Any:
        """Return the line for the log: every changed value before and after, and the version."""
        names = {"max_active": "Default cap", "scan_budget": "Scan budget"}
        changes = [
            f"{names[field]}: {form.initial[field]} -> {form.cleaned_data[field]}"
            for field in names
            if field in form.changed_data
        ]
        return f"{', '.join(changes)} (version {form.instance.policy_version})." if changes else "No change."


class PolicyAdmin(PolicyAdminMixin, admin.ModelAdmin):  # type: ignore[type-arg]
    """The policy in Django's own admin."""
