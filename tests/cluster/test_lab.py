"""What tests of clusters build on."""

from __future__ import annotations

from foqs.config.schema import ZookeeperSection
from foqs.shardmgr.facts import ShardFact
from foqs_lab.cluster import Registry
from foqs_lab.servers import ZookeeperServer
from tests.api.hosts import until
from tests.cluster.conftest import NewCluster


def test_facts_from_before_a_lost_connection_are_not_new(
    own_zookeeper: ZookeeperServer,
) -> None:
    with Registry(ZookeeperSection(hosts=own_zookeeper.hosts, root="/foqs")) as registry:
        fact = ShardFact(1, "sqlite:///1.db")
        registry.change(lambda store, done: store.put_shard(fact, new=True, done=done))
        registry.wait_for(lambda facts: facts.shards)
        own_zookeeper.kill()
        until(lambda: not knows(registry), "the loss of the connection")
        assert registry.facts.shards == {1: fact}
        own_zookeeper.start()
        assert registry.wait_for(lambda facts: facts.shards).shards == {1: fact}


def knows(registry: Registry) -> bool:
    try:
        registry.wait_for(lambda _: True, timeout_ms=0)
    except TimeoutError:
        return False
    return True


def test_shards_are_where_they_were_placed(new_cluster: NewCluster) -> None:
    """Also when one host has started long before the other."""
    cluster = new_cluster("a", shards=4)
    cluster.start("b")
    wanted = {1: "b", 2: "a", 3: "b", 4: "b"}
    facts = cluster.place(wanted)
    assert {number: owner.host for number, owner in facts.owners.items()} == wanted
