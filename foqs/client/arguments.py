"""Checks of the arguments of public functions, by the name of the parameter: one name means the same everywhere.

A function under `checked` refuses wrong arguments with Invalid before it does anything. A parameter without a check is
an error when the module is imported. Functions of the hot path call the same checks themselves.

Also the checks of items, above all of values that the codec would change, as it cuts a fraction; and the entries of a
call for many items: an entry that cannot be sent has its error, and all other entries are sent.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import index
from typing import Any, ParamSpec, TypeVar, cast

from foqs.bounds import LEAST_FRAME_BYTES, LIMITS, MOST_FRAME_BYTES, MOST_PACE, MOST_WEIGHT
from foqs.checks import (
    I32_MAX,
    I64_MAX,
    LONGEST_MS,
    SHOWN_BITS,
    check_bool,
    check_bytes,
    check_callable,
    check_choice,
    check_distinct,
    check_int,
    check_number,
    check_text,
    check_time_ms,
    refuse,
    shown,
)
from foqs.client.items import (
    Ack,
    DedupUntil,
    Delivery,
    Extension,
    ItemSpec,
    Nack,
    Progress,
    check_checkpoint,
    check_lines,
)
from foqs.client.per_worker import Share
from foqs.client.routes import parse_addresses
from foqs.client.rules import ItemRules, RetryKind, RetryRule
from foqs.client.tls import Tls
from foqs.errors import FoqsError, Invalid
from foqs.idl import idl
from foqs.ids import MAX_I64, MIN_I64, OnDuplicate
from foqs.rows import FailureCause
from foqs.travel import bare

P = ParamSpec("P")
R = TypeVar("R")
Check = Callable[[str, object], None]

MOST_THREADS = 10_000
MOST_HELD = LIMITS.request_items
_NO_LIMIT, _AT_ONCE = "no limit", "at once"
_USUAL = Delivery.AT_LEAST_ONCE  # a look-up in an enum costs four comparisons


def unchecked(_name: str, _value: object) -> None:
    """The function checks the parameter itself."""


def instance_of(kind: type, *, none: bool = False) -> Check:
    """Return a check that a value is an object of the class."""

    def check(name: str, value: object) -> None:
        if not isinstance(value, kind) and not (none and value is None):
            refuse(name, value, f"it must be of type {kind.__name__}")

    return check


def whole(low: int, high: int | None = None, *, zero: str = "", none: bool = False) -> Check:
    return partial(check_int, low=low, high=high, zero=zero, none=none)


def limit(*, none: bool = False, most: int = I64_MAX) -> Check:
    return whole(0, most, zero=_NO_LIMIT, none=none)


def duration(least: int = 0, *, none: bool = False, most: int = LONGEST_MS) -> Check:
    return whole(least, most, zero=_AT_ONCE, none=none)


def pause(*, none: bool = False) -> Check:
    """A duration that may have a fraction."""
    return partial(check_number, low=0, high=LONGEST_MS, zero=_AT_ONCE, none=none)


def text(most_bytes: int | None = None, *, none: bool = False, empty: bool = False) -> Check:
    return partial(check_text, most_bytes=most_bytes, none=none, empty=empty)


def one_of(*allowed: str) -> Check:
    return partial(check_choice, among=allowed)


def check_client(name: str, value: object) -> None:
    if not hasattr(value, "enqueue_many") or inspect.iscoroutinefunction(getattr(value, "close", None)):
        refuse(name, value, "it must be a Client (the blocking one)")


def check_async_client(name: str, value: object) -> None:
    if not hasattr(value, "enqueue_many") or not inspect.iscoroutinefunction(getattr(value, "close", None)):
        refuse(name, value, "it must be an AsyncClient")


def check_leased(name: str, value: object) -> None:
    if not hasattr(value, "id") or not hasattr(value, "lease"):
        refuse(name, value, "it must be a leased item, or a Lease")


def check_many(name: str, values: object) -> None:
    """Refuse a single thing where several are meant; a text would count as its characters."""
    if type(values) is list:
        return
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        refuse(name, values, "it must be a list, or something else to iterate over")


def check_counts(topics: object, count: object) -> None:
    """Check the topics of a dequeue: one, several, or a mapping to the count of each."""
    if isinstance(topics, str) and topics:
        check_int("count", count, 1, I32_MAX)
        return
    check_topics("topics", list(topics) if isinstance(topics, Mapping) else topics)
    if isinstance(topics, Mapping):
        for topic, wanted in topics.items():
            check_int(f"count of {topic!r}", wanted, 1, I32_MAX)
    else:
        check_int("count", count, 1, I32_MAX)


def check_dequeue(
    topics: object, count: object, wait_ms: object, lease_ms: object, max_bytes: object, worker: object = None,
    begins: object = None, holding: object = None, ledger: object = False, most: object = None,
    weights: Mapping[str, int] | None = None,
) -> None:  # fmt: skip
    """Check the arguments of a dequeue. A usual call, with a text and two numbers, costs a few comparisons."""
    usual = type(topics) is str and topics and type(count) is int and type(wait_ms) is int
    if not (usual and 0 < count <= I32_MAX and 0 <= wait_ms <= LONGEST_MS):  # type: ignore[operator]  # `usual` says so
        check_counts(topics, count)
        check_int("wait_ms", wait_ms, 0, LONGEST_MS, zero=_AT_ONCE)
    if lease_ms is not None:
        check_int("lease_ms", lease_ms, 1, LONGEST_MS)
    if max_bytes is not None:
        check_int("max_bytes", max_bytes, 0, I64_MAX, zero=_NO_LIMIT)
    if worker is not None:
        check_text("worker", worker, most_bytes=LIMITS.worker_bytes)
    if begins is not None:
        check_int("begins", begins, 0, I32_MAX)
    if holding is not None and not isinstance(holding, Share):
        check_topic_counts("holding", holding)
    if ledger is not False:
        check_bool("ledger", ledger)
    if most is not None:
        check_int("most", most, 0, I32_MAX, zero=_NO_LIMIT)
    if weights is not None:
        check_weights("weights", weights)
        if not most:
            raise Invalid("weights needs most: without it the topics are emptied in their order")
        for topic in weights.keys() - ({topics} if isinstance(topics, str) else set(topics)):  # type: ignore[call-overload]
            raise Invalid(f"weights has {shown(topic)}, which is none of the topics")


def check_tls(name: str, value: object) -> None:
    if value is not None and not isinstance(value, Tls | str):
        refuse(name, value, "it must be a Tls, or its text, for example 'on'")
    if isinstance(value, str):
        Tls.parse(value)


def check_topics(name: str, topics: object) -> None:
    """Check one topic or several. A mapping is refused: the function would ignore its values."""
    if isinstance(topics, Mapping):
        refuse(name, topics, "it must be a list of texts, one for each topic")
    check_distinct(name, (topics,) if isinstance(topics, str) else topics, "topic")


def check_weights(name: str, weights: object) -> None:
    """Check a mapping of topics to their weights."""
    if not isinstance(weights, Mapping):
        refuse(name, weights, "it must be a mapping of topics to weights")
    check_distinct(name, list(weights), "topic")
    for topic, weight in weights.items():
        check_int(f"{name}: weight of {topic!r}", weight, 1, MOST_WEIGHT)


def check_weighted_topics(name: str, topics: object) -> None:
    """Check one topic, several, or a mapping of topics to their weights."""
    (check_weights if isinstance(topics, Mapping) else check_topics)(name, topics)


def check_topic_counts(name: str, counts: object) -> None:
    if not isinstance(counts, Mapping):
        refuse(name, counts, "it must be a mapping of topics to counts")
    for topic, count in counts.items():
        check_int(f"{name} of {topic!r}", count, 0, I32_MAX)


def _check_id(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | str):
        refuse(name, value, "it must be an item's id, an integer or its text")


def check_cause(name: str, value: object) -> None:
    known = isinstance(value, int) and not isinstance(value, bool) and value in FailureCause._value2member_map_
    if value is not None and not known:
        refuse(name, value, f"it must be one of {', '.join(str(cause) for cause in FailureCause)}")


def _check_entries(name: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, Mapping):
        refuse(name, value, "it must be a mapping of keys to texts")
    for key, entry in value.items():
        check_text(f"{name}: a key", key)
        check_text(f"{name}[{key!r}]", entry, empty=True)


def _check_fields(name: str, value: object) -> None:
    """Check fields of a JSON object. The host checks their values."""
    if not isinstance(value, Mapping):
        refuse(name, value, "it must be a mapping of the names of fields to values")
    for field in value:
        check_text(f"{name}: a field", field)
    try:
        json.dumps(dict(value), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise Invalid(f"{name}: a value that JSON does not have: {error}") from None


def _check_keys(name: str, value: object) -> None:
    check_many(name, value)
    if isinstance(value, list | tuple | set | frozenset):  # an iterator could be read only once
        for key in value:
            check_text(f"{name}: a key", key)


_CHECKS: Mapping[str, Check] = {
    # of several functions
    "topic": text(LIMITS.name_bytes),
    "client": check_client,
    "timeout_ms": duration(1, none=True),
    "lease_ms": duration(1, none=True),
    "delay_ms": duration(none=True, most=I64_MAX),
    "worker": text(LIMITS.worker_bytes, none=True),
    "metadata": partial(check_bytes, none=True),
    "checkpoint": check_checkpoint,
    "progress": instance_of(Progress, none=True),
    "log": check_lines,
    "durable": check_bool,
    "leased": check_bool,
    "reason": text(none=True, empty=True),
    "cause": check_cause,
    "fairness_key": text(none=True, empty=True),
    "prefix": text(empty=True),
    "dedup_key": text(LIMITS.name_bytes),
    "item": check_leased,
    "item_id": _check_id,
    "item_ids": check_many,
    "items": check_many,
    "nacks": check_many,
    "topics": check_topics,
    **dict.fromkeys(("failed", "reject", "uncounted", "begun", "dry_run", "raise_errors"), check_bool),
    # of Client
    "address": text(),
    "namespace": text(LIMITS.name_bytes),
    "token": text(none=True),
    "attempt_timeout_ms": duration(1),
    "connect_timeout_ms": duration(1),
    "pool_size": limit(most=I32_MAX),
    "max_idle_ms": duration(),
    "max_frame_bytes": whole(LEAST_FRAME_BYTES, MOST_FRAME_BYTES),
    "routing": check_bool,
    "tracing": check_bool,
    "wait_server": check_bool,
    "tls": check_tls,
    "on_retry": partial(check_callable, form="on_retry(error, left_s)", none=True),
    "retry_wait": partial(check_callable, form="retry_wait(retry_state)", none=True),
    "retry_stop": partial(check_callable, form="retry_stop(retry_state)", none=True),
    "held_longer_than_ms": whole(0, 1 << 62, zero="all of them", none=True),
    "page_items": whole(1, I32_MAX),
    "page_topics": whole(1, I32_MAX),
    "all_namespaces": check_bool,
    "all_states": check_bool,
    "dead": check_bool,
    "rates": check_bool,
    "with_items": check_bool,
    "tenants": whole(1, I32_MAX, none=True),
    "limit": limit(none=True),
    "entries": _check_entries,
    "remove": _check_keys,
    "decide": partial(check_callable, form="decide(entries)"),
    "fields": _check_fields,
    "without": _check_keys,
    "key": text(),
    "expected_version": whole(0, I64_MAX, none=True),
    "hook": one_of("on_enqueue", "on_failure"),
    "script": text(none=True),
    "source": text(none=True, empty=True),
    "attempt": whole(1, I32_MAX, none=True),
    "per_fingerprint": limit(none=True, most=I32_MAX),
    "to_topic": text(LIMITS.name_bytes, none=True),
    "pace_per_second": limit(none=True, most=MOST_PACE),
    # of Producer
    "max_items": limit(),
    "max_bytes": limit(),
    "linger_ms": pause(),
    "in_flight": whole(1, MOST_THREADS),
    "max_pending_items": limit(),
    "max_pending_bytes": limit(),
    "when_full": one_of("block", "raise"),
    "block_ms": pause(),
    "on_error": partial(check_callable, form="on_error(spec, error)", none=True),
    # of Worker
    "concurrency": whole(1, MOST_THREADS),
    "prefetch": whole(0, MOST_HELD),
    "wait_ms": duration(),
    "ack_linger_ms": pause(),
    "grace_ms": pause(),
    "time_limit_ms": limit(none=True, most=LONGEST_MS),
    "on_hang": one_of("warn", "exit"),
    "hung": check_topic_counts,
    "report_errors": check_bool,
    "name": text(LIMITS.worker_bytes, none=True),
}  # fmt: skip


def checked(**own: Check) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that checks the arguments of a function. `own` are the checks of parameters whose names have
    none, or another meaning here.

    >>> checked()(lambda topic: None)("")
    Traceback (most recent call last):
    foqs.errors.Invalid: topic is empty: it must be text of 1 to 255 bytes
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        names = [name for name in inspect.signature(function).parameters if name != "self"]
        checks = {**_CHECKS, **own}
        if missing := [name for name in names if name not in checks]:
            raise TypeError(
                f"{function.__qualname__}: no check of {', '.join(missing)}: add one to foqs.client.arguments"
            )
        has_self = len(names) < len(inspect.signature(function).parameters)

        def check(args: Sequence[object], kwargs: Mapping[str, object]) -> None:
            for name, value in zip(names, args[has_self:], strict=False):
                checks[name](name, value)
            for name, given in kwargs.items():
                if name in names:  # else Python refuses it
                    checks[name](name, given)

        @functools.wraps(function)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
            check(args, kwargs)
            return function(*args, **kwargs)

        @functools.wraps(function)
        async def waiting(*args: Any, **kwargs: Any) -> Any:
            check(args, kwargs)
            return await cast(Any, function)(*args, **kwargs)

        return cast(Callable[P, R], waiting) if inspect.iscoroutinefunction(function) else wrapped

    return decorate


def check_client_arguments(**arguments: object) -> None:
    """Check arguments of a client that is made later, without reading a file or looking up a name. Raises Invalid."""
    for name, value in arguments.items():
        _CHECKS[name](name, value)
    address, token = arguments.get("address"), arguments.get("token")
    if isinstance(address, str):
        parse_addresses(address)
    if token == "@":
        raise Invalid("token: give the path of a file after @")


def unlimited(most: int) -> int:
    """Return the bound to use for a limit, of which 0 is none."""
    return most or I64_MAX


def check_item(spec: ItemSpec) -> None:
    """Raise Invalid for a wrong field. The codec and the hosts check further types, and the bounds of the host."""
    topic: object = spec.topic
    if not isinstance(topic, str):
        check_text("topic", topic)
    check_bytes("payload", spec.payload)
    check_bytes("metadata", spec.metadata, none=True)
    check_int("priority", spec.priority, -I32_MAX - 1, I32_MAX, none=True)
    check_time_ms("deliver_after_ms", spec.deliver_after_ms, none=True)
    check_int("delay_ms", spec.delay_ms, 0, I64_MAX, zero="at once", none=True)
    if spec.delay_ms is not None and spec.deliver_after_ms is not None:
        raise Invalid("both deliver_after_ms and delay_ms are given: give one of the two")
    check_int("lease_ms", spec.lease_ms, 1, LONGEST_MS, none=True)
    check_int("ttl_ms", spec.ttl_ms, 1, I64_MAX, none=True)
    check_time_ms("expires_at_ms", spec.expires_at_ms, none=True)
    if spec.ttl_ms is not None and spec.expires_at_ms is not None:
        raise Invalid("both expires_at_ms and ttl_ms are given: give one of the two")
    check_int("weight", spec.weight, 1, MOST_WEIGHT, none=True)
    if spec.rules is not None:
        check_rules(spec.rules)
    check_int("delivery", spec.delivery, Delivery.AT_LEAST_ONCE, Delivery.AT_MOST_ONCE, none=True)
    check_int("dedup_until", spec.dedup_until, DedupUntil.WINDOW, DedupUntil.DONE, none=True)
    check_int("on_duplicate", spec.on_duplicate, OnDuplicate.KEEP, OnDuplicate.REPLACE, none=True)
    check_text("order_key", spec.order_key, none=True, empty=True)
    check_int("batch", spec.batch, 1, I64_MAX, none=True)
    if spec.order_key and spec.dedup_key is not None:
        raise Invalid("both dedup_key and order_key are given: each of them decides the shard of the item")
    if spec.dedup_key is None:
        for name in ("dedup_until", "on_duplicate"):
            if getattr(spec, name) is not None:
                raise Invalid(f"{name} needs a dedup_key")


def check_rules(rules: ItemRules) -> None:
    """Raise Invalid for a wrong field of the rules of an item; the hosts check further."""
    if not isinstance(rules, ItemRules):
        raise Invalid(f"rules is of type {type(rules).__name__}: it must be ItemRules")
    check_int("rules.max_attempts", rules.max_attempts, 0, I32_MAX, zero="no limit", none=True)
    check_int("rules.max_total_ms", rules.max_total_ms, 0, I64_MAX, zero="no limit", none=True)
    check_int("rules.keep_ms", rules.keep_ms, 0, I64_MAX, zero="not at all", none=True)
    if rules.dead_topic is not None:
        check_text("rules.dead_topic", rules.dead_topic)
    if rules.exact_attempts is not None:
        check_bool("rules.exact_attempts", rules.exact_attempts)
    retry = rules.retry
    if retry is None:
        return
    if not isinstance(retry, RetryRule):
        raise Invalid(f"rules.retry is of type {type(retry).__name__}: it must be a RetryRule")
    check_int("rules.retry.kind", retry.kind, RetryKind.CONSTANT, RetryKind.EXPONENTIAL)
    for name in ("first_ms", "step_ms", "longest_ms"):
        check_int(f"rules.retry.{name}", getattr(retry, name), 0, I64_MAX, none=True)
    for name in ("factor", "jitter"):
        value = getattr(retry, name)
        if value is not None and not isinstance(value, int | float):
            raise Invalid(f"rules.retry.{name} is of type {type(value).__name__}: it must be a number")


def faults_of(specs: Sequence[ItemSpec]) -> dict[int, Invalid]:
    """Return the error of each item that must not be sent, by its place. A plain item costs a few comparisons."""
    faults: dict[int, Invalid] = {}
    for at, spec in enumerate(specs):
        try:
            if (
                type(spec.payload) is bytes
                and type(spec.topic) is str
                and type(spec.priority) is int
                and spec.delivery is _USUAL
                and spec.metadata is None
                and spec.deliver_after_ms is None
                and spec.delay_ms is None
                and spec.lease_ms is None
                and spec.ttl_ms is None
                and spec.expires_at_ms is None
                and spec.weight is None
                and spec.rules is None
                and spec.dedup_until is None
                and spec.on_duplicate is None
                and spec.order_key is None
                and spec.batch is None
            ):
                continue
            check_item(spec)
        except AttributeError:
            faults[at] = Invalid(f"item {at} is of type {type(spec).__name__}: it must be an ItemSpec")
        except Invalid as error:
            faults[at] = bare(error)
    return faults


class Entries:
    """`good` are the entries to send, in order; `errors` has the errors of the other entries, by their place."""

    __slots__ = ("errors", "good")

    def __init__(self, given: Iterable[Any], entry_of: Callable[[Any], Any]) -> None:
        """`entry_of` makes an entry of each given value. Its error is the outcome of that entry alone."""
        entries = given if isinstance(given, list | tuple) else list(given)
        self.errors: dict[int, FoqsError] = {}
        try:
            self.good = list(map(entry_of, entries))
        except Exception:  # noqa: BLE001 - an object of the caller may raise anything where it is read
            self.good = []
            for at, one in enumerate(entries):
                try:
                    self.good.append(entry_of(one))
                except Exception as error:  # noqa: BLE001 - as above
                    self.errors[at] = _refusal(one, error)

    def outcomes(self, of_good: Sequence[Any]) -> list[Any]:
        """Return the outcome of each entry; `of_good` has the outcomes of `good`."""
        if not self.errors:
            return list(of_good)
        left, total = iter(of_good), len(of_good) + len(self.errors)
        return [self.errors[at] if at in self.errors else next(left) for at in range(total)]


def _refusal(given: object, error: Exception) -> Invalid:
    if isinstance(error, Invalid):
        return bare(error)
    what = f"an entry of type {type(given).__name__} cannot be read ({type(error).__name__})"
    return Invalid(f"{what}: give an object of the type that the call describes")


def _lease_of(item: Any) -> tuple[int, int]:
    """Return id and lease of an item or a lease. Raises Invalid, and AttributeError without an id or a lease."""
    item_id, lease = item.id, item.lease
    if type(item_id) is int and type(lease) is int:
        return item_id, lease
    return i64_of(item_id, "id"), i64_of(lease, "lease")


def ack_entry(item: Any) -> Any:
    """Return what an item, a lease or an Ack says in a request. Raises like `_lease_of`, whose call a usual item does
    not pay for."""
    if type(item) is Ack:
        return Ack(*_lease_of(item), item.result)
    item_id, lease = item.id, item.lease
    if type(item_id) is int and type(lease) is int:
        return idl.AckItem(item_id, lease)
    return idl.AckItem(*_lease_of(item))


def extend_entry(item: Any, lease_ms: int | None = None, begun: bool | None = None) -> Any:
    """Return what an item, a lease or an Extension says in a request. Raises like `_lease_of`."""
    if type(item) is Extension:
        item_id, lease = _lease_of(item)
        return replace(item, id=item_id, lease=lease, lease_ms=item.lease_ms or lease_ms)
    return idl.ExtendItem(*_lease_of(item), lease_ms, begun)


def release_entry(item: Any) -> Nack:
    """Return the nack of an item, or a lease, that was not begun. Raises like `_lease_of`."""
    return Nack(*_lease_of(item), release=True)


def nack_entry(given: Any) -> Nack:
    """Return `given` if each of its fields has its type. Raises Invalid."""
    if (
        type(given) is Nack and type(given.id) is int and type(given.lease) is int
        and (given.delay_ms is None or type(given.delay_ms) is int)
        and (given.metadata is None or type(given.metadata) is bytes)
    ):  # fmt: skip
        return given
    if not isinstance(given, Nack):
        raise Invalid(f"an entry is of type {type(given).__name__}: make a Nack with Nack.of(item, ...)")
    i64_of(given.id, "id")
    i64_of(given.lease, "lease")
    if given.delay_ms is not None:
        i64_of(given.delay_ms, "delay_ms")
    if not isinstance(given.metadata, bytes | bytearray | memoryview | None):
        raise Invalid(f"metadata is of type {type(given.metadata).__name__}: it must be bytes")
    return given


def spec_entry(given: Any) -> ItemSpec:
    """Return `given` if it is an ItemSpec. Raises Invalid."""
    if not isinstance(given, ItemSpec):
        raise Invalid(f"an entry is of type {type(given).__name__}: make an ItemSpec(topic, payload, ...)")
    return given


def i64_of(value: object, what: str) -> int:
    """Return an integer of 64 bits. The codec would cut a float. Raises Invalid."""
    wanted = f"it must be an integer from {MIN_I64} to {MAX_I64}"
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise Invalid(f"{what} is of type {type(value).__name__}: {wanted}")
    number = index(value)
    if not MIN_I64 <= number <= MAX_I64:
        size = number.bit_length()
        raise Invalid(f"{what} {f'is {number}' if size <= SHOWN_BITS else f'has {size} bits'}: {wanted}")
    return number
