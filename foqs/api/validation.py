"""Checks of requests, and their conversion into the engine's types. Each check raises `Invalid`.

The codec guarantees the types of numbers and containers; strings may be `bytes` (not UTF-8) and absent fields None.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from foqs.bounds import MOST_STEPS, MOST_WEIGHT, PROGRESS_TEXT_BYTES, Limits
from foqs.checks import has_control, is_text, is_time, time_fault
from foqs.errors import Invalid
from foqs.fairness.keys import TopicKey
from foqs.policies.entries import all_good_names, name_error, throttle_key_error, throttles_error
from foqs.rows import LOG_BYTES, ProgressRow
from foqs.wire.usual_requests import Wants

_MOST_HUNG = 1_000_000
_NAMES_KEPT = 4_096
NO_NAME = 1 << 62
name_bytes: dict[str, int] = {}
"""The sizes of names that were checked."""
_quoted = json.encoder.encode_basestring  # as json.dumps with ensure_ascii=False, which takes longer to begin


def name(value: Any, what: str, limits: Limits, most_bytes: int = 0) -> str:
    """Check a name that many requests have: UTF-8, 1 to `most_bytes` bytes (default: `name_bytes`), no control
    characters."""
    most_bytes = most_bytes or limits.name_bytes
    if name_bytes.get(value, NO_NAME) > most_bytes:
        new_name(value, what, most_bytes)
        if len(name_bytes) >= _NAMES_KEPT:
            name_bytes.clear()
        name_bytes[value] = len(value.encode())
    return value  # type: ignore[no-any-return]


def new_name(value: object, what: str, most_bytes: int) -> str:
    """Check a name that comes once: as `name`."""
    if type(value) is not str:
        raise Invalid(f"{what} is missing" if value is None else f"{what} is not UTF-8")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise Invalid(f"{what} is not UTF-8") from None
    if not 0 < size <= most_bytes:
        raise Invalid(f"{what} must have 1 to {most_bytes} bytes")
    if not value.isprintable() and has_control(value):
        raise Invalid(f"{what} holds a control character")
    return value


def new_names(values: Sequence[str], what: str, most_bytes: int) -> None:
    """Check names that come once: as `new_name` each."""
    if all_good_names(values, most_bytes) and all(values):
        return
    for value in values:
        new_name(value, what, most_bytes)


def text(value: Any, what: str) -> str:
    if not is_text(value):
        raise Invalid(f"{what} is not UTF-8")
    return value


def progress_of(item: Any, limits: Limits) -> ProgressRow | None:
    """Return what an extension gives about its item; None if it gives nothing."""
    if item.checkpoint is None and item.progress is None and item.log is None:
        if item.durable:
            raise Invalid("durable needs a checkpoint, progress or a log")
        return None
    checkpoint, said = blob(item.checkpoint, "checkpoint", limits.checkpoint_bytes), item.progress
    row = ProgressRow(item.id, checkpoint, log=_log(item.log or ()))
    if said is None:
        return row
    if said.done is None:
        raise Invalid("progress.done is missing")
    done = within(said.done, "progress.done", 0, MOST_STEPS, 0)
    total = None if said.total is None else within(said.total, "progress.total", 0, MOST_STEPS, 0)
    words = None if said.text is None else text(said.text, "progress.text").encode()
    if words is not None and len(words) > PROGRESS_TEXT_BYTES:
        raise Invalid(f"progress.text has {len(words)} bytes, more than {PROGRESS_TEXT_BYTES}")
    return row._replace(done=done, total=total, text=words)


def _log(lines: Sequence[Any]) -> bytes:
    log = "".join([f"{text(line, 'a line of log')}\n" for line in lines]).encode()
    if len(log) > LOG_BYTES:
        raise Invalid(f"log has {len(log)} bytes with a newline for each line, more than {LOG_BYTES}")
    return log


def timeout_ms(request: Any, limits: Limits) -> int:
    """Return the time the caller waits, from the context, which the codec has checked, or the default."""
    return (request.context and request.context.timeout_ms) or limits.timeout_default_ms


def counted(items: Any, what: str, most: int) -> Sequence[Any]:
    """Return a list of 1 to `most` entries."""
    if not items:
        raise Invalid(f"{what} is empty")
    if len(items) > most:
        raise Invalid(f"{what} has {len(items)} entries, more than {most}")
    return items  # type: ignore[no-any-return]


def within(value: int | None, what: str, low: int, high: int, default: int) -> int:
    if value is None:
        return default
    if not low <= value <= high:
        hint = ", which is a time and no duration" if what.endswith("_ms") and is_time(value) else ""
        raise Invalid(f"{what} is {value}, not in {low}..{high}{hint}")
    return value


def moment(at_ms: int | None, what: str, now_ms: int) -> int | None:
    """Return a time in Unix epoch milliseconds; refuse a number that is clearly in another unit, or a duration. Where
    the clock itself shows such a number, as a test's may, it is a time."""
    if at_ms is not None and is_time(now_ms) and (fault := time_fault(at_ms)) is not None:
        raise Invalid(f"{what} is {at_ms}, {fault}")
    return at_ms


def due_of(spec: Any, limits: Limits, now_ms: int) -> int:
    """Return the time from which an item may be delivered; 0 for now (a time in the past means now)."""
    at_ms, delay_ms = spec.deliver_after_ms, spec.delay_ms
    most = limits.delay_max_ms
    if delay_ms is not None:
        if at_ms is not None:
            raise Invalid("both deliver_after_ms and delay_ms are given")
        within(delay_ms, "delay_ms", 0, most, 0)
        return now_ms + int(delay_ms) if delay_ms else 0
    if moment(at_ms, "deliver_after_ms", now_ms) is None:
        return 0
    if at_ms - now_ms > most:
        raise Invalid(f"deliver_after_ms is {at_ms}, more than {most} ms ahead")
    return int(at_ms) if at_ms > now_ms else 0


def topics(
    ns: str, wants: Sequence[Any], limits: Limits, most: int | None = None
) -> tuple[list[tuple[TopicKey, int]], int, Mapping[TopicKey, int] | None]:
    """Return each topic that a dequeue wants with its count, the most bytes that the names of one item take, and the
    weights of the topics, if one has a weight. `most` bounds the items of all topics together."""
    found: dict[TopicKey, int] = {}
    longest_bytes, weights = 0, None
    for want in wants:
        topic = name(want.topic, "topic", limits)
        found[(ns, topic)] = want.count or 0
        if (size := name_bytes[topic]) > longest_bytes:
            longest_bytes = size
        if want.holding is not None and want.holding < 0:
            raise Invalid("holding is negative")
        if want.hung is not None:
            raise Invalid("hung is for a report: the count of each topic must be 0")
        if want.weight is not None and weights is None:
            weights = {(ns, one.topic): within(one.weight, "weight", 1, MOST_WEIGHT, 1) for one in wants}
    if len(found) != len(wants):
        raise Invalid("wants lists a topic more than once")
    counts = found.values()
    if not 1 <= min(counts) <= limits.request_items:
        within(min(counts), "count", 1, limits.request_items, 1)
    names_bytes = len(ns.encode()) + longest_bytes
    if most is None:
        if sum(counts) > limits.request_items:
            within(sum(counts), "the sum of the counts", 1, limits.request_items, 1)
        if weights is not None:
            raise Invalid("weight needs most: without it the topics are emptied in their order")
        return list(found.items()), names_bytes, None
    within(max(counts), "count", 1, limits.request_items, 1)
    within(most, "most", 1, limits.request_items, 1)
    return [(key, min(count, most)) for key, count in found.items()], names_bytes, weights


class Asked(NamedTuple):
    """What a dequeue asks for, without its context, as these limits allow it."""

    limits: Limits
    keys: list[tuple[TopicKey, int]]
    names_bytes: int
    lease_ms: int
    wait_ms: int
    max_bytes: int  # 0: a whole frame
    worker: str
    most: int | None
    weights: Mapping[TopicKey, int] | None


def asked(request: Any, limits: Limits) -> Asked:
    """Check a dequeue. Its usual wants keep the result: the equal requests of a connection are checked once."""
    ns, wants = name(request.ns, "ns", limits), counted(request.wants, "wants", limits.request_topics)
    keys, names_bytes, weights = topics(ns, wants, limits, request.most)
    lease_ms = within(request.lease_ms, "lease_ms", limits.lease_min_ms, limits.lease_max_ms, 0)
    wait_ms = within(request.wait_ms, "wait_ms", 0, limits.wait_max_ms, 0)
    max_bytes = within(request.max_bytes, "max_bytes", 1, (1 << 63) - 1, 0)
    if request.worker is not None:
        name(request.worker, "worker", limits, limits.worker_bytes)
    if request.begins is not None and request.begins < 0:
        raise Invalid("begins is negative")
    most = request.most if len(keys) > 1 else None
    made = Asked(limits, keys, names_bytes, lease_ms, wait_ms, max_bytes, request.worker or "", most, weights)
    if isinstance(wants, Wants):
        wants.checked = made
    return made


def hung(ns: str, wants: Sequence[Any], limits: Limits) -> list[tuple[TopicKey, int]]:
    """Return each topic of a report of hung handlers, with their number."""
    counted(wants, "wants", limits.request_topics)
    found = []
    for want in wants:
        if want.count or want.hung is None:
            raise Invalid("a report of hung handlers has a count of 0, and hung, for each topic")
        found.append(((ns, name(want.topic, "topic", limits)), within(want.hung, "hung", 0, _MOST_HUNG, 0)))
    return found


def blob(value: bytes | None, what: str, most: int) -> bytes | None:
    if value is not None and len(value) > most:
        raise Invalid(f"{what} has {len(value)} bytes, more than {most}")
    return value


def headers(value: Any, limits: Limits) -> bytes | None:
    """Return the pairs as they are stored."""
    if value is None:
        return None
    # With spaces each pair is no shorter than in an answer, whose size is estimated from the stored bytes.
    try:
        stored = f"{{{', '.join([f'{_quoted(key)}: {_quoted(text)}' for key, text in value.items()])}}}".encode()
    except (TypeError, UnicodeEncodeError):
        raise Invalid("headers hold text that is not UTF-8") from None
    if len(stored) > limits.headers_bytes:
        size = sum([len(key.encode()) + len(text.encode()) for key, text in value.items()])
        if size > limits.headers_bytes:
            raise Invalid(f"headers have {size} bytes, more than {limits.headers_bytes}")
    return stored


def all_headers(column: Sequence[dict[str, str]], limits: Limits) -> list[bytes]:
    """Return the headers of items as they are stored. Raises Invalid."""
    made, last, stored = [], None, b""
    for value in column:
        if value is not last:
            last, stored = value, headers(value, limits) or b""
        made.append(stored)
    return made


def tenancy(spec: Any, limits: Limits) -> tuple[str, tuple[str, ...], int]:
    """Return (fairness key, sorted throttle keys, weight) of an ItemSpec: ('', (), 0) where it sets none of them."""
    fairness = "" if spec.fairness_key is None else fairness_key(spec.fairness_key)
    keys = spec.throttle_keys or ()
    for key in keys[: limits.throttle_keys]:
        refuse("throttle_keys", throttle_key_error(text(key, "throttle_keys")))
    if keys:
        refuse("throttle_keys", throttles_error(keys, limits.throttle_keys, limits.throttle_keys_bytes))
    return fairness, tuple(sorted(keys)), within(spec.weight, "weight", 1, MOST_WEIGHT, 0)


def fairness_key(given: object) -> str:
    """Check a fairness key; "" is none."""
    key = text(given, "fairness_key")
    if key:
        refuse("fairness_key", name_error(key))
    return key


def order_key(given: object) -> str:
    """Check an order key; "" is none."""
    key = text(given, "order_key")
    if key:
        refuse("order_key", name_error(key))
    return key


def batch_id(given: int, what: str) -> int:
    """Check the id of a batch."""
    if given <= 0:
        raise Invalid(f"{what} is {given}: give the id of a batch")
    return given


def refuse(what: str, error: str | None) -> None:
    """Raise Invalid if a check of a value found an error."""
    if error is not None:
        raise Invalid(f"{what}: {error}")
