"""Settings on a real ZooKeeper that loses or spoils their records, and whose connection breaks during a change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from structlog.testing import capture_logs

from foqs.errors import Invalid, OutcomeUnknown
from foqs.policies.settings import Settings
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
