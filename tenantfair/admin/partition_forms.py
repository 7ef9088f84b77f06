"""Forms that set a scope's override by compare-and-set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django import forms
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import QuerySet
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from tenantfair import policy
from tenantfair.conf import MAX_CAP, get_settings
from tenantfair.exceptions import InvalidTenant
from tenantfair.models import Partition
from tenantfair.tenants import TENANTLESS_SCOPE, validate_tenant

if TYPE_CHECKING:
    _PartitionForm = forms.ModelForm[Partition]
else:
    _PartitionForm = forms.ModelForm


def cap_field(label: Any, help_text: Any, *, required: bool) -> forms.IntegerField:
    """Return a field for a cap."""
    return forms.IntegerField(
        label=label, help_text=help_text, required=required, min_value=1, max_value=MAX_CAP
    )


def version_field() -> forms.IntegerField:
    """Return the hidden field that carries the version a person has seen."""
    return forms.IntegerField(widget=forms.HiddenInput, min_value=0, max_value=2**63 - 1)


def conflict(*, stored: Any, wanted: Any, version: int) -> ValidationError:
    """Return the error of a form whose version is no longer the stored one, with both values."""
    return ValidationError(
        format_html(
            '{} <a href="">{}</a>',
            _(
                "Somebody else changed this meanwhile: it is now %(stored)s (version %(version)d), and you"
                " asked for %(wanted)s. Nothing was saved."
            )
            % {"stored": stored, "wanted": wanted, "version": version},
            _("Show the page as it is now."),
        ),
        code="stale",
    )


def require_initialized() -> None:
    """Raise `ValidationError` where the domain accepts no override yet."""
    if policy.get_default().cap is None:
        raise ValidationError(
            _("The policy is not initialised: start a worker once, or set the default cap."),
            code="not_initialized",
        )


def override_text(cap: int | None) -> str:
    """Return an override in words."""
    return _("the default") if cap is None else str(cap)


def change_text(before: int | None, partition: Partition) -> str:
    """Return a change of an override for the log."""
    now = partition.max_active or "default"
    return f"Cap override: {before or 'default'} -> {now} (version {partition.partition_version})"


class OverrideForm(_PartitionForm):
    """One scope's override; an empty one inherits the default."""

    max_active = cap_field(
        gettext_lazy("Cap override"),
        gettext_lazy("Leave it empty to inherit the default cap."),
        required=False,
    )
    expected_version = version_field()

    class Meta:
        model = Partition
        fields = ("max_active",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial["expected_version"] = self.instance.partition_version

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        require_initialized()
        if cleaned.get("expected_version") != self.instance.partition_version and not self.errors:
            raise conflict(
                stored=override_text(self.initial["max_active"]),
                wanted=override_text(cleaned["max_active"]),
                version=self.instance.partition_version,
            )
        return cleaned


class NewOverrideForm(_PartitionForm):
    """An override for a scope that has none, known or not.

    A scope that is known but not `visible` is refused with `PermissionDenied`: a form error would show its
    override.
    """

    visible: ClassVar[QuerySet[Partition]]

    tenant = forms.CharField(
        label=gettext_lazy("Tenant"),
        help_text=gettext_lazy("The tenant id, exactly as runs are enqueued with it."),
        required=False,
        strip=False,
    )
    tenantless = forms.BooleanField(
        label=gettext_lazy("The tenantless scope"),
        help_text=gettext_lazy("Runs that belong to no tenant."),
        required=False,
    )
    max_active = cap_field(gettext_lazy("Cap override"), "", required=True)

    class Meta:
        model = Partition
        fields = ("max_active",)

    def clean_tenant(self) -> str:
        tenant: str = self.cleaned_data["tenant"]
        if tenant:
            try:
                validate_tenant(tenant)
            except InvalidTenant as error:
                raise ValidationError(str(error), code="invalid_tenant") from error
        return tenant

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        if self.errors:
            return cleaned
        if bool(cleaned["tenant"]) == cleaned["tenantless"]:
            raise ValidationError(_("Name one tenant, or choose the tenantless scope."), code="scope")
        require_initialized()
        scope_key = cleaned["tenant"] or TENANTLESS_SCOPE
        stored = Partition.objects.using(get_settings().database).filter(scope_key=scope_key).first()
        if stored is not None and not self.visible.filter(pk=scope_key).exists():
            raise PermissionDenied
        if stored is not None and stored.max_active is not None:
            raise conflict(
                stored=override_text(stored.max_active),
                wanted=override_text(cleaned["max_active"]),
                version=stored.partition_version,
            )
        self.instance.scope_key = scope_key
        cleaned["expected_version"] = 0 if stored is None else stored.partition_version
        return cleaned
