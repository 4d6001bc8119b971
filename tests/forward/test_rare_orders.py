"""Orders of events that are rare: a caller that goes just then, a reply that is lost, a host that stops meanwhile."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from tests.forward.nodes import Cluster

Locked = Callable[[int], AbstractContextManager[None]]


def test_a_look_up_on_a_host_that_stops_is_answered(cluster: Cluster) -> None:
    """The shard is in the routing as this host's, and takes nothing more."""
    a = cluster.add("a", 1)
    cluster.tell()
    wire = cluster.wire(a)
    (item_id,) = wire.put("t", b"x")
    cluster.on_loop(lambda: a.host.drain(a.now_ms()))
    assert wire.look(item_id).item.payload == b"x"
