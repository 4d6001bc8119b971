"""`foqs shards set-url` and passwords in files, under load: the shard keeps its items, and no call fails."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from foqs.client import Client
from foqs.store.maintenance import create_schema
from foqs_lab.cluster import LocalCluster
from foqs_lab.relay import Relay
from foqs_lab.servers import Kind
from tests.api.hosts import foqs
from tests.cluster.conftest import MISSED, ON_EACH_KIND, NewCluster
from tests.cluster.load import Load
from tests.conftest import NewServer, Server
from tests.store.copies import dump, restore
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.timeout(400)]

RIGHTS = "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX"


def account(server: Server, user: str, password: str) -> None:
    server.query(f"CREATE USER {user}@'127.0.0.1' IDENTIFIED BY '{password}'")
    server.query(f"GRANT {RIGHTS} ON *.* TO {user}@'127.0.0.1'")


def url(cluster: LocalCluster, shard: int, user: str, options: str = "", *, port: int | None = None) -> str:
    found = make_url(cluster.registry.facts.shards[shard].url)
    place = f"127.0.0.1:{port or found.port}/{found.database}"
    return f"mysql+pymysql://{user}@{place}{options}"


def set_url(cluster: LocalCluster, shard: int, to: str, *options: str) -> subprocess.CompletedProcess[str]:
    return foqs("shards", "set-url", str(shard), to, *options, "--config", cluster.config)


def made(ran: subprocess.CompletedProcess[str]) -> str:
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def client(address: str) -> Client:
    return Client(address, "shop", routing=False)


def cut(server: Server, user: str) -> None:
    """End all connections of an account: hosts make new ones."""
    for (number,) in server.query("SELECT id FROM information_schema.processlist WHERE user = %s", user):
        server.query(f"KILL {number}")


def connections(server: Server, user: str) -> int:
    return len(server.query("SELECT id FROM information_schema.processlist WHERE user = %s", user))


@ON_EACH_KIND
def test_accounts_and_passwords_change_under_load(
    kind: Kind, new_server: NewServer, new_cluster: NewCluster, tmp_path: Path
) -> None:
    """From the password in ZooKeeper to one in a file, and from that to another one without a command."""
    server, folder = new_server(kind), tmp_path / "secrets"
    folder.mkdir()
    file = folder / "db-1"
    file.write_text("first\n")
    account(server, "foqs", "first")
    settings = {"store": {"secrets_dir": str(folder)}}
    cluster = new_cluster("a", "b", shards=4, settings=settings, server=server)
    with Client(f"127.0.0.1:{cluster.hosts['a'].port}", "shop") as keys:
        known = {key: keys.enqueue("kept", b"x", dedup_key=key) for key in map(str, range(40))}
    with Load(cluster, client).running() as load:
        for shard in range(1, 5):
            said = made(set_url(cluster, shard, url(cluster, shard, "foqs", "?password_file=db-1")))
            assert f"shard {shard} is served at the new URL" in said
            load.goes_on()
        assert connections(server, "foqs") >= 4
        # Both passwords are valid for a time, or the file changes with the account: hosts connect again and again.
        if kind == "mysql":
            server.query("ALTER USER foqs@'127.0.0.1' IDENTIFIED BY 'second' RETAIN CURRENT PASSWORD")
        else:
            server.query("ALTER USER foqs@'127.0.0.1' IDENTIFIED BY 'second'")
        file.write_text("second\n")
        if kind == "mysql":
            server.query("ALTER USER foqs@'127.0.0.1' DISCARD OLD PASSWORD")
        cut(server, "foqs")
        load.goes_on()
    with Client(f"127.0.0.1:{cluster.hosts['b'].port}", "shop") as keys:
        assert {key: keys.enqueue("kept", b"x", dedup_key=key) for key in known} == known
    records = [fact.url for fact in cluster.registry.facts.shards.values()]
    assert all("password_file=db-1" in record and "first" not in record for record in records)


@pytest.mark.mariadb
def test_a_password_changes_without_a_release(new_server: NewServer, new_cluster: NewCluster, tmp_path: Path) -> None:
    """The host keeps the shard open, uses the new URL for its next connection, and the audit line hides it."""
    server = new_server("mariadb")
    account(server, "foqs", "first")
    account(server, "other", "other")
    cluster = new_cluster("a", shards=1, server=server)
    made(set_url(cluster, 1, url(cluster, 1, "foqs:first")))
    epoch = cluster.registry.facts.owners[1].epoch
    server.query("ALTER USER foqs@'127.0.0.1' IDENTIFIED BY 'hush'")
    ran = set_url(cluster, 1, url(cluster, 1, "foqs:hush"), "--yes")
    assert "the same account, so its host keeps it open" in made(ran)
    assert "new connections use it" in ran.stdout
    assert "audit.change" in ran.stderr
    assert "hush" not in ran.stderr + ran.stdout
    cluster.hosts["a"].wait_for("shard.url_changed")
    assert cluster.registry.facts.owners[1].epoch == epoch
    cut(server, "foqs")
    with client(f"127.0.0.1:{cluster.hosts['a'].port}") as one:
        one.enqueue("mail", b"x")
    wait_until(lambda: connections(server, "foqs") > 0)
    assert cluster.registry.facts.owners[1].epoch == epoch
    # A mistake that no command saw closes nothing: the host tries the URL before it gives up the present one.
    host = cluster.hosts["a"]
    made(set_url(cluster, 1, url(cluster, 1, "other:wrong"), "--no-check", "--yes", "--no-wait"))
    host.wait_for("shard.url_fails")
    with client(f"127.0.0.1:{host.port}") as one:
        one.enqueue("mail", b"x")
    assert cluster.registry.facts.owners[1].epoch == epoch
    made(set_url(cluster, 1, url(cluster, 1, "foqs:hush"), "--no-wait"))
    wrong = set_url(cluster, 1, url(cluster, 1, "foqs:wrong"))
    assert wrong.returncode == 1
    assert "denies access to 'foqs'" in wrong.stderr
    assert made(set_url(cluster, 1, url(cluster, 1, "foqs:hush"))).startswith("shard 1 has that URL already")
    checked = foqs("shards", "check", "--config", cluster.config)
    assert checked.returncode == 0
    assert "warning: its URL in ZooKeeper has the password -> write it into a file" in checked.stdout
    assert "foqs shards set-url" in foqs("doctor", "--config", cluster.config).stdout


@pytest.mark.mariadb
def test_another_address_of_the_same_server_under_load(new_server: NewServer, new_cluster: NewCluster) -> None:
    server = new_server("mariadb")
    cluster = new_cluster("a", "b", shards=4, server=server)
    relay = Relay(server.port)
    try:
        with Load(cluster, client).running() as load:
            for shard in range(1, 5):
                made(set_url(cluster, shard, url(cluster, shard, "root", port=relay.port)))
                load.goes_on()
        cluster.stop()
    finally:
        relay.close()


@pytest.mark.mariadb
def test_a_copy_takes_the_place_of_its_original(new_server: NewServer, new_cluster: NewCluster) -> None:
    """A promoted replica has the shard's identity; one that is behind is named with numbers, and asked about."""
    old, new = new_server("mariadb"), new_server("mariadb")
    cluster = new_cluster("a", shards=1, server=old, settings=MISSED)  # the owner of the copy waits `confirm_ms`
    place = cluster.shards[0].database
    address = f"127.0.0.1:{cluster.hosts['a'].port}"
    new.create_database(place)
    target = url(cluster, 1, "root", port=new.port)
    with client(address) as one:
        [one.enqueue("mail", b"x") for _ in range(5)]
    empty = set_url(cluster, 1, target, "--yes")
    assert empty.returncode == 1
    assert "no foqs schema" in empty.stderr
    create_schema(target, 1)
    stranger = set_url(cluster, 1, target, "--yes")
    assert stranger.returncode == 1
    assert "another copy of a shard with that number (identity " in stranger.stderr
    restore(target, dump(cluster.shards[0].url))
    with client(address) as one:
        late = [one.enqueue("mail", b"y") for _ in range(3)]
    asked = set_url(cluster, 1, target)
    assert asked.returncode == 1
    assert "still takes writes" in asked.stdout
    assert "no terminal is there to confirm it" in asked.stderr
    cluster.hosts["a"].stop()
    old.stop()
    gone = set_url(cluster, 1, target, "--no-wait", "--yes")
    assert "the database at the present URL cannot be read" in made(gone)
    assert "warning: The new database is an older copy: " in gone.stdout
    assert "3 new items or more are missing" in gone.stdout
    cluster.start("a")
    cluster.settled("a")
    with client(address) as one:
        assert len(one.dequeue("mail", 100, wait_ms=10_000)) == 5
        assert one.enqueue("mail", b"z") not in late
