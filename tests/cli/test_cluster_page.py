"""Runs the commands of docs/run/cluster-from-one-host.md in order: one host, a cluster, and one host again.

The test replaces only ports, and the addresses of the database server and of ZooKeeper.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable

import pytest

from foqs.client import Client, ItemSpec
from foqs_lab.servers import ZookeeperServer
from foqs_lab.servers.databases import SqlEndpoint
from foqs_lab.servers.process import free_port
from tests.api.hosts import ROOT
from tests.support.checkout import Checkout, checkout, says

__all__ = ["checkout"]  # a fixture
pytestmark = [pytest.mark.mariadb, pytest.mark.zookeeper, pytest.mark.timeout(400)]
PAGE = (ROOT / "docs/run/cluster-from-one-host.md").read_text()
DEPLOYMENT = (ROOT / "docs/run/deployment.md").read_text()
RATE, BURST = 0.2, 1


def page(language: str) -> list[str]:
    return re.findall(rf"^```{language}[^\n]*\n(.*?)^```\n", PAGE, re.M | re.S)


class Installation:
    def __init__(self, checkout: Checkout, server: SqlEndpoint, zookeeper: ZookeeperServer) -> None:
        self.checkout = checkout
        self.port = free_port()
        self._database, self._zookeeper = server, zookeeper
        (account,) = re.findall(r"^```sql[^\n]*\n(.*?)^```", DEPLOYMENT, re.M | re.S)
        for statement in filter(str.strip, account.split(";")):
            server.query(statement)
        one, cluster = page("toml")
        for name, config in (("one", one), ("cluster", cluster)):
            checkout.folder.joinpath(f"{name}.toml").write_text(self._here(config))
        self.client = Client(f"127.0.0.1:{self.port}", "default", routing=False)

    def _here(self, text: str) -> str:
        zookeepers = "zk-1:2181,zk-2:2181,zk-3:2181"
        text = text.replace("@127.0.0.1/", f"@127.0.0.1:{self._database.port}/")
        return (
            text.replace(zookeepers, self._zookeeper.hosts)
            .replace("0.0.0.0", "127.0.0.1")
            .replace("7707", str(self.port))
        )

    def run(self, commands: str) -> str:
        script = f"source .venv/bin/activate\n{self._here(commands)}"
        return self.checkout.run(script, FOQS_ADDRESS=f"127.0.0.1:{self.port}")

    def serve(self, commands: str) -> tuple[str, subprocess.Popen[str]]:
        """Run the commands; the last one is a host. Return the output of those before."""
        *before, serve = commands.strip().splitlines()
        shown = self.run("\n".join(before)) if before else ""
        assert serve.startswith("foqs serve ")
        host = self.checkout.terminal(f"source .venv/bin/activate\nexec {serve}", FOQS_ADMIN__PORT="0")
        says(host, f"foqs listening on 127.0.0.1:{self.port}")
        return shown, host

    def stop(self, host: subprocess.Popen[str]) -> None:
        said = self.checkout.interrupt(host)
        assert "Traceback" not in said, said

    def holds(self) -> None:
        """The topic `mail` delivers nothing, and `sync` no more than its throttle lets through."""
        since = time.monotonic()
        delivered = 0
        while (looked_s := time.monotonic() - since) < 6 or (not delivered and looked_s < 60):
            assert self.client.dequeue("mail", 5) == []
            delivered += len(items := self.client.dequeue("sync", 5, wait_ms=500))
            assert delivered <= BURST + RATE * (time.monotonic() - since), "the throttle does not hold"
            for item in items:
                self.client.ack(item)
        assert delivered, "items wait, and the throttle has a token every five seconds"


@pytest.fixture
def installation(
    checkout: Checkout, new_server: Callable[[str], SqlEndpoint], own_zookeeper: ZookeeperServer
) -> Installation:
    return Installation(checkout, new_server("mariadb"), own_zookeeper)


def test_a_pause_and_a_throttle_hold_in_both_directions(installation: Installation) -> None:
    alone, begin, join, look, back, again = page("sh")
    shown, host = installation.serve(alone)
    assert shown == "shard 1: ready\nshard 2: ready\n"
    delivered = installation.run(begin)
    assert delivered.count('"payload"') == 1, delivered
    assert all(isinstance(one, int) for one in installation.client.enqueue_many([ItemSpec("sync", b"more")] * 20))
    before = installation.client.settings()
    installation.stop(host)

    shown, host = installation.serve(join)
    assert "the cluster takes over the settings of namespace default (version 3)" in shown
    assert installation.client.settings() == before
    shown = installation.run(look)
    assert "shard 1: default version 3, the same as version 3 of the cluster" in shown
    assert "shard 2: default version 3, the same as version 3 of the cluster" in shown
    assert '"payload"' not in shown
    installation.holds()
    changed = installation.client.put_settings({"plans/acme": "gold"}, expected_version=before.version)
    installation.stop(host)

    _, host = installation.serve(back)
    assert installation.client.settings().version == changed.version
    assert '"payload"' not in installation.run(again)
    assert installation.client.settings().entries == {**before.entries, "plans/acme": "gold"}
    installation.holds()
    assert "resumed" in installation.run("foqs topic resume mail")
    until = time.monotonic() + 60
    while not (items := installation.client.dequeue("mail", 5, wait_ms=500)) and time.monotonic() < until:
        pass
    assert [item.payload for item in items] == [b"to: you"]
    installation.stop(host)


def test_the_blocks_of_the_page_are_all_run() -> None:
    assert 2 * (len(page("sh")) + len(page("toml"))) == PAGE.count("```")
    assert json.dumps(page("sh")).count("foqs serve") == 3
