"""The page of the hosts, against a real host in memory, and with a real ZooKeeper and simulated hosts."""

from __future__ import annotations

import re
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest
import structlog

from foqs.client import Client, ItemSpec
from foqs.config.schema import ZookeeperSection
from foqs.console.cluster import ClusterLink
from foqs.console.marks import mark_of
from foqs.shardmgr.facts import Assignment, Facts, HostFact, OwnerFact, ShardFact
from foqs.shardmgr.operate import moves_of_drain
from foqs.testing import Server
from tests.cli.players import Player, served_by
from tests.console.asgi import Answer, Site, words
from tests.console.rig import CHIEF, ROOT, SEER, client, guarded, service, site
from tests.zk.rig import ZookeeperRig

__all__ = ["client", "guarded", "service", "site"]  # fixtures
in_memory = pytest.mark.threads
T = TypeVar("T")


def cells(answer: Answer, table: str) -> list[list[str]]:
    """Return the words of the cells of a table."""
    body = answer.text.split(f'<div class="wide" id="{table}"')[1].split("</table>")[0].split("<tbody>")[1]
    rows = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL) for row in body.split("<tr>")[1:]]
    return [[words(cell) for cell in row] for row in rows]


@in_memory
def test_the_figures_are_from_the_hosts(client: Client, service: Server, site: Site) -> None:
    client.enqueue_many([ItemSpec("mail", b"x")] * 3)
    service.advance(minutes=2)
    found = site.get("/hosts")
    (host,) = client.status().hosts
    (row,) = cells(found, "hosts")
    assert row[:3] == [host.host, host.address, host.version]
    assert row[7:9] == ["1", "–"]
    assert row[10:12] == ["in time", "no TLS"]
    (shard,) = cells(found, "shards")
    assert shard[:4] == ["1", "serving", "–", host.host]
    assert (shard[8], host.shards[0].items) == ("3", 3)


@in_memory
def test_a_console_without_a_cluster_offers_no_change_of_one(site: Site) -> None:
    text = site.get("/hosts").said
    assert "--config foqs.toml" in text
    assert "What ZooKeeper says" not in text
    assert "May it be stopped? It is the only host" in text
    refused = site.post("/hosts/drain", {"host": "a"})
    assert (refused.status, "start it with --config" in refused.text) == (400, True)


def test_a_drain_moves_what_balancing_would_move() -> None:
    hosts = {name: HostFact(name, f"{name}:7707", "run") for name in "abc"}
    shards = {number: ShardFact(number, f"sqlite:///{number}") for number in range(1, 7)}
    places = {number: "abc"[number % 3] for number in shards}
    owners = {number: OwnerFact(number, host, f"{host}:7707", 1) for number, host in places.items()}
    facts = Facts(shards, hosts, owners, assignment=Assignment(4, places))
    moves = moves_of_drain(facts, "a")
    assert [(shard, source) for shard, source, _ in moves] == [(3, "a"), (6, "a")]
    assert sorted(target for _, _, target in moves) == ["b", "c"]
    alone = Facts(shards, {"a": hosts["a"]}, assignment=Assignment(4, dict.fromkeys(shards, "a")))
    assert moves_of_drain(alone, "a") == ()


# ------------------------------------------------------------------------------------- rights


def nowhere(look_s: float) -> ClusterLink:
    return ClusterLink(ZookeeperSection(hosts="127.0.0.1:1"), look_s=look_s)


@pytest.mark.process
@pytest.mark.parametrize(("token", "sees"), [(CHIEF, True), (SEER, False)])
def test_users_without_admin_everywhere_change_no_cluster(guarded: str, token: str, sees: bool) -> None:
    site = Site(guarded, cluster=nowhere(60))
    site.sign_in(token)
    found = site.get("/hosts?ns=shop")
    assert ("tokens with the right <code>admin</code>" in found.text, 'id="hosts"' in found.text) == (not sees, sees)
    assert "What ZooKeeper says" not in found.said
    refused = site.post("/hosts/drain?ns=shop", {"host": "a", "confirmed": "yes"})
    assert (refused.status, "admin in all namespaces" in refused.said) == (403, True)
    site.close()


@pytest.mark.process
def test_settings_are_for_users_with_rights_in_the_namespace(guarded: str) -> None:
    for ns in ("shop", "other"):
        with Client(guarded, ns, token=ROOT) as root:
            root.put_settings({"plans/acme": "gold"})
    site = Site(guarded)
    looks = [
        f"{path}?ns=other&key=plans/acme" for path in ("/settings", "/settings/entry", "/settings/export", "/changes")
    ]
    site.sign_in(CHIEF)
    for answer in map(site.get, looks):
        assert (answer.status, "gold" in answer.text) == (403, False)
    site.sign_in(SEER)
    fields = {"value": "iron", "key": "plans/acme", "typed": "plans/acme", "of": 1, "confirmed": "yes"}
    fields["mark"] = mark_of("gold")
    for path in ("/settings/entry", "/settings/remove", "/changes/revert"):
        assert site.post(f"{path}?ns=shop&key=plans/acme", fields).status == 403
    with Client(guarded, "shop", token=ROOT) as root:
        assert root.settings().entries == {"plans/acme": "gold"}
    site.sign_in(ROOT)
    assert [site.get(path).status for path in looks] == [200] * 4
    site.close()


@pytest.mark.process
def test_zookeeper_that_does_not_answer_is_said(guarded: str) -> None:
    site = Site(guarded, cluster=nowhere(0.01))
    site.sign_in(ROOT)
    found = site.get("/hosts")
    assert (found.status, "ZooKeeper at 127.0.0.1:1 has not answered yet" in found.said) == (200, True)
    assert cells(found, "hosts")
    site.close()


# ------------------------------------------------------------------------------------- with ZooKeeper


class SharedLoop(Site):
    """Its requests run on the loop of the simulated hosts, which act in the meantime."""

    def __init__(self, rig: ZookeeperRig, address: str) -> None:
        self.link = ClusterLink(rig.config(), look_s=60, effect_s=60)
        super().__init__(address, cluster=self.link)
        self._rig = rig

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._rig.loop.run_until_complete(work)


@pytest.fixture
def players(zk_rig: ZookeeperRig) -> tuple[Player, Player]:
    """Two simulated hosts that serve four shards."""
    made = Player(zk_rig, "a"), Player(zk_rig, "b")
    for number in range(1, 5):
        outcomes: list[object] = []
        made[0].store.put_shard(ShardFact(number, f"sqlite:///{number}"), new=True, done=outcomes.append)
        zk_rig.until(lambda outcomes=outcomes: outcomes)
        assert outcomes == [None]
    made[0].sees(lambda facts: sorted(served_by(facts)) == [1, 2, 3, 4])
    return made


@pytest.fixture
def shared(zk_rig: ZookeeperRig, service: Server) -> Iterator[SharedLoop]:
    made = SharedLoop(zk_rig, service.address)
    yield made
    made.close()


@pytest.mark.server
@pytest.mark.zookeeper
def test_a_drain_is_asked_for_made_and_logged(shared: SharedLoop, players: tuple[Player, Player]) -> None:
    may_stop = [row[5] for row in cells(shared.get("/hosts"), "zk-hosts")]
    assert [words.split(":")[0] for words in may_stop] == ["no it is the last host that can take shards"] * 2
    asked = shared.post("/hosts/drain", {"host": "a", "back": "/hosts"})
    assert players[0].facts.drained == frozenset()
    assert re.search(r"Drains host a: .* \d shards? moves? to b: shards?", asked.said)
    with structlog.testing.capture_logs() as lines:
        done = shared.post("/hosts/drain", {"host": "a", "back": "/hosts", "confirmed": "yes"})
    assert "Host a serves nothing." in shared.get(done.headers["location"]).said
    players[1].sees(lambda facts: served_by(facts) == dict.fromkeys(range(1, 5), "b"))

    def shown() -> list[list[str]]:
        return [row[2:5] for row in cells(shared.get("/hosts"), "zk-hosts")]

    players[1].rig.until(lambda: shown() == [["drained", "0", "0"], ["alive", "4", "4"]])
    (line,) = [one for one in lines if one["event"] == "audit.change"]
    assert (line["what"], line["who"], line["outcome"]) == ("host.drain", "127.0.0.1", "made")
    assert line["after"] == {"host": "a", "drained": True}


@pytest.mark.server
@pytest.mark.zookeeper
def test_a_move_and_a_rebalance(shared: SharedLoop, players: tuple[Player, Player]) -> None:
    for shard in range(1, 5):
        done = shared.post("/hosts/move", {"shard": shard, "host": "b", "back": "/hosts", "confirmed": "yes"})
        assert done.status == 303
    shown = shared.get("/hosts")
    assert {row[4] for row in cells(shown, "zk-shards")} == {"b"}
    version = re.search(r'name="version" value="(\d+)"', shown.text)
    assert version is not None
    fields = {"version": version[1], "back": "/hosts"}
    assert "Moves 2 shards. 2 shards move to a: shards" in shared.post("/hosts/rebalance", fields).said
    old = shared.post("/hosts/rebalance", fields | {"version": int(version[1]) - 1, "confirmed": "yes"})
    assert (old.status, "the assignment has changed since the plan" in old.said) == (409, True)
    done = shared.post("/hosts/rebalance", fields | {"confirmed": "yes"})
    assert "2 shards moved." in shared.get(done.headers["location"]).said
    players[0].sees(lambda facts: sorted(served_by(facts).values()) == ["a", "a", "b", "b"])


@pytest.mark.server
@pytest.mark.zookeeper
@pytest.mark.parametrize(
    ("verb", "fields", "why"),
    [
        ("drain", {"host": "c"}, "the cluster has no host c"),
        ("move", {"shard": 9, "host": "a"}, "the cluster has no shard 9"),
        ("move", {"shard": "x", "host": "a"}, "Shard: 'x' is no whole number"),
    ],
)
def test_changes_that_the_cluster_refuses(
    shared: SharedLoop, players: tuple[Player, Player], verb: str, fields: dict[str, object], why: str
) -> None:
    refused = shared.post(f"/hosts/{verb}", {**fields, "confirmed": "yes"})
    assert (refused.status, why in refused.said) == (400, True)
    assert served_by(players[0].facts).keys() == {1, 2, 3, 4}


@pytest.mark.server
@pytest.mark.zookeeper
def test_a_lost_connection_is_said_and_comes_back(
    shared: SharedLoop, zk_rig: ZookeeperRig, players: tuple[Player, Player]
) -> None:
    def is_lost() -> bool:
        return "ZooKeeper does not answer; this is the last known state." in shared.get("/hosts").said

    assert not is_lost()
    assert shared.link._opening is not None
    store = shared.link._opening.result()._store
    zk_rig.cut(store)
    zk_rig.until(is_lost)
    assert len(cells(shared.get("/hosts"), "zk-shards")) == len(players[0].facts.shards) == 4
    zk_rig.mend(store)
    zk_rig.until(lambda: not is_lost())
