"""ZooKeeper loses its data, or gets an older copy: the hosts go on, and write back what they know."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from foqs.client import Client
from foqs.ids import HASH_SLOTS
from foqs.shardmgr.facts import Facts, ShardUse
from foqs.shardmgr.operate import MarkHost, PutShard, RemoveShard
from foqs_lab.cluster import LocalCluster
from foqs_lab.crash.clients import Crew
from tests.api.hosts import foqs, until
from tests.cluster.conftest import MISSED, NewCluster
from tests.cluster.test_life import CREW, ended_well, owned_by, served_by, untold, work

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.timeout(400)]


def durable(facts: Facts) -> tuple[object, ...]:
    """What no host may lose."""
    return facts.shards, facts.slots.shards, facts.drained, facts.settings, facts.identity.id


def put(cluster: LocalCluster, value: str) -> None:
    with closing(Client(f"127.0.0.1:{cluster.hosts['c'].port}", "shop", routing=False)) as client:
        client.put_settings({"plans/acme": value})


def with_slots(cluster: LocalCluster) -> Facts:
    """Wait until the cluster has an identity, and slots of deduplication keys on every shard."""
    with closing(Client(f"127.0.0.1:{cluster.hosts['c'].port}", "shop", routing=False)) as client:
        client.enqueue("t", b"x", dedup_key="k")
        client.ack(client.dequeue("t", wait_ms=10_000)[0])
    return cluster.registry.wait_for(lambda facts: facts.identity.id and len(facts.slots.shards) == HASH_SLOTS)


def back(before: Facts, facts: Facts) -> bool:
    return durable(facts) == durable(before) and not facts.identity.open and bool(facts.identity.events)


def test_hosts_outlive_the_loss_of_all_data(new_cluster: NewCluster, tmp_path: Path) -> None:
    cluster = new_cluster("a", "b", "c", shards=6, settings=MISSED)
    put(cluster, "gold")
    cluster.registry.carry_out(MarkHost("away", drained=True))
    before = with_slots(cluster)
    owners, mine = cluster.registry.facts.owners, served_by(cluster, "c")
    with Crew([cluster.hosts["c"].port], tmp_path, "lost", CREW) as crew:
        work(crew, mine, 50)
        cluster.zookeeper.lose()
        cluster.zookeeper.start()
        work(crew, mine, 50)
        cluster.registry.wait_for(partial(back, before), timeout_ms=60_000)
        for host in cluster.hosts.values():
            host.wait_for("zookeeper.written_back")
            assert host.said("zookeeper.lost") == 1
        cluster.settled()
        work(crew, mine, 50)
        assert cluster.registry.facts.owners == owners, "no shard has moved"
    assert untold(ended_well(cluster, tmp_path)) == []
    put(cluster, "silver")
    cluster.hosts["a"].kill()
    assert set(owned_by(cluster.settled("b", "c"), "a")) == set()


def test_an_older_copy_rolls_nothing_back(new_cluster: NewCluster, tmp_path: Path) -> None:
    """Shard 5 was disabled and 6 removed after the copy was made. Shard 6 is not served again by itself."""
    cluster = new_cluster("a", "b", "c", shards=6, settings=MISSED)
    put(cluster, "gold")
    with_slots(cluster)
    cluster.zookeeper.copy_data(tmp_path / "copy")
    put(cluster, "silver")
    for shard in (5, 6):
        fact = cluster.registry.facts.shards[shard]
        cluster.registry.carry_out(PutShard(replace(fact, use=ShardUse.DISABLED), fact))
    cluster.registry.wait_for(lambda facts: facts.owners.keys() == {1, 2, 3, 4})
    cluster.registry.carry_out(RemoveShard(cluster.registry.facts.shards[6]))
    before = cluster.registry.wait_for(
        lambda facts: facts.shards.keys() == {1, 2, 3, 4, 5} and 6 not in facts.slots.shards and not facts.slots.moves
    )
    mine = served_by(cluster, "c")

    def is_back(facts: Facts) -> bool:
        shards = {number: fact for number, fact in facts.shards.items() if number != 6}
        return back(before, replace(facts, shards=shards))

    with Crew([cluster.hosts["c"].port], tmp_path, "restored", CREW) as crew:
        work(crew, mine, 50)
        cluster.zookeeper.put_back(tmp_path / "copy")
        cluster.zookeeper.start()
        work(crew, mine, 50)
        facts = cluster.registry.wait_for(is_back, timeout_ms=60_000)
        for host in cluster.hosts.values():
            host.wait_for("zookeeper.shards_disabled")
            assert host.said("zookeeper.restored") == 1
        work(crew, mine, 50)
    assert facts.shards[6].use is ShardUse.DISABLED
    assert untold(ended_well(cluster, tmp_path)) == []
    with closing(Client(f"127.0.0.1:{cluster.hosts['c'].port}", "shop", routing=False)) as client:
        assert client.settings().entries == {"plans/acme": "silver"}
    cluster.hosts["a"].kill()
    facts = cluster.registry.wait_for(
        lambda facts: facts.owners.keys() == {1, 2, 3, 4} and not owned_by(facts, "a"), timeout_ms=60_000
    )
    assert json.dumps(sorted(facts.assignment.hosts)) == "[1, 2, 3, 4]"


def test_an_import_cures_a_loss_that_no_host_remembers(new_cluster: NewCluster, tmp_path: Path) -> None:
    """The settings were changed after the export: the shards' databases have the newer ones."""
    cluster = new_cluster("a", "b", "c", shards=3, settings=MISSED)
    put(cluster, "gold")
    before = with_slots(cluster)
    file = tmp_path / "cluster.json"
    assert foqs("cluster", "export", str(file), "--config", str(cluster.config)).returncode == 0
    put(cluster, "silver")
    for host in cluster.hosts.values():
        host.stop()
    cluster.zookeeper.lose()
    cluster.zookeeper.start()
    cluster.start("a", "b", "c")
    made = foqs("cluster", "import", str(file), "--yes", "--config", str(cluster.config))
    assert made.returncode == 0, made.stderr
    facts = cluster.settled()
    assert (facts.shards, facts.slots.shards, facts.identity.id) == (
        before.shards, before.slots.shards, before.identity.id
    )  # fmt: skip
    with closing(Client(f"127.0.0.1:{cluster.hosts['c'].port}", "shop", routing=False)) as client:
        until(lambda: client.settings().entries == {"plans/acme": "silver"}, "the settings of the shards")
