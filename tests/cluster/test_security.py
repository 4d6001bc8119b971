"""Hosts of a cluster with mutual TLS and rights: calls are forwarded from any port, and strangers refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from threading import Event

import pytest

from foqs.client import (
    Client,
    Forbidden,
    Invalid,
    ItemSpec,
    NotFound,
    OutcomeUnknown,
    Tls,
    Unauthenticated,
    Unavailable,
)
from foqs_lab.cluster import LocalCluster
from tests.cluster.conftest import NewCluster
from tests.support.certificates import Authority

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.timeout(400)]

SECRET = "0123456789-0123456789-0123456789-the-cluster"
RIGHTS = {"shop": '{ shop = ["produce", "consume"] }', "rival": '{ rival = ["produce", "consume", "admin"] }'}


def files(folder: Path, authority: Authority) -> dict[str, dict[str, object]]:
    """Of all hosts."""
    principals, secret, own = folder / "principals.toml", folder / "secret", authority.issue("127.0.0.1")
    entries = [
        f'[principals.{name}]\ntoken_sha256 = "{sha256(name.encode()).hexdigest()}"\nrights = {rights}\n'
        for name, rights in RIGHTS.items()
    ]
    principals.write_text("\n".join(entries))
    secret.write_text(SECRET + "\n")
    tls = {"cert_file": own.cert_file, "key_file": own.key_file, "ca_file": authority.ca_file}
    return {
        "tls": {key: str(path) for key, path in tls.items()} | {"client_certificates": "required"},
        "auth": {"principals_file": str(principals), "cluster_secret_file": str(secret)},
    }


@contextmanager
def busy(port: int) -> Iterator[None]:
    """Items are enqueued through that host alone; without routing they stay on its shards."""
    over = Event()

    def work() -> None:
        with Client(f"127.0.0.1:{port}", "shop", token="shop", routing=False) as client:
            while not over.is_set():
                client.enqueue_many([ItemSpec("mail", b"x")] * 20)

    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(work)
        try:
            yield
        finally:
            over.set()
        working.result()


def log_of(cluster: LocalCluster) -> str:
    return "".join(host.log.read_text() for host in cluster.hosts.values())


@pytest.mark.mariadb
def test_rights_and_tls_across_hosts_and_processes(new_cluster: NewCluster, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    mine = authority.issue("client.test")
    tls = Tls(authority.ca_file, *mine)
    cluster = new_cluster("a", shards=4, processes=2, settings=files(tmp_path, authority))
    ports = [cluster.hosts["a"].port + distance for distance in (0, 1, 2)]
    specs = [ItemSpec("mail", b"x", dedup_key=f"key-{number}") for number in range(200)]
    with Client(f"127.0.0.1:{ports[1]}", "shop", token="shop", tls=tls, routing=False) as client:
        ids = client.enqueue_many(specs)
        assert all(isinstance(item_id, int) for item_id in ids), ids
    assert len({int(item_id) >> 48 for item_id in ids if isinstance(item_id, int)}) == 4  # so some were forwarded
    # Without routing every call for a shard that is elsewhere is forwarded: to the other worker, and back.
    with Client(f"127.0.0.1:{ports[2]}", "shop", token="shop", tls=tls, routing=False) as client:
        taken = []
        while len(taken) < 200:
            found = client.dequeue("mail", 200, wait_ms=30_000, lease_ms=300_000)
            assert found, f"{len(taken)} of 200 came"
            taken += found
        held, rest = taken[:2], taken[2:]
        with Client(f"127.0.0.1:{ports[1]}", "rival", token="rival", tls=tls, routing=False) as rival:
            for item in held:
                for refused in (rival.ack, rival.nack):
                    with pytest.raises(NotFound):
                        refused(item)
                with pytest.raises(NotFound):
                    rival.get_item(item.id)
            assert [type(error) for error in rival.delete_items(item.id for item in held)] == [NotFound, NotFound]
        with Client(f"127.0.0.1:{ports[1]}", "shop", token="rival", tls=tls, routing=False) as rival:
            with pytest.raises(Forbidden):
                rival.dequeue("mail")
            with pytest.raises(Forbidden):
                list(rival.list_items("mail"))
        assert client.ack_many(rest) == [None] * 198
    # With routing, over the shared port: the client learns the processes' own ports and checks their certificates too.
    with Client(f"127.0.0.1:{ports[0]}", "shop", token="shop", tls=tls) as client:
        assert client.ack_many(held) == [None, None]
        with Client(f"127.0.0.1:{ports[0]}", "shop", token="wrong", tls=tls) as nobody, pytest.raises(Unauthenticated):
            nobody.enqueue("mail", b"x")
    plain = Client(f"127.0.0.1:{ports[1]}", "shop", token="shop", routing=False)
    with plain, pytest.raises(Invalid, match="speaks TLS"):
        plain.enqueue("mail", b"x", timeout_ms=10_000)
    for stranger in (Tls(authority.ca_file), Tls(authority.ca_file, *authority.issue("c.test", expired=True))):
        client = Client(f"127.0.0.1:{ports[1]}", "shop", token="shop", tls=stranger, routing=False)
        with client, pytest.raises((Unavailable, OutcomeUnknown)):
            client.enqueue("mail", b"x", timeout_ms=300)
    log = log_of(cluster)
    assert SECRET not in log
    assert "audit.refused" in log
    assert "Traceback" not in log
    assert (
        sum(int(number) for number in re.findall(r" forwarded=(\d+)", log)) == 0
    )  # hosts log the count when they stop
    cluster.stop()
    assert sum(int(number) for number in re.findall(r" forwarded=(\d+)", log_of(cluster))) > 0


@pytest.mark.mariadb
def test_load_is_measured_with_a_principals_file(new_cluster: NewCluster, tmp_path: Path) -> None:
    """Both hosts have two shards and one has all the traffic: only measured load moves a shard."""
    auth = {"auth": files(tmp_path, Authority(tmp_path))["auth"]}
    cluster = new_cluster("a", "b", settings={**auth, "zookeeper": {"balance_every_ms": 1_500}})
    owned = [number for number, owner in cluster.registry.facts.owners.items() if owner.host == "a"]
    assert len(owned) == 2
    with busy(cluster.hosts["a"].port):
        cluster.registry.wait_for(
            lambda facts: len({facts.assignment.hosts[number] for number in owned}) == 2, timeout_ms=60_000
        )
    assert "audit.refused" not in log_of(cluster)
