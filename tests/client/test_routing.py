"""A client among several hosts: peers that return a routing, and the topics that they have ready."""

import gc
import itertools
import os
import threading
import time
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from thriftpy2.thrift import TApplicationException

from foqs.client import Client, Invalid, ItemSpec, Lease, NotFound, Producer, Worker
from foqs.client._sync import router
from foqs.client._sync.router import Topics
from foqs.client.routes import Routes, parse_addresses
from foqs.idl import idl
from foqs.ids import HASH_SLOTS, digest_of, hash_slot_of, make_id
from tests.client.peer import LATER, Act, eventually, failed, refused, script

UNKNOWN = TApplicationException(TApplicationException.UNKNOWN_METHOD, "what?")


@pytest.fixture
def hosts(new_peer):
    """Three, each with the shard of its number, and items with that shard's ids."""
    peers = [new_peer(), new_peer(), new_peer()]
    for number, peer in enumerate(peers, 1):
        peer.first_id(make_id(number, 1))
        peer.tell(peers, dict(enumerate(peers, 1)))
    return peers


def knowing(client, shards=3):
    """When it has learned the routing."""
    client.server_info()
    eventually(lambda: len(client._router.routes.owners) == shards)
    return client


def leases(hosts, count=2):
    """Items of each host in turn, leased."""
    made = []
    for peer in hosts:
        with Client(peer.address, routing=False) as client:
            client.enqueue_many([ItemSpec("t", b"x")] * count)
            made.append([Lease(item.id, item.lease) for item in client.dequeue("t", count)])
        peer.calls.clear()
    return [lease for row in zip(*made, strict=True) for lease in row]


def asked(peer, method):
    """Ids in the requests of a method."""
    return [[getattr(item, "id", item) for item in request.items] for request in peer.named(method)]


def routers():
    return [thread for thread in threading.enumerate() if thread.name == "foqs-router" and thread.is_alive()]


def test_items_go_to_their_owners_and_outcomes_come_in_order(hosts, client_of):
    client = knowing(client_of(hosts[1]))
    items = leases(hosts)
    wrong = Lease(make_id(2, 77), 1)
    assert client.extend_many(items) == [None] * 6
    client.nack(items.pop())
    outcomes = client.ack_many([*items[:3], wrong, *items[3:]])
    assert [type(outcome) for outcome in outcomes] == [type(None)] * 3 + [NotFound] + [type(None)] * 2
    for number, peer in enumerate(hosts):
        assert len(peer.named("ExtendLease")) == len(peer.named("Ack")) == 1
        own = [lease.id for lease in items if lease.id in range(make_id(number + 1, 1), make_id(number + 2, 1))]
        assert [i for i in asked(peer, "Ack")[0] if i != wrong.id] == own
    assert len(hosts[2].named("Nack")) == 1
    assert client.get_item(make_id(3, 2)).id == make_id(3, 2)
    assert client.delete_items([make_id(3, 2), make_id(1, 9)])[0] is None
    assert [len(peer.named("GetItem")) for peer in hosts] == [0, 0, 1]
    assert [len(peer.named("DeleteItems")) for peer in hosts] == [1, 0, 1]


def test_a_pool_that_is_too_small_asks_one_owner_after_the_other(hosts, client_of):
    client = knowing(client_of(hosts[0], pool_size=1))
    items = leases(hosts)
    assert client.ack_many(items) == [None] * 6
    assert [len(peer.named("Ack")) for peer in hosts] == [1, 1, 1]


def test_a_bad_item_fails_no_neighbour_of_any_owner(hosts, client_of):
    client = knowing(client_of(hosts[0]))
    items = leases(hosts, 1)
    outcomes = client.ack_many([items[0], Lease("no id", 1), items[1], Lease(make_id(2, 5), "no lease"), items[2]])
    assert [outcome is None for outcome in outcomes] == [True, False, True, False, True]
    assert isinstance(outcomes[1], Invalid) and isinstance(outcomes[3], Invalid)


def test_a_silent_owner_holds_up_only_its_own_acks(hosts, client_of):
    client = knowing(client_of(hosts[0], timeout_ms=60_000, attempt_timeout_ms=60_000))
    items = leases(hosts, 1)
    hosts[0].meddle = script("Ack", Act.SILENT)
    thread = threading.Thread(target=client.ack_many, args=(items,), daemon=True)
    thread.start()
    eventually(lambda: hosts[1].acked and hosts[2].acked)
    hosts[0].close()
    thread.join(LATER)


@pytest.mark.parametrize("many", [False, True])
def test_an_item_with_a_key_goes_to_the_owner_of_its_slot(hosts, client_of, many):
    for peer in hosts:
        peer.tell(hosts, dict(enumerate(hosts, 1)))
        peer.routing.slots = [number % 3 + 1 for number in range(HASH_SLOTS)]
    client = knowing(client_of(hosts[0], namespace="n"))
    keys = [str(number) for number in range(12)]
    for key in keys:
        if many:
            client.enqueue_many([ItemSpec("t", b"x", dedup_key=key)])
        else:
            client.enqueue("t", b"x", dedup_key=key)
    for number, peer in enumerate(hosts):
        expected = [key for key in keys if hash_slot_of(digest_of("n", key)) % 3 == number]
        assert [spec.dedup_key for request in peer.named("Enqueue") for spec in request.items] == expected


def test_enqueues_go_to_hosts_that_have_shards(hosts, client_of):
    for peer in hosts:
        peer.tell(hosts, {1: hosts[0], 2: hosts[1]})
    client = knowing(client_of(hosts[2]), shards=2)
    for _ in range(60):
        client.enqueue("t", b"x")
    counts = [len(peer.items) for peer in hosts]
    assert min(counts[:2]) > 5 and counts[2] == 0


def stored(hosts):
    return [len(peer.items) for peer in hosts]


def test_a_call_with_many_items_goes_to_all_hosts(hosts, client_of):
    """Also the first call of a client, which does not know the hosts yet."""
    client = client_of(hosts[0])
    ids = client.enqueue_many([ItemSpec("t", b"%d" % n) for n in range(20_000)])
    assert min(stored(hosts)) >= 6_000 and sum(stored(hosts)) == 20_000
    found = {number: item.payload for peer in hosts for number, item in peer.items.items()}
    assert [found[number] for number in ids] == [b"%d" % n for n in range(20_000)]
    assert min(len(request.items) for peer in hosts for request in peer.named("Enqueue")) >= 500


@pytest.mark.parametrize("batch", [1, 7, 100, 500])
def test_batches_go_to_all_hosts_in_turn(batch, hosts, client_of):
    client = knowing(client_of(hosts[0]))
    for _ in range(30):
        client.enqueue_many([ItemSpec("t", b"x")] * batch)
    assert all(abs(count - 10 * batch) <= 2 * batch + 10 for count in stored(hosts)), stored(hosts)


def test_single_items_go_to_all_hosts_in_turn(hosts, client_of):
    client = knowing(client_of(hosts[0]))
    for _ in range(90):
        client.enqueue("t", b"x")
    assert max(stored(hosts)) - min(stored(hosts)) <= 12, stored(hosts)


@pytest.fixture
def turn(hosts, monkeypatch):
    """A clock by which the turns of a quiet cluster are taken. `turn(host)` is a time of its turn."""
    for peer in hosts:
        peer.routing.quiet = True
    clock = [0.0]
    monkeypatch.setattr(router, "time", lambda: clock[0])

    def to(client, peer):
        (address,) = parse_addresses(peer.address)
        clock[0] = next(at for at in itertools.count(0.1, 0.25) if client._router.routes.host_in_turn(at) == address)

    return to


def test_small_requests_go_to_one_host_of_a_quiet_cluster(hosts, client_of, turn):
    clients = [knowing(client_of(peer)) for peer in hosts]
    for peer in hosts:
        for client in clients:
            turn(client, peer)
            client.enqueue("t", b"x")
            client.enqueue_many([ItemSpec("t", b"x")] * 10)
            assert len(client.dequeue("t", 10)) == 10
    assert [[len(peer.named(method)) for peer in hosts] for method in ("Enqueue", "Dequeue")] == [[6, 6, 6], [3, 3, 3]]
    before = stored(hosts)
    for _ in range(30):
        clients[0].enqueue_many([ItemSpec("t", b"x")] * 11)
    assert min(now - then for now, then in zip(stored(hosts), before, strict=True)) > 80, "larger calls go to all hosts"


def test_a_client_with_few_connections_takes_turns_as_well(hosts, client_of, turn):
    client = knowing(client_of(hosts[0], pool_size=1))
    turn(client, hosts[1])
    for _ in range(20):
        client.enqueue("t", b"x")
    assert stored(hosts) == [0, 20, 0]


def test_a_host_that_is_gone_has_no_turn(hosts, client_of, turn):
    client = knowing(client_of(hosts[0]))
    turn(client, hosts[1])
    hosts[1].close()
    for _ in range(9):
        client.enqueue("t", b"x")
    assert all(isinstance(one, int) for one in client.enqueue_many([ItemSpec("t", b"x")] * 20))
    assert sum(stored(hosts)) == 29


def test_items_of_a_backlog_are_asked_where_they_are(hosts, client_of, turn):
    active = idl.GetActiveTopicsResponse(
        topics=[idl.ActiveTopic(ns="default", topic="t", ready=400, hosts=[peer.address for peer in hosts[1:]])]
    )
    for peer in hosts:
        peer.meddle = lambda name, request: active if name == "GetActiveTopics" else Act.SERVE
    client = knowing(client_of(hosts[0]))
    turn(client, hosts[0])
    eventually(lambda: client._topics.having(["t"]))
    for _ in range(40):
        client.dequeue("t")
    assert [len(peer.named("Dequeue")) > 2 for peer in hosts] == [False, True, True]
    active.topics[0].ready = 40
    eventually(lambda: not client._topics.having(["t"]))
    client.dequeue("t")
    assert hosts[0].named("Dequeue")


def test_a_producer_feeds_all_hosts(hosts, client_of):
    with Producer(client_of(hosts[0]), max_items=500) as producer:
        for future in [producer.enqueue("t", b"x") for _ in range(10_000)]:
            future.result(LATER)
    assert min(stored(hosts)) >= 2_300, stored(hosts)


def test_hosts_get_new_items_by_the_number_of_their_shards(hosts, client_of):
    for peer in hosts:
        peer.tell(hosts, {1: hosts[0], 2: hosts[1], 3: hosts[2], 4: hosts[2]})
    client = knowing(client_of(hosts[0]), shards=4)
    client.enqueue_many([ItemSpec("t", b"x")] * 8_000)
    assert stored(hosts) == [pytest.approx(part, abs=600) for part in (2_000, 2_000, 4_000)]


def test_the_living_hosts_share_the_items_of_one_that_is_gone(hosts, client_of):
    client = knowing(client_of(hosts[0]))
    hosts[2].close()
    outcomes = client.enqueue_many([ItemSpec("t", b"x")] * 9_000)
    assert all(isinstance(one, int) for one in outcomes)
    assert sum(stored(hosts[:2])) == 9_000 and min(stored(hosts[:2])) >= 2_500


def test_without_a_routing_only_the_first_items_wait_a_moment(peer, client_of):
    peer.waits, peer.routing = None, None
    peer._tell_routing = lambda connection, frame: time.sleep(LATER)
    client, began = client_of(peer), time.monotonic()
    for _ in range(4):
        client.enqueue_many([ItemSpec("t", b"x")] * 200)
    assert time.monotonic() - began < 2
    assert len(peer.items) == 800


def test_more_hosts_than_connections_are_not_taken_in_turn(hosts, client_of):
    """Each request would need a new connection."""
    client = knowing(client_of(hosts[0], pool_size=2))
    for _ in range(300):
        client.enqueue("t", b"x")
    assert min(stored(hosts)) > 50
    assert sum(peer.connections for peer in hosts) < 250


def test_dequeues_go_to_hosts_that_have_the_topic(hosts, client_of):
    for peer in hosts[1:]:
        with Client(peer.address, routing=False) as other:
            other.enqueue_many([ItemSpec("t", b"x")] * 60)
    active = idl.GetActiveTopicsResponse(
        topics=[idl.ActiveTopic(ns="default", topic="t", ready=120, hosts=[peer.address for peer in hosts[1:]])]
    )
    for peer in hosts:
        peer.meddle = lambda name, request: active if name == "GetActiveTopics" else Act.SERVE
        peer.calls.clear()
    client = knowing(client_of(hosts[0]))
    eventually(lambda: client._topics.having(["other", "t"]))
    for _ in range(60):
        assert client.dequeue("t")
    assert [len(peer.named("Dequeue")) > 2 for peer in hosts] == [False, True, True]


def test_a_moved_shard_is_found_elsewhere_then_by_the_routing(hosts, client_of):
    client = knowing(client_of(hosts[0]))
    (lease, *_) = leases(hosts[1:2])
    away = idl.ItemOutcome(error=failed(5, 0, "not served here"))
    moved = idl.AckResponse(outcomes=[away])
    hosts[1].meddle = lambda name, request: moved if name == "Ack" else Act.SERVE
    hosts[0].meddle = hosts[2].meddle = script("Ack", idl.AckResponse(outcomes=[idl.ItemOutcome()]))
    client.ack(lease)
    assert len(hosts[1].named("Ack")) == 1
    assert len(hosts[0].named("Ack")) + len(hosts[2].named("Ack")) == 1
    for peer in hosts:
        peer.calls.clear()
        peer.tell(hosts, {1: hosts[0], 2: hosts[2], 3: hosts[2]})
    eventually(lambda: client._router.routes.owners[2] == client._router.routes.owners[3])
    hosts[2].meddle = script("Ack", idl.AckResponse(outcomes=[idl.ItemOutcome()]))
    client.ack(lease)
    assert [len(peer.named("Ack")) for peer in hosts] == [0, 0, 1]


def test_a_lost_ack_is_repeated_at_another_host(hosts, client_of):
    client = knowing(client_of(hosts[0]))
    (lease, *_) = leases(hosts[1:2])
    hosts[1].meddle = script("Ack", Act.CLOSE_AFTER)
    client.ack(lease)
    assert hosts[1].acked == [lease.id]
    assert sum(len(peer.named("Ack")) for peer in hosts) == 2


def test_other_hosts_serve_when_the_given_one_is_gone(hosts, client_of):
    client = knowing(client_of(hosts[0]))
    hosts[0].close()
    for peer in hosts[1:]:
        peer.tell(hosts[1:], {1: hosts[1], 2: hosts[1], 3: hosts[2]})
    for _ in range(20):
        client.enqueue("t", b"x")
    eventually(lambda: len(client._router.routes.hosts) == 2)
    for peer in hosts[2:]:
        peer.close()
    hosts[1].tell(hosts[1:2], dict.fromkeys((1, 2, 3), hosts[1]))
    eventually(lambda: client._router.routes.alone)
    for _ in range(5):
        client.enqueue("t", b"x")
    assert sum(len(peer.items) for peer in hosts[1:]) == 25


def test_the_given_address_is_used_when_learned_ones_fail(new_peer, client_of):
    peer, gone, gone_too = new_peer(), new_peer(), new_peer()
    peer.tell([gone, gone_too], {1: gone, 2: gone_too})
    gone.close()
    gone_too.close()
    client = knowing(client_of(peer), shards=2)
    for _ in range(5):
        client.enqueue("t", b"x")
    assert len(peer.items) == 5
    (item,) = client.dequeue("t")
    client.ack(item)


def test_a_host_that_stops_is_left_for_another(hosts, client_of):
    client = knowing(client_of(hosts[0]))
    hosts[1].meddle = lambda name, request: refused(5)
    items = leases(hosts[:1], 1)
    for _ in range(20):
        client.enqueue("t", b"x")
    client.ack(items[0])
    assert len(hosts[1].calls) < 5


def test_connections_to_hosts_that_left_are_dropped(hosts, client_of):
    client = knowing(client_of(hosts[0]))
    leaving = client.ack_many(leases(hosts)) and parse_addresses(hosts[1].address)[0]
    for peer in hosts:
        peer.tell([hosts[0], hosts[2]], {1: hosts[0], 3: hosts[2]})
    eventually(lambda: len(client._router.routes.hosts) == 2)
    eventually(lambda: leaving not in {connection.address for connection in client._caller.pool._idle})
    client.ack_many([Lease(make_id(2, 1), 1)])
    assert len(hosts[1].named("Ack")) == 1


def test_switched_off_nothing_is_asked(hosts, client_of):
    client = client_of(hosts[0], routing=False)
    client.ack_many(leases(hosts[:1]))
    assert hosts[0].told == 0
    assert client._router.order() == ()


@pytest.mark.parametrize("answer", [refused(1), refused(5), refused(7)])
def test_without_routing_everything_goes_on_as_before(answer, peer, client_of):
    peer.routing = answer
    client = client_of(peer)
    client.enqueue("t", b"x")
    client.ack(client.dequeue("t")[0])
    eventually(lambda: peer.told)
    assert client._router.routes.version is None
    assert peer.connections == 1


@pytest.mark.parametrize(("waits", "answers"), [(False, 8), (None, 4)])
def test_a_host_that_does_not_wait_is_not_asked_all_the_time(waits, answers, peer, client_of):
    """It answers at once, or closes instead."""
    peer.waits = waits
    began = time.monotonic()
    client_of(peer).server_info()
    eventually(lambda: peer.told >= answers)
    assert time.monotonic() - began > 0.15  # three pauses that grow


def test_a_routing_without_hosts_is_none(hosts, client_of):
    client = knowing(client_of(hosts[0]))
    known, told = client._router.routes, sum(peer.told for peer in hosts)
    for peer in hosts:
        peer.tell([])
    eventually(lambda: sum(peer.told for peer in hosts) > told + 3)
    assert client._router.routes == known


def test_the_thread_ends_with_the_client(hosts, client_of):
    client = knowing(client_of(hosts[0]))
    assert len(routers()) >= 1
    client.close()
    eventually(lambda: not routers())
    forgotten = knowing(Client(hosts[0].address))
    assert len(routers()) == 1
    del forgotten
    gc.collect()
    eventually(lambda: not routers())


def test_the_end_of_the_process_goes_through_no_client(hosts, client_of):
    """A thread may drop a client then, and `weakref` goes through all finalizers."""
    before = len(weakref.finalize._registry)
    client = knowing(client_of(hosts[0]))
    assert len(weakref.finalize._registry) == before
    client.close()


def test_a_forked_child_learns_by_itself(hosts, client_of):
    client = knowing(client_of(hosts[0]))
    child = os.fork()
    if not child:
        try:
            client._router.routes = type(client._router.routes)()
            knowing(client)
            os._exit(0)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for peer in hosts:
        peer.tell(hosts, {1: hosts[0]})
    eventually(lambda: len(client._router.routes.owners) == 1)


def test_a_worker_outlives_each_host_in_turn(hosts, client_of):
    producing, consuming = knowing(client_of(hosts[0])), knowing(client_of(hosts[2]))
    with Worker(consuming, "t", lambda item: None, wait_ms=50) as worker:
        for left in (hosts[1:], hosts[2:]):
            producing.enqueue_many([ItemSpec("t", b"x")] * 20)
            eventually(lambda: not any(peer.items for peer in hosts))
            for peer in left:
                peer.tell(left, {hosts.index(one) + 1: one for one in left})
            hosts[2 - len(left)].close()
        producing.enqueue_many([ItemSpec("t", b"x")] * 20)
        eventually(lambda: not any(peer.items for peer in hosts))
    assert (worker.counts.done, worker.counts.failed) == (60, 0)


def test_a_thread_that_ends_keeps_the_answer_of_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asks, ended = itertools.count(1), list[threading.Thread]()

    class Wanted(Topics):
        """Wanted again at the moment in which its last consumer leaves."""

        def _active(self) -> list[Any]:
            return [idl.ActiveTopic("n", "t", 1, 1, [f"a:{next(asks)}"])]

        def _still_wanted(self) -> bool:
            still = super()._still_wanted()
            if not still and not ended:
                monkeypatch.setattr(router, "_FRESH_S", LATER)
                asked = next(asks)
                eventually(lambda: any(host.port > asked for host in self.having(["t"])))
                ended.append(threading.current_thread())
            return still

    monkeypatch.setattr(router, "_FRESH_S", 0.0)
    loud = SimpleNamespace(routes=Routes())
    wanted = Wanted(None, loud, "n")  # type: ignore[arg-type]  # `_active` asks no host
    wanted.having(["t"])
    eventually(lambda: ended and not ended[0].is_alive())
    assert wanted.having(["t"])
    wanted.close()


def test_a_thread_that_did_not_start_starts_with_the_next_call(peer, client_of, monkeypatch):
    client = client_of(peer)

    def none_left(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", none_left)
        for begin in (client._router.begin, lambda: client._topics.having(["t"])):
            with pytest.raises(RuntimeError):
                begin()
    client._topics.having(["t"])
    eventually(lambda: peer.named("GetActiveTopics"))
    client.server_info()
    eventually(lambda: peer.told)
