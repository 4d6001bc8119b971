"""The backend: stores calls of Django's tasks as items, and looks at them."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from difflib import get_close_matches
from inspect import iscoroutinefunction, signature
from typing import Any

from django.core import checks
from django.utils import timezone

from foqs.bounds import LIMITS
from foqs.checks import check_text, has_control
from foqs.client import Client, Invalid, Item, NotFound
from foqs.contrib.django.interface import (
    BaseTaskBackend,
    InvalidTask,
    InvalidTaskBackend,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    signals,
)
from foqs.contrib.django.results import ENQUEUED_AT, RUN_AFTER, found, made, read
from foqs.contrib.django.runs import Run, Runs, in_loop, in_thread
from foqs.ids import parse_id
from foqs.tasks import App, TaskWorker
from foqs.tasks.arguments import Signature
from foqs.tasks.codecs import JSON, Codec, Context
from foqs.tasks.task import Task as AppTask

ALIAS_VARIABLE = "FOQS_DJANGO_BACKEND"
"""Tells the processes of `foqs_worker` the alias of their backend."""
KEPT = timedelta(days=1)
_OF_TASKS = ("keep", "max_attempts", "retry")
_KNOWN = (*signature(Client).parameters, "codec", *_OF_TASKS)
_HINT = ": is its app in INSTALLED_APPS, or its module imported?"
_FIELD = re.compile(r"(^|: )rules\.(keep|max_attempts|retry)(?:_ms|_rule)?\b")
"""The field of an item in an error of the client or the service: the option that sets it has the name of the group."""
_TIME = re.compile(r"(?:^|: )deliver_after_ms is -?\d+(?:, more than (\d+) ms ahead)?")
_apps: dict[str, tuple[Mapping[str, Any], App]] = {}
"""The App of each alias, with its OPTIONS, for all threads: Django makes a backend in each."""


class FoqsBackend(BaseTaskBackend):
    """Runs Django's tasks by a foqs service: `TASKS = {"default": {"BACKEND": "foqs.contrib.django.FoqsBackend"}}`.

    QUEUES are topics. OPTIONS, all optional:

    address, namespace, token, tls  and other options of `foqs.App`; default: as `App.from_env` reads them
    keep                            a timedelta: how long a task and its result are kept after its end, default a day
    max_attempts, retry             as of a task of an App; default: the policy of the topic
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        queues = params.get("QUEUES", ())
        wrong = isinstance(queues, str | bytes) or not isinstance(queues, Iterable)
        super().__init__(alias, {**params, "QUEUES": ()} if wrong else params)
        self._wrong_queues = f"QUEUES is of type {type(queues).__name__}: give a list of topics" if wrong else ""

    @property
    def app(self) -> App:
        """The App of this process: its clients are made at their first use. Raises InvalidTaskBackend."""
        if self._wrong_queues:
            raise InvalidTaskBackend(f"TASKS[{self.alias!r}]: {self._wrong_queues}")
        known = _apps.get(self.alias)
        if known is None:
            app = self._new_app()
            known = _apps.setdefault(self.alias, (dict(self.options), app))
        if known[0] != self.options:  # the settings of a test
            app = self._new_app()
            known = _apps[self.alias] = dict(self.options), app
        return known[1]

    def _new_app(self) -> App:
        if not isinstance(self.options, Mapping):
            kind = type(self.options).__name__
            raise InvalidTaskBackend(f"TASKS[{self.alias!r}]: OPTIONS is of type {kind}: give a dict")
        for name in self.options:
            if name not in _KNOWN:
                near = get_close_matches(str(name), _KNOWN, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                text = f"OPTIONS has no option {name}: there are {', '.join(_KNOWN)}{hint}"
                raise InvalidTaskBackend(f"TASKS[{self.alias!r}]: {text}")
        try:
            app = App.from_env(**{name: value for name, value in self.options.items() if name not in _OF_TASKS})
        except Invalid as error:
            raise InvalidTaskBackend(self._wrong(error)) from None
        app._hint = _HINT
        app.middleware.append(Runs(type(self), self.alias, app))
        return app

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """Return what `manage.py check` shows: wrong OPTIONS and QUEUES."""
        try:
            self.app.client  # noqa: B018 - which checks its options, and connects later
            self._app_task("check", in_thread, "default")
        except InvalidTaskBackend as error:
            return [checks.Error(str(error), id="foqs.E001")]
        except Invalid as error:
            return [checks.Error(self._wrong(error), id="foqs.E001")]
        wrong = [text for queue in sorted(self.queues, key=repr) if (text := _wrong_queue(queue))]
        return [checks.Error(f"TASKS[{self.alias!r}]: {text}", id="foqs.E001") for text in wrong]

    def _wrong(self, error: Invalid) -> str:
        return f"TASKS[{self.alias!r}]: {_with_options(error.message.removeprefix('task check: '))}"

    # ------------------------------------------------------------------------------------- enqueue

    def enqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """Store a call. Raises TypeError for arguments that are no JSON, InvalidTask, and the errors of the service."""
        app_task, result = self._call(task, args, kwargs)
        with _named(task):
            object.__setattr__(result, "id", str(app_task.enqueue(*result.args, **result.kwargs).id))
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    async def aenqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """Like `enqueue`, by the client of this event loop."""
        app_task, result = self._call(task, args, kwargs)
        with _named(task):
            object.__setattr__(result, "id", str((await app_task.aenqueue(*result.args, **result.kwargs)).id))
        await signals.task_enqueued.asend(type(self), task_result=result)
        return result

    def _call(self, task: Task, args: Any, kwargs: Any) -> tuple[AppTask[Any, Any, Any], TaskResult]:
        """Return what to enqueue, and the result of the call, without its id."""
        self.validate_task(task)
        if getattr(found(task.module_path), "func", None) is not task.func:
            raise InvalidTask(f"no worker would find {task.module_path}: the module must have the task by this name")
        headers, after = {ENQUEUED_AT: timezone.now().isoformat()}, task.run_after
        if after is not None:
            headers[RUN_AFTER] = after.isoformat()
            after = timezone.make_aware(after) if timezone.is_naive(after) else after
        priority = -int(task.priority)
        with _named(task):
            app_task = self._known(task).options(topic=task.queue_name, priority=priority, at=after, headers=headers)
        item = Item(topic=task.queue_name, priority=priority, headers=headers)
        return app_task, made(self.alias, task, item, list(args), kwargs, TaskResultStatus.READY, ())

    def _known(self, task: Task) -> AppTask[Any, Any, Any]:
        """Return the task of the App for a task of Django."""
        path, tasks = task.module_path, self.app.tasks
        if path not in tasks:
            function = in_loop if iscoroutinefunction(task.func) else in_thread
            tasks.setdefault(path, self._app_task(path, function, task.queue_name))
        return tasks[path]

    def _app_task(self, path: str, function: Any, topic: str) -> AppTask[Any, Any, Any]:
        options: Any = {"topic": topic, "keep": KEPT}
        options |= {name: self.options[name] for name in _OF_TASKS if name in self.options}
        app_task: AppTask[Any, Any, Any] = AppTask(self.app._clients, function, path, options)
        app_task.signature = _SIGNATURE
        return app_task

    # ------------------------------------------------------------------------------------- results

    def get_result(self, result_id: str) -> TaskResult:
        """Return how a task went. The token of the backend needs the right `admin`.

        Raises TaskResultDoesNotExist for an id that is unknown here, or whose task is kept no longer, and Forbidden."""
        item_id = _item_id(result_id)
        try:
            return self._read(self.app.client.get_item(item_id))
        except NotFound as error:
            raise TaskResultDoesNotExist(f"{result_id}: {error.message}") from None

    async def aget_result(self, result_id: str) -> TaskResult:
        """Like `get_result`, by the client of this event loop."""
        item_id, app = _item_id(result_id), self.app
        try:
            item = await app.aclient.get_item(item_id)
        except NotFound as error:
            raise TaskResultDoesNotExist(f"{result_id}: {error.message}") from None
        return await asyncio.to_thread(self._read, item) if app._clients.codecs.blocks else self._read(item)

    def _read(self, item: Item) -> TaskResult:
        if item.ns != self.app.namespace:
            raise TaskResultDoesNotExist(f"item {item.id} is of another namespace")
        return read(self.alias, self.app._clients.codecs, _SIGNATURE, item)

    # ------------------------------------------------------------------------------------- workers

    def registered(self) -> App:
        """Return the App with all tasks that this process has imported, for a worker."""
        for module in list(sys.modules.values()):
            for task in list(getattr(module, "__dict__", {}).values()):
                if issubclass(type(task), Task) and found(task.module_path):  # isinstance would load lazy objects
                    self._known(task)
        return self.app

    def worker(self, topics: Sequence[str] | Mapping[str, int] | None = None, **options: Any) -> TaskWorker:
        """Return a worker of `foqs.App` for all tasks that this process has imported, not started. `topics`: default
        the QUEUES, or the queues of the tasks."""
        return self.registered().worker(topics or sorted(self.queues) or None, **options)


class _AnyArguments(Signature):
    """Arguments as Django has them: values of JSON, which only the call of the function checks. Its result is a run."""

    _arguments = _result = None

    def _fits(self, kwargs: Mapping[str, Any]) -> bool:
        return False

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        return {"args": list(args), "kwargs": dict(kwargs)}

    def split(self, bound: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        return bound["args"], bound["kwargs"]

    def encode_result(self, value: Run, codec: Codec = JSON, context: Context | None = None) -> bytes:
        return value.body


_SIGNATURE = _AnyArguments(in_thread, "of Django")


@contextmanager
def _named(task: Task) -> Iterator[None]:
    """Have an error of the item name what the project has set. Raises InvalidTask for a wrong `run_after`."""
    try:
        yield
    except Invalid as error:
        if task.run_after is not None and (late := _TIME.search(error.message)):
            most = "the year 5000" if late[1] is None else f"{_duration(int(late[1]))} from now"
            text = f"run_after is {task.run_after.isoformat()}: the service takes times up to {most}"
            raise InvalidTask(text) from None
        if (text := _with_options(error.message)) != error.message:
            raise type(error)(text) from None
        raise


def _with_options(text: str) -> str:
    """Return the text of an error with options of the backend in place of the fields of an item."""
    return _FIELD.sub(r"\1\2", text)


def _duration(ms: int) -> str:
    return str(timedelta(milliseconds=ms)).removesuffix(", 0:00:00")


def _wrong_queue(queue: object) -> str:
    """Return why no service has a topic of this name, "" if one may."""
    name = f"QUEUES has {queue!r:.60}, which"
    try:
        check_text(name, queue, most_bytes=LIMITS.name_bytes)
    except Invalid as error:
        return error.message
    return f"{name} holds a control character" if has_control(str(queue)) else ""


def _item_id(result_id: object) -> int:
    try:
        if isinstance(result_id, str) and result_id == str(item_id := parse_id(result_id)):
            return item_id
    except Invalid:
        pass
    raise TaskResultDoesNotExist(f"{result_id!r} is no id of a task")
