"""Resetting overrides to the default: the question, and the answer scope by scope."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from tenantfair import policy
from tenantfair.admin.object_ids import scope_label, to_object_id, to_tenant
from tenantfair.admin.partition_forms import change_text, override_text
from tenantfair.admin.partition_list import attach_inspections, inspection_of
from tenantfair.exceptions import NotInitialized, StaleVersion
from tenantfair.models import Partition

if TYPE_CHECKING:
    from tenantfair.admin.partitions import PartitionAdminMixin

VERSION_NAME = "expected_version"


def confirm_reset(
    page: PartitionAdminMixin, request: HttpRequest, queryset: QuerySet[Partition]
) -> HttpResponse:
    """Ask, and remember with every scope the version that was shown."""
    partitions = list(queryset)
    attach_inspections(partitions)
    overridden = [partition for partition in partitions if partition.max_active is not None]
    return page.confirmation(
        request,
        action="reset_overrides",
        title=_("Reset overrides"),
        question=ngettext(
            "%(number)d override will be reset to the default cap.",
            "%(number)d overrides will be reset to the default cap.",
            len(overridden),
        )
        % {"number": len(overridden)},
        explanation=_(
            "The scope keeps its runs and its place on the ring. Where the default is below what is admitted"
            " now, those runs keep running and nothing more is admitted until the debt is worked off."
        ),
        possible=len(overridden),
        columns=[_("scope"), _("override"), _("admitted now")],
        rows=[
            {
                "object_id": to_object_id(partition.scope_key),
                "hidden": [(VERSION_NAME, partition.partition_version)],
                "cells": [
                    scope_label(partition.scope_key),
                    override_text(partition.max_active),
                    inspection_of(partition).admitted_ready + inspection_of(partition).admitted_claimed,
                ],
                "left_alone": partition.max_active is None,
            }
            for partition in partitions
        ],
    )


def reset_scopes(page: PartitionAdminMixin, request: HttpRequest, queryset: QuerySet[Partition]) -> None:
    """Reset the chosen scopes one by one; a failed one leaves the others alone and is counted."""
    shown = _shown_versions(request)
    counted: Counter[str] = Counter()
    for partition in queryset:
        expected = shown.get(partition.scope_key)
        if partition.max_active is None:
            counted["inherits"] += 1
            continue
        before = partition.max_active
        try:
            if expected is None:
                raise StaleVersion(0, partition.partition_version)
            written = policy.reset_override(to_tenant(partition.scope_key), expected_version=expected)
        except StaleVersion:
            counted["stale"] += 1
        except NotInitialized:
            counted["not_initialized"] += 1
        else:
            counted["reset"] += 1
            partition.max_active, partition.partition_version = written.cap, written.version
            page.log_scope(request, partition, change_text(before, partition))
    _report(page, request, counted)


def _shown_versions(request: HttpRequest) -> dict[str, int]:
    """Return the version that the question showed for each scope; the two fields come in the same order."""
    versions = request.POST.getlist(VERSION_NAME)
    scope_keys = request.POST.getlist(ACTION_CHECKBOX_NAME)
    return {
        scope_key: int(version)
        for scope_key, version in zip(scope_keys, versions, strict=False)
        if version.isascii() and version.isdecimal() and len(version) <= 18
    }


def _report(page: PartitionAdminMixin, request: HttpRequest, counted: Counter[str]) -> None:
    texts = {
        "reset": (
            messages.SUCCESS,
            ngettext("%d override was reset.", "%d overrides were reset.", counted["reset"]),
        ),
        "inherits": (
            messages.INFO,
            ngettext("%d scope has no override.", "%d scopes have no override.", counted["inherits"]),
        ),
        "stale": (
            messages.WARNING,
            ngettext(
                "%d override was changed meanwhile and left alone.",
                "%d overrides were changed meanwhile and left alone.",
                counted["stale"],
            ),
        ),
        "not_initialized": (
            messages.ERROR,
            ngettext(
                "%d override was left alone: the policy is not initialised.",
                "%d overrides were left alone: the policy is not initialised.",
                counted["not_initialized"],
            ),
        ),
    }
    for outcome, (level, text) in texts.items():
        if counted[outcome]:
            page.message_user(request, text % counted[outcome], level)
