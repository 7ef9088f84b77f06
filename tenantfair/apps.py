"""The app's entry in Django's registry: connects checks and receivers, nothing else."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.models.signals import post_migrate, pre_migrate
from django.utils.translation import gettext_lazy as _


class TenantFairConfig(AppConfig):
    """`tenantfair` in INSTALLED_APPS."""

    name = "tenantfair"
    verbose_name = _("Tenantfair")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from tenantfair import checks, compat, metrics, policy, schema

        compat.register_checks()
        checks.register_checks()
        metrics.connect()
        pre_migrate.connect(schema.prepare_unmigrated, sender=self, dispatch_uid="tenantfair.schema")
        post_migrate.connect(policy.restore_policy_row, sender=self, dispatch_uid="tenantfair.policy")
