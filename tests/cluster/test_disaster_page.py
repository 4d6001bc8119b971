"""The commands of docs/disaster.md for dumps and restores work as written, on a cluster."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from foqs.client import Client
from foqs_lab.servers import Kind
from tests.api.hosts import ROOT, foqs
from tests.cluster.conftest import ON_EACH_KIND, NewCluster
from tests.cluster.test_rotation_page import Shell
from tests.conftest import NewTools
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.timeout(400)]

PAGE = (ROOT / "docs" / "disaster.md").read_text()


def blocks(title: str) -> list[str]:
    section = re.split(r"^## ", PAGE.partition(f"## {title}\n")[2], maxsplit=1, flags=re.M)[0]
    return re.findall(r"^```sh\n(.*?)^```", section, re.M | re.S)


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
        got = set[int]()

        def all_back() -> bool:
            got.update(item.id for item in client.dequeue("mail", 100, lease_ms=300_000))
            return got >= wanted

        wait_until(all_back)
        assert got == wanted
        assert host.said("shard.restored") == 1
        assert client.enqueue("mail", b"new") not in {*wanted, lost}
