"""Orders of events that are rare: a caller that goes just then, a reply that is lost, a host that stops meanwhile."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from foqs.errors import Code
from foqs.idl import idl
from tests.client.peer import Act, Peer
from tests.forward.nodes import Cluster
from tests.service.wire import Delivery

Locked = Callable[[int], AbstractContextManager[None]]


def test_a_look_up_on_a_host_that_stops_is_answered(cluster: Cluster) -> None:
    """The shard is in the routing as this host's, and takes nothing more."""
    a = cluster.add("a", 1)
    cluster.tell()
    wire = cluster.wire(a)
    (item_id,) = wire.put("t", b"x")
    cluster.on_loop(lambda: a.host.drain(a.now_ms()))
    assert wire.look(item_id).item.payload == b"x"


def test_the_next_consumer_comes_when_the_one_who_was_sent_is_gone(cluster: Cluster, locked: Locked) -> None:
    """The topic's host has told of it, and does not tell again as long as nobody came for nothing."""
    a, b = cluster.add("a", 1), cluster.add("b", 2)
    cluster.wire(b).put("t", b"x", delivery=Delivery.AT_MOST_ONCE)
    consumers = [cluster.wire(a), cluster.wire(a)]
    for n, consumer in enumerate(consumers, 1):
        consumer.send_call("Dequeue", ns="test", wants=[idl.TopicCount("t", 1)], wait_ms=20_000)
        cluster.until(lambda n=n: len(a.host.waiting.get(("test", "t"), ())) == n, "it to wait")  # type: ignore[misc]
    with locked(2):
        cluster.tell()
        cluster.until(lambda: a.counters.forwarded == 1, "the first to be sent")
        consumers[0].reset()
        cluster.until(lambda: a.server.counters.lost == 1, "it to be gone")
    assert [item.payload for item in consumers[1].receive("Dequeue").items] == [b"x"]


def test_a_delete_that_may_not_have_been_done_is_not_said_to_be_when_the_shard_is_removed(
    cluster: Cluster, peer: Callable[..., Peer]
) -> None:
    a, other = cluster.add("a", 1), peer(lambda method, request: Act.CLOSE_BEFORE)
    cluster.tell(cluster.routing(p=(other.address, 9)))
    wire = cluster.wire(a)
    wire.send_call("DeleteItems", ids=[9 << 48 | 1])
    cluster.until(lambda: a.counters.held == 1, "a reply to be lost")
    cluster.shards.discard(9)
    cluster.tell()
    (outcome,) = wire.receive("DeleteItems").outcomes
    assert outcome.error is not None
    assert outcome.error.code == Code.OUTCOME_UNKNOWN
