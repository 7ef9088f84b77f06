"""Cancelling and retrying chosen runs: the question, and the answer run by run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.functional import Promise
from django.utils.translation import gettext, ngettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from tenantfair import runs
from tenantfair.admin.markup import state_badge
from tenantfair.admin.object_ids import scope_label
from tenantfair.exceptions import RunBusy, RunNotActive, RunNotFound
from tenantfair.models import Run

if TYPE_CHECKING:
    from tenantfair.admin.runs import RunAdminMixin


@dataclass(frozen=True, kw_only=True, slots=True)
class RunAction:
    """One operation of `tenantfair.runs` as an admin action. `states` are those that it changes."""

    name: str
    operation: Callable[..., Any]
    states: frozenset[str]
    title: Promise
    tool: Promise
    question: Promise
    explanation: Promise
    done: Promise
    log: str


CANCEL: Final = RunAction(
    name="cancel_runs",
    operation=runs.cancel,
    states=frozenset({"queued", "ready", "claimed", "scheduled", "waiting", "poisoned"}),
    title=_("Cancel runs"),
    tool=_("Cancel this run"),
    question=ngettext_lazy("%d run will be cancelled.", "%d runs will be cancelled."),
    explanation=_(
        "A cancelled run cannot be brought back. A worker that is at one learns of it at its next heartbeat,"
        " and its result is dropped."
    ),
    done=ngettext_lazy("%d run was cancelled.", "%d runs were cancelled."),
    log="Cancelled.",
)
RETRY: Final = RunAction(
    name="retry_runs",
    operation=runs.retry,
    states=frozenset({"poisoned", "failed"}),
    title=_("Retry runs"),
    tool=_("Retry this run"),
    question=ngettext_lazy("%d run will be queued again.", "%d runs will be queued again."),
    explanation=_("A retried run is due at once, with all its attempts and retries before it."),
    done=ngettext_lazy("%d run was queued again.", "%d runs were queued again."),
    log="Retried.",
)


def act(
    page: RunAdminMixin, request: HttpRequest, queryset: QuerySet[Run], action: RunAction
) -> HttpResponse | None:
    """Ask about the chosen runs first, then change each of them by itself."""
    if request.POST.get("post") != "yes":
        return _ask(page, request, list(queryset), action)
    _report(page, request, _do(page, request, list(queryset), action), action)
    return None


def _ask(page: RunAdminMixin, request: HttpRequest, chosen: list[Run], action: RunAction) -> HttpResponse:
    possible = sum(derived(run) in action.states for run in chosen)
    return page.confirmation(
        request,
        action=action.name,
        title=str(action.title),
        question=_count(action.question, possible),
        explanation=action.explanation,
        possible=possible,
        columns=[gettext("run"), gettext("state"), gettext("scope"), gettext("task")],
        rows=[
            {
                "object_id": run.pk,
                "hidden": [],
                "cells": [run.run_id, state_badge(derived(run)), scope_label(run.scope_key), run.task_path],
                "left_alone": derived(run) not in action.states,
            }
            for run in chosen
        ],
    )


def _do(page: RunAdminMixin, request: HttpRequest, chosen: list[Run], action: RunAction) -> Counter[str]:
    counted: Counter[str] = Counter()
    for run in chosen:
        if derived(run) not in action.states:
            counted["unfit"] += 1
            continue
        try:
            action.operation(run.run_id)
        except RunBusy:
            counted["busy"] += 1
        except (RunNotActive, RunNotFound):
            counted["unfit"] += 1
        else:
            counted["done"] += 1
            page.log_change(request, run, action.log)
    return counted


def _report(page: RunAdminMixin, request: HttpRequest, counted: Counter[str], action: RunAction) -> None:
    if counted["done"]:
        page.message_user(request, _count(action.done, counted["done"]), messages.SUCCESS)
    if counted["busy"]:
        text = ngettext(
            "%d run is held by another session at this moment and was left alone. Try again.",
            "%d runs are held by another session at this moment and were left alone. Try again.",
            counted["busy"],
        )
        page.message_user(request, text % counted["busy"], messages.WARNING)
    if counted["unfit"]:
        text = ngettext(
            "%d run was left alone: its state does not allow it.",
            "%d runs were left alone: their state does not allow it.",
            counted["unfit"],
        )
        page.message_user(request, text % counted["unfit"], messages.WARNING)


def _count(text: Promise, number: int) -> str:
    """Return a text that depends on one number. (A lazy plural takes the number by `%`.)"""
    return str(text % number)


def derived(run: Run) -> str:
    """Return the state that the admin's queryset annotates."""
    return str(vars(run)["derived"])
