"""The forwarder: where requests go, when they are held and repeated, and hosts that leave the cluster."""

from typing import Any

import pytest

from foqs.errors import NotFound, NotSent, StaleLease, Unavailable
from foqs.idl import idl
from tests.api.wire import spec
from tests.support.one_host import HANDOVER_MS, Call, OneHost, kinds, put, routing_of

pytestmark = pytest.mark.memory

THERE = 2 << 48 | 9
"""An item of shard 2."""


@pytest.fixture
def host() -> OneHost:
    """Host "a" has shard 1, host "b" shard 2."""
    return OneHost(1, routing=routing_of({1: "a", 2: "b"}))


def ack(host: OneHost, item_id: int = THERE) -> Call:
    return host.call("Ack", items=[idl.AckItem(item_id, 5)])


def acked(*errors: Any) -> Any:
    return idl.AckResponse([idl.ItemOutcome(error) for error in errors])


# ------------------------------------------------------------------------------------------ held and repeated requests


def test_a_request_for_a_shard_that_moves_is_held(host: OneHost) -> None:
    host.learn(routing_of({1: "a"}, "b", unowned=[2]))
    call = ack(host)
    assert host.engine.state.counters.held == 1
    host.wait(HANDOVER_MS - 1)
    host.learn(routing_of({1: "a", 2: "b"}))
    host.reply("Ack", acked(None))
    assert kinds(call.answer) == [None]
    assert host.engine.state.counters.held == 1


def test_a_held_request_is_refused_after_the_hand_over(host: OneHost) -> None:
    host.learn(routing_of({1: "a"}, "b", unowned=[2]))
    call = ack(host)
    host.wait(HANDOVER_MS)
    assert kinds(call.answer) == [Unavailable]
    assert call.answer.outcomes[0].error.message == "the item's shard is being moved"
    assert host.log.lines == ["unrouted"]


def test_a_held_request_is_done_by_a_shard_that_arrives_here(host: OneHost) -> None:
    (item_id,) = put(host, b"x")
    shard = host.engine.state.shards[1]
    host.engine.retire(shard)
    host.engine.drained(shard, host.now_ms)
    host.stores[1].close(clean=True)
    host.learn(routing_of({2: "b"}, unowned=[1]))
    call = ack(host, item_id)
    assert not call.answers
    host.engine.add(1)
    host.open(1)
    host.run()
    assert kinds(call.answer) == [StaleLease], "the answer of this host's own shard"


def test_a_request_has_the_time_of_its_caller_and_its_context(host: OneHost) -> None:
    context = idl.RequestContext(timeout_ms=2_000, request_id="r", token="t", principal="p", traceparent="tp")
    host.call("Ack", items=[idl.AckItem(THERE, 5)], context=context)
    sent = host.to("Ack")[0].request.context
    assert (sent.request_id, sent.token, sent.principal, sent.traceparent) == ("r", "t", "p", "tp")
    assert (sent.hops, sent.timeout_ms) == (1, 1_800)


def test_an_item_of_an_unknown_shard_is_not_found(host: OneHost) -> None:
    assert kinds(ack(host, 9 << 48 | 1).answer) == [NotFound]


# ------------------------------------------------------------------------------------------ hosts that come and go


def test_requests_to_a_host_that_left_are_cut_once(host: OneHost) -> None:
    host.learn(routing_of({1: "a", 2: "c"}))
    host.learn(routing_of({1: "a", 2: "d"}))
    assert host.cut == ["b:1", "c:1"]


def test_every_other_living_host_is_asked_for_its_topics(host: OneHost) -> None:
    assert [sent.address for sent in host.to("WatchTopics")] == ["b:1"]
    host.learn(routing_of({1: "a", 2: "b"}, "c"))
    assert [sent.address for sent in host.to("WatchTopics")] == ["b:1", "c:1"]


# ------------------------------------------------------------------------------------------ plain enqueues


def enqueue(host: OneHost) -> Call:
    return host.call("Enqueue", ns="n", items=[spec("t", b"x")])


def test_an_enqueue_asks_three_hosts_at_most() -> None:
    host = OneHost(routing=routing_of({2: "b", 3: "c", 4: "d", 5: "e"}))
    call, asked = enqueue(host), []
    while host.to("Enqueue"):
        asked.append(host.to("Enqueue")[0].address)
        host.reply("Enqueue", NotSent("refused"))
    assert len(set(asked)) == len(asked) == 3
    assert kinds(call.answer) == [Unavailable]


def test_an_enqueue_stays_where_a_shard_takes_items(host: OneHost) -> None:
    assert kinds(enqueue(host).answer) == [None]
    assert not host.to("Enqueue")
