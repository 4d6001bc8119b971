"""An ensemble of three servers: one that loses its data is no loss, and all together go back with an older copy."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from foqs.shardmgr.continuity import Finding, judge
from foqs.shardmgr.facts import Facts, Identity, Session, ShardFact
from foqs.zk.protocol import ZkConflict
from foqs_lab.servers import ServerUnavailable, ZookeeperServer
from foqs_lab.servers.zookeeper import zookeeper_ensemble
from tests.conftest import required
from tests.zk.contract import Client, host
from tests.zk.rig import ZookeeperRig

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.timeout(400)]

SHORT_MS = 10_000


@pytest.fixture
def servers() -> Iterator[list[ZookeeperServer]]:
    try:
        with zookeeper_ensemble() as made:
            yield made
    except ServerUnavailable as error:
        (pytest.fail if required() else pytest.skip)(error.reason)


@pytest.fixture
def rig(servers: list[ZookeeperServer]) -> Iterator[ZookeeperRig]:
    made = ZookeeperRig(servers[0])
    made.hosts = ",".join(server.hosts for server in servers)
    yield made
    made.close()


def fill(one: Client) -> None:
    one.join(host("a"))
    assert one.put(ShardFact(1, "x"), new=True) is None
    assert one.assign({1: "a"}, -1) is None
    assert one.did(lambda done: one.store.identify(Identity(-1, "the-id"), done)) is None
    one.sees(lambda facts: facts.identity.id and facts.assignment.hosts)


def connected(one: Client, told: int) -> Facts:
    """Return the facts at this place of all, on a connection."""
    one.rig.until(lambda: len(one.told) > told and one.sessions[-1] is Session.CONNECTED)
    return one.told[told]


def test_a_server_that_lost_its_data_is_no_loss(servers: list[ZookeeperServer], rig: ZookeeperRig) -> None:
    """It lagged behind before. A host that reaches this one alone gets the data of the ensemble."""
    one = Client(rig, SHORT_MS)
    fill(one)
    wiped = servers[2]
    wiped.stop()
    rig.until(lambda: isinstance(one.put(ShardFact(2, "y"), new=True), ZkConflict))  # it may have been the leader
    one.sees(lambda facts: 2 in facts.shards)
    before = one.facts
    wiped.lose()
    wiped.start()
    told = len(one.told)
    rig.cut(one.store, wiped.hosts)
    rig.until(lambda: one.sessions[-1] is Session.SUSPENDED)
    found = connected(one, told)
    assert (found.shards, judge(before, found)) == (before.shards, Finding.SAME)


def test_an_older_copy_of_all_servers_is_recognised(
    servers: list[ZookeeperServer], rig: ZookeeperRig, tmp_path: Path
) -> None:
    """The ensemble begins a new epoch, with transactions later than those that a host has seen."""
    one = Client(rig, SHORT_MS)
    fill(one)
    for number, server in enumerate(servers):
        server.copy_data(tmp_path / str(number))
    assert one.put(ShardFact(1, "new"), new=False) is None
    one.sees(lambda facts: facts.shards[1].url == "new")
    before, told = one.facts, len(one.told)
    for server in servers:
        server.stop()
    for number, server in enumerate(servers):
        server.put_back(tmp_path / str(number))
    with ThreadPoolExecutor(len(servers)) as pool:
        list(pool.map(ZookeeperServer.start, servers))
    rig.until(lambda: Session.SUSPENDED in one.sessions)
    found = connected(one, told)
    assert (found.shards[1].url, judge(before, found)) == ("x", Finding.RESTORED)
