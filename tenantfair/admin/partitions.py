"""Partitions: every scope's cap, counts and place on the ring, and its override."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import LogEntry
from django.contrib.admin.options import IS_POPUP_VAR
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from tenantfair import policy
from tenantfair.admin.mixins import BoundedAdminMixin, CompareAndSetMixin
from tenantfair.admin.object_ids import Named, quoted_id, scope_label, to_object_id, to_scope_key, to_tenant
from tenantfair.admin.overview import overview
from tenantfair.admin.partition_columns import COLUMNS, PartitionColumns
from tenantfair.admin.partition_forms import NewOverrideForm, OverrideForm, change_text, override_text
from tenantfair.admin.partition_list import (
    CapFilter,
    LoadFilter,
    PartitionChangeList,
    attach_inspections,
    inspection_of,
)
from tenantfair.admin.resets import confirm_reset, reset_scopes
from tenantfair.conf import get_settings
from tenantfair.models import Partition, Run
from tenantfair.policy import Inspection


class PartitionAdminMixin(PartitionColumns, CompareAndSetMixin[Partition], BoundedAdminMixin[Partition]):
    """Scopes to look at, and overrides to set with the permission `override_cap`.

    Nothing is deleted here, and a partition is added only by setting an override for its scope.
    """

    list_display = COLUMNS
    list_display_links = ("scope",)
    list_filter = (LoadFilter, CapFilter)
    list_parameters = frozenset({"load", "cap"})
    list_per_page = 50
    ordering = ("scope_key",)
    search_fields = ("scope_key",)
    search_help_text = gettext_lazy("The beginning of a scope, in upper and lower case as it is written.")
    actions = ("reset_overrides",)
    change_list_template = "tenantfair/admin/partition_list.html"
    change_form_template = "tenantfair/admin/partition_form.html"
    readonly_fields = COLUMNS

    # Permissions

    def has_override_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("tenantfair.override_cap"))

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.has_override_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Partition | None = None) -> bool:
        return self.has_override_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Partition | None = None) -> bool:
        return super().has_view_permission(request, obj) or self.has_override_permission(request)

    # Rows

    def key_of(self, object_id: str) -> str | None:
        return to_scope_key(object_id)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Partition:
        found = super().get_object(request, object_id)
        attach_inspections([found])
        return found

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Partition], search_term: str
    ) -> tuple[QuerySet[Partition], bool]:
        return (queryset.filter(scope_key__startswith=search_term) if search_term else queryset), False

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[PartitionChangeList]:
        return PartitionChangeList

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.overview_view)
        return [path("overview/", view, name="tenantfair_overview"), *super().get_urls()]

    def overview_view(self, request: HttpRequest) -> HttpResponse:
        """Show the domain at a glance, within what `get_queryset` lets this person see."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        return overview(self, request)

    # Forms

    def get_fieldsets(self, request: HttpRequest, obj: Partition | None = None) -> Any:
        if obj is None:
            return [(None, {"fields": ("tenant", "tenantless", "max_active")})]
        editable = ("max_active", "expected_version") if self.has_change_permission(request, obj) else ()
        return [
            (None, {"fields": ("scope", "cap", *editable)}),
            (_("Admission"), {"fields": ("queued", "admitted_ready", "admitted_claimed", "debt")}),
            (_("Work"), {"fields": ("unfinished", "oldest_wait", "ring_position", "grants")}),
        ]

    def get_form(
        self, request: HttpRequest, obj: Partition | None = None, change: bool = False, **kwargs: Any
    ) -> type[ModelForm[Partition]]:
        kwargs["form"] = NewOverrideForm if obj is None else OverrideForm
        form: type[ModelForm[Partition]] = super().get_form(request, obj, change, **kwargs)
        if issubclass(form, NewOverrideForm):
            form.visible = self.get_queryset(request)
        return form

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        named = self._named(object_id)
        runs_url = self.link_to(request, Run, "tenantfair_run_changelist")
        context = {"original": named, "subtitle": str(named), "runs_url": runs_url}
        return super().change_view(request, object_id, form_url, {**context, **(extra_context or {})})

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        return super().add_view(request, form_url, {"title": _("Set an override"), **(extra_context or {})})

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        named = self._named(object_id)
        context = {"object": named, "title": _("Change history: %s") % named, **(extra_context or {})}
        return super().history_view(request, object_id, context)

    def _named(self, object_id: str) -> Named:
        # What names no scope is refused by get_object, before this name is used.
        return Named(self.key_of(unquote(object_id)) or "")

    # Writes

    def save_model(self, request: HttpRequest, obj: Partition, form: Any, change: bool) -> None:
        """Write the override through the facade; never the row itself."""
        if change and "max_active" not in form.changed_data:
            return
        tenant, cap = to_tenant(obj.scope_key), form.cleaned_data["max_active"]
        expected = form.cleaned_data["expected_version"]
        with transaction.atomic(using=get_settings().database):
            if cap is None:
                written = policy.reset_override(tenant, expected_version=expected)
            else:
                written = policy.put_override(tenant, cap, expected_version=expected)
            if not self.get_queryset(request).filter(pk=obj.scope_key).exists():
                raise PermissionDenied
        obj.max_active, obj.partition_version = written.cap, written.version
        attach_inspections([obj])

    def warn_of_debt(self, request: HttpRequest, found: Inspection) -> None:
        """Say what a cap below the admitted count does and does not do."""
        if found.debt and found.cap is not None:
            keep = found.cap + found.debt
            self.message_user(
                request,
                ngettext(
                    "Scope %(scope)s: %(keep)d admitted run keeps running.",
                    "Scope %(scope)s: %(keep)d admitted runs keep running.",
                    keep,
                )
                % {"scope": scope_label(found.scope_key), "keep": keep}
                + " "
                + _("The cap is %(cap)d, the debt %(debt)d: nothing more is admitted until it is worked off.")
                % {"cap": found.cap, "debt": found.debt},
                messages.WARNING,
            )

    def construct_change_message(
        self, request: HttpRequest, form: Any, formsets: Any, add: bool = False
    ) -> Any:
        """Return the line for the log: the override before and after, and its version."""
        before = None if add else form.initial["max_active"]
        if not add and "max_active" not in form.changed_data:
            return "No change."
        return change_text(before, form.instance)

    def log_addition(self, request: HttpRequest, obj: Partition, message: Any) -> LogEntry:
        return self.log_scope(request, obj, message, added=True)

    def log_change(self, request: HttpRequest, obj: Partition, message: Any) -> LogEntry:
        return self.log_scope(request, obj, message)

    def log_scope(
        self, request: HttpRequest, obj: Partition, message: str, *, added: bool = False
    ) -> LogEntry:
        """Log under the scope's object id, by which the history page finds it."""
        return self.log(
            request,
            obj,
            message,
            object_id=to_object_id(obj.scope_key),
            label=scope_label(obj.scope_key),
            added=added,
        )

    def response_add(
        self, request: HttpRequest, obj: Partition, post_url_continue: str | None = None
    ) -> HttpResponse:
        self._say_saved(request, obj)
        if IS_POPUP_VAR in request.POST:
            return self._close_popup(request, obj)
        if "_addanother" in request.POST:
            return HttpResponseRedirect(request.get_full_path())
        return self._redirect(request, self.url("change", quoted_id(obj.scope_key)))

    def response_change(self, request: HttpRequest, obj: Partition) -> HttpResponse:
        self._say_saved(request, obj)
        if IS_POPUP_VAR in request.POST:
            return self._close_popup(request, obj, action="change", new_value=obj.scope_key)
        if "_continue" in request.POST:
            return HttpResponseRedirect(request.get_full_path())
        if "_addanother" in request.POST:
            return self._redirect(request, self.url("add"))
        return self.response_post_save_change(request, obj)

    def _redirect(self, request: HttpRequest, url: str) -> HttpResponse:
        context: dict[str, Any] = {
            "preserved_filters": self.get_preserved_filters(request),
            "opts": self.opts,
        }
        return HttpResponseRedirect(add_preserved_filters(context, url))

    def _close_popup(self, request: HttpRequest, obj: Partition, **change: str) -> HttpResponse:
        """Close the window and hand the scope to the form that opened it.

        Django's own answer makes an admin URL of the key first, and the tenantless scope's key is empty.
        """
        folder = f"admin/{self.opts.app_label}"
        return TemplateResponse(
            request,
            self.popup_response_template
            or [
                f"{folder}/{self.opts.model_name}/popup_response.html",
                f"{folder}/popup_response.html",
                "admin/popup_response.html",
            ],
            {"popup_response_data": json.dumps({"value": obj.scope_key, "obj": str(obj), **change})},
        )

    def _say_saved(self, request: HttpRequest, obj: Partition) -> None:
        self.message_user(
            request,
            _("Scope %(scope)s: the cap override is %(cap)s.")
            % {"scope": scope_label(obj.scope_key), "cap": override_text(obj.max_active)},
            messages.SUCCESS,
        )
        self.warn_of_debt(request, inspection_of(obj))

    @admin.action(permissions=["override"], description=gettext_lazy("Reset the override to the default cap"))
    def reset_overrides(self, request: HttpRequest, queryset: QuerySet[Partition]) -> HttpResponse | None:
        """Ask, then reset every chosen override that nobody has changed since it was shown."""
        if request.POST.get("post") != "yes":
            return confirm_reset(self, request, queryset)
        reset_scopes(self, request, queryset)
        return None


class PartitionAdmin(PartitionAdminMixin, admin.ModelAdmin):  # type: ignore[type-arg]
    """The partitions in Django's own admin."""
