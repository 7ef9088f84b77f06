"""The admin's pages: partitions with their overrides, runs, the policy, an overview.

They are registered with Django's default site. For another base class, put the mixin in front of it:

    admin.site.unregister(Run)

    @admin.register(Run)
    class MyRunAdmin(RunAdminMixin, unfold.admin.ModelAdmin):
        def get_queryset(self, request):
            # Staff see the runs of their own tenants: in lists, searches, pages and actions.
            return super().get_queryset(request).filter(scope_key__in=tenants_of(request.user))

Payloads are shown to whoever has `view_payload`, claim tokens to nobody. Every change is a POST and goes
through `tenantfair.runs` and `tenantfair.policy`.
"""

from django.contrib import admin

from tenantfair.admin.partitions import PartitionAdmin, PartitionAdminMixin
from tenantfair.admin.policy import PolicyAdmin, PolicyAdminMixin
from tenantfair.admin.runs import RunAdmin, RunAdminMixin
from tenantfair.models import Partition, Policy, Run

__all__ = [
    "PartitionAdmin",
    "PartitionAdminMixin",
    "PolicyAdmin",
    "PolicyAdminMixin",
    "RunAdmin",
    "RunAdminMixin",
]

admin.site.register(Policy, PolicyAdmin)
admin.site.register(Partition, PartitionAdmin)
admin.site.register(Run, RunAdmin)
