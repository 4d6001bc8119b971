"""Items outside of a service: as JSON lines, and as copies for another topic, each of which is stored once.

In JSON lines ids and leases are strings: JavaScript, and so jq, loses digits of an i64.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar, Unpack

from foqs.client.items import (
    DedupUntil,
    Delivery,
    Failure,
    Item,
    ItemOptions,
    ItemSpec,
    ItemState,
    LastFailure,
    Lease,
)
from foqs.client.operator_types import Result
from foqs.client.rules import rules_json, rules_of_json
from foqs.errors import FoqsError, Invalid, NotFound
from foqs.ids import OnDuplicate, parse_id
from foqs.rows import FailureCause

E = TypeVar("E", bound=Enum)

_INTEGERS = {"priority", "deliver_after_ms", "delay_ms", "lease_ms", "ttl_ms", "expires_at_ms", "weight"}
_PLAIN = _INTEGERS | {"topic", "headers", "dedup_key", "fairness_key", "order_key", "throttle_keys"}
_SHOWN = 40
"""Characters of a value in an error."""
_BINARY = {"payload", "metadata"}
_KNOWN = (
    _PLAIN
    | {"delivery", "rules", "dedup_until", "on_duplicate", "batch"}
    | _BINARY
    | {f"{name}_base64" for name in _BINARY}
)
TRIES = 3
"""Attempts for a batch, each with the client's own time-out; only requests that may be repeated are repeated."""


def spec_of_line(line: bytes, *, topic: str, **defaults: Unpack[ItemOptions]) -> ItemSpec:
    """Return the item that a line describes, with defaults for missing keys. Raises Invalid."""
    return _spec(_object(line), topic, defaults)


def copy_of_line(
    line: bytes, *, topic: str | None, now_ms: Callable[[], int], **defaults: Unpack[ItemOptions]
) -> ItemSpec:
    """Return a copy of the item in a line that `item_json` made: in `topic`, or in the item's own topic.

    It keeps the item's times: the server's clock decides whether one has passed. It is of no batch. `defaults` are for
    missing keys; a delay is also for an item whose time has passed by `now_ms`, the server's clock. Raises Invalid.
    """
    given = _object(line)
    if "id" not in given:
        raise Invalid("no item that foqs wrote: id is missing")
    kept = {name: value for name, value in given.items() if name in _KNOWN and name != "batch"}
    due_ms = _integer(given, "deliver_after_ms")
    if due_ms is not None and defaults.get("delay_ms") is not None and due_ms <= now_ms():
        del kept["deliver_after_ms"]
    if topic is not None:
        kept["topic"] = topic
    elif not isinstance(kept.get("topic"), str):
        raise Invalid("the item has no topic: name one for the command")
    return _spec(kept, kept["topic"], defaults)


def _spec(given: dict[str, Any], topic: str, defaults: ItemOptions) -> ItemSpec:
    if unknown := given.keys() - _KNOWN:
        raise Invalid(f"unknown field {sorted(unknown)[0]!r}")
    fields: dict[str, Any] = {"topic": topic, "payload": b"", **defaults}
    if "deliver_after_ms" in given:
        fields.pop("delay_ms", None)
    for name in _INTEGERS:
        _integer(given, name)
    if not isinstance(given.get("throttle_keys"), list | None):
        raise Invalid(f"throttle_keys is {json.dumps(given['throttle_keys'])[:_SHOWN]}: it must be a list of texts")
    fields.update((name, given[name]) for name in _PLAIN & given.keys())
    for name in _BINARY:
        value = _binary(given, name)
        if value is not None:
            fields[name] = value
    if "delivery" in given:
        fields["delivery"] = _member("delivery", Delivery, given["delivery"])
    if given.get("dedup_until") is not None:
        fields["dedup_until"] = _member("dedup_until", DedupUntil, given["dedup_until"])
    if given.get("on_duplicate") is not None:
        fields["on_duplicate"] = _member("on_duplicate", OnDuplicate, given["on_duplicate"])
    if given.get("batch") is not None:
        fields["batch"] = parse_id(given["batch"], "the id of a batch")
    if given.get("rules") is not None:
        fields["rules"] = rules_of_json(given["rules"])
    return ItemSpec(**fields)


def spec_json(spec: ItemSpec) -> dict[str, Any]:
    """Return an item that is not enqueued yet as `spec_of_line` reads it. Fields that are not set are left out."""
    value = {
        **{name: getattr(spec, name) for name in sorted(_PLAIN)},
        "headers": None if spec.headers is None else dict(spec.headers),
        "throttle_keys": None if spec.throttle_keys is None else list(spec.throttle_keys),
        **_text("payload", bytes(spec.payload)),
        **_text("metadata", None if spec.metadata is None else bytes(spec.metadata)),
        "delivery": _name(Delivery, spec.delivery),
        "dedup_until": _name(DedupUntil, spec.dedup_until),
        "on_duplicate": _name(OnDuplicate, spec.on_duplicate),
        "rules": None if spec.rules is None else rules_json(spec.rules),
        "batch": None if spec.batch is None else str(spec.batch),
    }
    return {name: field for name, field in value.items() if field is not None}


def lease_of_line(line: bytes, number: int) -> Lease:
    """Return id and lease of a line that `foqs dequeue` wrote; hexadecimal with 0x is read, too. Raises Invalid."""
    try:
        given = _object(line)
    except Invalid as error:
        raise Invalid(f"line {number} is no JSON object with id and lease: {error.message}") from None
    if missing := {"id", "lease"} - given.keys():
        raise Invalid(f"line {number} is no JSON object with id and lease: {min(missing)} is missing")
    try:
        return Lease(parse_id(given["id"]), parse_id(given["lease"], "a lease"))
    except Invalid as error:
        raise Invalid(f"line {number}: {error.message}") from None


def id_of_line(line: bytes, number: int) -> int:
    """Return the id in a line: the id alone, or an item that foqs wrote. Raises Invalid."""
    text = line.decode(errors="replace").strip()
    try:
        if not text.startswith("{"):
            return parse_id(text)
        given = _object(line)
        if "id" not in given:
            raise Invalid("id is missing")
        return parse_id(given["id"])
    except Invalid as error:
        raise Invalid(f"line {number}: {error.message}") from None


def item_json(item: Item) -> dict[str, Any]:
    """Return what `foqs dequeue`, `items` and `item` write. Fields that are not set are left out."""
    value = {
        "id": str(item.id),
        "lease": str(item.lease) if item.lease else None,
        "state": _name(ItemState, item.state),
        "ns": item.ns,
        "topic": item.topic,
        "priority": item.priority,
        "attempt": item.attempt,
        **_text("payload", item.payload),
        **_text("metadata", item.metadata),
        "headers": item.headers,
        **_tenancy(item),
        "order_key": item.order_key or None,
        "batch": str(item.batch) if item.batch else None,
        "delivery": _name(Delivery, item.delivery),
        "deliver_after_ms": item.deliver_after_ms,
        "enqueued_at_ms": item.enqueued_at_ms,
        "lease_expires_at_ms": item.lease_expires_at_ms or None,
        "expires_at_ms": item.expires_at_ms,
        "failure": None if item.failure is None else _failure(item.failure),
        "last_failure": None if item.last_failure is None else last_failure_json(item.last_failure),
        **_text("result", item.result),
        "ended_at_ms": item.ended_at_ms,
        **_text("checkpoint", item.checkpoint),
        **_progress(item),
        "rules": None if item.rules is None else rules_json(item.rules),
    }
    return {name: field for name, field in value.items() if field is not None}


def result_json(item_id: int, result: Result) -> dict[str, Any]:
    """Return what `foqs result` writes. Fields that are not set are left out."""
    value = {
        "id": str(item_id),
        "state": _name(ItemState, result.state),
        **_text("result", result.result),
        "ended_at_ms": result.ended_at_ms,
        "failure": None if result.failure is None else _failure(result.failure),
        **_progress(result),
    }
    return {name: field for name, field in value.items() if field is not None}


def _progress(of: Item | Result) -> dict[str, Any]:
    said = of.progress
    made: dict[str, Any] = {"log": list(of.log)} if of.log else {}
    if said is not None:
        fields = {"done": said.done, "total": said.total, "text": said.text}
        made["progress"] = {name: value for name, value in fields.items() if value is not None}
    return made


def _tenancy(of: Item | Failure) -> dict[str, Any]:
    named = {"fairness_key": of.fairness_key, "throttle_keys": list(of.throttle_keys)}
    return {name: value for name, value in named.items() if value}


def _failure(failure: Failure) -> dict[str, Any]:
    return {
        "topic": failure.topic,
        **_tenancy(failure),
        "attempts": failure.attempts,
        "cause": _name(FailureCause, failure.cause),
        "reason": failure.reason,
        "fingerprint": failure.fingerprint,
        "died_at_ms": failure.died_at_ms,
        **_worker(failure),
    }


def last_failure_json(last: LastFailure) -> dict[str, Any]:
    """Return what commands write of a failed attempt."""
    return {
        "attempt": last.attempt,
        "cause": _name(FailureCause, last.cause),
        "reason": last.reason,
        "fingerprint": last.fingerprint,
        "failed_at_ms": last.failed_at_ms,
        **_worker(last),
    }


def _worker(of: Failure | LastFailure) -> dict[str, Any]:
    return {} if of.worker is None else {"worker": of.worker}


def _integer(given: dict[str, Any], name: str) -> int | None:
    value = given.get(name)
    if value is not None and type(value) is not int:  # a bool is an int, and a float would be cut
        raise Invalid(f"{name} is {json.dumps(value)[:_SHOWN]}: it must be an integer")
    return value


def _object(line: bytes) -> dict[str, Any]:
    try:
        given = json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"not JSON: {error}") from None
    except ValueError:  # of int()
        raise Invalid("it holds a number with thousands of digits, which foqs does not read") from None
    except RecursionError:
        raise Invalid("not JSON that can be read: it is nested too deeply") from None
    if not isinstance(given, dict):
        raise Invalid("not a JSON object")
    return given


def _binary(given: dict[str, Any], name: str) -> bytes | None:
    text, encoded = given.get(name), given.get(f"{name}_base64")
    if text is not None and encoded is not None:
        raise Invalid(f"both {name} and {name}_base64")
    value = text if encoded is None else encoded
    if value is None:
        return None
    if not isinstance(value, str):
        raise Invalid(f"{name} is not a string")
    try:
        return value.encode() if encoded is None else base64.b64decode(value, validate=True)
    except UnicodeEncodeError:
        raise Invalid(f"{name} is not valid text") from None
    except ValueError:  # of the codec, or a text that is not ASCII
        raise Invalid(f"{name}_base64 is not base64") from None


def _member(name: str, kind: type[E], value: object) -> E:
    try:
        return kind[str(value)]
    except KeyError:
        raise Invalid(f"{name} is none of {', '.join(kind.__members__)}") from None


def _name(kind: Any, number: int | None) -> str | None:
    try:
        return str(kind(number).name)
    except ValueError:
        return None


def _text(name: str, value: bytes | None) -> dict[str, str]:
    if value is None:
        return {}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def job_of(*arguments: str) -> str:
    """Return the name of a job. It is equal for equal arguments, so a repeated command continues the job.

    >>> job_of("a", "b") == job_of("a", "b"), job_of("a", "b") == job_of("ab", "")
    (True, False)
    """
    return hashlib.sha256("\0".join(arguments).encode()).hexdigest()[:16]


def copy_key(verb: str, job: str, item_id: int, enqueued_at_ms: int) -> str:
    """Return the dedup key of a copy.

    It has the verb, because a copy is no move, and the time of the enqueue: an id alone is unique only within one
    cluster, and a shard restored from a backup may assign it again.
    """
    return f"{verb}:{job}:{item_id}:{enqueued_at_ms}"


def store_copies(specs: Mapping[int, ItemSpec], client: Any) -> tuple[dict[int, int], dict[int, FoqsError]]:
    """Store copies with dedup keys. Return the id of each by the id of its source (a Duplicate if the key was known),
    and the errors of the rest.

    An enqueue of unknown outcome is repeated with the same key, so it stores the copy once. If the outcome of any
    attempt is unknown, so is the outcome of the copy.
    """
    stored: dict[int, int] = {}
    failed: dict[int, FoqsError] = {}
    left = list(specs)
    for _ in range(TRIES):
        if not left:
            break
        outcomes = client.enqueue_many([specs[source] for source in left])
        for source, outcome in zip(left, outcomes, strict=True):
            if not isinstance(outcome, FoqsError):
                stored[source] = outcome
                failed.pop(source, None)
            elif source not in failed or failed[source].outcome_known:
                failed[source] = outcome
        repeatable = {source for source, error in failed.items() if error.retryable or not error.outcome_known}
        left = [source for source in left if source in repeatable]
    return stored, failed


def is_there(copy: int, namespace: str, topic: str, client: Any) -> bool:
    """Return True if a topic has the item `copy` now. Raises FoqsError if the service does not answer that."""
    try:
        item = client.get_item(copy)
    except NotFound:
        return False
    return bool((item.ns, item.topic) == (namespace, topic))
