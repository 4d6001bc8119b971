"""Settings on a real ZooKeeper that loses or spoils their records, and whose connection breaks during a change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from kazoo.client import KazooClient
from structlog.testing import capture_logs

from foqs.errors import Invalid, OutcomeUnknown
from foqs.policies.settings import Settings
from foqs.settings_log import SettingsStamp
from tests.policies.log_checks import disagreements
from tests.policies.settings_contract import Keeper
from tests.zk.contract import Client
from tests.zk.rig import ZookeeperRig

pytestmark = [pytest.mark.server, pytest.mark.zookeeper]


@pytest.fixture
def operator(zk_rig: ZookeeperRig) -> Iterator[KazooClient]:
    client = KazooClient(zk_rig.server.hosts)
    client.start()
    yield client
    client.stop()
    client.close()


def keeper_of(client: Client) -> Keeper:
    return Keeper(client.store, client.rig.until)


def test_a_record_that_vanished_stays_in_effect(zk_rig: ZookeeperRig, operator: KazooClient) -> None:
    """The next change writes it again, with its next version."""
    a = Client(zk_rig)
    lost = keeper_of(a).put("a/b", {"kept": "1"})
    a.sees(lambda facts: facts.settings)
    with capture_logs() as lines:
        operator.delete(f"{zk_rig.root}/settings/a%2Fb")
        zk_rig.until(lambda: lines)
    assert [(line["event"], line["node"]) for line in lines] == [("record.vanished", "settings/a%2Fb")]
    assert a.facts.settings == {"a/b": lost}
    again = keeper_of(a).put("a/b", {"new": "2"}, expected=1)
    assert again == Settings("a/b", 2, {"kept": "1", "new": "2"})
    a.sees(lambda facts: facts.settings == {"a/b": again})
    assert Client(zk_rig).facts.settings == {"a/b": again}


@pytest.mark.parametrize("record", [b"", b"{", b'{"stamp": 9, "entries": {"topic.t": "no"}}'])
def test_an_unreadable_record_changes_nothing(zk_rig: ZookeeperRig, operator: KazooClient, record: bytes) -> None:
    a = Client(zk_rig)
    before = keeper_of(a).put("ns", {"a": "1"})
    a.sees(lambda facts: facts.settings)
    with capture_logs() as lines:
        operator.set(f"{zk_rig.root}/settings/ns", record)
        zk_rig.until(lambda: lines)
    assert [(line["event"], line["node"]) for line in lines] == [("record.not_read", "settings/ns")]
    assert a.facts.settings == {"ns": before}
    with pytest.raises(Invalid, match="the settings of ns are not"):
        keeper_of(a).put("ns", {"a": "2"})
    assert operator.get(f"{zk_rig.root}/settings/ns")[0] == record


def test_facts_are_read_from_a_server_that_has_caught_up(zk_rig: ZookeeperRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may lag behind the one that a change was made on."""
    asked: list[str] = []

    def watch(name: str) -> None:
        original = getattr(KazooClient, name)

        def ask(client: KazooClient, path: str, *args: Any, **more: Any) -> Any:
            asked.append(f"{name} {path.removeprefix(zk_rig.root)}")
            return original(client, path, *args, **more)

        monkeypatch.setattr(KazooClient, name, ask)

    watch("sync_async")
    watch("get_children_async")
    Client(zk_rig)
    assert asked.index("sync_async ") < asked.index("get_children_async /settings")


def test_a_change_without_an_answer_is_unknown(zk_rig: ZookeeperRig) -> None:
    a = Client(zk_rig)

    def change(settings: Settings) -> Settings:
        zk_rig.loop.call_soon(a.store._link._lost, False)  # in the next turn, the write is under way
        return settings.changed({"a": "1"}, ())

    outcomes = keeper_of(a).changing("ns", change)
    zk_rig.until(lambda: outcomes)
    assert isinstance(outcomes[0], OutcomeUnknown)


# ------------------------------------------------------------------------------------------ the log


def put_by_an_older_host(operator: KazooClient, path: str, entries: dict[str, str]) -> None:
    """A host of the version before this one reads the document, and writes it without the fields that are new."""
    known, stat = operator.get(path)
    document = json.loads(known)
    document = {
        "stamp": document["stamp"] + 1,
        "born": document["born"],
        "past": ["of an older host", *document["past"]],
        "entries": document["entries"] | entries,
    }
    operator.set(path, json.dumps(document).encode(), stat.version)


def test_the_log_is_a_node_of_its_own(zk_rig: ZookeeperRig, operator: KazooClient) -> None:
    a = Client(zk_rig)
    made = keeper_of(a).put("a/b", {"a": "1"})
    assert operator.get(f"{zk_rig.root}/settings_log/a%2Fb")[0] == made.log.encoded()
    assert b'"log"' not in operator.get(f"{zk_rig.root}/settings/a%2Fb")[0]
    a.sees(lambda facts: facts.settings)
    a.sees(lambda facts: facts.settings["a/b"].log == made.log)


@pytest.mark.parametrize("node", ["settings", "settings_log"])
def test_a_change_is_made_with_its_record_or_not_at_all(zk_rig: ZookeeperRig, operator: KazooClient, node: str) -> None:
    """Another client writes one of the two nodes between the reads and the transaction: the change is asked again."""
    a = Client(zk_rig)
    keeper_of(a).put("ns", {"a": "1"})
    path, calls = f"{zk_rig.root}/{node}/ns", []

    def change(settings: Settings) -> Settings:
        calls.append(settings.version)
        if len(calls) == 1:
            operator.set(path, operator.get(path)[0])
        return settings.changed({"a": "2"}, (), nonce="2")

    (made,) = keeper_of(a).ended(keeper_of(a).changing("ns", change))
    assert isinstance(made, Settings)
    assert (calls, made.version) == ([1, 1], 2)
    assert disagreements(keeper_of(a).read("ns")) == []


def test_a_host_of_an_older_version_changes_settings(zk_rig: ZookeeperRig, operator: KazooClient) -> None:
    """It knows no log. Nothing of the document is lost, and its version has no record."""
    a = Client(zk_rig)
    stamp = SettingsStamp(1_000, "ann")
    first = partial(Settings.changed, entries={"a": "1", "b": "1"}, remove=(), stamp=stamp)
    keeper_of(a).ended(keeper_of(a).changing("ns", first))
    put_by_an_older_host(operator, f"{zk_rig.root}/settings/ns", {"a": "2"})
    a.sees(lambda facts: "ns" in facts.settings and facts.settings["ns"].version == 2)
    seen = a.facts.settings["ns"]
    assert (seen.entries, seen.stamps) == ({"a": "2", "b": "1"}, {"b": stamp})
    made = keeper_of(a).put("ns", {"c": "1"})
    assert made.entries == {"a": "2", "b": "1", "c": "1"}
    assert [record.version for record in made.log.records] == [1, 3]
    assert disagreements(made, older_hosts=True) == []


def test_a_log_that_vanished_is_written_again(zk_rig: ZookeeperRig, operator: KazooClient) -> None:
    a = Client(zk_rig)
    keeper_of(a).put("ns", {"a": "1"})
    a.sees(lambda facts: facts.settings)
    a.sees(lambda facts: "ns" in facts.settings and facts.settings["ns"].whole)
    with capture_logs() as lines:
        operator.delete(f"{zk_rig.root}/settings_log/ns")
        zk_rig.until(lambda: lines)
    assert [(line["event"], line["node"]) for line in lines] == [("record.vanished", "settings_log/ns")]
    made = keeper_of(a).put("ns", {"a": "2"})
    assert [record.version for record in made.log.records] == [1, 2]
    b = Client(zk_rig)
    b.sees(lambda facts: "ns" in facts.settings and facts.settings["ns"].log == made.log)


def test_an_unreadable_log_stops_no_change(zk_rig: ZookeeperRig, operator: KazooClient) -> None:
    a = Client(zk_rig)
    keeper_of(a).put("ns", {"a": "1"})
    a.sees(lambda facts: facts.settings)
    a.sees(lambda facts: "ns" in facts.settings and facts.settings["ns"].whole)
    with capture_logs() as lines:
        operator.set(f"{zk_rig.root}/settings_log/ns", b"{")
        zk_rig.until(lambda: lines)
    assert [(line["event"], line["node"]) for line in lines] == [("record.not_read", "settings_log/ns")]
    assert [record.version for record in keeper_of(a).put("ns", {"a": "2"}).log.records] == [1, 2]
