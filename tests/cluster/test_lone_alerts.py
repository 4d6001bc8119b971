"""Alerts about items, disks, certificates and older copies: a real Prometheus scrapes a host on a small disk."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Collection
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from foqs.client import Client, Tls
from foqs.client.items import ItemSpec, Nack
from foqs_lab.servers.process import free_port
from tests.admin.scraping import Scrape, admin
from tests.api.conftest import whole
from tests.api.hosts import PATIENT, HostProcess, dev, until
from tests.cluster.test_alerts import (
    OF_A_LONE_HOST,
    PATIENCE_S,
    comes_to,
    everything_is_exported,
    impatient,
    seen,
)
from tests.deploy.prometheus import Prometheus, program_or_skip
from tests.deploy.promql import RULES
from tests.support.certificates import Authority
from tests.support.disks import remount, small_disk

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

DISK_BYTES, LARGER_BYTES = 8 << 20, 64 << 20
SHORT = timedelta(seconds=60)
"""Life of a certificate: long enough for a start of the host, short enough to wait for its end."""


def hasty(rules: str) -> str:
    """Items are old after a second, paused, dead or not."""
    changed, times = re.subn(r"(foqs_topic_oldest_ready_age_seconds\{[^}]*\}\)) > [\d *]+", r"\1 > 1", impatient(rules))
    assert times == 3
    return changed


class LoneHost:
    """`foqs dev` with TLS and one shard, on the same ports after each start."""

    def __init__(self, disk: Path, authority: Authority, admin_port: int) -> None:
        self.disk, self.authority = disk, authority
        self.pair = authority.issue("127.0.0.1", life=timedelta(days=3))
        self.port, self.target = free_port(), f"127.0.0.1:{admin_port}"
        self.shard = disk / "data" / "shard-1.db"
        tls = {"FOQS_TLS__CERT_FILE": str(self.pair.cert_file), "FOQS_TLS__KEY_FILE": str(self.pair.key_file)}
        self._env = {**PATIENT, **tls, "FOQS_ADMIN__PORT": str(admin_port)}

    def start(self) -> HostProcess:
        return whole(dev(self.disk, "--shards", "1", "--port", str(self.port), **self._env))

    def client(self) -> Client:
        return Client(f"127.0.0.1:{self.port}", "ns", tls=Tls(ca_file=self.authority.ca_file))


def test_alerts_about_items_disks_and_certificates(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """One host for all of it, as a Prometheus takes seconds for each."""
    program_or_skip("prometheus")
    watched = tmp_path / "prometheus"
    watched.mkdir()
    lone = LoneHost(small_disk(tmp_path, request, DISK_BYTES), Authority(tmp_path), free_port())
    ends = {("FoqsCertificateEnds", lone.target), ("FoqsDiskAlmostFull", "1")}
    with Prometheus(watched, [lone.target], hasty(RULES.read_text())) as prometheus:
        with lone.start() as host, lone.client() as client:
            comes_to(prometheus, ends)
            copied(lone.shard, tmp_path / "copy.db")

            # Neither a pause nor dead letters are old items.
            paused = {"topic.held": '{"paused": true}', "topic.mail": '{"paused_tenants": ["slow"]}'}
            client.put_settings(paused)
            client.enqueue("held", b"x")
            client.enqueue_many([ItemSpec("mail", b"x", fairness_key="slow")] + [ItemSpec("mail", b"x")] * 12)
            until(
                lambda: prometheus.query('foqs_topic_dead_total{topic="mail"} == 0'), "the topic's series", PATIENCE_S
            )
            taken = client.dequeue("mail", 20)
            assert len(taken) == 12
            assert client.nack_many([Nack.of(item, reject=True) for item in taken]) == [None] * 12
            held = {("FoqsTopicPaused", "held"), ("FoqsTopicPaused", "mail")}
            died = {("FoqsDeadLetters", "mail"), ("FoqsDeadLettersOld", "mail.dlq"), ("FoqsTopicFails", "mail")}
            comes_to(prometheus, ends | held | died)

            client.enqueue("work", b"x")
            comes_to(prometheus, ends | held | died | {("FoqsItemsOld", "work")})
            (item,) = client.dequeue("work", 1)
            hung = {("FoqsHandlersHang", "work")}
            comes_to(prometheus, ends | held | died | hung, each=lambda: client.report_hung({"work": 1}, worker="w"))
            client.report_hung({"work": 1}, worker="w")
            everything_is_exported(prometheus, only=OF_A_LONE_HOST - {"foqs_shard_restored_at_seconds"})
            client.ack(item)
            assert host.stop() == 0

        # An older copy: without the settings and the items.
        for file in lone.shard.parent.glob("shard-1.db*"):
            file.unlink()
        lone.shard.write_bytes((tmp_path / "copy.db").read_bytes())
        with lone.start() as host, lone.client() as client:
            assert "shard.restored" in host.said()
            restored = {("FoqsShardRestored", "1")}
            assert Scrape(admin(host)).sum("foqs_shard_restored_at_seconds", shard="1") > 0
            fires(prometheus, ends | restored)

            def fill() -> None:
                client.enqueue_many([ItemSpec("big", bytes(100_000))] * 20, timeout_ms=5_000)

            full = {("FoqsDiskFull", lone.target, "1")}
            fires(prometheus, ends | restored | full, each=fill)
            remount(lone.disk, LARGER_BYTES)
            until(lambda: isinstance(client.enqueue_many([ItemSpec("t", b"x")])[0], int), "an item", PATIENCE_S)
            until(lambda: not full & seen(prometheus), "room", PATIENCE_S)
            assert host.stop() == 0

        lone.authority.issue("127.0.0.1", life=SHORT)
        with lone.start():
            fires(prometheus, {("FoqsCertificateEnded", lone.target)})
            assert ("FoqsCertificateEnds", lone.target) not in seen(prometheus)


def copied(shard: Path, copy: Path) -> None:
    with closing(sqlite3.connect(shard)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)


def fires(
    prometheus: Prometheus, expected: Collection[tuple[str, ...]], each: Callable[[], object] = lambda: None
) -> None:
    """Wait until these alerts fire. Further ones may: a restart of the host, and a full disk, cause some."""

    def reached() -> bool:
        each()
        return set(expected) <= seen(prometheus)

    until(reached, f"the alerts {expected}", PATIENCE_S)
