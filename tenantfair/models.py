"""The four tables, with every rule about a single row as a constraint in the database.

Rules that span rows (counts, ring positions, ownership) are triggers, installed by migration from `sql/`. So
are the functions that constraints and defaults call, and the rule about a scope key.
Read rows freely; write them only through `tenantfair.runs` and `tenantfair.policy`.
"""

from __future__ import annotations

from typing import ClassVar, Final

from django.db import models
from django.db.models import ExpressionWrapper, F, Func, Q, Value
from django.db.models.functions import Coalesce, Now
from django.utils.translation import gettext_lazy as _

from tenantfair.run_ids import new_run_id

MIN_SCAN_BUDGET: Final = 32
MAX_SCAN_BUDGET: Final = 4096


def _check(function: str, *columns: str) -> Func:
    """A rule over `columns` that an installed function of the database knows (decision 0014)."""
    return Func(*(F(column) for column in columns), function=function, output_field=models.BooleanField())


class Policy(models.Model):
    """The domain's single row: mode, default cap, lease, budget and the durable cursor."""

    class Mode(models.TextChoices):
        LEGACY = "legacy", _("legacy")
        TENANT_FAIR = "tenant_fair", _("tenant fair")

    id = models.SmallIntegerField(primary_key=True, default=1, db_default=1)
    admission_mode = models.CharField(
        _("admission mode"), max_length=16, choices=Mode, db_default=Mode.LEGACY
    )
    max_active = models.IntegerField(_("default cap"), null=True)
    configured_max_active = models.IntegerField(_("cap last asked for by settings"), null=True)
    lease_seconds = models.IntegerField(_("lease in seconds"), db_default=60)
    max_attempts = models.IntegerField(_("starts before poison"), db_default=5)
    scan_budget = models.IntegerField(_("inspections per claim"), db_default=MIN_SCAN_BUDGET)
    policy_version = models.BigIntegerField(_("version"), db_default=0)
    scan_ring_position = models.BigIntegerField(_("cursor"), db_default=0)
    scan_laps = models.BigIntegerField(_("laps"), db_default=0)
    scan_fruitless = models.SmallIntegerField(_("fruitless inspections of the last claim"), db_default=0)
    initialized_at = models.DateTimeField(_("initialised at"), null=True)
    updated_at = models.DateTimeField(_("updated at"), db_default=Now())

    class Meta:
        verbose_name = _("policy")
        verbose_name_plural = _("policy")
        constraints: ClassVar = [
            models.CheckConstraint(
                name="tenantfair_policy_shape",
                condition=_check(
                    "tenantfair_policy_shape",
                    "id",
                    "admission_mode",
                    "max_active",
                    "configured_max_active",
                    "lease_seconds",
                    "max_attempts",
                    "scan_budget",
                    "policy_version",
                    "scan_ring_position",
                    "scan_laps",
                    "scan_fruitless",
                    "initialized_at",
                ),
            ),
        ]

    def __str__(self) -> str:
        return "policy"


class Partition(models.Model):
    """One scope: its cap override and its service evidence. `''` is the tenantless scope."""

    scope_key = models.TextField(_("scope"), primary_key=True, db_collation="C")
    max_active = models.IntegerField(_("cap override"), null=True, blank=True)
    partition_version = models.BigIntegerField(_("version"), db_default=0)
    admission_epoch = models.BigIntegerField(_("grants so far"), db_default=0)
    created_at = models.DateTimeField(_("created at"), db_default=Now())
    updated_at = models.DateTimeField(_("updated at"), db_default=Now())

    class Meta:
        verbose_name = _("partition")
        verbose_name_plural = _("partitions")
        permissions: ClassVar = [("override_cap", _("Can override the cap of a partition"))]
        indexes: ClassVar = [
            # Claims ask each tenant ahead for a cap of its own; few have one.
            models.Index(
                name="tenantfair_partition_override",
                fields=["scope_key"],
                condition=Q(max_active__isnull=False),
            ),
        ]
        constraints: ClassVar = [
            # A null passes: no override.
            models.CheckConstraint(name="tenantfair_partition_cap", condition=Q(max_active__gte=1)),
            models.CheckConstraint(
                name="tenantfair_partition_counters",
                condition=Q(partition_version__gte=0, admission_epoch__gte=0),
            ),
        ]

    def __str__(self) -> str:
        return self.scope_key


class Schedule(models.Model):
    """One scope's place on the ring and its exact count of committed unfinished runs.

    Rows come from a trigger on `Partition` and are changed only by the fold at commit (decision 0002).
    The foreign key is created by migration 0002, because the database itself must cascade it.
    """

    partition = models.OneToOneField(
        Partition, models.DO_NOTHING, primary_key=True, db_column="scope_key", db_constraint=False
    )
    ring_position = models.BigIntegerField(_("ring position"), unique=True)
    unfinished_count = models.BigIntegerField(_("unfinished runs"), db_default=0)
    # The ring index is partial on this column and not on the count, so that counting stays a HOT update.
    in_ring = models.GeneratedField(
        expression=ExpressionWrapper(Q(unfinished_count__gt=0), output_field=models.BooleanField()),
        output_field=models.BooleanField(),
        db_persist=True,
    )

    class Meta:
        verbose_name = _("ring position")
        verbose_name_plural = _("ring positions")
        constraints: ClassVar = [
            models.CheckConstraint(name="tenantfair_schedule_position", condition=Q(ring_position__gt=0)),
            models.CheckConstraint(name="tenantfair_schedule_count", condition=Q(unfinished_count__gte=0)),
        ]
        indexes: ClassVar = [
            models.Index(
                name="tenantfair_schedule_ring",
                fields=["ring_position"],
                include=["partition"],
                condition=Q(in_ring=True),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.ring_position}"


class Run(models.Model):
    """One durable piece of background work."""

    class Status(models.TextChoices):
        RUNNING = "running", _("running")
        WAITING = "waiting", _("waiting")
        COMPLETED = "completed", _("completed")
        FAILED = "failed", _("failed")
        CANCELLED = "cancelled", _("cancelled")

    id = models.BigAutoField(primary_key=True)
    run_id = models.UUIDField(
        _("run id"),
        unique=True,
        default=new_run_id,
        db_default=Func(function="tenantfair_new_run_id", output_field=models.UUIDField()),
    )

    # Of fixed width and never null first: a claim reads them without walking over texts (decision 0005).
    claim_attempts = models.IntegerField(_("starts since the last outcome"), db_default=0)
    claim_abandons = models.IntegerField(_("abandons"), db_default=0)
    checkpoint_seq = models.BigIntegerField(_("checkpoints"), db_default=0)
    failures = models.IntegerField(_("failed attempts"), db_default=0)
    retry_limit = models.SmallIntegerField(_("retry limit"), db_default=3)
    enqueued_at = models.DateTimeField(_("enqueued at"), db_default=Now())
    updated_at = models.DateTimeField(_("updated at"), db_default=Now())

    wake_at = models.DateTimeField(_("due at"), null=True)
    claimed_at = models.DateTimeField(_("claimed at"), null=True)
    tenant_admitted_at = models.DateTimeField(_("admitted at"), null=True)
    claim_token = models.UUIDField(null=True)
    started_at = models.DateTimeField(_("first started at"), null=True)
    last_attempted_at = models.DateTimeField(_("last started at"), null=True)
    poisoned_at = models.DateTimeField(_("poisoned at"), null=True)
    finished_at = models.DateTimeField(_("finished at"), null=True)

    status = models.TextField(_("status"), choices=Status, db_default=Status.RUNNING)
    # NULL and '' differ on purpose: NULL is the tenantless scope, '' is refused.
    tenant_id = models.TextField(_("tenant"), null=True, db_collation="C")  # noqa: DJ001
    scope_key = models.GeneratedField(
        expression=Coalesce("tenant_id", Value("")),
        output_field=models.TextField(_("scope"), db_collation="C"),
        db_persist=True,
    )
    task_path = models.TextField(_("task"))
    queue_name = models.TextField(_("queue"), db_default="default")
    backend = models.TextField(_("backend alias"), db_default="default")
    claimed_by = models.TextField(_("claimed by"), null=True)  # noqa: DJ001 - no claim, no name
    poison_reason = models.TextField(_("poison reason"), null=True)  # noqa: DJ001 - no poison, no reason

    args = models.JSONField(_("arguments"), default=list, db_default=Value([], models.JSONField()))
    kwargs = models.JSONField(_("keyword arguments"), default=dict, db_default=Value({}, models.JSONField()))
    state = models.JSONField(_("saved state"), null=True)
    result = models.JSONField(_("result"), null=True)
    pending_signals = models.JSONField(
        _("pending signals"), default=list, db_default=Value([], models.JSONField())
    )
    errors = models.JSONField(_("errors"), default=list, db_default=Value([], models.JSONField()))
    worker_ids = models.JSONField(_("workers"), default=list, db_default=Value([], models.JSONField()))

    class Meta:
        verbose_name = _("run")
        verbose_name_plural = _("runs")
        permissions: ClassVar = [
            ("retry_run", _("Can retry a run")),
            ("cancel_run", _("Can cancel a run")),
            ("view_payload", _("Can see arguments, state and results of runs")),
        ]
        constraints: ClassVar = [
            models.CheckConstraint(
                name="tenantfair_run_shape",
                condition=_check(
                    "tenantfair_run_shape",
                    "tenant_id",
                    "status",
                    "wake_at",
                    "claim_token",
                    "claimed_at",
                    "tenant_admitted_at",
                    "poisoned_at",
                    "poison_reason",
                    "finished_at",
                    "claim_attempts",
                    "claim_abandons",
                    "failures",
                    "checkpoint_seq",
                    "retry_limit",
                ),
            ),
        ]
        # Every index whose condition a claimed row still meets costs one entry per claim, so conditions
        # are disjoint and listings of finished rows are partial (docs/explanation/storage). What a claim only
        # looks at on its way around the ring is in the index (decision 0005).
        indexes: ClassVar = [
            models.Index(
                name="tenantfair_run_queued",
                fields=["scope_key", "wake_at", "id"],
                include=["claim_attempts"],
                condition=Q(wake_at__isnull=False, tenant_admitted_at__isnull=True),
            ),
            models.Index(
                name="tenantfair_run_ready",
                fields=["scope_key", "wake_at", "id"],
                condition=Q(wake_at__isnull=False, tenant_admitted_at__isnull=False),
            ),
            models.Index(
                name="tenantfair_run_claimed",
                fields=["scope_key", "claimed_at", "id"],
                include=["tenant_admitted_at"],
                condition=Q(claim_token__isnull=False),
            ),
            # Names the status too, so that a claim's query for one scope cannot be planned over it.
            models.Index(
                name="tenantfair_run_due",
                fields=["wake_at", "id"],
                condition=Q(wake_at__isnull=False, status="running"),
            ),
            models.Index(
                name="tenantfair_run_waiting", fields=["scope_key", "id"], condition=Q(status="waiting")
            ),
            models.Index(
                name="tenantfair_run_poisoned",
                fields=["scope_key", "id"],
                condition=Q(poisoned_at__isnull=False),
            ),
            models.Index(
                name="tenantfair_run_finished",
                fields=["finished_at", "id"],
                condition=Q(finished_at__isnull=False),
            ),
            models.Index(
                name="tenantfair_run_history",
                fields=["scope_key", "id"],
                condition=Q(finished_at__isnull=False),
            ),
            models.Index(name="tenantfair_run_failed", fields=["id"], condition=Q(status="failed")),
            models.Index(name="tenantfair_run_cancelled", fields=["id"], condition=Q(status="cancelled")),
        ]

    def __str__(self) -> str:
        return str(self.run_id)
