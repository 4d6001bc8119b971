"""The connection to ZooKeeper over TLS: to a real one, with a TLS end in front of it."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from foqs.errors import Invalid, Unavailable
from foqs.shardmgr.facts import ShardFact
from foqs.zk.inspect import read_shards
from tests.support.certificates import Authority, Pair
from tests.zk.contract import Client, host
from tests.zk.rig import ZookeeperRig
from tests.zk.test_access import As
from tests.zk.tls_front import TlsFront

pytestmark = [pytest.mark.server, pytest.mark.zookeeper]


def server(authority: Authority, *names: str) -> ssl.SSLContext:
    """Which wants certificates."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.ca_file))
    context.load_cert_chain(*authority.issue(*names))
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def test_facts_over_mutual_tls(zk_rig: ZookeeperRig, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    mine = authority.issue("host.test")
    with TlsFront(server(authority, "127.0.0.1"), zk_rig.server.port) as front:
        tls = {
            "hosts": f"127.0.0.1:{front.port}",
            "tls": True,
            "tls_ca_file": authority.ca_file,
            "tls_cert_file": mine.cert_file,
            "tls_key_file": mine.key_file,
        }
        a, b = Client(As(zk_rig, **tls)), Client(As(zk_rig, **tls))
        a.join(host("a"))
        for number in range(1, 51):  # answers that come many at a time
            assert a.put(ShardFact(number, f"x{number}"), new=True) is None
        zk_rig.until(lambda: len(b.facts.shards) == 50 and set(b.facts.hosts) == {"a"})
        assert [fact.id for fact in read_shards(zk_rig.config(**tls))] == list(range(1, 51))
        assert front.accepted == 3


def test_a_server_that_is_another_is_not_talked_to(zk_rig: ZookeeperRig, tmp_path: Path) -> None:
    authority, foreign = Authority(tmp_path), Authority(tmp_path, "foreign")
    mine = authority.issue("host.test")
    keys = {"tls": True, "tls_cert_file": mine.cert_file, "tls_key_file": mine.key_file}
    for names, ca_file in (["elsewhere.test"], authority.ca_file), (["127.0.0.1"], foreign.ca_file):
        with TlsFront(server(authority, *names), zk_rig.server.port) as front:
            config = zk_rig.config(hosts=f"127.0.0.1:{front.port}", tls_ca_file=ca_file, **keys)
            with pytest.raises(Unavailable, match="no connection"):
                read_shards(config, timeout_s=0.5)


def test_a_missing_file_is_reported_at_once(zk_rig: ZookeeperRig, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"zookeeper\.tls_ca_file: cannot read"):
        read_shards(zk_rig.config(tls=True, tls_ca_file=tmp_path / "none"))


def test_new_files_are_used_for_the_next_connection(zk_rig: ZookeeperRig, tmp_path: Path) -> None:
    """A host that was not restarted connects again, after the authority and its certificate were replaced."""
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    mine, ca_file = Pair(tmp_path / "mine.pem", tmp_path / "mine.key"), tmp_path / "ca.pem"

    def install(authority: Authority) -> None:
        for source, target in zip(authority.issue("host.test"), mine, strict=True):
            target.write_bytes(source.read_bytes())
        ca_file.write_bytes(authority.ca_file.read_bytes())

    install(old)
    with TlsFront(server(old, "127.0.0.1"), zk_rig.server.port) as front:
        files = {"tls_ca_file": ca_file, "tls_cert_file": mine.cert_file, "tls_key_file": mine.key_file}
        a = Client(As(zk_rig, hosts=f"127.0.0.1:{front.port}", tls=True, **files))
        assert a.put(ShardFact(1, "x"), new=True) is None
        install(new)
        front.use(server(new, "127.0.0.1"))
        zk_rig.until(lambda: front.accepted >= 2)
        zk_rig.until(lambda: a.put(ShardFact(2, "x"), new=True) is None or 2 in a.facts.shards)
