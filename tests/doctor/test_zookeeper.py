"""What the doctor finds in a real ZooKeeper; that it changes nothing there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from foqs.config.schema import ZookeeperSection
from foqs.doctor.check import Check, Group, Verdict
from foqs.doctor.examine import examine as examine_all
from foqs.doctor.examine import examine_zookeeper, lost_data_checks, zookeeper_server_check
from foqs.doctor.host import Running
from foqs.rpc.certificates import server_context
from foqs.shardmgr.facts import HostFact, Identity, ShardFact, encode_host, encode_identity, encode_shard
from foqs.zk.inspect import RootCheckup, ServerCheckup
from foqs_lab.relay import Relay
from tests.conftest import sasl_zookeeper
from tests.support.certificates import Authority
from tests.zk.rig import ZookeeperRig
from tests.zk.tls_front import TlsFront

pytestmark = [pytest.mark.server, pytest.mark.zookeeper]

SECRET = "hunter2-the-secret"
OPERATOR = "operator:its-own"
PATIENT_S = 30


def look(config: ZookeeperSection, timeout_s: float = PATIENT_S) -> tuple[list[Check], RootCheckup | None]:
    checks, root = asyncio.run(examine_zookeeper(config, timeout_s))
    assert SECRET not in repr(checks)
    assert all(bool(check.mend) is (check.verdict in (Verdict.WRONG, Verdict.WARNING)) for check in checks)
    return checks, root


@pytest.fixture
def writer(zk_rig: ZookeeperRig) -> Iterator[KazooClient]:
    client = KazooClient(zk_rig.server.hosts, auth_data=[("digest", OPERATOR)])
    client.start()
    yield client
    client.stop()
    client.close()


def make_cluster(writer: KazooClient, root: str) -> None:
    for name in ("shards", "hosts", "owners", "drained", "election", "settings"):
        writer.create(f"{root}/{name}", makepath=True)
    writer.create(f"{root}/assignment", b"what it says")
    writer.create(f"{root}/shards/3", encode_shard(ShardFact(3, f"mysql://foqs:{SECRET}@127.0.0.1:1/foqs_3")))


def tree(writer: KazooClient, path: str) -> list[object]:
    """Every node with its data and the transactions that made and changed it, or its children."""
    data, stat = writer.get(path)
    names = sorted(writer.get_children(path))
    below = [tree(writer, f"{path}/{name}") for name in names]
    return [path, data, stat.czxid, stat.mzxid, stat.pzxid, below]


def test_a_good_cluster_stays_as_it_is(zk_rig: ZookeeperRig, writer: KazooClient) -> None:
    make_cluster(writer, zk_rig.root)
    before = tree(writer, zk_rig.root)
    (server, content), root = look(zk_rig.config())
    assert (server.verdict, content.verdict) == (Verdict.OK, Verdict.OK)
    assert zk_rig.server.version in server.found
    assert content.found == "shards 3; 0 hosts"
    assert root is not None
    assert [shard.id for shard in root.shards] == [3]
    assert tree(writer, zk_rig.root) == before


def test_the_shards_of_a_cluster_are_looked_at(zk_rig: ZookeeperRig, writer: KazooClient, tmp_path: Path) -> None:
    path = tmp_path / "foqs.toml"
    path.write_text(f'[zookeeper]\nhosts = "{zk_rig.server.hosts}"\nroot = "{zk_rig.root}"\n')

    def databases() -> list[Check]:
        checks = asyncio.run(examine_all(path, [], PATIENT_S))
        assert SECRET not in repr(checks)
        return [check for check in checks if check.group is Group.DATABASES]

    assert databases() == []
    make_cluster(writer, zk_rig.root)
    (check,) = databases()
    assert check.verdict is Verdict.WRONG
    assert check.found.startswith("shard 3: cannot connect to MySQL at 127.0.0.1:1: connection refused")
    writer.set(f"{zk_rig.root}/shards/3", encode_shard(ShardFact(3, "sqlite:////none/shard.db")))
    (check,) = databases()
    assert "no database file" in check.found
    path.write_text(path.read_text().replace(zk_rig.server.hosts, "127.0.0.1:1"))
    assert [check.verdict for check in databases()] == [Verdict.SKIPPED]


def test_a_mistyped_root(zk_rig: ZookeeperRig, writer: KazooClient) -> None:
    """It is not made by looking."""
    make_cluster(writer, zk_rig.root)
    (_, check), _ = look(zk_rig.config(root=f"{zk_rig.root}/no/such"))
    assert check.verdict is Verdict.WARNING
    assert "empty cluster; nodes next to it: assignment, drained, election, hosts, owners, ..." in check.found
    assert not writer.exists(f"{zk_rig.root}/no")


def test_a_root_without_shards(zk_rig: ZookeeperRig, writer: KazooClient) -> None:
    writer.create(zk_rig.root)
    (_, check), _ = look(zk_rig.config())
    assert (check.verdict, check.found) == (Verdict.WARNING, "the cluster has no shards (0 hosts)")
    writer.create(f"{zk_rig.root}/hosts/a", encode_host(HostFact("a", "a:1", "1")), makepath=True)
    (_, check), _ = look(zk_rig.config())
    assert (check.verdict, check.found) == (Verdict.WRONG, "the cluster has no shards (1 host)")
    assert "foqs cluster import" in check.mend


@pytest.mark.parametrize(
    ("held", "session", "shards", "known", "verdict", "found"),
    [
        ("", "connected", 1, 1, None, ""),
        ("", "connected", 0, 0, None, ""),  # a new cluster
        ("", "suspended", 0, 3, Verdict.WRONG, "ZooKeeper lost its data: the host on this machine knows 3 shards"),
        ("lost", "connected", 0, 3, Verdict.WRONG, "ZooKeeper lost its data"),
        ("foreign", "connected", 1, 3, Verdict.WRONG, "another cluster"),
        ("", "suspended", 1, 1, Verdict.WARNING, "the host on this machine has no session"),
    ],
)
def test_records_are_compared_with_what_a_host_here_knows(
    held: str, session: str, shards: int, known: int, verdict: Verdict | None, found: str
) -> None:
    config = ZookeeperSection.model_validate({"hosts": "h:1", "root": "/foqs"})
    root = RootCheckup(shards=[ShardFact(n, "x") for n in range(1, shards + 1)])
    checks = lost_data_checks(root, config, Running("/foqs", session, held, known))
    assert [check.verdict for check in checks] == [verdict] * (verdict is not None)
    assert all(found in check.found and check.mend for check in checks)


def test_hosts_that_write_back_are_named(zk_rig: ZookeeperRig, writer: KazooClient) -> None:
    make_cluster(writer, zk_rig.root)
    writer.create(f"{zk_rig.root}/cluster", encode_identity(Identity(-1, "x", ("lost-1",), open=True)))
    _, root = look(zk_rig.config())
    assert root is not None
    (check,) = lost_data_checks(root, zk_rig.config(), None)
    assert (check.verdict, "the hosts write back" in check.found) == (Verdict.WRONG, True)
    writer.set(f"{zk_rig.root}/cluster", b"no identity")
    checks, _ = look(zk_rig.config())
    assert any(check.verdict is Verdict.WRONG and "/cluster" in check.found for check in checks)


def test_a_record_that_cannot_be_read(zk_rig: ZookeeperRig, writer: KazooClient) -> None:
    make_cluster(writer, zk_rig.root)
    writer.set(f"{zk_rig.root}/shards/3", b"not this")
    (_, check), _ = look(zk_rig.config())
    assert check.verdict is Verdict.WRONG
    assert "shard 3" in check.found


@pytest.mark.parametrize(
    ("path", "denied"),
    [
        ("", "read {root}"),
        ("/owners", "create and delete in {root}/owners"),
        ("/settings", "create and delete in {root}/settings"),
        ("/assignment", "write {root}/assignment"),
        ("/shards/3", "read the shards"),
    ],
)
def test_rights_that_are_missing(zk_rig: ZookeeperRig, writer: KazooClient, path: str, denied: str) -> None:
    """ZooKeeper accepts a wrong password without an error; only denied rights show it."""
    make_cluster(writer, zk_rig.root)
    wrong = zk_rig.config(auth_scheme="digest", auth_credential=f"operator:{SECRET}")
    right = zk_rig.config(auth_scheme="digest", auth_credential=OPERATOR)
    user, _, password = OPERATOR.partition(":")
    writer.set_acls(zk_rig.root + path, [make_digest_acl(user, password, all=True)])
    before = tree(writer, zk_rig.root)
    (_, check), _ = look(wrong)
    assert check.verdict is Verdict.WRONG
    assert denied.format(root=zk_rig.root) in check.found
    assert [check.verdict for check in look(right)[0]] == [Verdict.OK, Verdict.OK]
    assert tree(writer, zk_rig.root) == before


def test_a_root_that_may_not_be_made(zk_rig: ZookeeperRig, writer: KazooClient) -> None:
    user, _, password = OPERATOR.partition(":")
    writer.create(zk_rig.root, acl=[make_digest_acl(user, password, all=True)])
    (_, warning, check), _ = look(zk_rig.config(root=f"{zk_rig.root}/new"))
    assert warning.verdict is Verdict.WARNING
    assert check.verdict is Verdict.WRONG
    assert f"create in {zk_rig.root}" in check.found


def test_a_credential_that_is_refused(tmp_path: Path) -> None:
    with sasl_zookeeper(tmp_path, foqs="another") as server:
        config = ZookeeperSection(hosts=server.hosts, auth_scheme="sasl", auth_credential=f"foqs:{SECRET}")
        (_, check), root = look(config)
        assert root is None
        assert (check.verdict, check.found) == (Verdict.WRONG, "ZooKeeper refuses the credential of [zookeeper]")
        good = ZookeeperSection(hosts=server.hosts, auth_scheme="sasl", auth_credential="foqs:another")
        assert [check.verdict for check in look(good)[0]] == [Verdict.OK, Verdict.WARNING]  # an empty cluster


def test_servers_that_are_away(zk_rig: ZookeeperRig, writer: KazooClient) -> None:
    """A server that hangs and one that is stopped: each has a check of its own, and the third server is used."""
    make_cluster(writer, zk_rig.root)
    relay = Relay(zk_rig.server.port)
    relay.hold()
    try:
        config = zk_rig.config(hosts=f"127.0.0.1:{relay.port},127.0.0.1:1,{zk_rig.server.hosts}")
        checks, root = look(config, timeout_s=10)
    finally:
        relay.close()
    assert [check.verdict for check in checks] == [Verdict.WRONG, Verdict.WRONG, Verdict.OK, Verdict.OK]
    assert [check.found for check in checks[:2]] == ["no answer in time", "Connection refused"]
    assert root is not None
    checks, root = look(zk_rig.config(hosts="127.0.0.1:1"))
    assert [check.verdict for check in checks] == [Verdict.WRONG, Verdict.SKIPPED]
    assert root is None


def test_a_session_time_out_that_the_server_does_not_give(zk_rig: ZookeeperRig) -> None:
    checks, _ = look(zk_rig.config(session_timeout_ms=700_000))
    assert checks[0].verdict is Verdict.WARNING
    assert "600000 ms" in checks[0].found


def test_old_ones_and_those_that_do_not_tell() -> None:
    config = ZookeeperSection(hosts="zk:2181", session_timeout_ms=10_000)
    old = zookeeper_server_check("zk:2181", ServerCheckup("3.4.14", 10_000), config)
    assert (old.verdict, old.found) == (Verdict.WRONG, "ZooKeeper 3.4.14 is too old")
    for version in ("", "3.5.0", "3.10.1", "4.0"):
        assert zookeeper_server_check("zk:2181", ServerCheckup(version, 10_000), config).verdict is Verdict.OK


def test_over_tls(zk_rig: ZookeeperRig, writer: KazooClient, tmp_path: Path) -> None:
    """Its certificate has to name the host, as for a host of foqs."""
    make_cluster(writer, zk_rig.root)
    authority = Authority(tmp_path)
    pair = authority.issue("127.0.0.1")
    with TlsFront(server_context(authority.section(pair)), zk_rig.server.port) as front:
        hosts = f"127.0.0.1:{front.port}"
        checks, root = look(zk_rig.config(hosts=hosts, tls=True, tls_ca_file=authority.ca_file))
        assert [check.verdict for check in checks] == [Verdict.OK, Verdict.OK]
        assert root is not None
        (refused, _), _ = look(zk_rig.config(hosts=hosts, tls=True))
        assert "certificate verify failed" in refused.found
        (missing, _), _ = look(zk_rig.config(hosts=hosts, tls=True, tls_ca_file=tmp_path / "none"))
        assert "zookeeper.tls_ca_file" in missing.found
