"""A host whose database has no room for new items: consumers work on, and what they ack makes room."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tenacity import stop_after_attempt

from foqs.client import Client
from foqs.errors import FoqsError
from foqs.shardmgr.operate import Assign
from foqs.store.maintenance import create_schema
from foqs_lab.cluster import HostProcess, Settings, Shard
from foqs_lab.servers import Kind, ServerSettings
from tests.admin.scraping import Scrape
from tests.cluster.conftest import ON_EACH_KIND, UNHURRIED, NewCluster
from tests.conftest import NewServer, Server
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.timeout(400)]

_ROOM = "--innodb-data-file-path=ibdata1:12M:autoextend:max:48M"
_PAYLOAD = bytes(20_000)
_ACKED = 300
_FULL = "the database of shard 1 is full"
_PAUSE_S = 0.005
_REFUSALS = 500  # in a row: the host asked for room more than once


def once(port: int) -> Client:
    """A client that sends each request once."""
    return Client(f"127.0.0.1:{port}", retry_stop=stop_after_attempt(1))


class Producer:
    """Enqueues without a pause, and keeps the errors."""

    def __init__(self, port: int) -> None:
        self.stored = 0
        self.errors: list[str] = []
        self._port = port
        self._refused = 0
        self._over = threading.Event()

    def full(self) -> bool:
        """Return True if the last `_REFUSALS` items were refused."""
        return self._refused >= _REFUSALS

    @contextmanager
    def running(self) -> Iterator[Producer]:
        thread = threading.Thread(target=self._work)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()

    def _work(self) -> None:
        with once(self._port) as client:
            while not self._over.is_set():
                try:
                    client.enqueue("mail", _PAYLOAD)
                    self.stored += 1
                    self._refused = 0
                except FoqsError as error:
                    self.errors.append(str(error))
                    self._refused += 1
                    self._over.wait(_PAUSE_S)


def consume(client: Client, items: int) -> None:
    """Dequeue and ack. Each ack must be stored."""
    done = 0
    while done < items:
        got = client.dequeue("mail", 10, wait_ms=20_000)
        assert got, "no item was delivered"
        assert client.ack_many(got) == [None] * len(got)
        done += len(got)


@ON_EACH_KIND
def test_acks_and_deliveries_continue(kind: Kind, new_server: NewServer, tmp_path: Path) -> None:
    server: Server = new_server(kind, ServerSettings(options=("--innodb-file-per-table=0", _ROOM)))
    shard = Shard(1, server, server.create_database("lone"))
    create_schema(shard.url, 1)
    settings = {section: keys for section, keys in UNHURRIED.items() if section != "zookeeper"}
    with HostProcess("lone", [shard], tmp_path, settings) as host, once(host.port) as client:
        with Producer(host.port).running() as producer:
            wait_until(lambda: any(_FULL in one for one in producer.errors), lambda: f"{producer.errors[-3:]}")
            stored, errors = producer.stored, len(producer.errors)
            consume(client, _ACKED)
            assert len(producer.errors) > errors, "new items were tried all the time"
            wait_until(lambda: producer.stored > stored, "an item in the room of acked ones")
        assert Scrape(("127.0.0.1", host.admin_port)).sum("foqs_shard_breaker_opened_total") == 0
        assert re.search(r"shard\.full .*\(1114\)", host.log.read_text())


@ON_EACH_KIND
def test_a_full_shard_moves(kind: Kind, new_cluster: NewCluster, new_server: NewServer) -> None:
    """Its owner cannot write the leases that it gave last, so it ends at `handover_ms`. Nor can the next one write the
    rows of the items that have none yet, also after a crash. It delivers them all the same."""
    server: Server = new_server(kind, ServerSettings(options=("--innodb-file-per-table=0", _ROOM)))
    times: Settings = {
        "zookeeper": {"handover_ms": 2_000, "session_timeout_ms": 5_000},
        "host": {"lease_write_delay_ms": 10_000, "confirm_ms": 1_000},
    }
    cluster = new_cluster("a", "b", shards=1, server=server, settings=times)
    with once(cluster.hosts["a"].port) as client, Producer(cluster.hosts["a"].port).running() as producer:
        wait_until(lambda: any(_FULL in one for one in producer.errors), lambda: f"{producer.errors[-3:]}")
        wait_until(producer.full, lambda: f"{producer.errors[-3:]}")
        leased = client.dequeue("mail", 10, wait_ms=20_000, lease_ms=3_600_000)
    cluster.registry.carry_out(Assign({1: "b"}, cluster.settled().assignment.version))
    cluster.hosts["a"].wait_for("shard.released")
    cluster.hosts["b"].wait_for("shard.serving")
    assert re.search(r"shard\.full .*no room for the index rows of", cluster.hosts["b"].log.read_text())
    cluster.hosts["b"].kill()
    cluster.hosts["a"].wait_for("shard.serving", times=2)
    with Client(f"127.0.0.1:{cluster.hosts['a'].port}") as client:  # sends acks again: their undo log needs a page
        consume(client, producer.stored - len(leased))  # no matter whether the leases were written
