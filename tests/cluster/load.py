"""Calls that cross hosts all the time, and the refused ones."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any

from foqs.client import Client, ItemSpec
from foqs_lab.cluster import LocalCluster
from tests.support.waiting import wait_until

_BATCH = 10
_ROUNDS = 3


class Load:
    """Enqueues, dequeues and acks through each host. Without routing, a host forwards what other hosts have."""

    def __init__(self, cluster: LocalCluster, client: Callable[[str], Client]) -> None:
        self.refused: list[str] = []
        self.acked = dict.fromkeys(cluster.hosts, 0)
        self._client = client
        self._cluster = cluster
        self._clients: list[Client] = []
        self._over = Event()

    @contextmanager
    def running(self) -> Iterator[Load]:
        with ThreadPoolExecutor(len(self._cluster.hosts)) as threads:
            working = [threads.submit(self._work, name) for name in self._cluster.hosts]
            try:
                self.goes_on()
                yield self
                self.goes_on()
            finally:
                self._over.set()
            for work in working:
                work.result()

    def goes_on(self) -> None:
        """Wait until some more acks went through each host. Raises AssertionError for a call that was refused."""
        before = dict(self.acked)

        def further() -> bool:
            assert self.refused == []
            return all(self.acked[name] >= count + _ROUNDS * _BATCH for name, count in before.items())

        wait_until(further, lambda: f"acks: {before} then {self.acked}")

    def has_token(self, token: str) -> None:
        """Wait until every client has read its token's file again, and works with it."""
        wait_until(lambda: {client._caller._token.value for client in self._clients} == {token})
        self.goes_on()

    def _work(self, name: str) -> None:
        topic = f"mail-{name}"
        with self._client(f"127.0.0.1:{self._cluster.hosts[name].port}") as client:
            self._clients.append(client)
            while not self._over.is_set():
                try:
                    self._note(client.enqueue_many([ItemSpec(topic, b"x")] * _BATCH))
                    items = client.dequeue(topic, 2 * _BATCH, lease_ms=300_000)
                    self._note(client.ack_many(items))
                    self.acked[name] += len(items)
                except Exception as error:  # noqa: BLE001 - the test looks at all of them
                    self.refused.append(repr(error))

    def _note(self, outcomes: list[Any]) -> None:
        self.refused += [repr(outcome) for outcome in outcomes if isinstance(outcome, Exception)]


def reload(cluster: LocalCluster, name: str, said: str = "config.reloaded") -> None:
    """Send SIGHUP, and wait until the log has one more of these words."""
    host = cluster.hosts[name]
    before = host.said(said)
    host.signal(signal.SIGHUP)
    host.wait_for(said, times=before + 1)
