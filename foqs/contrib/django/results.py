"""Django's results of items: what the service knows of an item, and what its workers have recorded with it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.utils import timezone

from foqs.client import Item, ItemState
from foqs.client.handlers import TASK_HEADER, WrongArgument
from foqs.contrib.django.interface import (
    InvalidTask,
    Task,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
)
from foqs.contrib.django.record import Attempt, unpacked
from foqs.tasks import TaskFailed
from foqs.tasks.arguments import Signature
from foqs.tasks.codecs import Codecs

UNKNOWN = "unknown"
"""The worker of an attempt that has left no record: it was killed soon after the start."""
ENQUEUED_AT = "django-enqueued-at"
RUN_AFTER = "django-run-after"
"""Headers of an item. The time of the enqueue, which its caller knows, is by that clock. `run_after` is not the time of
an item that is tried again."""
_STATUS: dict[int | None, TaskResultStatus] = {
    ItemState.LEASED: TaskResultStatus.RUNNING,
    ItemState.COMPLETED: TaskResultStatus.SUCCESSFUL,
    ItemState.FAILED: TaskResultStatus.FAILED,
}
_FAILED = f"{TaskFailed.__module__}.{TaskFailed.__qualname__}"


def found(path: str) -> Task | None:
    """Return the task of a path that an item has. Nothing is imported: a path reaches what the project has imported."""
    module, _, name = path.rpartition(".")
    task: Any = getattr(sys.modules.get(module), "__dict__", {}).get(name)
    return task if issubclass(type(task), Task) and task.module_path == path else None


def read(alias: str, codecs: Codecs, signature: Signature, item: Item) -> TaskResult:
    """Return the result of an item of `get_item`. Raises TaskResultDoesNotExist if its task is none of this project."""
    path = (item.headers or {}).get(TASK_HEADER, "")
    task = found(path)
    if task is None:
        raise TaskResultDoesNotExist(f"item {item.id} is of no task that this process has imported")
    status = TaskResultStatus.FAILED if item.failure else _STATUS.get(item.state, TaskResultStatus.READY)
    named = signature.decode(item.payload, codecs.reader_of(item, path), codecs.of_arguments(path))
    arguments = signature.split(named)
    if status != TaskResultStatus.SUCCESSFUL:
        return made(alias, task, item, *arguments, status, attempts_of(codecs, item))
    said = opened(codecs, item.id, item.result)
    result = made(alias, task, item, *arguments, status, unpacked(said))
    object.__setattr__(result, "_return_value", said.get("return_value") if isinstance(said, dict) else said)
    return result


def attempts_of(codecs: Codecs, item: Item) -> list[Attempt]:
    """Return the attempts so far of an item that has not ended with a result."""
    try:
        return unpacked(opened(codecs, item.id, item.checkpoint))
    except (WrongArgument, LookupError, TypeError, ValueError):  # another client wrote it, or with another codec
        return []


def opened(codecs: Codecs, item_id: int, body: bytes | None) -> Any:
    """Return what a worker has recorded with an item."""
    if body is None:
        return None
    codec, body = codecs.opened(body)
    return codec.decode(body, codecs.of_result(item_id))


def made(
    alias: str, task: Task, item: Item, args: Any, kwargs: Any, status: TaskResultStatus, attempts: Sequence[Attempt]
) -> TaskResult:
    """Return the result of an item with a record of its attempts. Raises TypeError for arguments that are no JSON."""
    failure = item.failure
    count = item.attempt if failure is None else failure.attempts
    errors = [TaskError(exception_class_path=one.error, traceback=one.traceback) for one in attempts if one.error]
    end_ms = item.ended_at_ms if failure is None else failure.died_at_ms
    if failure is not None and not (attempts and attempts[-1].number == count and attempts[-1].error):
        errors.append(TaskError(exception_class_path=_FAILED, traceback=str(TaskFailed(item.id, failure))))
    elif end_ms and attempts:
        end_ms = attempts[-1].end_ms
    try:
        topic = item.topic if failure is None else failure.topic
        task = replace(task, backend=alias, priority=-item.priority, queue_name=topic, run_after=_time(item, RUN_AFTER))
    except InvalidTask:  # it was enqueued by another client, or before the settings changed
        pass
    return TaskResult(
        task=task,
        id=str(item.id),
        status=status,
        enqueued_at=_time(item, ENQUEUED_AT) or time_of(item.enqueued_at_ms),
        started_at=time_of(attempts[0].at_ms) if attempts else None,
        last_attempted_at=time_of(attempts[-1].at_ms) if attempts else None,
        finished_at=time_of(end_ms) if end_ms else None,
        args=args,
        kwargs=kwargs,
        backend=alias,
        errors=errors,
        worker_ids=[UNKNOWN] * (count - len(attempts)) + [one.worker for one in attempts],
    )


def time_of(at_ms: int) -> datetime:
    """Return the time as Django's settings have times: naive without USE_TZ."""
    time = datetime.fromtimestamp(at_ms / 1000, UTC)
    return time if settings.USE_TZ else timezone.make_naive(time)


def _time(item: Item, header: str) -> datetime | None:
    try:
        return datetime.fromisoformat((item.headers or {})[header])
    except (KeyError, ValueError):  # another client enqueued it
        return None
