"""The commands of docs/run/backup.md work as written, on a cluster."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from foqs.client import Client
from foqs_lab.cluster import HostProcess
from foqs_lab.servers import Kind, ZookeeperServer
from tests.api.hosts import ROOT, foqs
from tests.cluster.conftest import ON_EACH_KIND, NewCluster
from tests.cluster.test_rotation_page import Shell
from tests.conftest import NewTools
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.timeout(400)]

PAGE = (ROOT / "docs/run/backup.md").read_text()


def blocks(title: str) -> list[str]:
    section = re.split(r"^## ", PAGE.partition(f"## {title}\n")[2], maxsplit=1, flags=re.M)[0]
    return re.findall(r"^```sh\n(.*?)^```", section, re.M | re.S)


def check_restored(host: HostProcess, client: Client, wanted: set[int], lost: int) -> None:
    """Check that the items of the dump are back, and nothing else; and that no id is given again."""
    got = set[int]()

    def all_back() -> bool:
        got.update(item.id for item in client.dequeue("mail", 100, lease_ms=300_000))
        return got >= wanted

    wait_until(all_back)
    assert got == wanted
    assert host.said("shard.restored") == 1
    assert client.enqueue("mail", b"new") not in {*wanted, lost}


@ON_EACH_KIND
def test_a_shard_is_dumped_lost_and_restored(
    kind: Kind, new_cluster: NewCluster, new_tools: NewTools, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    new_tools(kind)
    cluster = new_cluster("a", shards=1, settings={"host": {"confirm_ms": 1_000}})
    server, (shard,) = request.getfixturevalue(kind), cluster.shards
    shell = Shell(tmp_path, cluster)
    dump, remove_old, drill = blocks("Dump")
    disable, look, restore, start, check = blocks("Restore")
    host = cluster.hosts["a"]
    with Client(f"127.0.0.1:{host.port}", "shop") as client:
        wanted = {client.enqueue("mail", b"%d" % n) for n in range(20)}
        shell.run(dump)
        shell.run(remove_old)
        files = sorted(path.name for path in (tmp_path / "dumps").iterdir())
        assert len(files) == 3, "a dump of today is not removed"
        assert files[0] == "cluster.json"
        try:
            shell.run(drill.replace("mysql://foqs@127.0.0.1/foqs_drill", server.url(f"{shard.database}_drill")))
            assert server.query(f"SELECT COUNT(*) FROM {shard.database}_drill.item") == [(20,)]
        finally:
            server.drop_database(f"{shard.database}_drill")
        lost = client.enqueue("mail", b"lost")
        assert len(client.ack_many(client.dequeue("mail", 5, lease_ms=60_000))) == 5
        refused = foqs("shards", "restore", tmp_path / "dumps" / files[1], "--yes", "--replace", "-c", cluster.config)
        assert (refused.returncode, "shard 1 is enabled: first `foqs shards disable 1`" in refused.stderr) == (1, True)
        shell.run(disable)
        server.query(f"DELETE FROM {shard.database}.item")
        server.query(f"DROP TABLE {shard.database}.ready")
        shell.run(f"{look}\n{restore}")
        shell.run(start)
        shell.run(check)
        check_restored(host, client, wanted, lost)


def test_everything_is_lost(
    kind: Kind, new_cluster: NewCluster, new_tools: NewTools, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The database comes back in another place, and the ZooKeeper is another one. The export is newer than the dump."""
    new_tools(kind)
    cluster = new_cluster("a", shards=1, settings={"host": {"confirm_ms": 1_000}})
    server, (shard,) = request.getfixturevalue(kind), cluster.shards
    dump, *_ = blocks("Dump")
    restore, records, set_url, check = blocks("Everything is lost")
    shell = Shell(tmp_path, cluster)
    with Client(f"127.0.0.1:{cluster.hosts['a'].port}", "shop") as client:
        wanted = {client.enqueue("mail", b"%d" % n) for n in range(20)}
        shell.run(dump)
        lost = client.enqueue("mail", b"lost")
    cluster.hosts["a"].stop()
    shell.run(dump.splitlines()[1])
    cluster.stop()
    cluster.zookeeper.kill()
    server.drop_database(shard.database)
    new_url = server.url(f"{shard.database}_new")
    (tmp_path / "url-1.txt").write_text(f"{new_url}\n")
    with ZookeeperServer() as zookeeper:
        request.addfinalizer(lambda: server.drop_database(f"{shard.database}_new"))
        cluster.config.write_text(cluster.config.read_text().replace(cluster.zookeeper.hosts, zookeeper.hosts))
        shell.run(restore)
        shell.run(records)
        refused = foqs("shards", "set-url", "1", "-", "-c", cluster.config, stdin=new_url)
        assert "The new database is an older copy" in refused.stdout, "the question that --yes answers"
        assert (refused.returncode, "give --yes" in refused.stderr) == (1, True)
        shell.run(set_url)
        shell.run(check)
        host = HostProcess("b", (), tmp_path, tomllib.loads(cluster.config.read_text()))
        with host, Client(f"127.0.0.1:{host.port}", "shop") as client:
            check_restored(host, client, wanted, lost)
