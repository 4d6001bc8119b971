"""Tasks, for tests."""

import asyncio
import os
import threading
import time

from asgiref.sync import sync_to_async
from django.db import connection

from foqs import Reject, Retry
from foqs.contrib.django.interface import Task

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

ran: list[object] = []


@task
def add(one: int, other: int = 1) -> int:
    return one + other


@task(priority=7, queue_name="mail")
async def aadd(one: int, other: int = 1) -> int:
    await asyncio.sleep(0)
    return one + other


@task
def returns(value):
    return value


@task
def starts(run):
    return run


@task
def large(count: int) -> str:
    return count * "x"


@task
def no_json():
    return object()


@task(takes_context=True)
def attempt(context, args=None, kwargs=None, job=None):
    ran.append(context.task_result)
    return [context.attempt, args, kwargs, job]


@task
def fails(text: str, kind: str = "ValueError") -> None:
    raise {"ValueError": ValueError, "SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt}[kind](text)


@task
async def afails(text: str, kind: str = "ValueError") -> None:
    fails.func(text, kind)


@task(takes_context=True)
def fails_once(context) -> int:
    if context.attempt == 1:
        raise ValueError("at first")
    return context.attempt


@task
def rejects() -> None:
    raise Reject("no such customer")


@task(takes_context=True)
def retries(context, counts: bool) -> int:
    if context.attempt == 1:
        raise Retry(delay_ms=1_000, counts=counts)
    return context.attempt


@task
def waits(gate: str) -> int:
    while not os.path.exists(gate):
        time.sleep(0.01)
    return os.getpid()


@task
async def awaits(gate: str) -> int:
    while not os.path.exists(gate):  # noqa: ASYNC110, ASYNC240 - another process opens it
        await asyncio.sleep(0.01)
    return os.getpid()


@task
def query() -> list[object]:
    """Return also the thread, and True if its connection was open before."""
    known = connection.connection is not None
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        return [cursor.fetchone()[0], threading.get_ident(), known]


@task
async def aquery() -> int:
    return (await sync_to_async(query.func)())[0]


not_a_task = len
renamed = add
assert isinstance(add, Task)
