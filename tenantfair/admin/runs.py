"""Runs: looked at, cancelled and retried, never edited."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from tenantfair.admin import run_list
from tenantfair.admin.markup import code, error_list, json_block, moment, state_badge
from tenantfair.admin.mixins import BoundedAdminMixin
from tenantfair.admin.object_ids import scope_label
from tenantfair.admin.paginator import DEPTH
from tenantfair.admin.run_actions import CANCEL, RETRY, act, derived
from tenantfair.models import Run
from tenantfair.runs import STATE_EXPRESSION

PAYLOAD: Final = ("args", "kwargs", "state", "result", "pending_signals")
# Loaded for one run at a time. The token is a holder's key and is never read here.
UNLISTED: Final = (*PAYLOAD, "errors", "worker_ids", "claim_token")
EMPTY: Final = "-"


class RunChangeList(ChangeList):
    """A page of runs, with a word about what the list leaves out."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.note = run_list.note(request)
        self.depth = DEPTH if self.paginator.is_capped else None
        self.older = ""
        last_page = self.paginator.num_pages == self.page_num
        if self.depth and last_page and run_list.ordering(request) == run_list.NEWEST_FIRST:
            # Rows that were counted may be gone by now.
            for oldest in list(self.result_list)[-1:]:
                self.older = self.get_query_string({run_list.OLDER: oldest.pk})


class RunAdminMixin(BoundedAdminMixin[Run]):
    """Runs to read, with actions under `cancel_run` and `retry_run`, and payloads under `view_payload`."""

    list_display = ("short_id", "standing", "scope", "task", "enqueued", "due_or_finished", "failed_attempts")
    list_display_links = ("short_id",)
    list_filter = (run_list.StateFilter, run_list.ScopeFilter)
    list_parameters = frozenset({run_list.STATE, run_list.SCOPE, run_list.OLDER})
    list_per_page = 50
    search_fields = ("run_id",)
    search_help_text = gettext_lazy("A whole run id.")
    actions = ("cancel_runs", "retry_runs")
    change_list_template = "tenantfair/admin/run_list.html"
    change_form_template = "tenantfair/admin/run_form.html"

    # Permissions

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Run | None = None) -> bool:
        return False

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("tenantfair.cancel_run"))

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("tenantfair.retry_run"))

    def has_payload_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("tenantfair.view_payload"))

    # Rows

    def get_queryset(self, request: HttpRequest) -> QuerySet[Run]:
        return super().get_queryset(request).annotate(derived=STATE_EXPRESSION).defer(*UNLISTED)

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        return run_list.ordering(request)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[RunChangeList]:
        return RunChangeList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Run], search_term: str
    ) -> tuple[QuerySet[Run], bool]:
        if not search_term:
            return queryset, False
        try:
            return queryset.filter(run_id=UUID(search_term.strip())), False
        except ValueError:
            return queryset.none(), False

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Run:
        found = super().get_object(request, object_id, from_field)
        try:
            found.refresh_from_db(fields=[*self._payload(request), "errors", "worker_ids"])
        except Run.DoesNotExist as error:
            raise Http404 from error
        return found

    def _payload(self, request: HttpRequest) -> tuple[str, ...]:
        return PAYLOAD if self.has_payload_permission(request) else ()

    # Pages

    def get_fieldsets(self, request: HttpRequest, obj: Run | None = None) -> Any:
        errors = "errors_in_full" if self.has_payload_permission(request) else "errors_in_short"
        sections = [
            (None, {"fields": ("whole_id", "standing", "scope", "task", "queue_name", "backend")}),
            (
                _("Times"),
                {
                    "fields": (
                        "enqueued_at",
                        "wake_at",
                        "tenant_admitted_at",
                        "claimed_at",
                        "claimed_by",
                        "started_at",
                        "last_attempted_at",
                        "finished_at",
                        "updated_at",
                    )
                },
            ),
            (
                _("Attempts"),
                {
                    "fields": (
                        "claim_attempts",
                        "failures",
                        "retry_limit",
                        "claim_abandons",
                        "checkpoint_seq",
                        "poisoned_at",
                        "poison_reason",
                        "workers",
                        errors,
                    )
                },
            ),
        ]
        if payload := self._payload(request):
            sections.append((_("Payload"), {"fields": tuple(f"{field}_shown" for field in payload)}))
        return sections

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        context = {"checkbox_name": ACTION_CHECKBOX_NAME, "changelist_url": self.list_url(request)}
        return super().change_view(request, object_id, form_url, {**context, **(extra_context or {})})

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Run | None = None,
    ) -> HttpResponse:
        allowed = [(CANCEL, self.has_cancel_permission(request)), (RETRY, self.has_retry_permission(request))]
        context["tools"] = [
            (action.name, action.tool)
            for action, may in allowed
            if may and obj is not None and derived(obj) in action.states
        ]
        return super().render_change_form(request, context, add, change, form_url, obj)

    # Columns and fields

    @admin.display(description=gettext_lazy("run"))
    def short_id(self, obj: Run) -> SafeString:
        start = str(obj.run_id)[:8]
        return format_html('<code class="tenantfair-code" title="{}">{}…</code>', obj.run_id, start)

    @admin.display(description=gettext_lazy("run id"))
    def whole_id(self, obj: Run) -> SafeString:
        return code(obj.run_id)

    @admin.display(description=gettext_lazy("state"))
    def standing(self, obj: Run) -> SafeString:
        return state_badge(derived(obj))

    @admin.display(description=gettext_lazy("scope"))
    def scope(self, obj: Run) -> SafeString:
        return format_html('<span class="tenantfair-scope">{}</span>', scope_label(obj.scope_key))

    @admin.display(description=gettext_lazy("task"))
    def task(self, obj: Run) -> SafeString:
        return code(obj.task_path)

    @admin.display(description=gettext_lazy("enqueued"))
    def enqueued(self, obj: Run) -> SafeString:
        return moment(obj.enqueued_at)

    @admin.display(description=gettext_lazy("due or finished"))
    def due_or_finished(self, obj: Run) -> SafeString:
        return moment(obj.wake_at or obj.finished_at)

    @admin.display(description=gettext_lazy("failures"))
    def failed_attempts(self, obj: Run) -> int:
        return obj.failures

    @admin.display(description=gettext_lazy("workers"))
    def workers(self, obj: Run) -> str:
        return ", ".join(obj.worker_ids) or EMPTY

    @admin.display(description=gettext_lazy("errors"))
    def errors_in_full(self, obj: Run) -> str | SafeString:
        return error_list(obj.errors, with_traceback=True) or EMPTY

    @admin.display(description=gettext_lazy("errors"))
    def errors_in_short(self, obj: Run) -> str | SafeString:
        return error_list(obj.errors, with_traceback=False) or EMPTY

    @admin.display(description=gettext_lazy("arguments"))
    def args_shown(self, obj: Run) -> SafeString:
        return json_block(obj.args)

    @admin.display(description=gettext_lazy("keyword arguments"))
    def kwargs_shown(self, obj: Run) -> SafeString:
        return json_block(obj.kwargs)

    @admin.display(description=gettext_lazy("saved state"))
    def state_shown(self, obj: Run) -> SafeString:
        return json_block(obj.state)

    @admin.display(description=gettext_lazy("result"))
    def result_shown(self, obj: Run) -> SafeString:
        return json_block(obj.result)

    @admin.display(description=gettext_lazy("pending signals"))
    def pending_signals_shown(self, obj: Run) -> SafeString:
        return json_block(obj.pending_signals)

    # Actions

    @admin.action(permissions=["cancel"], description=gettext_lazy("Cancel the chosen runs"))
    def cancel_runs(self, request: HttpRequest, queryset: QuerySet[Run]) -> HttpResponse | None:
        """Ask, then cancel the chosen runs that have not finished."""
        return act(self, request, queryset, CANCEL)

    @admin.action(permissions=["retry"], description=gettext_lazy("Retry the chosen runs"))
    def retry_runs(self, request: HttpRequest, queryset: QuerySet[Run]) -> HttpResponse | None:
        """Ask, then queue the chosen runs again that are poisoned or have failed."""
        return act(self, request, queryset, RETRY)


class RunAdmin(RunAdminMixin, admin.ModelAdmin):  # type: ignore[type-arg]
    """The runs in Django's own admin."""
