"""Every argument of Client, Producer and Worker is checked where it is given. A walk finds those without a check."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from foqs.client import (
    Backoff,
    Client,
    DedupUntil,
    FailureFilter,
    Invalid,
    ItemRules,
    ItemSpec,
    Lease,
    Nack,
    OnDuplicate,
    Producer,
    RetryKind,
    RetryRule,
    Tls,
    Worker,
    request_id,
)
from foqs.client._sync.caller import Pool
from foqs.client.arguments import checked
from foqs.client.routes import parse_addresses
from tests.client.peer import Peer
from tests.support.waiting import wait_until

NOWHERE = "127.0.0.1:1"


class Unreadable:
    """An object whose text cannot be built."""

    def __repr__(self) -> str:
        raise RuntimeError("unreadable")

    __str__ = __repr__


NAN = float("nan")
INTEGERS = ["4", 1.5, 4.0, True, NAN, b"4", -1, 1 << 70, 1 << 20_000, timedelta(seconds=1), Unreadable()]
NUMBERS = ["4", True, NAN, float("inf"), b"4", -0.5, 1e18, timedelta(seconds=1), datetime.now(UTC), Unreadable()]
FLAGS = ["yes", "", 1, 0, None, Unreadable()]
TEXTS = [b"x", 5, True, "", ["x"], "\ud800", Unreadable()]
WRONG_NAMES = [b"x", 5, True, ["x"], "\ud800", Unreadable()]
"""The host refuses an empty topic and one that is too long, item by item."""
NAMES = [*TEXTS, "x" * 256]
BYTES = ["text", 5, True, ["x"], Unreadable()]
MANY = ["text", b"bytes", 5, None, Unreadable()]
ITEMS = [None, 5, "5", Unreadable()]
IDS = [True, 1.5, "x", b"5", None, Unreadable()]
TOPICS = [[], (), iter(["a"]), ["a", "a"], ["a", ""], [b"a"], b"a", 5, None, "", Unreadable()]
WEIGHTS = [{}, *({"t": one} for one in (0, -1, True, 1.0, "1", None, 1_001)), {"": 1}, {5: 1}]
CAUSES = ["failed", 99, 0, True, [], Unreadable()]
OBJECTS = ["x", 5, {}, Unreadable()]

OUTSIDE = [1 << 31, -(1 << 31) - 1]

BAD: dict[str, list[Any]] = {
    "address": [*TEXTS, [], ["h:1"], ",", "h:0", "h:65536", "h:x", "h:" + "1" * 5_000],
    "namespace": NAMES,
    "token": TEXTS,
    "tls": [5, True, "", "off", "ca_file", Unreadable()],
    "timeout_ms": [*INTEGERS, 0, datetime.now(UTC)],
    "attempt_timeout_ms": [*INTEGERS, 0, None],
    "connect_timeout_ms": [*INTEGERS, 0, None],
    "pool_size": [*INTEGERS, None],
    "max_idle_ms": [*INTEGERS, None],
    "max_frame_bytes": [*INTEGERS, 0, 4_095, None],
    "routing": FLAGS,
    "tracing": FLAGS,
    "wait_server": FLAGS,
    "program": [*TEXTS, "x" * 65],
    "on_retry": OBJECTS,
    "retry_wait": OBJECTS,
    "retry_stop": OBJECTS,
    "items": MANY,
    "item": ITEMS,
    "nacks": MANY,
    "done": MANY,
    "item_ids": MANY,
    "item_id": IDS,
    "topic": NAMES,
    "topics": TOPICS,
    "count": [*INTEGERS, None],
    "wait_ms": [*INTEGERS, None],
    "lease_ms": [*INTEGERS, 0],
    "max_bytes": INTEGERS,
    "worker": [*TEXTS, "x" * 129],
    "begins": INTEGERS,
    "result": ["x", 5, b"x" * 65_537, Unreadable()],
    "dedup_key": [*NAMES, None],
    "batch": IDS,
    "parent": [one for one in IDS if one is not None],
    "on_success": OBJECTS,
    "on_end": OBJECTS,
    "ttl_ms": [*INTEGERS, 0, 999, 366 * 86_400_000 + 1],
    "most": INTEGERS,
    "weights": [5, ["a"], *WEIGHTS, {"t": 1}, {"other": 1}],
    "holding": [5, ["a"], {"a": -1}, {"a": True}, {"a": "1"}],
    "ledger": FLAGS,
    "state": [1, "ready", True, 9],
    "page_items": [*INTEGERS, 0, None],
    "cursor": TEXTS,
    "page_topics": [*INTEGERS, 0, None],
    "all_namespaces": FLAGS,
    "all_states": FLAGS,
    "rates": FLAGS,
    "with_items": FLAGS,
    "delay_ms": INTEGERS,
    "metadata": BYTES,
    "reason": [b"x", 5, True],
    "failed": FLAGS,
    "reject": FLAGS,
    "uncounted": FLAGS,
    "begun": FLAGS,
    "checkpoint": ["x", 5, b"x" * 65_537, Unreadable()],
    "progress": [5, "x", (1, 2)],
    "log": ["x", b"x", 5, [5], {"x": 1}],
    "durable": FLAGS,
    "leased": FLAGS,
    "held_longer_than_ms": INTEGERS,
    "tenants": [*INTEGERS, 0],
    "prefix": [b"x", 5, None],
    "limit": INTEGERS,
    "steps": [*INTEGERS, 0, 361, None],
    "dead": FLAGS,
    "entries": [5, "x", ["x"], {5: "x"}, {"x": 5}, {"": "x"}],
    "remove": [*MANY, [5], [""]],
    "decide": [5, "x", None],
    "fields": [5, "x", None, {5: 1}, {"x": b"x"}],
    "without": [*MANY, [5], [""]],
    "key": TEXTS,
    "expected_version": INTEGERS,
    "sample": OBJECTS,
    "hook": ["on_dequeue", "", 5, None],
    "script": TEXTS,
    "source": [b"x", 5],
    "attempt": [*INTEGERS, 0],
    "cause": CAUSES,
    "fairness_key": [b"x", 5, True],
    "filter": OBJECTS,
    "per_fingerprint": INTEGERS,
    "to_topic": NAMES,
    "pace_per_second": [*INTEGERS, 1_000_001],
    "priority": ["4", 1.5, True, b"4", Unreadable()],
    "deliver_after_ms": ["4", 1.5, True, 5_000, datetime.now(UTC), Unreadable()],
    "confirm": OBJECTS,
    "on_progress": OBJECTS,
    "dry_run": FLAGS,
    # of Producer
    "client": ["h:7707", None, 5],
    "max_items": [*INTEGERS, None],
    "linger_ms": [*NUMBERS, None],
    "in_flight": [*INTEGERS, 0, 10_001],
    "max_pending_items": [*INTEGERS, None],
    "max_pending_bytes": [*INTEGERS, None],
    "when_full": ["drop", "", True, None],
    "block_ms": [*NUMBERS, None],
    "on_error": OBJECTS,
    "raise_errors": FLAGS,
    # of Worker
    "handler": [5, "x", None],
    "concurrency": [*INTEGERS, 0, 10_001, None],
    "prefetch": [*INTEGERS, 10_001, None],
    "backoff": OBJECTS,
    "ack_linger_ms": [*NUMBERS, None],
    "grace_ms": NUMBERS,
    "ack_policy": ["nak", "", True, None],
    "time_limit_ms": INTEGERS,
    "on_hang": ["stop", "", True, None],
    "hung": [5, ["a"], {"a": -1}, {"a": True}, {"a": "1"}],
    "report_errors": FLAGS,
    "name": [*TEXTS, "x" * 129],
}
OTHERS: dict[str, list[Any]] = {
    "Client.timeout_ms": [None],
    "Producer.max_bytes": [None],
    "Worker.lease_ms": [None],
    "Worker.grace_ms": [None],
    "Worker.topics": WEIGHTS,
    "Client.redrive.count": [*INTEGERS, None],
    "Client.get_result.wait_ms": [60_001],
    "Client.change.priority": OUTSIDE,
    "Client.change_all.priority": OUTSIDE,
    "Client.change_all.count": [*INTEGERS, None],
    "Client.run_schedule.name": [*TEXTS, "x" * 201, None],
    "Client.run_schedule.dedup_key": NAMES,
    "Client.enqueue.topic": WRONG_NAMES,
    "Producer.enqueue.topic": WRONG_NAMES,
}
"""More bad values of some parameters, or other ones."""
REPLACED = {
    "Client.redrive.count",
    "Client.change_all.count",
    "Client.run_schedule.name",
    "Client.run_schedule.dedup_key",
    "Client.enqueue.topic",
    "Producer.enqueue.topic",
    "Producer.flush.timeout_ms",
    "Producer.close.timeout_ms",
    "Worker.join.timeout_ms",
}
GOOD: dict[str, Any] = {
    "topic": "t", "topics": "t", "dedup_key": "k", "name": "n",
    "item": Lease(1, 2), "item_id": 1, "batch": 1, "items": [], "nacks": [], "item_ids": [],
    "done": [], "hung": {}, "sample": ItemSpec("t", b""), "source": "x", "handler": lambda item: None,
    "spec": ItemSpec("t", b""), "decide": lambda entries: ({}, ()), "fields": {"x": 1}, "key": "k",
}  # fmt: skip
UNCHECKED = {"self", "options", "kind", "error", "trace", "payload", "spec"}
"""`options`, `payload` and `spec` are checked with the item, see below; Python itself gives the rest."""


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return {name: one for name, one in inspect.signature(function).parameters.items() if name not in UNCHECKED}


def required(function: Callable[..., Any]) -> dict[str, Any]:
    return {n: GOOD[n] for n, one in parameters(function).items() if one.default is one.empty and n != "client"}


def bad_values(owner: str, name: str) -> list[Any]:
    full = f"{owner}.{name}"
    if full in REPLACED:
        return OTHERS.get(full, NUMBERS)
    assert name in BAD, f"{full}: no check of this option is known here: add its bad values to BAD"
    return [*BAD[name], *OTHERS.get(full, [])]


def methods(kind: type) -> Iterator[str]:
    for name, _one in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_"):
            yield name


def cases(kind: type) -> Iterator[tuple[str, str]]:
    """Each parameter of the constructor and of each public method."""
    for name in parameters(kind.__init__):  # type: ignore[misc]  # of a class, not of an object
        yield "", name
    for method in methods(kind):
        for name in parameters(getattr(kind, method)):
            yield method, name


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Client(NOWHERE, timeout_ms=1, routing=False) as made:
        yield made


def made(kind: type, client: Client) -> Any:
    if kind is Client:
        return client
    return Producer(client) if kind is Producer else Worker(client, "t", lambda item: None)


@pytest.mark.parametrize(
    ("kind", "method", "name"), [(kind, *case) for kind in (Client, Producer, Worker) for case in cases(kind)]
)
def test_each_argument_is_refused_by_its_name(client: Client, kind: type, method: str, name: str) -> None:
    if kind is Client and method in ("close",):
        return
    owner = f"{kind.__name__}.{method}" if method else kind.__name__
    target = made(kind, client) if method else None
    call = getattr(target, method) if method else kind
    function = getattr(kind, method) if method else kind.__init__  # type: ignore[misc]  # of a class, not of an object
    given = required(function)
    if not method and kind is not Client and name != "client":
        given["client"] = client
    if method in ("enqueue",):
        given["payload"] = b""
    for value in bad_values(owner, name):
        with pytest.raises(Invalid) as caught:
            result = call(**{**given, name: value})
            if isinstance(result, Future):
                result.result(5)
        word = {"topics": "topic", "item_id": "item"}.get(name, name)
        assert word in caught.value.message, caught.value.message
    if isinstance(target, Producer):
        target.close()


@pytest.mark.parametrize("kind", [Client, Producer, Worker])
def test_each_default_is_accepted(kind: type, client: Client) -> None:
    given = required(kind.__init__)  # type: ignore[misc]  # of a class, not of an object
    defaults = {n: one.default for n, one in inspect.signature(kind).parameters.items() if one.default is not one.empty}
    defaults.pop("address", None)
    if kind is not Client:
        given["client"] = client
    with kind(**given, **defaults) if kind is not Worker else Client(NOWHERE) as made:
        assert made is not None
    if kind is Worker:
        Worker(**given, **defaults)


BAD_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"payload": "text"}, "payload"),
    ({"topic": None}, "topic"),
    ({"topic": b"t"}, "topic"),
    ({"metadata": "text"}, "metadata"),
    *[({"priority": value}, "priority") for value in ("4", 1.5, True, 1 << 31, Unreadable())],
    *[({"delay_ms": value}, "delay_ms") for value in ("4", 0.5, True, -1, 1 << 63, timedelta(seconds=3))],
    *[({"lease_ms": value}, "lease_ms") for value in ("4", 150.5, True, 0, -1, 1 << 31, timedelta(seconds=3))],
    *[({"ttl_ms": value}, "ttl_ms") for value in ("4", 1.5, True, 0, -1, 1 << 63, timedelta(seconds=3))],
    *[({"weight": value}, "weight") for value in ("4", 1.5, 1.0, True)],
    ({"rules": {"max_attempts": 1}}, "rules"),
    *[({"dedup_until": value, "dedup_key": "k"}, "dedup_until") for value in ("x", True, 0, 4, 1.5)],
    ({"dedup_until": DedupUntil.DONE}, "dedup_until"),
    *[({"on_duplicate": value, "dedup_key": "k"}, "on_duplicate") for value in ("x", True, 0, 3, 1.5)],
    ({"on_duplicate": OnDuplicate.REPLACE}, "on_duplicate"),
    *[({"rules": ItemRules(max_attempts=value)}, "rules.max_attempts") for value in ("4", 1.5, True, -1, 1 << 31)],
    *[({"rules": ItemRules(max_total_ms=value)}, "rules.max_total_ms") for value in ("4", 1.5, -1)],
    *[({"rules": ItemRules(keep_ms=value)}, "rules.keep_ms") for value in ("4", 1.5, -1)],
    ({"rules": ItemRules(dead_topic=5)}, "rules.dead_topic"),
    ({"rules": ItemRules(exact_attempts=1)}, "rules.exact_attempts"),
    ({"rules": ItemRules(retry=5)}, "rules.retry"),
    ({"rules": ItemRules(retry=RetryRule(4))}, "rules.retry.kind"),
    ({"rules": ItemRules(retry=RetryRule(RetryKind.LINEAR, first_ms=-1))}, "rules.retry.first_ms"),
    ({"rules": ItemRules(retry=RetryRule(RetryKind.LINEAR, jitter="1"))}, "rules.retry.jitter"),
    *[({"delivery": value}, "delivery") for value in ("x", True, 0, 3, 1.5)],
    *[
        ({"deliver_after_ms": value}, "deliver_after_ms")
        for value in ("4", 1.7e9, 1_764_112_000, True, 1_764_112_000_000_000, datetime.now(UTC), NAN)
    ],
    ({"delay_ms": 5, "deliver_after_ms": 1_764_112_000_000}, "both deliver_after_ms and delay_ms"),
    ({"throttle_keys": "one"}, "throttle_keys"),
    ({"throttle_keys": [1]}, "throttle_keys"),
    ({"headers": {"a": 1}}, "headers"),
    ({"fairness_key": 1}, "fairness_key"),
    *[({"order_key": value}, "order_key") for value in (1, b"x", True)],
    ({"order_key": "k", "dedup_key": "d"}, "both dedup_key and order_key"),
    ({"dedup_key": 1}, "dedup_key"),
    *[({"batch": value}, "batch") for value in ("4", b"4", 1.5, True, 0, -1, 1 << 63)],
]


@pytest.mark.parametrize(("options", "word"), BAD_OPTIONS)
def test_each_option_of_an_item_is_refused_alone(
    peer: Peer, client_of: Callable[..., Client], options: dict[str, Any], word: str
) -> None:
    fields = {"topic": "t", "payload": b"x", **options}
    client = client_of(peer)
    with pytest.raises(Invalid, match=word):
        client.enqueue(**fields)
    try:
        spec = ItemSpec(**fields)
    except Invalid as error:
        assert word in error.message
        return
    good, bad, last = client.enqueue_many([ItemSpec("t", b"a"), spec, ItemSpec("t", b"b", delay_ms=9)])
    assert (good, last) == (1, 2)
    assert isinstance(bad, Invalid) and word in bad.message
    with Producer(client) as producer, pytest.raises(Invalid, match=word):
        producer.submit(spec).result(5)
    with pytest.raises(Invalid, match=word):
        client.try_hook(spec, source="x")


@pytest.mark.parametrize("stranger", [None, b"x", 5, {"topic": "t", "payload": b"x"}, Unreadable()])
def test_a_value_of_another_type_fails_alone(peer: Peer, client_of: Callable[..., Client], stranger: Any) -> None:
    good, bad = client_of(peer).enqueue_many([ItemSpec("t", b"x"), stranger])
    assert good == 1 and isinstance(bad, Invalid)
    assert bad.message == f"an entry is of type {type(stranger).__name__}: make an ItemSpec(topic, payload, ...)"


def test_a_cached_weight_does_not_let_equal_values_pass(peer: Peer, client_of: Callable[..., Client]) -> None:
    client = client_of(peer)
    client.enqueue("t", b"x", weight=1)
    for same in (True, 1.0):
        with pytest.raises(Invalid, match="weight"):
            client.enqueue("t", b"x", weight=same)  # type: ignore[arg-type]  # the case


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"delay_ms": 0.5}, "delay_ms is 0.5"),
        ({"delay_ms": -1}, "delay_ms is -1"),
        ({"delay_ms": timedelta(seconds=3)}, "delay_ms is of type timedelta"),
        ({"metadata": "x"}, "metadata is of type str"),
        ({"reason": 5}, "reason is of type int"),
        ({"failed": "no"}, "failed is of type str"),
        ({"failed": True, "reject": True}, "failed and reject are given"),
        ({"release": True, "delay_ms": 5}, "release excludes delay_ms"),
        ({"failed": True, "uncounted": True}, "failed and uncounted are given"),
        ({"reject": True, "metadata": b""}, "reject excludes delay_ms and metadata"),
    ],
)
def test_a_nack_is_checked_where_it_is_made(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(Invalid, match=words):
        Nack.of(Lease(1, 2), **fields)
    with pytest.raises(Invalid, match=words):
        Nack(1, 2, **fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"first_ms": -1}, "first_ms is -1"),
        ({"first_ms": 0.5}, "first_ms"),
        ({"factor": 0.5}, "factor is 0.5"),
        ({"factor": NAN}, "factor is nan"),
        ({"longest_ms": "1"}, "longest_ms"),
        ({"jitter": 1.5}, "jitter is 1.5"),
        ({"jitter": True}, "jitter"),
    ],
)
def test_a_backoff(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(Invalid, match=words):
        Backoff(**fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"fingerprint": "ff"}, "a fingerprint has 16 hexadecimal digits"),
        ({"fingerprint": 255}, "fingerprint"),
        ({"cause": 99}, "cause is 99"),
        ({"reason_contains": b"x"}, "reason_contains"),
        ({"reason_contains": ""}, "reason_contains is empty"),
        ({"died_before_ms": 1_764_112_000}, "died_before_ms is 1764112000, which is in January 1970"),
        ({"died_after_ms": 1_764_112_000}, "died_after_ms is 1764112000, which is in January 1970"),
        ({"died_after_ms": 1_764_112_000_000, "died_before_ms": 1_764_112_000_000}, "not below died_before_ms"),
        ({"min_attempts": -1}, "min_attempts is -1"),
        ({"min_attempts": 3, "max_attempts": 2}, "min_attempts is 3, more than max_attempts, 2"),
        ({"origin_topic": 5}, "origin_topic"),
        ({"fairness_key": b"x"}, "fairness_key"),
    ],
)
def test_a_filter_of_dead_letters(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(Invalid, match=words):
        FailureFilter(**fields)


@pytest.mark.parametrize("fields", [{"ca_file": 5}, {"ca_file": ""}, {"cert_file": True}, {"server_name": ""}])
def test_tls(fields: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match=next(iter(fields))):
        Tls(**fields)


@pytest.mark.parametrize("value", [5, None, b"x", "", "a\nb", "x" * 129, "\ud800", Unreadable()])
def test_a_request_id(value: Any) -> None:
    with pytest.raises(Invalid, match=r"request.id"), request_id(value):
        raise AssertionError("not reached")


def test_options_that_contradict_each_other(client: Client) -> None:
    with pytest.raises(Invalid, match=r"concurrency \+ prefetch is 10001"):
        Worker(client, "t", lambda item: None, concurrency=5_000, prefetch=5_001)
    with pytest.raises(Invalid, match="script and source: give exactly one"):
        client.try_hook(ItemSpec("t", b""))
    with pytest.raises(Invalid, match="script and source: give exactly one"):
        client.try_hook(ItemSpec("t", b""), script="a", source="b")


def test_zero_is_no_limit(peer: Peer, client_of: Callable[..., Client]) -> None:
    client = client_of(peer, pool_size=0)
    options = dict.fromkeys(("max_items", "max_bytes", "max_pending_items", "max_pending_bytes"), 0)
    with Producer(client, linger_ms=50, **options) as producer:
        futures = [producer.enqueue("t", b"x" * 1_000) for _ in range(2_000)]
        assert len({future.result(30) for future in futures}) == 2_000
    assert len(peer.named("Enqueue")) <= 4, "items wait for no count of items"
    assert len(client.dequeue("t", 5, max_bytes=0)) == 5
    assert peer.named("Dequeue")[-1].max_bytes is None
    pool = Pool(parse_addresses(peer.address), 0, 1.0, 1.0)
    taken = [pool.take(float("inf"), wait=False) for _ in range(40)]
    for connection in taken:
        pool.give(connection, usable=True)
    pool.close()


def test_a_worker_with_a_time_limit_of_zero_has_none(peer: Peer, client_of: Callable[..., Client]) -> None:
    client, seen = client_of(peer), []
    client.enqueue("t", b"x")
    with Worker(client, "t", seen.append, time_limit_ms=0, ack_linger_ms=0, wait_ms=50):
        wait_until(lambda: peer.named("Ack") or peer.named("AckAndDequeue"), "the handled item is acked", 20)
    assert len(seen) == 1 and not peer.named("Nack")


def test_a_function_with_an_unknown_parameter_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="no check of surprise"):

        @checked()
        def function(surprise: int) -> None: ...


def test_the_signature_stays() -> None:
    assert list(inspect.signature(Worker).parameters)[:3] == ["client", "topics", "handler"]
    assert inspect.signature(Client.redrive).parameters["count"].default == 0
