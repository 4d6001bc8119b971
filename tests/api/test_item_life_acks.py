"""Ack, nack, extend and delete: outcomes item by item, checks of fields, and items of other hosts and namespaces."""

from typing import Any

import pytest

from foqs.config.access import Namespaces
from foqs.errors import NotFound, NotServed, StaleLease
from foqs.idl import idl
from foqs.policies.failures import fingerprint
from foqs.policies.settings import Settings
from tests.api.wire import State, spec
from tests.support.one_host import FORWARDED, OneHost, kinds, messages, put, refused, routing_of, take

pytestmark = pytest.mark.memory

DAY_MS = 86_400_000
ENTRIES = {"Ack": idl.AckItem, "Nack": idl.NackItem, "ExtendLease": idl.ExtendItem}


@pytest.fixture
def host() -> OneHost:
    return OneHost(1)


def leased(host: OneHost, *payloads: bytes) -> list[Any]:
    put(host, *payloads)
    return list(take(host).items)


def fields(method: str, *leases: tuple[int, int]) -> dict[str, Any]:
    """The entries of a request about these (id, lease)."""
    if method == "DeleteItems":
        return {"ids": [item_id for item_id, _ in leases]}
    return {"items": [ENTRIES[method](*lease) for lease in leases]}


@pytest.mark.parametrize("method", list(ENTRIES))
def test_items_of_a_request_are_settled_one_by_one(host: OneHost, method: str) -> None:
    first, second = leased(host, b"x", b"y")
    wrong, right, gone = (first.id, first.lease + 1), (second.id, second.lease), (second.id + 1, 1)
    assert kinds(host.ask(method, **fields(method, wrong, right, gone))) == [StaleLease, None, NotFound]


@pytest.mark.parametrize("method", list(ENTRIES))
@pytest.mark.parametrize(
    ("item_id", "error"),
    [(item_id, NotFound) for item_id in (0, -5, 1 << 48 | 1 << 47, 77 << 48 | 1, 2**63 - 1)],
)
def test_ids_of_no_item_are_not_found(host: OneHost, method: str, item_id: int, error: type) -> None:
    assert kinds(host.ask(method, **fields(method, (item_id, 5)))) == [error]
    assert kinds(host.ask("DeleteItems", ids=[item_id])) == [error]


@pytest.mark.parametrize("method", list(ENTRIES))
def test_an_item_without_a_lease_cannot_be_settled(host: OneHost, method: str) -> None:
    (ready,), (delayed,) = put(host, b"x"), put(host, b"y", delay_ms=60_000)
    leases = [(item_id, lease) for item_id in (ready, delayed) for lease in (0, 1, -1)]
    assert kinds(host.ask(method, **fields(method, *leases))) == [StaleLease] * 6


@pytest.mark.parametrize("method", [*ENTRIES, "DeleteItems"])
def test_a_request_as_a_whole_is_checked_first(host: OneHost, method: str) -> None:
    (item,) = leased(host, b"x")
    name = "ids" if method == "DeleteItems" else "items"
    assert refused(host, method) == f"{name} is empty"
    many = fields(method, *[(item.id, item.lease)] * 10_001)
    assert refused(host, method, **many) == f"{name} has 10001 entries, more than 10000"
    assert item.id in host.dbs[1].items


@pytest.mark.parametrize("method", list(ENTRIES))
def test_an_item_of_another_namespace_is_not_found(host: OneHost, method: str) -> None:
    (item,) = leased(host, b"x")
    request = fields(method, (item.id, item.lease))
    assert kinds(host.ask(method, ns="other", **request)) == [NotFound]
    assert refused(host, method, ns="", **request) == "ns must have 1 to 255 bytes"
    assert kinds(host.ask(method, ns="n", **request)) == [None]


@pytest.mark.parametrize("method", [*ENTRIES, "DeleteItems"])
def test_an_item_that_a_caller_may_not_see_is_not_found(host: OneHost, method: str) -> None:
    (item,) = leased(host, b"x")
    request = fields(method, (item.id, item.lease))
    assert kinds(host.ask(method, within=Namespaces.of(["other"]), **request)) == [NotFound]
    assert kinds(host.ask(method, within=Namespaces.of(["n"]), **request)) == [None]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"delay_ms": -1}, f"delay_ms is -1, not in 0..{366 * DAY_MS}"),
        ({"delay_ms": 366 * DAY_MS + 1}, f"delay_ms is {366 * DAY_MS + 1}, not in 0..{366 * DAY_MS}"),
        ({"metadata": b"x" * 4_097}, "metadata has 4097 bytes, more than 4096"),
        ({"reason": b"\xff"}, "reason is not UTF-8"),
        ({"reason": "é" * 513}, "reason has more than 1024 bytes"),
        ({"release": True, "delay_ms": 1}, "release excludes delay_ms and metadata"),
        ({"release": True, "metadata": b""}, "release excludes delay_ms and metadata"),
        ({"reject": True, "delay_ms": 1}, "reject excludes delay_ms and metadata"),
        ({"reject": True, "metadata": b""}, "reject excludes delay_ms and metadata"),
        ({"failed": True, "reject": True}, "at most one of release, failed, reject and uncounted"),
        ({"failed": True, "release": True}, "at most one of release, failed, reject and uncounted"),
        ({"release": True, "reject": True}, "at most one of release, failed, reject and uncounted"),
        ({"failed": True, "uncounted": True}, "at most one of release, failed, reject and uncounted"),
    ],
)
def test_a_nack_with_a_wrong_field_keeps_the_lease(host: OneHost, given: dict[str, Any], why: str) -> None:
    first, second = leased(host, b"x", b"y")
    items = [idl.NackItem(first.id, first.lease, **given), idl.NackItem(second.id, second.lease, reason="é" * 512)]
    assert messages(host.ask("Nack", items=items)) == [why, None]
    assert [item.payload for item in take(host).items] == [b"y"]


def test_a_failure_is_retried_and_a_reject_is_not(host: OneHost) -> None:
    first, second = leased(host, b"x", b"y")
    items = [
        idl.NackItem(first.id, first.lease, failed=True, metadata=b"m"),
        idl.NackItem(second.id, second.lease, reject=True, reason="no user 7"),
    ]
    assert kinds(host.ask("Nack", items=items)) == [None, None]
    assert take(host).items == []
    host.wait(1_000)  # by the policy that is built in
    assert [(item.payload, item.attempt, item.metadata) for item in take(host).items] == [(b"x", 2, b"m")]
    (dead,) = host.ask("ListItems", ns="n", topic="t.dlq").items
    assert dead == host.ask("GetItem", id=second.id).item
    assert (dead.id, dead.topic, dead.attempt, dead.payload) == (second.id, "t.dlq", 0, b"y")
    failure = dead.failure
    assert (failure.topic, failure.attempts, failure.cause) == ("t", 1, idl.FailureCause.REJECTED)
    assert (failure.reason, failure.died_at_ms) == ("no user 7", dead.deliver_after_ms)
    assert failure.fingerprint == fingerprint("no user 8")
    assert host.ask("GetItem", id=first.id).item.failure is None


@pytest.mark.parametrize("delay_ms", [None, 500])
def test_an_attempt_that_is_not_counted(host: OneHost, delay_ms: int | None) -> None:
    """Also by the next owner of the shard."""
    host.settings.apply(Settings("n", 1, {"topic.t": '{"max_attempts": 2}'}))
    leased(host, b"x")
    host.wait(60_000)  # the first attempt counts: its lease ended by time
    for again in range(4):
        host.wait(1_000)
        (item,) = take(host, 1).items
        assert item.attempt == 2
        entry = idl.NackItem(item.id, item.lease, delay_ms=delay_ms, metadata=b"m", uncounted=True)
        assert kinds(host.ask("Nack", items=[entry, entry])) == [None, None]
        other = idl.NackItem(item.id, item.lease, delay_ms=delay_ms, metadata=b"m")
        assert kinds(host.ask("Nack", items=[other])) == [StaleLease]
        if again % 2:
            host.reopen()


def test_a_dead_letter_is_shown_with_its_failure_from_rows(host: OneHost) -> None:
    """Its neighbour, which was enqueued there, has none."""
    (item,) = leased(host, b"x")
    host.ask("Nack", items=[idl.NackItem(item.id, item.lease, reject=True)])
    host.ask("Enqueue", ns="n", items=[spec("t.dlq", b"plain")])
    host.reopen()
    dead, plain = sorted(host.ask("ListItems", ns="n", topic="t.dlq").items, key=lambda one: one.id)
    assert (dead.id, dead.failure.cause, dead.failure.reason) == (item.id, idl.FailureCause.REJECTED, "")
    assert (plain.payload, plain.failure) == (b"plain", None)
    assert host.ask("GetItem", id=dead.id).item == dead
    assert host.ask("GetItem", id=plain.id).item == plain


def test_a_nack_delays_and_a_release_counts_no_attempt(host: OneHost) -> None:
    first, second = leased(host, b"x", b"y")
    items = [
        idl.NackItem(first.id, first.lease, delay_ms=50, metadata=b"m"),
        idl.NackItem(second.id, second.lease, release=True),
    ]
    assert kinds(host.ask("Nack", items=items)) == [None, None]
    assert [(item.payload, item.attempt) for item in take(host).items] == [(b"y", 1)]
    host.wait(50)
    assert [(item.payload, item.attempt, item.metadata) for item in take(host).items] == [(b"x", 2, b"m")]


@pytest.mark.parametrize(("given", "kept"), [(None, b"old"), (b"new", b"new"), (b"", b""), (b"m" * 4_096,) * 2])
def test_the_metadata_of_a_nack_replaces_the_items_own(host: OneHost, given: bytes | None, kept: bytes) -> None:
    (item_id,) = put(host, b"x", metadata=b"old", headers={"k": "v"})
    (item,) = take(host).items
    nack = idl.NackItem(item_id, item.lease, delay_ms=366 * DAY_MS, metadata=given, reason="r" * 1_024)
    assert kinds(host.ask("Nack", items=[nack])) == [None]
    shown = host.ask("GetItem", id=item_id)
    assert (shown.state, shown.item.deliver_after_ms) == (State.DELAYED, host.now_ms + 366 * DAY_MS)
    assert (shown.item.metadata, shown.item.headers, shown.item.payload) == (kept, {"k": "v"}, b"x")


@pytest.mark.parametrize("given", [{}, {"delay_ms": 50}, {"metadata": b"m"}])
def test_a_nack_removes_an_at_most_once_item(host: OneHost, given: dict[str, Any]) -> None:
    put(host, b"x", delivery=2)
    (item,) = take(host).items
    nack = [idl.NackItem(item.id, item.lease, **given)]
    assert [kinds(host.ask("Nack", items=nack)) for _ in range(2)] == [[None], [NotFound]]


def test_a_release_returns_an_at_most_once_item(host: OneHost) -> None:
    (item_id,) = put(host, b"x", delivery=2)
    for _ in range(2):
        (item,) = take(host).items
        assert (item.id, item.attempt) == (item_id, 1)
        assert kinds(host.ask("Nack", items=[idl.NackItem(item.id, item.lease, release=True)])) == [None]


@pytest.mark.parametrize("given", [{}, {"delay_ms": 100}, {"metadata": b"m"}, {"release": True}])
def test_a_nack_after_the_ttl_removes_the_item(host: OneHost, given: dict[str, Any]) -> None:
    put(host, b"x", ttl_ms=100)
    (item,) = take(host, lease_ms=3_600_000).items
    host.wait(100)
    assert host.ask("GetItem", id=item.id).state == State.LEASED
    assert kinds(host.ask("Nack", items=[idl.NackItem(item.id, item.lease, **given)])) == [None]
    assert type(host.ask("GetItem", id=item.id)) is NotFound


def test_a_lease_that_has_ended_can_be_nacked(host: OneHost) -> None:
    """With its delay and metadata, until another consumer leases the item. It cannot be extended."""
    put(host, b"x")
    (item,) = take(host, lease_ms=100).items
    host.wait(100)
    assert kinds(host.ask("ExtendLease", items=[idl.ExtendItem(item.id, item.lease)])) == [StaleLease]
    assert kinds(host.ask("Nack", items=[idl.NackItem(item.id, item.lease, delay_ms=60_000, metadata=b"m")])) == [None]
    shown = host.ask("GetItem", id=item.id)
    assert (shown.state, shown.item.metadata, shown.item.attempt) == (State.DELAYED, b"m", 1)


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize(("asked", "lease_ms"), [(None, 20_000), (90_000, 90_000), (100, 100), (43_200_000,) * 2])
def test_an_extension_counts_from_now(host: OneHost, asked: int | None, lease_ms: int, written: bool) -> None:
    """For the time of the request, else for the first duration of the lease. The token stays."""
    put(host, b"x")
    (item,) = take(host, lease_ms=20_000).items
    host.wait(5_000 if written else 1)
    assert kinds(host.ask("ExtendLease", items=[idl.ExtendItem(item.id, item.lease, asked)])) == [None]
    assert host.ask("GetItem", id=item.id).item.lease_expires_at_ms == host.now_ms + lease_ms
    host.wait(lease_ms - 1)
    assert take(host).items == []
    assert kinds(host.ask("Ack", items=[idl.AckItem(item.id, item.lease)])) == [None]


@pytest.mark.parametrize("lease_ms", [0, 99, 43_200_001, -(2**63)])
def test_an_extension_with_a_wrong_time_is_refused(host: OneHost, lease_ms: int) -> None:
    (item,) = leased(host, b"x")
    (why,) = messages(host.ask("ExtendLease", items=[idl.ExtendItem(item.id, item.lease, lease_ms)]))
    assert why == f"lease_ms is {lease_ms}, not in 100..43200000"


def test_an_extension_with_a_wrong_time_fails_alone(host: OneHost) -> None:
    first, second = leased(host, b"x", b"y")
    items = [idl.ExtendItem(first.id, first.lease, 99), idl.ExtendItem(second.id, second.lease, 60_000)]
    assert messages(host.ask("ExtendLease", items=items)) == ["lease_ms is 99, not in 100..43200000", None]
    host.wait(30_000)
    assert [item.payload for item in take(host).items] == [b"x"], "only that lease has run out"


@pytest.mark.parametrize("delivery", [1, 2])
@pytest.mark.parametrize("state", [State.READY, State.DELAYED, State.LEASED])
@pytest.mark.parametrize("reopened", [False, True])
def test_a_delete_removes_an_item_of_any_state(host: OneHost, delivery: int, state: int, reopened: bool) -> None:
    (item_id,) = put(host, b"x", delivery=delivery, delay_ms=60_000 if state == State.DELAYED else None)
    if state == State.LEASED:
        take(host)
    if reopened:
        host.wait(1_000)  # the lease is written
        host.reopen()
    assert host.ask("GetItem", id=item_id).state == state
    assert kinds(host.ask("DeleteItems", ids=[item_id, item_id, 5])) == [None, None, NotFound]
    assert kinds(host.ask("DeleteItems", ids=[item_id])) == [NotFound]
    assert host.ask("ListItems", ns="n", topic="t").items == []


def test_a_delete_ends_a_lease(host: OneHost) -> None:
    (item,) = leased(host, b"x")
    assert kinds(host.ask("DeleteItems", ids=[item.id, 1 << 48 | 99])) == [None, NotFound]
    assert kinds(host.ask("Ack", items=[idl.AckItem(item.id, item.lease)])) == [NotFound]


@pytest.mark.parametrize("method", [*ENTRIES, "DeleteItems"])
def test_an_item_of_another_host_is_settled_there(method: str) -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}))
    (item,) = leased(host, b"x")
    there = (2 << 48 | 9, 5)
    call = host.call(method, **fields(method, (item.id, item.lease), there))
    (sent,) = host.to(method)
    assert sent.address == "b:1"
    for name, entries in fields(method, there).items():
        assert getattr(sent.request, name) == entries
    outcome = idl.ItemOutcome(idl.ItemError(2, "no such item"))
    host.reply(method, getattr(idl, f"{method}Response")([outcome]))
    assert kinds(call.answer) == [None, NotFound]


@pytest.mark.parametrize("method", [*ENTRIES, "DeleteItems"])
def test_a_forwarded_request_takes_no_second_hop(method: str) -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}))
    assert kinds(host.ask(method, **fields(method, (2 << 48 | 9, 5)), context=FORWARDED)) == [NotServed]
    assert not host.to(method)


# ------------------------------------------------------------------------------------------ after a failure


def test_a_failed_nack_is_answered_with_the_next_step(host: OneHost) -> None:
    failed, rejected, plain, released = leased(host, b"1", b"2", b"3", b"4")
    entries = [
        idl.NackItem(failed.id, failed.lease, failed=True, delay_ms=8_000),
        idl.NackItem(rejected.id, rejected.lease, reject=True),
        idl.NackItem(plain.id, plain.lease, delay_ms=1_000),
        idl.NackItem(released.id, released.lease, release=True),
        idl.NackItem(failed.id, failed.lease, failed=True, delay_ms=8_000),
        idl.NackItem(failed.id, failed.lease + 1, failed=True),
    ]
    found = host.ask("Nack", items=entries).outcomes
    again, dead, *others, same, stale = found
    assert again.error is None and again.after.again_in_ms > 0
    assert (again.after.max_attempts, again.after.dead_topic) == (25, None)
    assert (dead.after.again_in_ms, dead.after.dead_topic) == (None, f"{rejected.topic}.dlq")
    assert [(one.error, one.after) for one in others] == [(None, None)] * 2
    assert same.after == again.after, "equal entries share one outcome"
    assert (kinds(idl.NackResponse([stale])), stale.after) == ([StaleLease], None)


def test_the_word_of_another_host_is_passed_on() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}))
    there = 2 << 48 | 9
    call = host.call("Nack", items=[idl.NackItem(there, 5, failed=True)])
    after = idl.AfterFailure(again_in_ms=8_000, max_attempts=3)
    host.reply("Nack", idl.NackResponse([idl.ItemOutcome(None, after)]))
    (outcome,) = call.answer.outcomes
    assert (outcome.after.again_in_ms, outcome.after.max_attempts, outcome.after.dead_topic) == (8_000, 3, None)
