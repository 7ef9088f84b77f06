"""A second admin site, for staff who see the tenant `acme` and nothing else, on another base class."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.urls import path

from tenantfair.admin import PartitionAdminMixin, RunAdminMixin
from tenantfair.models import Partition, Run

site = admin.AdminSite(name="limited")


class HouseAdmin(admin.ModelAdmin):
    """Stands for another package's base class."""

    save_on_top = True


@admin.register(Run, site=site)
class AcmeRunAdmin(RunAdminMixin, HouseAdmin):
    def get_queryset(self, request: Any) -> Any:
        return super().get_queryset(request).filter(scope_key="acme")


@admin.register(Partition, site=site)
class AcmePartitionAdmin(PartitionAdminMixin, HouseAdmin):
    def get_queryset(self, request: Any) -> Any:
        return super().get_queryset(request).filter(scope_key="acme")


urlpatterns = [path("admin/", site.urls)]
