"""docs/run/failover.md on real servers under load: nothing but what the page names is lost."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from foqs.store.checkup import check_up
from foqs.store.maintenance import create_schema
from foqs_lab.cluster import HostProcess, LocalCluster, Shard
from foqs_lab.relay import Relay
from foqs_lab.servers import DatabaseServer, Kind, ServerSettings, ServerUnavailable
from foqs_lab.servers.programs import find_mariadb, find_mysql
from foqs_lab.servers.replicas import Replica, replicated
from tests.api.hosts import ROOT, foqs
from tests.cluster.conftest import ON_EACH_KIND, UNHURRIED, NewCluster
from tests.cluster.failover import History
from tests.conftest import required
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.timeout(400)]

PROMPT = {"host": {"confirm_ms": 1_000}}
_WARNING = (
    "a replica is attached without semi-synchronous replication: a fail-over loses commits that were answered "
    "(promises 1 and 2)"
)
PAGE = (ROOT / "docs/run/failover.md").read_text()


def blocks(title: str, language: str) -> list[str]:
    part = re.split(r"^##+ ", PAGE.partition(f"## {title}\n")[2], maxsplit=1, flags=re.M)[0]
    found = re.findall(rf"^```{language}\n(.*?)^```", part, re.M | re.S)
    assert found
    return found


class Pair:
    """A primary and its asynchronous replica, which are set up further, and fail over, as the page says."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        program = find_mariadb() if kind == "mariadb" else find_mysql()
        self.primary = DatabaseServer(kind, replicated(program, ServerSettings(), 1, semi_sync=False))
        self.replica = Replica(self.primary, 2, semi_sync=False)

    def start(self) -> None:
        self.primary.start()
        self.replica.start()
        self.replica.follow()

    def close(self) -> None:
        self.primary.close()
        self.replica.close()

    def make_semi_synchronous(self) -> None:
        of_kind = blocks("Semi-synchronous replication", "sql")[0 if self.kind == "mariadb" else 2 :]
        for server, block in zip((self.primary, self.replica), of_kind, strict=False):
            for statement in block.split(";")[:-1]:
                server.query(statement)
        wait_until(self.waits_for_the_replica)

    def waits_for_the_replica(self) -> bool:
        name = f"Rpl_semi_sync_{'master' if self.kind == 'mariadb' else 'source'}"
        found = dict(self.primary.query(f"SHOW GLOBAL STATUS LIKE '{name}_%'"))
        return (found[f"{name}_status"], found[f"{name}_clients"]) == ("ON", "1")

    def fail_over(self) -> None:
        self.primary.kill()
        self.replica.wait_applied()
        for statement in blocks("The fail-over", "sql")[0 if self.kind == "mariadb" else 1].split(";")[:-1]:
            self.replica.query(statement)


@pytest.fixture
def pair(kind: Kind) -> Iterator[Pair]:
    try:
        made = Pair(kind)
    except ServerUnavailable as error:
        (pytest.fail if required() else pytest.skip)(error.reason)
    try:
        made.start()
        yield made
    finally:
        made.close()


def play(history: History, pair: Pair, databases: list[str], switch: Callable[[], None], *, loses: bool) -> None:
    """Fail over under load, and check all that was answered. `loses`: the replica misses the last commits."""
    with history.load():
        history.further()
    history.stock()
    pair.replica.catch_up()
    if loses:
        pair.replica.fall_behind()
    history.phase = 1
    with history.load():
        history.further()
        if loses:  # of each shard: the leases of one that lost nothing stand
            wait_until(lambda: all(commits(pair.primary, one) > commits(pair.replica, one) for one in databases))
        pair.fail_over()
        rows = {row[0] for name in databases for row in pair.replica.query(f"SELECT id FROM {name}.item")}
        history.phase = 2
        switch()
        history.further()

    def none_left() -> bool:
        history.drain()
        return not any(left(pair, name) for name in databases)

    if loses:
        wait_until(none_left)  # each lease that came back ends, so its item comes again
    held = history.ack_held()
    assert held == set() if loses else held, "a lease that stands can be acked, and one that ended cannot"
    wait_until(none_left)
    before = {item for item, phase in history.stored.items() if phase < 2}
    lost = before - rows - history.acked.keys()  # an ack that was committed before may be answered after
    returned = {item for item in rows if history.acked.get(item, 2) < 2}
    assert history.wrong == []
    assert {history.stored[item] for item in lost} <= ({1} if loses else set())
    assert {history.acked[item] for item in returned} <= ({1} if loses else set())
    assert history.again == returned, "acked items come again if the replica has them, and no other ones"
    assert rows - returned <= history.acked.keys(), "all that the replica had was delivered"
    if loses:
        assert lost, "nothing was lost, so nothing is tested"
        assert returned, "no ack was lost"
    assert {item for item, phase in history.stored.items() if phase == 2} <= history.acked.keys()


def commits(server: DatabaseServer, database: str) -> int:
    return int(server.query(f"SELECT seq FROM {database}.shard")[0][0])


def left(pair: Pair, database: str) -> int:
    return int(pair.replica.query(f"SELECT COUNT(*) FROM {database}.item")[0][0])


@ON_EACH_KIND
@pytest.mark.parametrize("loses", [True, False], ids=["asynchronous", "semi-synchronous"])
def test_the_same_address_leads_to_the_replica(kind: Kind, pair: Pair, loses: bool, tmp_path: Path) -> None:
    if not loses:
        pair.make_semi_synchronous()
    relay = Relay(pair.primary.port)
    shard = Shard(1, pair.primary, pair.primary.create_database("lone"), relay.port)
    create_schema(shard.url, 1)
    warned = [one.found for one in check_up(shard.url, 1, timeout_s=20, now_ms=lambda: time.time() * 1000).findings]
    assert warned == [_WARNING] * loses
    settings = {section: keys for section, keys in UNHURRIED.items() if section != "zookeeper"} | PROMPT

    def switch() -> None:
        relay.lead_to(pair.replica.port)
        relay.cut()

    with HostProcess("lone", [shard], tmp_path, settings) as host:
        play(History(f"127.0.0.1:{host.port}"), pair, ["lone"], switch, loses=loses)
        assert host.said("shard.restored") == loses
        assert host.said("shard.lost") == loses
        assert host.faults() == []
    relay.close()


@ON_EACH_KIND
@pytest.mark.zookeeper
def test_the_shards_get_another_url(kind: Kind, pair: Pair, new_cluster: NewCluster) -> None:
    settings = {**PROMPT, "zookeeper": {"handover_ms": 5_000}}  # a host waits so long for a lost database
    cluster = new_cluster("a", "b", shards=2, server=pair.primary, settings=settings)
    databases = [shard.database for shard in cluster.shards]
    history = History(*(f"127.0.0.1:{host.port}" for host in cluster.hosts.values()))
    play(history, pair, databases, lambda: set_urls(cluster, pair), loses=True)
    assert sum(host.said("shard.restored") for host in cluster.hosts.values()) == 2


def set_urls(cluster: LocalCluster, pair: Pair) -> None:
    (command,) = blocks("The fail-over", "sh")
    parts = re.fullmatch(r"foqs (shards set-url) 1 '(.*)' --yes -c foqs\.toml\n", command)
    assert parts is not None
    for shard in cluster.shards:
        url = pair.replica.url(shard.database)
        ran = foqs(*parts[1].split(), str(shard.number), url, "--yes", "-c", cluster.config)
        assert ran.returncode == 0, ran.stderr
