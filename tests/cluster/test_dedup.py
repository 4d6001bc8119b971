"""Deduplication keys while hosts die and slots move between shards: asked again, everything is stored once."""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from threading import Event

import pytest

from foqs.client import Client, Duplicate, FoqsError, ItemSpec
from foqs.ids import shard_of
from foqs.shardmgr.facts import Facts, ShardUse
from foqs_lab.cluster import LocalCluster
from tests.client.peer import eventually
from tests.cluster.conftest import MISSED, ON_EACH_KIND, NewCluster

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.timeout(400)]

REQUESTS, ITEMS, PARTS = 40, 100, 3
Ids = dict[bytes, int]


def specs(part: int, request: int) -> list[ItemSpec]:
    payloads = [b"%d-%d-%d" % (part, request, n) for n in range(ITEMS)]
    return [ItemSpec("t", payload, dedup_key=payload.decode()) for payload in payloads]


def stored(client: Client, items: list[ItemSpec]) -> list[int]:
    """Ids, asked for until every item has one, whatever comes in between."""
    made = client.enqueue_many(items)
    while errors := [one for one in made if isinstance(one, FoqsError)]:
        assert all(error.retryable or not error.outcome_known for error in errors), errors
        made = client.enqueue_many(items)
    return [one for one in made if not isinstance(one, FoqsError)]


@contextmanager
def enqueuing(client: Client, goes_on: Callable[[int], bool]) -> Iterator[list[Future[Ids]]]:
    """Run three threads that enqueue while `goes_on(request)` and keep the ids they got. Enter once an item is
    stored."""
    begun = Event()

    def enqueue(part: int) -> Ids:
        ids: Ids = {}
        for request in count():
            if not goes_on(request):
                return ids
            items = specs(part, request)
            ids.update(zip((item.payload for item in items), stored(client, items), strict=True))
            begun.set()
        raise AssertionError

    with ThreadPoolExecutor(PARTS) as threads:
        parts = [threads.submit(enqueue, part) for part in range(PARTS)]
        begun.wait()
        yield parts


def everything_is_there_once(cluster: LocalCluster, client: Client, ids: Ids) -> None:
    """Check the stored rows: an item whose ack was lost may be delivered twice."""
    assert len(set(ids.values())) == len(ids)
    got: set[tuple[bytes, int]] = set()

    def take() -> bool:
        items = client.dequeue("t", 1_000, wait_ms=200)
        got.update((item.payload, item.id) for item in items)
        client.ack_many(items)
        return not items and sum(shard.rows() for shard in cluster.shards) == 0

    eventually(take, 120.0)
    assert got == set(ids.items())


def addresses(cluster: LocalCluster) -> str:
    return ",".join(f"127.0.0.1:{host.port}" for host in cluster.hosts.values())


def test_repeated_enqueues_are_stored_once(new_cluster: NewCluster) -> None:
    cluster = new_cluster("a", "b", "c", settings=MISSED)
    with Client(addresses(cluster), timeout_ms=5_000) as client:
        with enqueuing(client, lambda request: request < REQUESTS) as parts:
            cluster.hosts["a"].kill()
            cluster.settled("b", "c")
            cluster.start("a")
            cluster.settled()
            cluster.hosts["b"].stop()
            cluster.settled("a", "c")
        ids = {payload: one for part in parts for payload, one in part.result().items()}
        assert len(ids) == PARTS * REQUESTS * ITEMS
        assert isinstance(client.enqueue("t", b"0-0-0", dedup_key="0-0-0"), Duplicate)
        everything_is_there_once(cluster, client, ids)


@ON_EACH_KIND
def test_slots_move_with_their_keys_while_hosts_die(new_cluster: NewCluster) -> None:
    """One shard is added and another one drained while hosts are killed."""
    cluster = new_cluster("a", "b", "c", settings=MISSED)
    use(cluster, 4, ShardUse.DRAINING)
    ended = Event()
    with Client(addresses(cluster), timeout_ms=5_000) as client:
        with enqueuing(client, lambda _: not ended.is_set()) as parts:
            cluster.registry.wait_for(lambda facts: set(facts.slots.shards) == {1, 2, 3})
            use(cluster, 4, ShardUse.ENABLED)
            cluster.registry.wait_for(lambda facts: 4 in facts.slots.shards)
            cluster.hosts["a"].kill()
            cluster.settled("b", "c")
            cluster.registry.wait_for(lambda facts: slots(facts)[4] > 200 and not facts.slots.moves, timeout_ms=60_000)
            cluster.start("a")
            cluster.settled()
            use(cluster, 1, ShardUse.DRAINING)
            cluster.registry.wait_for(lambda facts: slots(facts)[1] < 200)
            cluster.hosts["b"].stop()
            cluster.registry.wait_for(lambda facts: not slots(facts)[1] and not facts.slots.moves, timeout_ms=60_000)
            ended.set()
        ids = {payload: one for part in parts for payload, one in part.result().items()}
        assert {shard_of(one) for one in ids.values()} == {1, 2, 3, 4}
        again: Ids = {}
        for part, made in enumerate(parts):
            for request in range(len(made.result()) // ITEMS):
                items = specs(part, request)
                again.update(zip((item.payload for item in items), stored(client, items), strict=True))
        assert again == ids
        everything_is_there_once(cluster, client, ids)
    assert [host.faults() for host in cluster.hosts.values()] == [[]] * 3


def slots(facts: Facts) -> Counter[int]:
    return Counter(facts.slots.shards)


def use(cluster: LocalCluster, number: int, wanted: ShardUse) -> None:
    fact = replace(cluster.registry.facts.shards[number], use=wanted)
    cluster.registry.change(lambda store, done: store.put_shard(fact, new=False, done=done))
