"""Tasks that tests enqueue and execute: one for each way in which a task can behave."""

from __future__ import annotations

import asyncio
import math
import threading
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection, transaction

from tenantfair.backend import for_tenant
from tenantfair.compat import task
from tenantfair.exceptions import InvalidPayload
from tenantfair.models import Run
from tenantfair.tenants import current_tenant


class Unprintable(Exception):
    """Cannot be turned into text, by any way."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def not_a_task() -> None:
    """A function and nothing more."""


def doubled(function: Any) -> Any:
    """A decorator that hands its function one argument more than it is given."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function("added", *args, **kwargs)

    wrapper.__wrapped__ = function
    wrapper.__module__, wrapper.__qualname__, wrapper.__name__ = (
        function.__module__,
        function.__qualname__,
        function.__name__,
    )
    return wrapper


@task
def echo(*args: Any, **kwargs: Any) -> list[Any]:
    return [list(args), kwargs]


@task
def pair(left: int, right: int) -> tuple[int, dict[int, int]]:
    """What JSON changes: a tuple, and keys that are no text."""
    return left, {right: left}


@task
def add(left: int, right: int = 1) -> int:
    return left + right


@task
@doubled
def decorated(added: str, given: str) -> str:
    return f"{added} {given}"


@task
async def add_async(left: int, right: int = 1) -> int:
    await asyncio.sleep(0)
    return left + right


@task
def where() -> list[Any]:
    """The tenant that is current, and the thread."""
    return [current_tenant(), threading.get_ident()]


@task
async def where_async() -> list[Any]:
    """The same as seen by synchronous code inside a coroutine."""
    return [current_tenant(), await sync_to_async(threading.get_ident)()]


@task
async def count_runs_async() -> int:
    return await Run.objects.acount()


@task
def fail(text: str = "no") -> None:
    raise ValueError(text)


@task
async def fail_async(text: str = "no") -> None:
    raise ValueError(text)


RAISED = {
    "ValueError": ValueError("no"),
    "SystemExit": SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt(),
    "GeneratorExit": GeneratorExit(),
    "MemoryError": MemoryError(),
    "StopIteration": StopIteration(),
    "CancelledError": asyncio.CancelledError(),
    "Unprintable": Unprintable(),
    "NUL": ValueError("a\0b"),
    "surrogate": ValueError("\ud800"),
    "long": ValueError("x" * 1_000_000),
    "group": BaseExceptionGroup("several", [ValueError("no"), SystemExit(1)]),
}


@task
def raise_named(name: str) -> None:
    raise RAISED[name]


@task
async def raise_named_async(name: str) -> None:
    raise RAISED[name]


@task
def recurse() -> None:
    recurse.func()


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


class Hostile(dict[str, Any]):
    """A mapping that falls over as soon as it is read."""

    def items(self) -> Any:
        raise SystemExit("hostile")


UNSTORABLE = {
    "nan": lambda: math.nan,
    "infinity": lambda: [-math.inf],
    "NUL": lambda: "a\0",
    "NUL in a key": lambda: {"a\0": 1},
    "surrogate": lambda: {"text": "\ud800"},
    "set": lambda: {1, 2},
    "model": Run,
    "deep": lambda: nested(20_000),
    "large": lambda: "x" * 20_000_000,
    "function": lambda: not_a_task,
    "hostile": Hostile,
}


@task
def return_unstorable(name: str) -> Any:
    return UNSTORABLE[name]()


@task
def break_the_transaction() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1/0")


@task
def break_a_constraint() -> None:
    Run.objects.create(tenant_id="", task_path="tests.nothing")


@task
def in_a_durable_block() -> None:
    with transaction.atomic(durable=True):
        Run.objects.count()


@task
def enqueue_another(tenant: str | None = None) -> str:
    """Enqueue for the run's own tenant, or for another one by name."""
    return str((echo if tenant is None else for_tenant(echo, tenant)).enqueue("child").id)


@task(takes_context=True)
def attempt_number(context: Any) -> list[Any]:
    return [str(context.run_id), context.task_result.id, context.attempt, context.tenant_id, context.state]


@task(takes_context=True)
def with_context(context: Any, *steps: Any) -> Any:
    """Do what `steps` say, in order: the name of a method or attribute of the context, and its arguments."""
    return follow(context, steps)


@task(takes_context=True)
def with_context_swallowing(context: Any, *steps: Any) -> str:
    """As `with_context`, in a task that survives every `Exception`."""
    try:
        follow(context, steps)
    except Exception as error:
        return f"swallowed {type(error).__name__}"
    return "returned"


@task(takes_context=True)
async def with_context_async(context: Any, state: Any) -> None:
    await context.acheckpoint(state)
    context.snooze(delay=timedelta(hours=1))


def follow(context: Any, steps: Any) -> Any:
    answer = None
    for name, arguments in steps:
        found = getattr(context, name)
        if callable(found):
            delay = {"delay": timedelta(seconds=arguments["delay"])} if "delay" in arguments else {}
            answer = found(**(arguments | delay))
        else:
            answer = found
    return answer


@task(takes_context=True)
def checkpoint_and_roll_back(context: Any) -> None:
    with transaction.atomic():
        context.checkpoint("lost")
        raise ValueError("no")


def save_behind_a_hook_that_raises(context: Any) -> None:
    """Django calls no further hook then, though the transaction is committed."""

    def fail() -> None:
        raise ValueError("a mail could not be sent")

    with suppress(ValueError), transaction.atomic():
        transaction.on_commit(fail)
        context.checkpoint("saved")


@task(takes_context=True)
def checkpoint_behind_a_hook_that_raises(context: Any) -> Any:
    save_behind_a_hook_that_raises(context)
    saved = context.state
    context.checkpoint("saved again")
    return saved


@task(takes_context=True)
async def snooze_behind_a_hook_that_raises(context: Any) -> None:
    await sync_to_async(save_behind_a_hook_that_raises)(context)
    context.snooze(delay=timedelta(hours=1))


@task(takes_context=True)
def checkpoint_and_snooze_in_a_block(context: Any) -> None:
    with transaction.atomic():
        context.checkpoint("taken back")
        context.snooze(delay=timedelta(hours=1), state="snoozed")


@task(takes_context=True)
def with_context_in_a_block(context: Any, *steps: Any) -> None:
    with transaction.atomic():
        for name, arguments in steps:
            getattr(context, name)(**arguments)


@task(takes_context=True)
async def snooze_in_a_task_group(context: Any) -> None:
    async def step() -> None:
        context.snooze(delay=timedelta(hours=1))

    async with asyncio.TaskGroup() as group:
        group.create_task(step())


@task(takes_context=True)
def snooze_in_nested_groups(context: Any, with_an_error: bool = False) -> None:
    try:
        context.snooze(delay=timedelta(hours=1))
    except BaseException as ended:
        errors = [ValueError("beside it")] if with_an_error else []
        raise BaseExceptionGroup("outer", [BaseExceptionGroup("inner", [ended, *errors])]) from None


@task(takes_context=True)
def snooze_until(context: Any, until: str) -> None:
    context.snooze(until=datetime.fromisoformat(until))


@task(takes_context=True)
def save_nan(context: Any, step: str) -> str:
    """Try to save what JSON cannot hold, and say how that went."""
    try:
        getattr(context, step)(state=math.nan)
    except InvalidPayload:
        return "refused"
    return "saved"


@task(takes_context=True)
def three_steps(context: Any) -> str:
    """Count the starts in the saved state: yield, then snooze to now, then complete."""
    step = (context.state or 0) + 1
    if step == 1:
        context.yield_(state=step)
    if step == 2:
        context.snooze(delay=timedelta(0), state=step)
    return f"done in {step}"


@task(takes_context=True)
def approval(context: Any) -> list[Any]:
    """Wait for a signal and return what it brought."""
    if not (payloads := context.signals):
        context.wait(state="asked")
    return [context.state, payloads]


@task(takes_context=True)
def for_ever(context: Any) -> None:
    context.yield_()


class _Hostile(type):
    """The class of a class that ends whoever asks for its name."""

    def __getattribute__(cls, name: str) -> Any:
        if name in {"__module__", "__qualname__", "__name__"}:
            raise SystemExit(name)
        return super().__getattribute__(name)


@task
def raise_hostile() -> None:
    raise _Hostile("HostileError", (Exception,), {})()
