"""Callers that wait for results on one host while the owner of the item's shard is killed, stopped or changed."""

from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from foqs.client import Client, FoqsError, ItemSpec, ItemState, Result
from foqs.ids import shard_of
from foqs_lab.cluster import LocalCluster
from tests.admin.scraping import Scrape
from tests.api.hosts import until
from tests.api.wire import Wire
from tests.client.peer import eventually
from tests.cluster.conftest import MISSED, NewCluster

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.timeout(400)]

ITEMS = 40
WAIT_MS = 60_000
KEEP = '{"keep": {"completed_ms": 600000}, "dead": null}'


def ack_all(client: Client, topic: str, left: set[int]) -> None:
    """Ack each of the items with its id as the result. An item whose ack was lost is delivered again."""

    def take() -> bool:
        for item in client.dequeue(topic, ITEMS, wait_ms=200, lease_ms=2_000):
            try:
                client.ack(item, result=b"%d" % item.id)
                left.discard(item.id)
            except FoqsError:
                pass
        return not left

    eventually(take, 120.0)


def waiters(cluster: LocalCluster, host: str) -> float:
    return Scrape(("127.0.0.1", cluster.hosts[host].admin_port)).sum("foqs_result_waiters")


def forwarded(port: int, item_id: int) -> Result:
    with Wire(("127.0.0.1", port)) as wire:
        wire.socket.settimeout(2 * WAIT_MS / 1000)
        return Result.of(wire.ask("GetResult", id=item_id, wait_ms=WAIT_MS))


@pytest.mark.parametrize("topic", ["kept", "plain"])
def test_results_while_hosts_die(new_cluster: NewCluster, topic: str) -> None:
    """Host c forwards half of the waits; the client sends its own to the owners. One owner is killed during these,
    the other one is stopped, and then all shards move."""
    cluster = new_cluster("a", "b", "c", settings=MISSED)
    address = f"127.0.0.1:{cluster.hosts['c'].port}"
    with Client(address, timeout_ms=60_000, pool_size=0) as client, ThreadPoolExecutor(ITEMS) as threads:
        client.put_settings({"topic.kept": KEEP}, expected_version=client.settings().version)
        specs = [ItemSpec(topic, b"x", dedup_key=f"key {n}") for n in range(ITEMS)]  # the keys spread them over shards
        ids = [one for one in client.enqueue_many(specs) if isinstance(one, int)]
        assert len(ids) == ITEMS
        assert len({shard_of(item_id) for item_id in ids}) == 4
        waiting: dict[int, Future[Result]] = {
            item_id: threads.submit(client.get_result, item_id, wait_ms=WAIT_MS)
            if at % 2
            else threads.submit(forwarded, cluster.hosts["c"].port, item_id)
            for at, item_id in enumerate(ids)
        }
        until(lambda: sum(waiters(cluster, name) for name in cluster.hosts) == ITEMS, "all callers to wait")
        assert waiters(cluster, "a") > waiters(cluster, "c") > 0
        cluster.hosts["a"].kill()
        cluster.settled("b", "c")
        cluster.hosts["b"].stop()
        cluster.settled("c")
        assert not [(item_id, one.exception() or one.result()) for item_id, one in waiting.items() if one.done()]
        ack_all(client, topic, set(ids))
        for item_id, one in waiting.items():
            result = one.result(WAIT_MS / 1000)
            assert (result.state, result.result) == (ItemState.COMPLETED, b"%d" % item_id)
        if topic == "kept":
            cluster.start("b")
            cluster.settled("b", "c")
            cluster.place({shard.number: cluster.hosts["b"].ids[0] for shard in cluster.shards})
