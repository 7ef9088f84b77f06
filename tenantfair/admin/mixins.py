"""What all pages of this app share: bounded lists, 404 for what is not there, compare-and-set forms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import ADDITION, CHANGE, LogEntry
from django.contrib.admin.views.main import PAGE_VAR
from django.contrib.admin.widgets import url_params_from_lookup_dict
from django.contrib.auth import get_permission_codename
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.forms import BooleanField
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext as _

from tenantfair.admin.paginator import BoundedPaginator
from tenantfair.conf import get_settings
from tenantfair.exceptions import StaleVersion

M = TypeVar("M", bound=Model)

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin
else:

    class ModelAdmin:
        """The mixins name no base at run time, so that any ModelAdmin can be put behind them."""

        def __class_getitem__(cls, _: Any) -> type:
            return cls


# A confirmation page sends up to two fields for a chosen row, and Django takes 1,000 fields unless told more.
MAX_CHOSEN: Final = 400


class BoundedAdminMixin(ModelAdmin[M]):
    """Lists that cost the same on ten rows and on ten million, on the database that the settings name.

    Override `get_queryset` to limit staff to some tenants: lists, searches, pages, actions and the overview
    see nothing else.
    """

    paginator = BoundedPaginator
    show_full_result_count = False
    list_max_show_all = 0
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ()
    # Parameters that a list's address may carry; every other lookup is refused, also those into payloads.
    list_parameters: ClassVar[frozenset[str]] = frozenset()

    class Media:
        css: ClassVar = {"all": ["tenantfair/admin.css"]}

    def get_queryset(self, request: HttpRequest) -> QuerySet[M]:
        return super().get_queryset(request).using(get_settings().database)

    def has_view_permission(self, request: HttpRequest, obj: M | None = None) -> bool:
        """Return whether this person may look; unlike with Django, its change permission is not enough."""
        view = f"{self.opts.app_label}.{get_permission_codename('view', self.opts)}"
        return super().has_view_permission(request, obj) and bool(request.user.has_perm(view))

    def has_delete_permission(self, request: HttpRequest, obj: M | None = None) -> bool:
        return False

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        return lookup in self.list_parameters or self._limits_choices(lookup, value)

    def _limits_choices(self, lookup: str, value: Any) -> bool:
        """Return whether a foreign key of the host limits its choices to this, as its popup then asks."""
        declared = (limit() if callable(limit) else limit for limit in self.opts.related_fkey_lookups)
        return any((lookup, value) in url_params_from_lookup_dict(limit).items() for limit in declared)

    def key_of(self, object_id: str) -> Any:
        """Return the primary key that an object id names, or None when it can name none."""
        # 18 digits always fit a bigint.
        well_formed = object_id.isascii() and object_id.isdecimal() and len(object_id) <= 18
        return int(object_id) if well_formed else None

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> M:
        """Return the row; 404 when there is none or `get_queryset` hides it, 403 for whoever may see none."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        key = object_id if from_field else self.key_of(object_id)
        found = None if key is None else super().get_object(request, key, from_field)
        if found is None:
            raise Http404
        return found

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[M], *where: Any, **location: Any
    ) -> HttpResponse | None:
        """Run an action on the chosen rows; one of them missing, hidden or malformed is a 404.

        The chosen rows are those that were ticked, also where the list's filter no longer shows them.
        """
        given = [self.key_of(object_id) for object_id in request.POST.getlist(ACTION_CHECKBOX_NAME)]
        keys = set(given)
        ticked = self.get_queryset(request).filter(pk__in=keys)
        across = BooleanField(required=False).to_python(request.POST.get("select_across"))
        chosen = queryset if across else ticked
        if len(keys) > MAX_CHOSEN or (across and chosen.values("pk")[: MAX_CHOSEN + 1].count() > MAX_CHOSEN):
            self.message_user(
                request,
                _("At most %(number)d can be chosen at once. Nothing was changed.") % {"number": MAX_CHOSEN},
                messages.ERROR,
            )
            return None
        if None in keys or ticked.count() != len(keys):
            raise Http404
        request.POST = post = request.POST.copy()  # type: ignore[assignment]  # the property is settable
        post.setlist(ACTION_CHECKBOX_NAME, given)
        return super().response_action(request, chosen, *where, **location)

    def confirmation(
        self, request: HttpRequest, *, action: str, title: str, **context: Any
    ) -> TemplateResponse:
        """Return the page that asks before an action; its button posts the same action with `post=yes`."""
        request.current_app = self.admin_site.name
        return TemplateResponse(
            request,
            "tenantfair/admin/confirm_action.html",
            {
                **self.admin_site.each_context(request),
                "title": title,
                "opts": self.opts,
                "media": self.media,
                "action": action,
                "checkbox_name": ACTION_CHECKBOX_NAME,
                "changelist_url": self.list_url(request),
                **context,
            },
        )

    def url(self, view: str, *args: str) -> str:
        """Return the address of one of this model's admin views."""
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_{view}"
        return reverse(name, args=args, current_app=self.admin_site.name)

    def list_url(self, request: HttpRequest) -> str:
        """Return the address of this model's list, filtered as the person left it, from the first page on.

        An action may leave fewer pages than there were.
        """
        preserved = QueryDict(self.get_preserved_filters(request)).get("_changelist_filters", "")
        filters = QueryDict(preserved, mutable=True)
        filters.pop(PAGE_VAR, None)
        return f"{self.url('changelist')}?{filters.urlencode()}" if filters else self.url("changelist")

    def link_to(self, request: HttpRequest, model: type[Model], name: str) -> str:
        """Return the address of another model's page, empty where there is none or none for this person.

        A host may have left that model out of the site, or registered it with pages of its own.
        """
        if not self.admin_site.is_registered(model):
            return ""
        if not self.admin_site.get_model_admin(model).has_view_or_change_permission(request):
            return ""
        try:
            return reverse(f"admin:{name}", current_app=self.admin_site.name)
        except NoReverseMatch:
            return ""

    def log(
        self, request: HttpRequest, obj: M, message: str, *, object_id: str, label: str, added: bool = False
    ) -> LogEntry:
        """Write one line to the admin's log. Its text is stored, so it is not translated."""
        return LogEntry.objects.create(
            user_id=str(request.user.pk),
            content_type_id=ContentType.objects.get_for_model(obj, for_concrete_model=False).pk,
            object_id=object_id,
            object_repr=label[:200],
            action_flag=ADDITION if added else CHANGE,
            change_message=message,
        )


class CompareAndSetMixin(ModelAdmin[M]):
    """A change form whose write can lose against another person's."""

    def changeform_view(self, *args: Any, **kwargs: Any) -> Any:
        """Show a lost race as the form's own error: asked again, the form finds the newer version."""
        try:
            return super().changeform_view(*args, **kwargs)
        except StaleVersion:
            return super().changeform_view(*args, **kwargs)
