"""`foqs console --config` on a cluster: its page of the hosts, and the changes that it offers."""

from __future__ import annotations

import http.client
import re
from pathlib import Path
from urllib.parse import urlencode

import pytest

from foqs.shardmgr.facts import Facts
from tests.api.hosts import HostProcess
from tests.cluster.conftest import NewCluster
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.mariadb, pytest.mark.timeout(400)]


class Browser:
    """Requests to a console as a browser sends them."""

    def __init__(self, address: str) -> None:
        self._address = address

    def get(self, path: str) -> str:
        """Return the words of a page."""
        return self._ask("GET", path)[1]

    def confirm(self, path: str, **fields: object) -> tuple[str, str]:
        """Return the words of the question, and after the answer the words of the next page."""
        form = {**fields, "back": "/hosts"}
        status, question = self._ask("POST", path, form)
        assert status == 200, question
        status, after = self._ask("POST", path, form | {"confirmed": "yes"})
        assert status == 303, after
        return question, self.get("/hosts")

    def _ask(self, method: str, path: str, form: dict[str, object] | None = None) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self._address, timeout=120)
        headers = {"Sec-Fetch-Site": "same-origin", "Content-Type": "application/x-www-form-urlencoded"}
        connection.request(method, path, urlencode(form or {}), headers)
        answer = connection.getresponse()
        words = " ".join(re.sub(r"<[^>]*>", " ", answer.read().decode()).split())
        connection.close()
        return answer.status, words


def served(facts: Facts) -> dict[int, str]:
    return {shard: owner.host for shard, owner in facts.owners.items()}


def test_shards_move_by_the_page_of_the_hosts(new_cluster: NewCluster, tmp_path: Path) -> None:
    cluster = new_cluster("a", "b", shards=4)
    address = f"127.0.0.1:{cluster.hosts['a'].port}"
    log = tmp_path / "console.log"
    args = ["console", "--address", address, "--port", "0", "--config", cluster.config]
    with HostProcess(log, args, {"FOQS_LOG__LEVEL": "error"}) as console:
        wait_until(lambda: console.lines, "the console's address")
        browser = Browser(console.lines[0].removeprefix("foqs console on http://"))
        shown = browser.get("/hosts")
        assert "Moves in progress 0" in shown
        assert "yes shards 1, 3 move to b; then b is the last host that takes shards" in shown
        assert served(cluster.registry.facts) == {1: "a", 2: "b", 3: "a", 4: "b"}
        question, after = browser.confirm("/hosts/move", shard=1, host="b")
        assert "Moves shard 1 from a to b." in question
        assert "Shard 1 is served by b." in after
        question, after = browser.confirm("/hosts/drain", host="b")
        assert "3 shards move to a: shards 1, 2, 4." in question
        assert "Host b serves nothing." in after or "Not finished yet" in after
        cluster.registry.wait_for(lambda facts: served(facts) == dict.fromkeys(range(1, 5), "a"))
        assert "b" in cluster.registry.facts.drained
        wait_until(lambda: "yes it serves no shard" in browser.get("/hosts"), "host b to serve nothing")
        assert "no it is the last host that can take shards: no host would serve shards 1" in browser.get("/hosts")
        _, after = browser.confirm("/hosts/undrain", host="b")
        assert "Host b may get shards." in after
        cluster.registry.wait_for(lambda facts: not facts.drained)
        made = re.findall(r"audit\.change .*?what=([\w.]+)", log.read_text())
        assert made == ["shard.move", "host.drain", "host.undrain"]
        assert console.stop() == 0
        assert console.faults() == []
