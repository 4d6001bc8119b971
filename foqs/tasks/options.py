"""How calls of a task are enqueued: the options of users, and the item that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict
from uuid import uuid4

from foqs.client import DedupUntil, Delivery, Invalid, ItemRules, ItemSpec, OnDuplicate, RetryRule
from foqs.client.arguments import check_item
from foqs.client.handlers import TASK_HEADER
from foqs.tasks.codecs import CONTENT_TYPE, JSON
from foqs.tasks.item_batch import ItemBatch

DEFAULT_TOPIC = "default"
_KINDS: Mapping[str, type] = {
    "topic": str, "tenant": str, "unique": str, "order_key": str, "delay": timedelta, "ttl": timedelta,
    "keep": timedelta,
    "unique_until": DedupUntil, "on_duplicate": OnDuplicate, "max_attempts": int, "retry": RetryRule,
    "at_most_once": bool, "headers": Mapping,
}  # fmt: skip
_OF_DECORATOR = ("name", "time_limit", "retry_for", "reject_for", "batch_wait", "arguments")
_ELSEWHERE = {
    "countdown": "give delay, a timedelta", "delay_ms": "give delay, a timedelta", "eta": "give at, a datetime",
    "expires": "give ttl, a timedelta", "queue": "give topic", "max_retries": "give max_attempts",
}  # fmt: skip
"""What takes the place of options of other libraries, and of `Client.enqueue`."""


class Options(TypedDict, total=False):
    """How a task is enqueued, for `@app.task` and `task.options`.

    topic         the topic of its items, default "default"
    priority      lower is more urgent, default 0
    delay         a timedelta before it may run, or
    at            the time from which it may run: a datetime with a time zone
    ttl           a timedelta after the enqueue: a task that has not begun is removed then
    tenant        the fairness key: tenants of a topic share its workers
    weight        share of the tenant against other tenants, 1 to 1,000
    throttle      keys of rate limits and of limits on jobs at a time that the task waits for
    order_key     a text: tasks with it run one after the other, in the order of their enqueues (docs/do/ordered.md).
                  Not with `unique`. An enqueue is not repeated after a lost reply, which raises OutcomeUnknown
    unique        a text: while a task has it, another enqueue stores nothing, and its handle is that task's
    unique_until  when `unique` is free again: DONE (default), STARTED, or WINDOW (a day after the enqueue). It and
                  `on_duplicate` may be defaults of the task; an enqueue without `unique` is Invalid then
    on_duplicate  REPLACE gives a task that has not begun the arguments and the time of the new one
    max_attempts  the number of failed attempts after which the task is a dead letter; 0: no limit; default: the topic's
                  policy
    retry         the delays after failed attempts (`RetryRule`); default: the topic's policy
    keep          a timedelta: how long the end of the task and its result are kept; default 10 minutes if the function
                  is annotated with a result, else 0
    at_most_once  never deliver it twice: a task whose worker dies is lost
    headers       fixed text pairs
    """

    topic: str
    priority: int
    delay: timedelta | None
    at: datetime | None
    ttl: timedelta | None
    tenant: str | None
    weight: int | None
    throttle: Sequence[str] | None
    order_key: str | None
    unique: str | None
    unique_until: DedupUntil
    on_duplicate: OnDuplicate | None
    max_attempts: int | None
    retry: RetryRule | None
    keep: timedelta | None
    at_most_once: bool
    headers: Mapping[str, str] | None


class CallOptions(Options, total=False):
    """Of `task.options` alone.

    batch         the batch that the calls become members of: what `app.batch()` gives, or `job.batch`
    """

    batch: ItemBatch | None


def check_options(task: str, options: Mapping[str, Any]) -> None:
    """Raise Invalid for an unknown option, and for one of a wrong type."""
    for name in options:
        if name in _OF_DECORATOR:
            raise Invalid(f"task {task}: {name} is an option of @app.task only")
        if name not in CallOptions.__annotations__:
            known = _ELSEWHERE.get(name) or f"there are {', '.join((*CallOptions.__annotations__, *_OF_DECORATOR))}"
            raise Invalid(f"task {task}: unknown option {name}: {known}")
    at = options.get("at")
    if at is not None and (not isinstance(at, datetime) or at.tzinfo is None):
        raise Invalid(f"task {task}: at is {at!r}: give a datetime with a time zone")
    batch = options.get("batch")
    if batch is not None and not isinstance(batch, ItemBatch):
        raise Invalid(f"task {task}: batch is {batch!r}: give a batch, as app.batch() and job.batch have it")
    for name, kind in _KINDS.items():
        value = options.get(name)
        if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise Invalid(f"task {task}: {name} is {value!r}: give a {kind.__name__}")
        if value == "":
            raise Invalid(f"task {task}: {name} is empty")
    again = next((name for name in ("retry", "max_attempts") if options.get(name) not in (None, 1)), None)
    if options.get("at_most_once") and again is not None:
        raise Invalid(f"task {task}: {again} has no effect with at_most_once: the task is never tried again")
    throttle = options.get("throttle")
    listed = isinstance(throttle, Sequence) and not isinstance(throttle, str | bytes)
    if throttle is not None and not (listed and all(isinstance(key, str) for key in throttle)):
        raise Invalid(f"task {task}: throttle is {throttle!r}: give a list of keys")
    headers = options.get("headers") or {}
    if not all(isinstance(part, str) for pair in headers.items() for part in pair):
        raise Invalid(f"task {task}: headers is {headers!r}: give texts by their names")


def spec_of(task: str, options: CallOptions, body: bytes, content_type: str = JSON.content_type) -> ItemSpec:
    """Return the item of a call, for options that were checked. Raises Invalid for a wrong value."""
    at = options.get("at")
    retry, attempts, unique = options.get("retry"), options.get("max_attempts"), options.get("unique")
    order_key, batch = options.get("order_key"), options.get("batch")
    if order_key is not None and unique is not None:
        raise Invalid(f"task {task}: unique and order_key exclude each other: each of them decides the shard")
    keep_ms = _ms("keep", options)
    spec = ItemSpec(
        options.get("topic", DEFAULT_TOPIC),
        body,
        priority=options.get("priority", 0),
        delay_ms=_ms("delay", options),
        deliver_after_ms=None if at is None else int(at.timestamp() * 1000),
        ttl_ms=_ms("ttl", options),
        fairness_key=options.get("tenant"),
        weight=options.get("weight"),
        throttle_keys=options.get("throttle"),
        order_key=order_key,
        dedup_key=uuid4().hex if unique is None and order_key is None else unique,
        dedup_until=None if unique is None else options.get("unique_until", DedupUntil.DONE),
        on_duplicate=options.get("on_duplicate"),
        rules=None if (retry, attempts, keep_ms) == (None, None, None) else ItemRules(retry, attempts, keep_ms=keep_ms),
        delivery=Delivery.AT_MOST_ONCE if options.get("at_most_once") else Delivery.AT_LEAST_ONCE,
        headers={**(options.get("headers") or {}), TASK_HEADER: task, CONTENT_TYPE: content_type},
        batch=None if batch is None else batch.id,
    )
    try:
        check_item(spec)
    except Invalid as error:
        raise Invalid(f"task {task}: {error.message}") from None
    return spec


def _ms(name: Literal["delay", "ttl", "keep"], options: CallOptions) -> int | None:
    duration = options.get(name)
    return None if duration is None else duration // timedelta(milliseconds=1)
