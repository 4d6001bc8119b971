"""Secrets, tokens and certificates of a cluster are replaced while clients work, and no call is refused."""

from __future__ import annotations

import json
import os
import socket
import ssl
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from foqs.client import Client, Tls
from foqs_lab.cluster import LocalCluster
from tests.admin.scraping import Scrape, get
from tests.cluster.conftest import NewCluster
from tests.cluster.load import Load, reload
from tests.support.certificates import Authority, Pair
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.mariadb, pytest.mark.timeout(400)]

HOSTS = ("a", "b", "c")
OLD, NEW = "old-" * 8, "new-" * 8


def write(path: Path, text: str) -> None:
    """Replace a file at once."""
    new = path.with_name(f".{path.name}")
    new.write_text(text)
    os.replace(new, path)


def principals(path: Path, *tokens: str) -> None:
    digests = json.dumps([sha256(token.encode()).hexdigest() for token in tokens])
    write(path, f'[principals.shop]\ntoken_sha256 = {digests}\nrights = {{ shop = ["produce", "consume"] }}\n')


def refusals(cluster: LocalCluster) -> list[str]:
    logs = (host.log.read_text() for host in cluster.hosts.values())
    return [line for log in logs for line in log.splitlines() if "audit.refused" in line]


def secrets(cluster: LocalCluster, name: str, secret: str, previous: str | None) -> None:
    """Change the configuration of one host, as an operator does."""
    path = cluster.hosts[name].log.with_suffix(".toml")
    lines = [line for line in path.read_text().splitlines() if not line.startswith("cluster_secret")]
    keys = {"cluster_secret": secret, **({} if previous is None else {"cluster_secret_previous": previous})}
    at = lines.index("[auth]") + 1
    write(path, "\n".join([*lines[:at], *(f'{key} = "{value}"' for key, value in keys.items()), *lines[at:]]) + "\n")


@pytest.fixture
def cluster(new_cluster: NewCluster, tmp_path: Path) -> LocalCluster:
    """Hosts with one shard each, which know the token `first`."""
    principals(tmp_path / "principals.toml", "first")
    auth = {"principals_file": str(tmp_path / "principals.toml"), "cluster_secret": OLD}
    return new_cluster(*HOSTS, shards=3, settings={"auth": auth})


@pytest.mark.parametrize("way", ["signal", "restart"])
def test_the_secret_is_replaced_host_after_host(cluster: LocalCluster, way: str) -> None:
    """In two rolls, each in an order of its own."""

    def client(address: str) -> Client:
        return Client(address, "shop", token="first", routing=way == "restart")

    def roll(order: str, secret: str, previous: str | None) -> None:
        for name in order:
            secrets(cluster, name, secret, previous)
            if way == "signal":
                reload(cluster, name)
            else:
                cluster.hosts[name].stop()
                cluster.start(name)
                cluster.settled(*HOSTS)
            load.goes_on()

    with Load(cluster, client).running() as load:
        roll("abc", NEW, OLD)
        roll("cab", NEW, None)
    assert refusals(cluster) == []
    log = "".join(host.log.read_text() for host in cluster.hosts.values())
    assert OLD not in log
    assert NEW not in log


def test_a_token_is_replaced_host_after_host(cluster: LocalCluster, tmp_path: Path) -> None:
    """Two tokens of a principal are valid while the clients' file changes."""
    token = tmp_path / "token"
    write(token, "first")
    with Load(cluster, lambda address: Client(address, "shop", token=f"@{token}", routing=False)).running() as load:
        principals(tmp_path / "principals.toml", "first", "second")
        for name in HOSTS:
            reload(cluster, name, "principals.reloaded")
            load.goes_on()
        write(token, "second")
        load.has_token("second")
        principals(tmp_path / "principals.toml", "second")
        for name in HOSTS:
            reload(cluster, name, "principals.reloaded")
            load.goes_on()
    assert refusals(cluster) == []


# ------------------------------------------------------------------------------------------------ certificates


class Files:
    """The PEM files of the hosts, and those of the clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = Pair(folder / "host.pem", folder / "host.key")
        self.client = Pair(folder / "client.pem", folder / "client.key")
        self.ca = folder / "bundle.pem"

    def install(self, pair: Pair, place: Pair) -> None:
        for source, target in zip(pair, place, strict=True):
            write(target, source.read_text())
            target.chmod(0o600)

    def trust(self, *authorities: Authority) -> None:
        write(self.ca, "".join(authority.ca_file.read_text() for authority in authorities))

    def settings(self) -> dict[str, object]:
        files = {"cert_file": self.host.cert_file, "key_file": self.host.key_file, "ca_file": self.ca}
        return {key: str(path) for key, path in files.items()} | {"client_certificates": "required"}

    def tls(self) -> Tls:
        return Tls(self.ca, *self.client)


def served(cluster: LocalCluster, name: str, files: Files) -> str:
    """Return the certificate that a host shows to a new connection."""
    context = ssl.create_default_context(cafile=str(files.ca))
    context.load_cert_chain(*files.client)
    with (
        socket.create_connection(("127.0.0.1", cluster.hosts[name].port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as shaken,
    ):
        return str((shaken.getpeercert() or {})["serialNumber"])


def test_authority_and_certificates_are_replaced(new_cluster: NewCluster, tmp_path: Path) -> None:
    """Hosts and clients trust both authorities, then get certificates of the new one, then trust it alone."""
    old, new, files = Authority(tmp_path, "old"), Authority(tmp_path, "new"), Files(tmp_path)
    files.install(old.issue("127.0.0.1"), files.host)
    files.install(old.issue("client.test"), files.client)
    files.trust(old)
    cluster = new_cluster(*HOSTS, shards=3, settings={"tls": files.settings()})
    fresh: Callable[[str], Client] = lambda address: Client(  # noqa: E731
        address, "shop", tls=files.tls(), routing=False, max_idle_ms=1
    )

    def roll() -> None:
        for name in HOSTS:
            reload(cluster, name, "certificates.reloaded")
            with fresh(f"127.0.0.1:{cluster.hosts[name].port}") as client:
                client.enqueue("other", b"x")
            load.goes_on()

    with Load(cluster, fresh).running() as load:
        before = {name: served(cluster, name, files) for name in HOSTS}
        files.trust(old, new)
        roll()
        files.install(new.issue("127.0.0.1"), files.host)
        files.install(new.issue("client.test"), files.client)
        roll()
        files.trust(new)
        roll()
        assert all(served(cluster, name, files) != number for name, number in before.items())
    assert [host.faults() for host in cluster.hosts.values()] == [[], [], []]


def test_a_bad_certificate_changes_nothing_and_is_seen(new_cluster: NewCluster, tmp_path: Path) -> None:
    authority, files = Authority(tmp_path), Files(tmp_path)
    files.install(authority.issue("127.0.0.1"), files.host)
    files.install(authority.issue("client.test"), files.client)
    files.trust(authority)
    cluster = new_cluster("a", shards=1, settings={"tls": files.settings()})
    admin = "127.0.0.1", cluster.hosts["a"].admin_port
    before, expires = served(cluster, "a", files), Scrape(admin).sum("foqs_certificate_expires_at_seconds")
    assert expires > 1e9
    files.install(authority.issue("127.0.0.1", expired=True), files.host)
    reload(cluster, "a", "certificates.not_reloaded")
    assert served(cluster, "a", files) == before
    status, body = get(admin, "/readyz")
    (note,) = json.loads(body)["notes"]
    assert status == 200
    assert note.startswith("tls: the host keeps its certificate, valid until ")
    assert str(files.host.cert_file) in note
    assert "expired on" in note
    files.install(authority.issue("127.0.0.1"), files.host)
    reload(cluster, "a", "certificates.reloaded")
    assert served(cluster, "a", files) != before
    wait_until(lambda: json.loads(get(admin, "/readyz")[1])["notes"] == [])
