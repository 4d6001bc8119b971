"""CreateBatch, CloseBatch, CancelBatch and GetBatch: their checks, and where they go. The engine is scripted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from foqs.bounds import DAY_MS, YEAR_MS
from foqs.errors import (
    FoqsError,
    Invalid,
    LostReply,
    NotFound,
    NotSent,
    NotServed,
    OutcomeUnknown,
    Overloaded,
    Unavailable,
)
from foqs.idl import idl
from foqs.ids import make_id
from foqs.item_batch import NO_BATCH, BatchInfo, BatchRow, BatchState, Callback, Counts, NewBatch
from foqs.peers.forwarded import AGAIN_MS
from foqs.policies.settings import Settings
from foqs.rules import ItemRules, pack_rules
from tests.api.wire import spec
from tests.support.one_host import FORWARDED, HANDOVER_MS, OneHost, routing_of

HERE, THERE = make_id(1, 7), make_id(2, 7)
BY_ID = ["CloseBatch", "CancelBatch", "GetBatch"]


class Scripted:
    """The batches of an engine. `calls` were made; the next ones get `outcome`."""

    def __init__(self, host: OneHost, outcome: Any = None) -> None:
        self.outcome = outcome
        self.calls: list[tuple[Any, ...]] = []
        for name in ("create_batch", "close_batch", "cancel_batch", "find_batch"):
            setattr(host.engine, name, self._made(name))

    def _made(self, name: str) -> Callable[..., None]:
        def called(*given: Any) -> None:
            *first, reply, _now_ms, timeout_ms = given
            assert timeout_ms > 0
            self.calls.append((name, *first))
            reply(self.outcome)

        return called


def made(new: Any) -> NewBatch:
    assert isinstance(new, NewBatch)
    return new


@pytest.fixture
def host() -> OneHost:
    return OneHost(1)


@pytest.fixture
def two() -> OneHost:
    """A host with shard 1; shard 2 is on host b."""
    return OneHost(1, routing=routing_of({1: "a", 2: "b"}))


def created(host: OneHost, **fields: Any) -> NewBatch:
    engine = Scripted(host, HERE)
    assert host.ask("CreateBatch", ns="n", **fields).id == HERE
    ((_, new),) = engine.calls
    return made(new)


def test_a_batch_has_defaults(host: OneHost) -> None:
    new = created(host)
    assert new == NewBatch("n", None, None, host.now_ms + 7 * DAY_MS, 0)


def test_a_batch_with_callbacks(host: OneHost) -> None:
    rules = idl.ItemRules(max_attempts=3)
    full = spec(
        "t", b"all", metadata=b"m", headers={"a": "ü"}, priority=-3, delay_ms=50, lease_ms=1_000, ttl_ms=9_000,
        delivery=idl.Delivery.AT_MOST_ONCE, fairness_key="acme", throttle_keys=["z", "b"], weight=4, rules=rules,
    )  # fmt: skip
    new = created(host, on_success=full, on_end=spec("u", b"end"), ttl_ms=60_000, parent=THERE)
    packed = pack_rules(ItemRules(max_attempts=3)).decode()
    assert new.on_success == Callback(
        "t", b"all", b"m", {"a": "ü"}, -3, 50, 1_000, 9_000, 2, "acme", ("b", "z"), packed, 4
    )
    assert new.on_end == Callback("u", b"end", None, {}, 0, 0, 0, 0, 1, "", (), "", 0)
    assert (new.expires_at_ms, new.parent) == (host.now_ms + 60_000, THERE)
    assert Callback.unpack(new.on_success.pack()) == new.on_success


def test_the_policy_of_the_topic_fills_a_callback(host: OneHost) -> None:
    policy = '{"priority": 5, "delay_ms": 30, "ttl_ms": 700, "lease_ms": 2000, "max_stored": 0}'
    host.settings.apply(Settings("n", 1, {"topic.t": policy}))
    end = created(host, on_end=spec("t", b"")).on_end
    assert end is not None
    assert (end.priority, end.delay_ms, end.ttl_ms, end.lease_ms) == (5, 30, 700, 2_000)


def test_a_closed_topic_takes_no_callback(host: OneHost) -> None:
    host.settings.apply(Settings("n", 1, {"topic.t": '{"closed": true}'}))
    engine = Scripted(host, HERE)
    assert isinstance(host.call("CreateBatch", ns="n", on_end=spec("t", b"")).answer, Unavailable)
    assert engine.calls == []


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"ttl_ms": 999}, "ttl_ms is 999, not in 1000..31622400000"),
        ({"ttl_ms": YEAR_MS + 1}, "ttl_ms is 31622400001, not in 1000..31622400000"),
        ({"parent": 0}, "parent is 0: give the id of a batch"),
        ({"ns": ""}, "ns must have 1 to 255 bytes"),
        ({"on_success": spec("t", None)}, "on_success: payload is missing"),
        ({"on_success": spec("", b"")}, "on_success: topic must have 1 to 255 bytes"),
        ({"on_end": spec("t", b"", dedup_key="k")}, "on_end.dedup_key: a callback has none"),
        ({"on_end": spec("t", b"", order_key="k")}, "on_end.order_key: a callback has none"),
        ({"on_success": spec("t", b"", batch=5)}, "on_success.batch: a callback has none"),
        ({"on_end": spec("t", b"", deliver_after_ms=5)}, "on_end.deliver_after_ms: a callback has none"),
        ({"on_end": spec("t", b"", expires_at_ms=5)}, "on_end.expires_at_ms: a callback has none"),
        ({"on_end": spec("t", b"", weight=0)}, "on_end: weight is 0, not in 1..1000"),
        (
            {"on_end": spec("t", b"", headers={"a": "x" * 1_800})},
            "on_end: headers have 1801 bytes, more than 1800: the batch adds its own",
        ),
    ],
)
def test_a_wrong_batch(host: OneHost, fields: dict[str, Any], why: str) -> None:
    engine = Scripted(host, HERE)
    answer = host.call("CreateBatch", **{"ns": "n", **fields}).answer
    assert (type(answer), answer.message) == (Invalid, why)
    assert engine.calls == []


def test_on_success_may_have_long_headers(host: OneHost) -> None:
    assert created(host, on_success=spec("t", b"", headers={"a": "x" * 1_800})).on_success is not None
    assert created(host, on_end=spec("t", b"", headers={"a": "x" * 1_799})).on_end is not None


@pytest.mark.parametrize(
    "error", [Invalid("no members"), Overloaded("full", 5), OutcomeUnknown("lost"), Unavailable("")]
)
def test_the_error_of_a_new_batch(host: OneHost, error: FoqsError) -> None:
    Scripted(host, error)
    answer = host.call("CreateBatch", ns="n").answer
    assert (type(answer), answer.message) == (type(error), error.message)


def test_a_host_that_stops_creates_none(host: OneHost) -> None:
    engine = Scripted(host, HERE)
    host.engine.drain(host.now_ms)
    assert isinstance(host.call("CreateBatch", ns="n").answer, Unavailable)
    assert engine.calls == []


@pytest.mark.parametrize(
    ("method", "call"), [("CloseBatch", "close_batch"), ("CancelBatch", "cancel_batch"), ("GetBatch", "find_batch")]
)
def test_a_request_about_a_batch(host: OneHost, method: str, call: str) -> None:
    row = BatchRow(HERE, b"n", BatchState.ENDED, 5, 6, 7, THERE, b"x", b"y", 8, 9)
    engine = Scripted(host, BatchInfo(row, Counts(10, 1, 2, 3), (4, 5)) if call == "find_batch" else None)
    answer = host.ask(method, ns="n", id=HERE)
    assert engine.calls == [(call, "n", HERE)]
    if call == "find_batch":
        assert answer == idl.GetBatchResponse(
            HERE, idl.BatchState.ENDED, 5, 6, 7, THERE, idl.BatchCounts(10, 1, 2, 3, 0, 0, 0, 0), [4, 5], 8, 9
        )
    else:
        assert answer == getattr(idl, f"{method}Response")()


def test_a_batch_that_lives(host: OneHost) -> None:
    Scripted(host, BatchInfo(BatchRow(HERE, b"n", BatchState.OPEN, 5, 6), Counts(), ()))
    found = host.ask("GetBatch", ns="n", id=HERE)
    assert (found.state, found.failed_ids, found.counts.members) == (idl.BatchState.OPEN, [], 0)
    assert found.ended_at_ms is found.parent is found.success_id is found.end_id is None


@pytest.mark.parametrize("method", BY_ID)
def test_a_wrong_request_about_a_batch(host: OneHost, method: str) -> None:
    engine = Scripted(host)
    for fields, why in (
        ({"ns": "n"}, "id is missing"),
        ({"ns": "n", "id": -1}, "id is -1: give the id of a batch"),
        ({"id": 1}, "ns is missing"),
    ):
        answer = host.call(method, **fields).answer
        assert (type(answer), answer.message) == (Invalid, why)
    assert engine.calls == []


@pytest.mark.parametrize("method", BY_ID)
def test_an_unknown_batch(host: OneHost, method: str) -> None:
    Scripted(host, NotFound("whatever the engine says"))
    answer = host.call(method, ns="n", id=HERE).answer
    assert (type(answer), answer.message) == (NotFound, NO_BATCH)


# ------------------------------------------------------------------------------------------ other hosts


def response(method: str) -> Any:
    return idl.GetBatchResponse(THERE) if method == "GetBatch" else getattr(idl, f"{method}Response")()


@pytest.mark.parametrize("method", BY_ID)
def test_the_owner_of_the_home_is_asked(two: OneHost, method: str) -> None:
    Scripted(two, NotServed())
    call = two.call(method, ns="n", id=THERE)
    (sent,) = two.to(method)
    assert (sent.address, sent.request.ns, sent.request.id) == ("b:1", "n", THERE)
    two.reply(method, response(method))
    assert call.answer == response(method)


@pytest.mark.parametrize("method", BY_ID)
def test_a_lost_reply_is_asked_for_again(two: OneHost, method: str) -> None:
    Scripted(two, NotServed())
    call = two.call(method, ns="n", id=THERE)
    two.reply(method, LostReply("gone"))
    two.wait(AGAIN_MS)
    two.reply(method, response(method))
    assert call.answer == response(method)


@pytest.mark.parametrize("method", BY_ID)
def test_a_batch_that_is_gone_after_a_lost_reply(two: OneHost, method: str) -> None:
    """It was closed or cancelled, and has ended since."""
    Scripted(two, NotServed())
    call = two.call(method, ns="n", id=THERE)
    two.reply(method, LostReply("gone"))
    two.wait(AGAIN_MS)
    two.reply(method, NotFound("b says so"))
    if method == "GetBatch":
        assert (type(call.answer), call.answer.message) == (NotFound, NO_BATCH)
    else:
        assert call.answer == response(method)


@pytest.mark.parametrize("method", BY_ID)
def test_an_owner_that_does_not_answer(two: OneHost, method: str) -> None:
    Scripted(two, NotServed())
    call = two.call(method, ns="n", id=THERE)
    two.reply(method, LostReply("gone"))
    two.wait(HANDOVER_MS)
    assert type(call.answer) is (Unavailable if method == "GetBatch" else OutcomeUnknown)


@pytest.mark.parametrize("method", BY_ID)
def test_the_shard_comes_here(two: OneHost, method: str) -> None:
    engine = Scripted(two, NotServed())
    two.learn(routing_of({1: "a"}, unowned=(2,)))
    call = two.call(method, ns="n", id=THERE)
    assert call.answers == []
    two.learn(routing_of({1: "a", 2: "b"}))
    assert [sent.address for sent in two.to(method)] == ["b:1"]
    two.reply(method, NotServed())
    two.engine.state.shards[2] = two.engine.state.shards[1]
    engine.outcome = BatchInfo(BatchRow(THERE, b"n", 1, 5, 6), Counts(), ()) if method == "GetBatch" else None
    two.learn(routing_of({1: "a", 2: "a"}))
    assert len(engine.calls) == 2
    assert not isinstance(call.answer, FoqsError)


@pytest.mark.parametrize("method", BY_ID)
def test_no_shard_has_that_number(two: OneHost, method: str) -> None:
    Scripted(two, NotServed())
    answer = two.call(method, ns="n", id=make_id(9, 7)).answer
    assert (type(answer), answer.message) == (NotFound, NO_BATCH)


def test_a_forwarded_request_is_answered_here(two: OneHost) -> None:
    Scripted(two, NotServed())
    assert isinstance(two.call("GetBatch", ns="n", id=THERE, context=FORWARDED).answer, NotServed)
    assert two.to("GetBatch") == []


def test_a_host_without_shards_lets_another_create_the_batch() -> None:
    host = OneHost(routing=routing_of({2: "b"}))
    engine = Scripted(host)
    call = host.call("CreateBatch", ns="n", on_success=spec("t", b"s"), on_end=spec("t", b"e"), ttl_ms=5_000, parent=3)
    (sent,) = host.to("CreateBatch")
    asked = sent.request
    assert (sent.address, asked.ns, asked.ttl_ms, asked.parent) == ("b:1", "n", 5_000, 3)
    assert (asked.on_success.payload, asked.on_end.payload) == (b"s", b"e")
    host.reply("CreateBatch", idl.CreateBatchResponse(THERE))
    assert (call.answer.id, engine.calls) == (THERE, [])


@pytest.mark.parametrize("refusal", [NotSent("down"), Unavailable("no shard", 5)])
def test_hosts_are_asked_one_after_the_other(refusal: FoqsError) -> None:
    host = OneHost(routing=routing_of({2: "b", 3: "c"}))
    Scripted(host)
    call = host.call("CreateBatch", ns="n")
    first = host.to("CreateBatch")[0].address
    host.reply("CreateBatch", refusal)
    (second,) = host.to("CreateBatch")
    assert {first, second.address} == {"b:1", "c:1"}
    host.reply("CreateBatch", refusal)
    assert isinstance(call.answer, Unavailable)


def test_a_lost_reply_may_have_created_a_batch() -> None:
    host = OneHost(routing=routing_of({2: "b", 3: "c"}))
    Scripted(host)
    call = host.call("CreateBatch", ns="n")
    host.reply("CreateBatch", LostReply("gone"))
    assert isinstance(call.answer, OutcomeUnknown)
    assert host.to("CreateBatch") == []
