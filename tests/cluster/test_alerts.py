"""The alert rules and the dashboard on a real Prometheus that scrapes a cluster at work, while parts of it die."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from foqs.client import Client
from foqs.client.items import ItemSpec
from foqs.errors import FoqsError, LostReply, NotSent
from foqs_lab.cluster import LocalCluster
from foqs_lab.crash.clients import Wire
from tests.api.hosts import until
from tests.cluster.conftest import MISSED, NewCluster
from tests.conftest import NewServer
from tests.deploy.prometheus import Prometheus, program_or_skip
from tests.deploy.promql import RULES, alert_rules, dashboard_queries, selectors

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.mariadb, pytest.mark.timeout(400)]

VARIABLES = {"job": "foqs", "host": ".*", "namespace": ".*", "topic": ".*", "__rate_interval": "30s"}
BY_THE_MACHINE = {"FoqsEventLoopLate", "FoqsTransactionsSlow"}
"""A slow machine has them fire, and is right."""
LASTING = {"FoqsOutcomesUnknown", "FoqsShardFlapping"}
"""They look back for minutes, and a database that dies may cause them."""
OF_A_LONE_HOST = {
    "foqs_certificate_expires_at_seconds",
    "foqs_shard_disk_free_bytes",
    "foqs_shard_restored_at_seconds",
    "foqs_topic_hung_handlers",
    'held="paused"',
    'held="dead"',
    'held!=""',
}
"""What only test_lone_alerts.py has."""
PATIENCE_S = 90.0
PLENTY = 100_000_000
"""Items of a quota that no test uses up."""


@pytest.fixture
def watched(tmp_path: Path) -> Path:
    """A folder for Prometheus; asked first, so that nothing is started where there is none."""
    program_or_skip("prometheus")
    folder = tmp_path / "prometheus"
    folder.mkdir()
    return folder


def test_alerts_fire_when_parts_die(watched: Path, new_server: NewServer, new_cluster: NewCluster) -> None:
    """One cluster for all of it, as its start takes longest."""
    server = new_server("mariadb")
    cluster = new_cluster("a", "b", server=server, settings={**MISSED, "quotas": {"stored_items": PLENTY}})
    targets = {name: f"127.0.0.1:{host.admin_port}" for name, host in cluster.hosts.items()}
    with Prometheus(watched, sorted(targets.values()), impatient(RULES.read_text())) as prometheus, load(cluster):
        everything_is_exported(prometheus, but=OF_A_LONE_HOST)
        comes_to(prometheus, set(), but=BY_THE_MACHINE)

        cluster.zookeeper.kill()
        comes_to(prometheus, {("FoqsZookeeperLost", target) for target in targets.values()})

        # No host takes its shards over, as ZooKeeper is down.
        victim = cluster.registry.facts.owners[1].host
        left = ({"a", "b"} - {victim}).pop()
        cluster.hosts[victim].kill()
        down = {("FoqsHostDown", targets[victim])}
        unowned = {("FoqsShardUnowned",), ("FoqsZookeeperLost", targets[left])}
        comes_to(prometheus, down | unowned)

        cluster.zookeeper.start()
        cluster.settled(left)
        fewer = {("FoqsHostsFewer",)}
        comes_to(prometheus, down | fewer)

        server.kill()
        failing = {("FoqsShardFailing", targets[left], str(shard.number)) for shard in cluster.shards}
        comes_to(prometheus, down | fewer | failing)

        server.restart()
        comes_to(prometheus, down | fewer)


def impatient(rules: str) -> str:
    """Alerts fire a second after their cause instead of minutes."""
    changed, times = re.subn(r"(\n +for:) \w+", r"\1 1s", rules)
    assert times == sum("for" in rule for rule in alert_rules())
    return changed


@contextmanager
def load(cluster: LocalCluster) -> Iterator[None]:
    """Start a client for each host that enqueues, dequeues and acks, whatever fails. Two tenants have a backlog, and a
    third one's items wait for a throttle."""
    with Client(f"127.0.0.1:{next(iter(cluster.hosts.values())).port}", "ns") as client:
        client.put_settings({"throttle.slow": '{"per_second": 0.001}'})
        backlog = [ItemSpec("shared", b"x", fairness_key=tenant) for tenant in ("red", "green") for _ in range(500)]
        held = [ItemSpec("shared", b"x", fairness_key="blue", throttle_keys=["slow"]) for _ in range(20)]
        assert all(isinstance(outcome, int) for outcome in client.enqueue_many([*backlog, *held]))
    stop = threading.Event()
    threads = [threading.Thread(target=_work, args=(host.port, stop)) for host in cluster.hosts.values()]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _work(port: int, stop: threading.Event) -> None:
    wire = Wire(port, "ns", timeout_ms=10_000)
    while not stop.wait(0.05):
        with suppress(FoqsError, LostReply, NotSent):
            shared = [ItemSpec("shared", b"x", fairness_key=tenant) for tenant in ("red", "green")]
            later = ItemSpec(topic="later", payload=b"x", delay_ms=600_000)
            wire.enqueue([ItemSpec(topic="jobs", payload=b"x"), later, *shared])
            wire.ack(wire.dequeue(["jobs", "shared"], 2, wait_ms=500, lease_ms=60_000))
    wire.close()


def everything_is_exported(
    prometheus: Prometheus, but: Collection[str] = (), only: Collection[str] | None = None
) -> None:
    """Wait until each series that a rule or a panel names is there, and each panel has something to draw. `but`: not
    those with one of these texts in the query; `only`: none but those."""

    def counts(query: str) -> bool:
        return not any(one in query for one in but) and (only is None or any(one in query for one in only))

    panels = {title: [*filter(counts, queries)] for title, queries in dashboard_queries(**VARIABLES).items()}
    queries = [rule["expr"] for rule in alert_rules()] + [query for each in panels.values() for query in each]
    asked = {f"{one.metric}{one.matchers}" for query in queries for one in selectors(query)}
    asked = {*filter(counts, asked)}

    def absent() -> list[str]:
        return sorted(selector for selector in asked if not prometheus.has_series(selector))

    def empty() -> list[str]:
        return sorted({title for title, each in panels.items() for query in each if not prometheus.query(query)})

    _until_none(absent, "series")
    _until_none(empty, "panels")


def _until_none(missing: Callable[[], list[str]], what: str) -> None:
    try:
        until(lambda: not missing(), what, PATIENCE_S)
    except AssertionError as error:
        error.add_note(f"missing: {missing()}")
        raise


def seen(prometheus: Prometheus) -> set[tuple[str, ...]]:
    """Return the alerts that fire, by name, and by host, shard and topic if they have one."""
    alerts = [alert["labels"] for alert in prometheus.firing()]
    return {tuple(one[key] for key in ("alertname", "instance", "shard", "topic") if key in one) for one in alerts}


def comes_to(
    prometheus: Prometheus,
    expected: Collection[tuple[str, ...]],
    but: Collection[str] = BY_THE_MACHINE | LASTING,
    each: Callable[[], object] = lambda: None,
) -> None:
    """Wait until exactly the `expected` alerts fire, as `seen` has them; those called as in `but` may. All rules are
    evaluated by then. `each` is called before each look."""

    def reached() -> bool:
        each()
        found = {alert for alert in seen(prometheus) if alert[0] not in but}
        return found == set(expected) and all(rule["health"] == "ok" for rule in prometheus.rules())

    try:
        until(reached, f"the alerts {expected}", PATIENCE_S)
    except AssertionError as error:
        error.add_note(f"firing: {seen(prometheus)}")
        raise
    for alert in prometheus.firing():
        said = " ".join(alert["annotations"].values())
        assert "<" not in said, said  # where a template failed
        assert "{{" not in said, said
