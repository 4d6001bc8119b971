"""Authentication and ACLs on a real ZooKeeper; secrets stay where they belong."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from foqs.errors import Forbidden
from foqs.shardmgr.facts import Facts, OwnerFact, Session, ShardFact
from foqs.zk.inspect import read_shards, renew_acls
from foqs.zk.protocol import ZkError, ZkRefused, ZkUnavailable
from tests.conftest import sasl_zookeeper
from tests.zk.contract import Client, host
from tests.zk.rig import ZookeeperRig

pytestmark = [pytest.mark.server, pytest.mark.zookeeper]

SECRET = "hunter2-the-secret"
LETTERS = ["", "grün", "пароль", "密码-😀"]
DIGEST = {"auth_scheme": "digest", "auth_credential": f"foqs:{SECRET}", "acl": "creator"}


class As:
    """A rig whose stores have other settings."""

    def __init__(self, rig: ZookeeperRig, **settings: object) -> None:
        self.rig, self.settings, self.until, self.stands = rig, settings, rig.until, rig.stands

    def store(self, session_ms: int = 60_000) -> object:
        return self.rig.store(session_ms, **self.settings)


@pytest.mark.parametrize("letters", LETTERS)
def test_what_a_creator_makes_is_its_own(zk_rig: ZookeeperRig, letters: str) -> None:
    digest = DIGEST | {"auth_credential": f"foqs:{letters}{SECRET}"}
    a = Client(As(zk_rig, **digest))
    a.join(host("a"))
    assert a.put(ShardFact(1, "x"), new=True) is None
    assert a.own(1, "a", 1) is None
    assert a.assign({1: "a"}, -1) is None
    b = Client(As(zk_rig, **digest))
    assert (set(b.facts.shards), set(b.facts.hosts), b.facts.controller) == ({1}, {"a"}, "a")
    assert b.put(ShardFact(1, "y"), new=False) is None

    stranger = KazooClient(zk_rig.server.hosts)
    stranger.start()
    try:
        for path in ("", "/shards", "/shards/1", "/hosts/a", "/owners/1", "/assignment"):
            with pytest.raises(NoAuthError):
                stranger.get(zk_rig.root + path)
            with pytest.raises(NoAuthError):
                stranger.set(zk_rig.root + path, b"")
    finally:
        stranger.stop()
        stranger.close()


@pytest.mark.parametrize(
    "settings", [{}, DIGEST | {"auth_credential": f"foqs:not-{SECRET}"}], ids=["nobody", "a wrong password"]
)
def test_other_accounts_are_refused(
    zk_rig: ZookeeperRig, settings: dict[str, str], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(1, logging.getLogger().name)
    a = Client(As(zk_rig, **DIGEST))
    assert a.put(ShardFact(1, f"mysql://u:{SECRET}@h/db"), new=True) is None
    a.sees(lambda facts: facts.shards)

    store, facts, sessions = zk_rig.store(60_000, **settings), list[Facts](), list[Session]()
    store.start(facts.append, sessions.append)
    store.join(host("b"))
    zk_rig.until(lambda: sessions == [Session.CONNECTED])
    outcomes: list[ZkError | None] = []
    store.put_shard(ShardFact(2, f"mysql://u:{SECRET}@h/db"), new=True, done=outcomes.append)
    store.put_shard(ShardFact(1, f"mysql://u:{SECRET}@h/db"), new=False, done=outcomes.append)
    store.own(OwnerFact(1, "b", "b:1", 1), outcomes.append)
    store.assign({}, -1, outcomes.append)
    zk_rig.until(lambda: len(outcomes) == 4)
    assert all(isinstance(error, ZkRefused) for error in outcomes)
    assert facts == []
    assert set(a.facts.shards) == {1}
    said = "".join(capsys.readouterr()) + caplog.text
    assert "refuses" in said
    for thing in (said, str(outcomes), repr(outcomes), repr(store), repr(zk_rig.config(**settings)), repr(a.facts)):
        assert SECRET not in thing


@pytest.mark.parametrize("letters", LETTERS)
def test_sasl(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, letters: str
) -> None:
    caplog.set_level(1, logging.getLogger().name)
    sasl = {"auth_scheme": "sasl", "auth_credential": f"foqs:{letters}{SECRET}", "acl": "creator"}
    with sasl_zookeeper(tmp_path, foqs=f"{letters}{SECRET}") as server:
        rig = ZookeeperRig(server)
        try:
            a = Client(As(rig, **sasl))
            a.join(host("a"))
            b = Client(As(rig, **sasl))
            assert set(b.facts.hosts) == {"a"}

            # kazoo gives up for good at the first failed authentication; the store does not.
            store = rig.store(60_000, **(sasl | {"auth_credential": f"foqs:not-{SECRET}"}))
            sessions: list[Session] = []
            store.start(lambda _: None, sessions.append)
            first = rig.kazoo(store)
            rig.until(lambda: store._link._client not in (None, first))
            assert sessions == []
            outcomes: list[ZkError | None] = []
            store.put_shard(ShardFact(2, "x"), new=True, done=outcomes.append)
            rig.until(lambda: outcomes)
            assert isinstance(outcomes[0], ZkUnavailable)
        finally:
            rig.close()
    said = "".join(capsys.readouterr()) + caplog.text
    assert said.count("credential.refused") == 1
    assert SECRET not in said


def test_a_credential_is_replaced_without_a_refusal(zk_rig: ZookeeperRig) -> None:
    """In two rolls, with the nodes given to the new credential in between; the old one opens nothing at the end."""
    new = {**DIGEST, "auth_credential": "foqs:the-new-secret"}
    both = {**new, "auth_credential_previous": DIGEST["auth_credential"]}
    old_host, both_host = Client(As(zk_rig, **DIGEST)), Client(As(zk_rig, **both))
    old_host.join(host("a"))
    assert old_host.put(ShardFact(1, "x"), new=True) is None
    both_host.join(host("b"))
    assert both_host.put(ShardFact(2, "x"), new=True) is None
    for client in (old_host, both_host):  # the first roll: each sees and changes what the other made
        client.sees(lambda facts: set(facts.shards) == {1, 2} and set(facts.hosts) == {"a", "b"})
        for number in (1, 2):
            assert client.put(ShardFact(number, f"{client is old_host}"), new=False) is None
    assert renew_acls(zk_rig.config(**both)) > 10
    new_host = Client(As(zk_rig, **new))
    for client in (new_host, both_host):  # the second roll
        client.sees(lambda facts: set(facts.shards) == {1, 2} and set(facts.hosts) == {"a", "b"})
        for number in (1, 2):
            assert client.put(ShardFact(number, f"{client is new_host} now"), new=False) is None
    assert new_host.put(ShardFact(3, "x"), new=True) is None
    assert both_host.put(ShardFact(3, "y"), new=False) is None
    assert renew_acls(zk_rig.config(**new)) > 10
    with pytest.raises(Forbidden):
        read_shards(zk_rig.config(**DIGEST))
    assert [fact.id for fact in read_shards(zk_rig.config(**new))] == [1, 2, 3]
