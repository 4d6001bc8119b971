"""`foqs console --config` on a cluster in a browser: its page of the hosts, and the changes that it offers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from foqs.shardmgr.facts import Facts
from tests.api.hosts import HostProcess
from tests.cluster.conftest import NewCluster
from tests.console.conftest import chromedriver
from tests.console.user import User, window
from tests.support.browser import Browser
from tests.support.waiting import wait_until

__all__ = ["chromedriver", "window"]  # fixtures
pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.mariadb, pytest.mark.timeout(400)]


def served(facts: Facts) -> dict[int, str]:
    return {shard: owner.host for shard, owner in facts.owners.items()}


def test_shards_move_by_the_page_of_the_hosts(new_cluster: NewCluster, window: Browser, tmp_path: Path) -> None:
    cluster = new_cluster("a", "b", shards=4)
    address = f"127.0.0.1:{cluster.hosts['a'].port}"
    log = tmp_path / "console.log"
    args = ["console", "--address", address, "--port", "0", "--config", cluster.config]
    with HostProcess(log, args, {"FOQS_LOG__LEVEL": "error"}) as console:
        wait_until(lambda: console.lines, "the console's address")
        user = User(window, console.lines[0].removeprefix("foqs console on "))
        user.open("/hosts")
        assert may_stop(user)["a"].startswith("yes shards 1, 3 move to b; then b is the last host that takes shards")
        assert served(cluster.registry.facts) == {1: "a", 2: "b", 3: "a", 4: "b"}
        assert [(row[0].split()[0], row[4]) for row in user.rows("zk-hosts")] == [("a", "2"), ("b", "2")]
        user.type("#shard", "1")
        user.type("#to", "b")
        assert "Moves shard 1 from a to b." in asked(user, "form[action='/hosts/move'] button")
        assert "Shard 1 is served by b." in user.said
        assert "3 shards move to a: shards 1, 2, 4." in asked(user, button_of(user, "b"))
        assert "Host b serves nothing." in user.said or "Not finished yet" in user.said
        cluster.registry.wait_for(lambda facts: served(facts) == dict.fromkeys(range(1, 5), "a"))
        assert "b" in cluster.registry.facts.drained
        wait_until(lambda: "it serves no shard" in may_stop(user)["b"], lambda: may_stop(user))
        assert "it is the last host that can take shards: no host would serve shards 1" in may_stop(user)["a"]
        assert user.texts("#to option") == ["a"], "a drained host gets no shard"
        asked(user, button_of(user, "b"))
        assert "Host b may get shards." in user.said
        cluster.registry.wait_for(lambda facts: not facts.drained)
        assert "2 shards move to b" in asked(user, "#rebalance")
        cluster.registry.wait_for(lambda facts: sorted(served(facts).values()) == ["a", "a", "b", "b"])
        made = re.findall(r"audit\.change .*?what=([\w.]+)", log.read_text())
        assert made == ["shard.move", "host.drain", "host.undrain", "cluster.rebalance"]
        assert console.stop() == 0
        assert console.faults() == []


def asked(user: User, css: str) -> str:
    """Make a change, and return the question before it."""
    user.press(css)
    question = user.text(".notice.warn:not(#stale)")
    user.confirm()
    return question


def button_of(user: User, host: str) -> str:
    row = [row[0].split()[0] for row in user.rows("zk-hosts")].index(host)
    return f"#drain-{row + 1}"


def may_stop(user: User) -> dict[str, str]:
    """Return what the page says about a stop of each host."""
    user.open("/hosts")
    return {row[0].split()[0]: row[5] for row in user.rows("zk-hosts")}
