"""Requests during the hand-over of their shard, and hosts that die while they are asked."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from foqs.idl import idl
from tests.api.wire import Code, Refused, State, Wire, codes, spec
from tests.client.peer import Act, Peer
from tests.peers.nodes import Cluster, Member
from tests.peers.test_life import held_at
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow  # they wait for real deadlines
Locked = Callable[[int], AbstractContextManager[None]]


@pytest.fixture
def hosts(cluster: Cluster) -> tuple[Member, Member, Member]:
    """The second has shard 2; the routing says so."""
    made = cluster.add("a", 1), cluster.add("b", 2), cluster.add("c", 3)
    cluster.tell()
    return made


def ack(*items: Any) -> dict[str, Any]:
    return {"items": [idl.AckItem(item.id, item.lease) for item in items]}


def is_held(cluster: Cluster, member: Member) -> None:
    cluster.until(lambda: len(member.forwarder.exchange.held) == 1, "the request to be held")


def done(wire: Wire, method: str) -> list[int]:
    return codes(wire.receive(method).outcomes)


def test_a_shard_that_could_not_be_opened_is_held_no_longer(
    cluster: Cluster, hosts: tuple[Member, Member, Member]
) -> None:
    """Whether it is tried again is for the facts to say."""
    a = hosts[0]

    def take() -> bool:  # in one go: it may be given up before the next question
        a.take(9)
        return 9 in a.engine.state.shards

    assert cluster.on_loop(take)
    cluster.until(lambda: 9 not in a.engine.state.shards, "the shard to be given up")
    assert cluster.on_loop(lambda: set(a.runner._workers)) == {1}


# ------------------------------------------------------------------------------------------------ held


@pytest.mark.parametrize("to", ["c", "a"], ids=["to a third host", "to the host that holds it"])
def test_a_request_is_held_until_the_shard_has_an_owner(
    cluster: Cluster, hosts: tuple[Member, Member, Member], to: str
) -> None:
    """Entries of other shards are done at once, and the answer has all outcomes in order."""
    a, b, c = hosts
    moved, here, there = held_at(cluster, b, b"1", b"2"), held_at(cluster, a, b"3"), held_at(cluster, c, b"4")
    cluster.tell(cluster.routing(without=[2]))
    wire, looking = cluster.wire(a), cluster.wire(a)
    wire.send_call("Ack", **ack(moved[0], here[0], moved[1], there[0]))
    is_held(cluster, a)
    looking.send_call("GetItem", id=moved[0].id)
    cluster.until(lambda: len(a.forwarder.exchange.held) == 2, "the look to be held too")
    cluster.until(lambda: not c.engine.state.shards[3].memory.known, "the ack of the other host's item")
    taker = {"a": a, "c": c}[to]
    cluster.move(2, taker)
    cluster.tell(cluster.routing(a, c))
    assert done(wire, "Ack") == [0, 0, 0, 0]
    try:  # it was looked for before the ack was carried out, or after
        assert looking.receive("GetItem").state == State.LEASED
    except Refused as refused:
        assert refused.code == Code.NOT_FOUND
    assert a.counters.held == 2
    assert not a.forwarder.exchange.held


# ------------------------------------------------------------------------------------------------ just lost


@pytest.mark.parametrize("method", ["Ack", "Nack", "ExtendLease", "DeleteItems", "GetItem"])
def test_an_owner_that_just_lost_the_shard(cluster: Cluster, hosts: tuple[Member, Member, Member], method: str) -> None:
    """It answers so; the request goes to the next owner when the routing names it."""
    a, b, c = hosts
    (item,) = held_at(cluster, b, b"1")
    cluster.move(2, c)
    cluster.on_loop(lambda: b.look_whose(2))
    cluster.until(lambda: not b.serves(2), "the old owner to notice")
    wire = cluster.wire(a)
    fields: dict[str, Any] = {"GetItem": {"id": item.id}, "DeleteItems": {"ids": [item.id]}}.get(method, ack(item))
    if method in ("Nack", "ExtendLease"):
        entry = idl.NackItem if method == "Nack" else idl.ExtendItem
        fields = {"items": [entry(item.id, item.lease)]}
    wire.send_call(method, **fields)
    is_held(cluster, a)
    cluster.tell(cluster.routing(a, c, b))
    response = wire.receive(method)
    assert response.item.payload == b"1" if method == "GetItem" else codes(response.outcomes) == [0]


def changed(wire: Wire, **fields: Any) -> None:
    """Repeat a change, as a client does, until it is carried out."""
    ids = fields["ids"]
    wait_until(lambda: codes(wire.ask("ChangeItems", **fields).outcomes) == [0] * len(ids), "the change")


@pytest.mark.parametrize("told", [False, True], ids=["by a client's request", "by what the old owner had taken on"])
def test_changes_follow_a_shard_that_moves(cluster: Cluster, hosts: tuple[Member, Member, Member], told: bool) -> None:
    """Each is carried out by the next owner, and the order there is the new one. A repeated request changes nothing."""
    a, b, c = hosts
    ids = cluster.wire(b).put("moving", b"1", b"2", b"3")
    cluster.move(2, c)
    if not told:
        cluster.on_loop(lambda: b.look_whose(2))
        cluster.until(lambda: not b.serves(2), "the old owner to notice")
    asked, wire = (b if told else a), cluster.wire(b if told else a)
    wire.send_call("ChangeItems", ids=[ids[2], ids[1], 99 << 48 | 1], priority=-1)
    is_held(cluster, asked)
    cluster.tell(cluster.routing(a, c, b))
    first = done(wire, "ChangeItems")
    assert first[2] != 0 and set(first[:2]) <= {0, Code.UNAVAILABLE}, "of items that the old owner may still lease"
    changed(wire, ids=[ids[2], ids[1]], priority=-1)
    changed(wire, ids=[ids[0]], delay_ms=600_000)
    changed(wire, ids=[ids[0], ids[2]], priority=-2, delay_ms=0)
    owner = cluster.wire(c)
    found: list[bytes] = []
    while len(found) < 3:
        found += [item.payload for item in owner.dequeue("moving", 1, wait_ms=20_000)]
    assert found == [b"3", b"1", b"2"]
    (code,) = codes(wire.ask("ChangeItems", ids=[ids[0]], priority=1).outcomes)
    assert code == Code.CONFLICT, "a consumer has it"


def test_what_an_owner_had_taken_on_when_it_lost_the_shard(
    cluster: Cluster, hosts: tuple[Member, Member, Member]
) -> None:
    """The fence kept it from being written: the old owner itself sends it on."""
    _, b, c = hosts
    items = held_at(cluster, b, b"1", b"2")
    cluster.move(2, c)
    wire = cluster.wire(b)
    wire.send_call("Ack", **ack(*items))
    is_held(cluster, b)
    cluster.tell(cluster.routing(*[hosts[0], b, c]))
    assert done(wire, "Ack") == [0, 0]
    assert cluster.wire(c).ack(*items) == [Code.NOT_FOUND] * 2


# ------------------------------------------------------------------------------------------------ dying


@pytest.mark.parametrize("method", ["Ack", "ExtendLease", "DeleteItems"])
def test_an_owner_that_dies_while_it_is_asked(
    cluster: Cluster, hosts: tuple[Member, Member, Member], locked: Locked, method: str
) -> None:
    """Its outcome is unknown. The next owner is asked again, which no longer has the item."""
    a, b, c = hosts
    (item,) = held_at(cluster, b, b"1")
    wire = cluster.wire(a)
    with locked(2):
        wire.send_call(method, **({"ids": [item.id]} if method == "DeleteItems" else ack(item)))
        cluster.until(lambda: b.engine.state.shards[2].queue.in_flight is not None, "the owner to be at it")
        cluster.on_loop(b.die)
        is_held(cluster, a)
    cluster.move(2, c)
    cluster.tell(cluster.routing(a, c))
    # The dying owner may have committed an ack, or lost the shard before.
    assert done(wire, method)[0] in ((0, Code.OUTCOME_UNKNOWN) if method == "Ack" else (0,))
    if method != "ExtendLease":
        assert cluster.wire(c).state(item.id) is None


def test_a_silent_owner_is_left_when_it_is_said_to_be_gone(cluster: Cluster, peer: Callable[..., Peer]) -> None:
    """Its connections stand, as those of a frozen process do."""
    a = cluster.add("a", 1)
    frozen, taker = peer(lambda method, request: Act.IGNORE), peer()
    cluster.tell(cluster.routing(p=(frozen.address, 9)))
    for other in (frozen, taker):
        other.Enqueue(idl.EnqueueRequest("test", [spec("t", b"1"), spec("t", b"2")]))
    first, second = taker.Dequeue(idl.DequeueRequest("test", [idl.TopicCount("t", 2)])).items
    wires = [cluster.wire(a) for _ in range(3)]
    wires[0].send_call("Ack", **ack(first))
    wires[1].send_call("GetItem", id=second.id)
    wires[2].send_call("Nack", items=[idl.NackItem(second.id, second.lease)])
    cluster.until(lambda: len(frozen.calls) == 3, "all to be asked")
    cluster.tell(cluster.routing(q=(taker.address, 9)))
    assert done(wires[0], "Ack") == [0]
    assert wires[1].receive("GetItem").item.id == second.id
    assert done(wires[2], "Nack") == [Code.OUTCOME_UNKNOWN]
    assert taker.acked == [first.id]
    assert taker.nacked == []


# ------------------------------------------------------------------------------------------------ lost replies


def leased_at(other: Peer) -> Any:
    other.Enqueue(idl.EnqueueRequest("test", [spec("t", b"1")]))
    return other.Dequeue(idl.DequeueRequest("test", [idl.TopicCount("t", 1)])).items[0]


def test_a_silent_owner_costs_only_the_time_of_the_caller(cluster: Cluster, peer: Callable[..., Peer]) -> None:
    a, c, other = cluster.add("a", 1), cluster.add("c"), peer(lambda method, request: Act.SILENT)
    cluster.tell(cluster.routing(c, p=(other.address, 9)))
    context = idl.RequestContext(timeout_ms=1_500)  # the host is asked within that time
    item = leased_at(other)
    assert cluster.wire(a).ack(item, context=context) == [Code.OUTCOME_UNKNOWN]
    with pytest.raises(Refused) as refused:
        cluster.wire(a).ask("GetItem", id=item.id, context=context)
    assert refused.value.code == Code.UNAVAILABLE
    (outcome,) = cluster.wire(c).outcomes(spec("t"), context=context)
    assert outcome.error.code == Code.OUTCOME_UNKNOWN
