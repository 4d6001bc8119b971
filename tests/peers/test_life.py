"""Any host takes any request: what reaches the wrong one goes on to the right one, once."""

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from foqs.bounds import Limits
from foqs.idl import idl
from foqs.peers import ready_topics
from tests.api.hosts import until
from tests.api.wire import Code, Delivery, Refused, State, Wire, spec
from tests.client.peer import Act, Peer, script
from tests.peers.nodes import Cluster, Member
from tests.rpc.serving import message

Locked = Callable[[int], AbstractContextManager[None]]


def three(cluster: Cluster, **options: Any) -> tuple[Member, Member, Member]:
    """Two hosts with a shard each, and one without."""
    members = cluster.add("a", 1, **options), cluster.add("b", 2, **options), cluster.add("c", **options)
    cluster.tell()
    return members


def knows(cluster: Cluster, member: Member, topic: str, *owners: Member | Peer) -> None:
    """`member` then believes that these have items of the topic."""

    for owner in owners:  # the first answer of a host replaces all that was known of it
        if isinstance(owner, Member):
            cluster.until(lambda owner=owner: len(owner.news._waiting) == len(cluster.members) - 1, "questions to wait")  # type: ignore[misc]

    def tell() -> None:
        for owner in owners:
            if owner is not member:
                member.forwarder.watch._learn(owner.address, ("test", topic), 1, 0)

    cluster.on_loop(tell)


def held_at(cluster: Cluster, owner: Member, *payloads: bytes, lease_ms: int = 60_000, **fields: Any) -> list[Any]:
    """Items that were put and taken at their own host."""
    wire = cluster.wire(owner)
    wire.put(f"at {owner.name}", *payloads, **fields)
    items = wire.dequeue(f"at {owner.name}", len(payloads), wait_ms=20_000, lease_ms=lease_ms)
    assert len(items) == len(payloads)
    until(lambda: len(wire.listed(f"at {owner.name}", state=State.LEASED)) == len(items), "the leases to be written")
    return items


def test_a_life_through_a_host_without_shards(cluster: Cluster) -> None:
    a, b, c = three(cluster)
    wire = cluster.wire(c)
    ids = wire.enqueue(spec("t", b"1", headers={"k": "v"}), spec("t", b"2", priority=1, metadata=b"m"))
    owner = a if ids[0] >> 48 == 1 else b
    knows(cluster, c, "t", owner)
    first, second = wire.dequeue("t", 5, wait_ms=20_000, lease_ms=60_000)
    assert [first.id, second.id] == ids
    assert (first.payload, first.headers, second.metadata) == (b"1", {"k": "v"}, b"m")
    assert wire.state(first.id) == State.LEASED
    assert wire.extend(first, 120_000) == 0
    assert wire.look(first.id).item.lease_expires_at_ms > first.lease_expires_at_ms
    assert wire.nack(first, metadata=b"half") == 0
    again = wire.one("t")
    assert (again.id, again.attempt, again.metadata) == (first.id, 2, b"half")
    assert wire.ack(first) == [Code.STALE_LEASE]
    assert wire.ack(again, second, ns="test") == [0, 0]
    assert wire.ack(again) == [Code.NOT_FOUND]
    assert wire.state(again.id) is None
    (other,) = wire.put("t", b"3")
    assert wire.delete(other) == [0]
    assert wire.delete(other) == [Code.NOT_FOUND]
    assert c.counters.forwarded > 10
    assert a.counters.forwarded == b.counters.forwarded == 0


def filled(request: Any, last: Any, field: str) -> None:
    """Makes the field of the last entry so long that the request fills a frame to the last byte."""
    method = type(request).__name__.removesuffix("Request")
    setattr(last, field, b"")
    setattr(last, field, b"x" * (Limits().frame_bytes - len(message(method, request))))
    assert len(message(method, request)) == Limits().frame_bytes


def test_a_request_that_fills_a_frame_goes_on_in_two(cluster: Cluster, peer: Callable[..., Peer]) -> None:
    """What hosts say to each other is longer by what they say of the caller."""
    c, other = cluster.add("c"), peer()
    cluster.tell(cluster.routing(p=(other.address, 9)))
    wire = cluster.wire(c)
    nacks = [idl.NackItem(9 << 48 | n, 1, metadata=b"x" * 4096) for n in range(1, 5_000)]
    one, two = (len(message("Nack", idl.NackRequest(nacks[:count]))) for count in (1, 2))
    count = 2 + (Limits().frame_bytes - one) // (two - one)  # the last one is shorter
    request = idl.NackRequest([*nacks[: count - 1], idl.NackItem(9 << 48 | 5_000, 1)])
    filled(request, request.items[-1], "metadata")
    assert wire.settle("Nack", request.items) == [Code.NOT_FOUND] * count
    assert sorted(len(each.items) for each in other.named("Nack")) == [count // 2, count - count // 2]
    store = idl.EnqueueRequest("test", [spec("t", b"x" * 1_000_000) for _ in range(16)] + [spec("t")])
    filled(store, store.items[-1], "payload")
    made = wire.ask("Enqueue", ns="test", items=store.items).outcomes
    assert [other.items[outcome.id].payload for outcome in made] == [each.payload for each in store.items]
    assert sorted(len(each.items) for each in other.named("Enqueue")) == [8, 9]


# ------------------------------------------------------------------------------------------------ one hop


def test_two_hosts_that_each_take_the_other_for_the_owner(cluster: Cluster) -> None:
    a, b, _ = three(cluster, handover_ms=300)
    cluster.shards.add(5)
    at_a, at_b = cluster.routing(b=(b.address, 5)), cluster.routing(a=(a.address, 5))
    cluster.on_loop(lambda: (a.told(at_a), b.told(at_b)))
    (outcome,) = cluster.wire(a).ask("Ack", items=[idl.AckItem(5 << 48 | 1, 1)]).outcomes
    assert outcome.error.code == Code.UNAVAILABLE
    assert outcome.error.retry_after_ms > 0
    assert (a.counters.forwarded, b.counters.forwarded) == (1, 0)


# ------------------------------------------------------------------------------------------------ dequeue


def test_own_items_come_first(cluster: Cluster) -> None:
    a, b, _ = three(cluster)
    knows(cluster, a, "t", b)
    wire = cluster.wire(a)
    (here,) = wire.put("t", b"here")
    (there,) = cluster.wire(b).put("t", b"there")
    assert [wire.one("t").id, wire.one("t").id] == [here, there]
    assert a.counters.forwarded == 1


def test_a_dequeue_that_finds_nothing_elsewhere_waits_here(cluster: Cluster) -> None:
    """And is woken by an enqueue here. One that was forwarded does not go on."""
    a, b, c = three(cluster)
    knows(cluster, a, "t", b, a)
    knows(cluster, b, "t", c, a)
    waiting = cluster.wire(a)
    waiting.send_call("Dequeue", ns="test", wants=[idl.TopicCount("t", 1)], wait_ms=20_000)
    cluster.until(lambda: ("test", "t") in a.engine.state.waiting, "it to wait here")
    assert (a.counters.forwarded, b.counters.forwarded) == (1, 0)
    (item_id,) = cluster.wire(a).put("t", b"x")
    assert [item.id for item in waiting.receive("Dequeue").items] == [item_id]


def test_weights_hold_over_hosts(cluster: Cluster) -> None:
    """Host "a" has only the heavy topic, "b" both. Equal topics would get a fraction of 1/8 or 1/2."""
    a, b, _ = three(cluster)
    for owner, topic in ((a, "heavy"), (b, "heavy"), (b, "light")):
        cluster.wire(owner).put(topic, *[b"x"] * 700)
    knows(cluster, a, "light", b)
    knows(cluster, a, "heavy", b)
    wire, wants = cluster.wire(a), [idl.TopicCount("heavy", 2, None, None, 3), idl.TopicCount("light", 2)]
    got: Counter[str] = Counter()
    for _ in range(300):
        got.update(item.topic for item in wire.ask("Dequeue", ns="test", wants=wants, most=2, wait_ms=20_000).items)
    # A request gets two items of one topic: five standard deviations of 300 draws are 0.125.
    assert got.total() == 600 and abs(got["light"] / 600 - 0.25) < 0.12, got


def test_a_host_that_cannot_be_asked_for_items(
    cluster: Cluster, peer: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that refuses has leased nothing. A host that does not answer may have leased at-most-once items, which
    then never arrive: the consumer gets OUTCOME_UNKNOWN, not an empty answer."""
    monkeypatch.setattr(ready_topics, "NO_ANSWER_MS", 600_000)
    a = cluster.add("a", 1)
    for act in (Act.CLOSE_BEFORE, idl.RequestError(Code.OVERLOADED, "full")):
        other = peer(lambda method, request, act=act: act)
        cluster.tell(cluster.routing(p=(other.address, 9)))
        knows(cluster, a, "t", other)
        wire = cluster.wire(a)
        if act is Act.CLOSE_BEFORE:
            with pytest.raises(Refused) as refused:
                wire.dequeue("t", wait_ms=1)
            assert refused.value.code == Code.OUTCOME_UNKNOWN
        assert wire.dequeue("t", wait_ms=1) == [], "it is believed to have none now"
        assert len(other.calls) == 1


def test_a_host_that_refused_is_asked_again_without_new_news(cluster: Cluster, peer: Callable[..., Peer]) -> None:
    a, other = cluster.add("a", 1), peer(script("Dequeue", idl.RequestError(Code.OVERLOADED, "full")))
    other.Enqueue(idl.EnqueueRequest("test", [spec("t", b"x")]))
    cluster.tell(cluster.routing(p=(other.address, 9)))
    knows(cluster, a, "t", other)
    (item,) = cluster.wire(a).dequeue("t", wait_ms=20_000)
    assert (item.payload, len(other.calls)) == (b"x", 2)


def test_leases_whose_consumer_is_gone_are_given_back(cluster: Cluster, locked: Locked) -> None:
    """It went away while the owner wrote the lease: the item is ready at once, its attempt not counted."""
    a, b, _ = three(cluster)
    knows(cluster, a, "t", b)
    there = cluster.wire(b)
    there.put("t", b"x", delivery=Delivery.AT_MOST_ONCE)
    consumer = cluster.wire(a)
    with locked(2):
        consumer.send_call("Dequeue", ns="test", wants=[idl.TopicCount("t", 1)], wait_ms=20_000, lease_ms=600_000)
        cluster.until(lambda: a.counters.forwarded == 1, "the owner to be asked")
        consumer.reset()
        cluster.until(lambda: a.server.counters.lost == 1, "the consumer to be gone")
    item = there.one("t")
    assert item.attempt == 1


def test_a_lease_that_reached_no_consumer_is_given_back(cluster: Cluster, peer: Callable[..., Peer]) -> None:
    """The answer comes when the consumer is gone: the leases in it are released at their owner."""
    a = cluster.add("a", 1)
    gone: list[Wire] = []

    def meddle(method: str, request: Any) -> Any:
        if method == "Dequeue":
            gone[0].reset()
            cluster.until(lambda: a.server.counters.lost == 1, "the consumer to be gone")
        return Act.SERVE

    other = peer(meddle)
    cluster.tell(cluster.routing(p=(other.address, 9)))
    knows(cluster, a, "t", other)
    other.Enqueue(idl.EnqueueRequest("test", [spec("t", b"1"), spec("t", b"2")]))
    gone.append(cluster.wire(a))
    gone[0].send_call("Dequeue", ns="test", wants=[idl.TopicCount("t", 5)], lease_ms=600_000)
    cluster.until(lambda: len(other.nacked) == 2, "both to be released")
    assert all(entry.release for entry in other.nacked)


def test_several_topics_are_asked_of_one_host(cluster: Cluster) -> None:
    a, b, _ = three(cluster)
    knows(cluster, a, "t2", b)
    there = cluster.wire(b)
    there.put("t1", b"1")
    there.put("t2", b"2")
    assert [item.topic for item in cluster.wire(a).take([("t1", 1), ("t2", 1)])] == ["t1", "t2"]


# ------------------------------------------------------------------------------------------------ routing


def test_all_hosts_say_the_same_and_tell_of_changes(cluster: Cluster) -> None:
    a, b, c = three(cluster)
    wires = [cluster.wire(member) for member in (a, b, c)]
    first, *others = [wire.ask("GetRouting") for wire in wires]
    assert others == [first, first]
    assert first.hosts == sorted([a.address, b.address, c.address])
    assert [(route.shard, route.host) for route in first.shards] == [(1, a.address), (2, b.address)]
    gone = cluster.wire(a)
    gone.send_call("GetRouting", version=first.version, wait_ms=600_000)
    for wire in wires:
        wire.send_call("GetRouting", version=first.version, wait_ms=600_000)
    cluster.until(lambda: len(a.service.routing._routing_calls) == 2, "two to wait")
    gone.reset()
    cluster.until(lambda: len(a.service.routing._routing_calls) == 1, "one to be forgotten")
    cluster.tell()  # the same again
    cluster.move(2, c)
    cluster.tell(cluster.routing(a, c))
    for wire in wires:
        second = wire.receive("GetRouting")
        assert second.version != first.version
        assert second.hosts == sorted([a.address, c.address])
        assert (second.shards[1].host, second.shards[1].epoch > first.shards[1].epoch) == (c.address, True)
