"""Orders of events that are rare: a caller that disconnects just then, a lost reply, a host that stops."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from foqs.buffers.pending_dedup import Give
from foqs.errors import Code
from foqs.idl import idl
from foqs.ids import HASH_SLOTS, hash_slot_bounds
from foqs.limits.allowance import Allowance
from foqs.peers.coordinator import coordinator_hash_slot
from foqs.peers.ready_topics import ReadySubscriber
from foqs.server import clock
from foqs.shardmgr.facts import Slots
from foqs.shardmgr.routing import make_routing
from tests.api.wire import Delivery, spec
from tests.client.peer import Act, Peer, script
from tests.peers.nodes import PATIENCE_S, Cluster

pytestmark = pytest.mark.slow  # they wait for real deadlines
Locked = Callable[[int], AbstractContextManager[None]]


def test_a_look_up_on_a_host_that_stops_is_answered(cluster: Cluster) -> None:
    """The shard is in the routing as this host's, and takes nothing more."""
    a = cluster.add("a", 1)
    cluster.tell()
    wire = cluster.wire(a)
    (item_id,) = wire.put("t", b"x")
    cluster.on_loop(lambda: a.engine.drain(a.now_ms()))
    assert wire.look(item_id).item.payload == b"x"


def test_the_next_consumer_is_sent_when_one_disconnects(cluster: Cluster, locked: Locked) -> None:
    """The topic's host publishes it once, and again only after a dequeue there found nothing."""
    a, b = cluster.add("a", 1), cluster.add("b", 2)
    cluster.wire(b).put("t", b"x", delivery=Delivery.AT_MOST_ONCE)
    consumers = [cluster.wire(a), cluster.wire(a)]
    for n, consumer in enumerate(consumers, 1):
        consumer.send_call("Dequeue", ns="test", wants=[idl.TopicCount("t", 1)], wait_ms=20_000)
        cluster.until(lambda n=n: len(a.engine.state.waiting.get(("test", "t"), ())) == n, "it to wait")  # type: ignore[misc]
    with locked(2):
        cluster.tell()
        cluster.until(lambda: a.counters.forwarded == 1, "the first to be sent")
        consumers[0].reset()
        cluster.until(lambda: a.server.counters.lost == 1, "it to be gone")
    assert [item.payload for item in consumers[1].receive("Dequeue").items] == [b"x"]


def test_a_delete_in_doubt_is_unknown_when_its_shard_is_removed(cluster: Cluster, peer: Callable[..., Peer]) -> None:
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


def test_an_item_whose_first_reply_was_lost_costs_its_token(
    cluster: Cluster, peer: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second answer calls it a duplicate, of the first asking."""
    rated = {"namespaces": {"test": {"enqueues_per_second": 1_000, "burst": 50}}}
    a, other = cluster.add("a", 1, quotas=rated, host={"confirm_ms": 1_000}), peer(script("Enqueue", Act.CLOSE_AFTER))
    slots = tuple(1 if slot == coordinator_hash_slot("test") else 9 for slot in range(HASH_SLOTS))
    routing = cluster.on_loop(lambda: cluster.routing(p=(other.address, 9)))
    cluster.tell(make_routing(routing.owners, routing.hosts, routing.shards, Slots(shards=slots, stamp=1)))
    settled: list[tuple[int, int]] = []
    settle = Allowance.settle

    def record(self: Allowance, taken: int, unused: int, term: int, now_ms: int) -> None:
        settled.append((taken, unused))
        settle(self, taken, unused, term, now_ms)

    monkeypatch.setattr(Allowance, "settle", record)
    wire = cluster.wire(a)

    def put() -> Any:
        """When there is a token for it."""
        while (outcome := wire.outcomes(spec("t", b"x", dedup_key="k0"))[0]).error is not None:
            assert outcome.error.code == Code.OVERLOADED
        return outcome

    outcome = put()
    assert (len(other.named("Enqueue")), len(other.items), outcome.duplicate) == (2, 1, True)
    assert settled == [(1, 0)]
    assert put().duplicate
    assert settled == [(1, 0), (1, 1)]


def test_a_home_whose_slot_was_given_away_for_nothing_comes_back(cluster: Cluster) -> None:
    """The move was called off at the same time, and no key comes of which one would see it."""
    rated = {"namespaces": {"test": {"enqueues_per_second": 1_000, "burst": 50}}}
    a, slot, given = cluster.add("a", 1, quotas=rated, host={"confirm_ms": 1_000}), coordinator_hash_slot("test"), []
    shard = a.engine.state.shards[1]
    routing = cluster.on_loop(cluster.routing)
    cluster.tell(make_routing(routing.owners, routing.hosts, routing.shards, Slots(shards=(1,) * HASH_SLOTS, stamp=1)))
    cluster.until(lambda: shard.queue.keys.takes_slot(slot), "slots")

    def give() -> None:
        shard.queue.keys.gives.append(Give(slot, 1, hash_slot_bounds(slot)[0], 1, given.append))
        a.engine.state.touch(shard)

    cluster.on_loop(give)
    cluster.until(lambda: bool(given), "the slot to be given away")
    wire, until_s = cluster.wire(a), time.monotonic() + PATIENCE_S
    while wire.outcomes(spec("t"))[0].error is not None:
        assert time.monotonic() < until_s, "never admitted"


def test_a_host_that_stops_is_asked_for_news_at_a_pace(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """No request waits there, and none gets an item."""
    a, _ = cluster.add("a", 1), cluster.add("b", 2)
    cluster.tell()
    cluster.until(lambda: len(a.news._waiting) == 1, "a question to wait")
    asked: list[tuple[str, float]] = []
    question = ReadySubscriber._question

    def count(self: ReadySubscriber, address: str, keys: Any, version: int | None) -> None:
        asked.append((address, time.monotonic()))
        question(self, address, keys, version)

    monkeypatch.setattr(ReadySubscriber, "_question", count)
    cluster.on_loop(lambda: a.engine.drain(a.now_ms()))
    cluster.until(lambda: len(asked) >= 4, "questions")
    addresses, times = zip(*asked, strict=True)
    assert set(addresses) == {a.address}
    # The one that waited is asked again at once.
    assert all(later - earlier >= 0.4 for earlier, later in pairwise(times[1:]))


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_wait_does_not_change_when_the_clock_is_set(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    a, set_ns = cluster.add("a", 1), hours * 3_600_000_000_000
    consumer = cluster.wire(a)
    begun_s = time.monotonic()
    consumer.send_call("Dequeue", ns="test", wants=[idl.TopicCount("t", 1)], wait_ms=2_000)
    cluster.until(lambda: len(a.engine.state.patience) == 1, "it to wait")
    set_ = SimpleNamespace(monotonic_ns=time.monotonic_ns, time_ns=lambda: time.time_ns() + set_ns)

    def set_it() -> None:  # in one go: a trip that comes back between would find another clock than its database's
        monkeypatch.setattr(clock, "time", set_)
        a.runner._timekeeper._set(set_ns // 1_000_000)

    cluster.on_loop(set_it)
    assert a.counters.clock_jumps == 1
    assert consumer.receive("Dequeue").items == []
    assert time.monotonic() - begun_s >= 1.9
