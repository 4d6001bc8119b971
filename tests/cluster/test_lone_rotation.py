"""A lone host, and processes behind one port: SIGHUP brings a new password, a new secret and a new certificate."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from foqs.client import Client, Tls
from foqs.store.maintenance import create_schema
from foqs_lab.cluster import HostProcess, Shard
from tests.cluster.conftest import UNHURRIED, NewCluster
from tests.cluster.load import reload
from tests.cluster.test_rotation import Files, secrets, served
from tests.cluster.test_set_url import account, connections, cut
from tests.conftest import NewServer, Server
from tests.support.certificates import Authority
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.mariadb, pytest.mark.timeout(400)]


class Account(Shard):
    """A shard whose URL has the account `foqs`."""

    @property
    def url(self) -> str:
        return self.server.url(self.database).replace("root@", "foqs:first@")


class InFile(Shard):
    """A shard whose URL names the file of the password."""

    @property
    def url(self) -> str:
        return self.server.url(self.database).replace("root@", "foqs@") + "?password_file=db-1"


def database(server: Server) -> str:
    account(server, "foqs", "first")
    name = server.create_database("lone")
    create_schema(server.url(name), 1)
    return name


def test_a_new_password_is_used_for_the_next_connection(new_server: NewServer, tmp_path: Path) -> None:
    """And another account waits for a restart."""
    server = new_server("mariadb")
    shard = Account(1, server, database(server))
    settings = {section: keys for section, keys in UNHURRIED.items() if section != "zookeeper"}
    with HostProcess("lone", [shard], tmp_path, settings) as host:
        config = host.log.with_suffix(".toml")
        with Client(f"127.0.0.1:{host.port}") as client:
            client.enqueue("mail", b"x")
            server.query("ALTER USER foqs@'127.0.0.1' IDENTIFIED BY 'second'")
            config.write_text(config.read_text().replace("foqs:first@", "foqs:second@"))
            hang_up(host, "config.reloaded")
            assert host.said("shard.url_changed") == 1
            cut(server, "foqs")
            client.enqueue("mail", b"y")
            wait_until(lambda: connections(server, "foqs") > 0)
            assert len(client.dequeue("mail", 10)) == 2
            config.write_text(config.read_text().replace("foqs:second@", "root@"))
            hang_up(host, "needs_restart=['shards']")
        assert "second" not in host.log.read_text()


def test_a_password_file_needs_no_signal(new_server: NewServer, tmp_path: Path) -> None:
    """A missing file is named, and the host connects once it is there."""
    server, folder = new_server("mariadb"), tmp_path / "secrets"
    shard = InFile(1, server, database(server))
    folder.mkdir()
    settings = {section: dict(keys) for section, keys in UNHURRIED.items() if section != "zookeeper"}
    settings["store"]["secrets_dir"] = "secrets"
    host = HostProcess("lone", [shard], tmp_path, settings)
    host.launch()
    try:
        host.wait_for(f"the password file {folder / 'db-1'} cannot be read: No such file or directory")
        (folder / "db-1").write_text("first\n")
        host.wait_listening()
        with Client(f"127.0.0.1:{host.port}") as client:
            client.enqueue("mail", b"x")
            server.query("ALTER USER foqs@'127.0.0.1' IDENTIFIED BY 'second'")
            (folder / "db-1").write_text("second\n")
            cut(server, "foqs")
            client.enqueue("mail", b"y")
            assert len(client.dequeue("mail", 10)) == 2
    finally:
        host.stop()


def hang_up(host: HostProcess, said: str) -> None:
    before = host.said(said)
    host.signal(signal.SIGHUP)
    host.wait_for(said, times=before + 1)


@pytest.mark.zookeeper
def test_each_process_behind_a_port_reloads(new_cluster: NewCluster, tmp_path: Path) -> None:
    authority, files = Authority(tmp_path), Files(tmp_path)
    files.install(authority.issue("127.0.0.1"), files.host)
    files.install(authority.issue("client.test"), files.client)
    files.trust(authority)
    auth = {"cluster_secret": "old-" * 8}
    cluster = new_cluster("a", shards=2, processes=2, settings={"tls": files.settings(), "auth": auth})
    before = served(cluster, "a", files)
    files.install(authority.issue("127.0.0.1"), files.host)
    secrets(cluster, "a", "new-" * 8, "old-" * 8)
    reload(cluster, "a", "certificates.reloaded")
    cluster.hosts["a"].wait_for("certificates.reloaded", times=2)
    assert served(cluster, "a", files) != before
    tls = Tls(files.ca, *files.client)
    with Client(f"127.0.0.1:{cluster.hosts['a'].port}", tls=tls, routing=False) as client:
        ids = [client.enqueue("mail", b"x") for _ in range(20)]
        items = client.dequeue("mail", 20, wait_ms=10_000)
        assert client.ack_many(items) == [None] * len(items)
    assert len(set(ids)) == 20
    assert "audit.refused" not in cluster.hosts["a"].log.read_text()
