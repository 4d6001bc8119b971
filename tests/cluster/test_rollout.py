"""A rollout restarts three hosts one after another: the other two stay ready, however long shards take to open."""

from __future__ import annotations

import json
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from foqs_lab.cluster import LocalCluster, local_cluster, make_shards
from foqs_lab.relay import Relay
from tests.admin.scraping import get
from tests.api.hosts import until
from tests.cluster.conftest import UNHURRIED
from tests.conftest import NewServer

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.mariadb, pytest.mark.timeout(400)]

HOSTS = ("a", "b", "c")
SHARDS = 6
SLOW_S = 0.05


class Poller(threading.Thread):
    """Asks a host for `/readyz` again and again. `seen`: (when, ready, notes) at each change."""

    def __init__(self, cluster: LocalCluster, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.ready = False
        self.seen: list[tuple[float, bool, list[str]]] = []
        self.stopping = threading.Event()
        self._address = ("127.0.0.1", cluster.hosts[name].admin_port)

    def run(self) -> None:
        while not self.stopping.wait(0.01):
            try:
                status, text = get(self._address, "/readyz")
            except OSError:
                status, text = 0, '{"notes": []}'
            seen = (status == 200, list(json.loads(text)["notes"]))
            if not self.seen or self.seen[-1][1:] != seen:
                self.seen.append((time.monotonic(), *seen))
            self.ready = seen[0]

    def unready_s(self, begun: float, ended: float) -> float:
        """Return for how long the host was not ready in that time."""
        total, ends = 0.0, [at for at, _, _ in self.seen[1:]] + [ended]
        for (at, ready, _), end in zip(self.seen, ends, strict=True):
            total += 0.0 if ready else max(0.0, min(end, ended) - max(at, begun))
        return total


@pytest.mark.parametrize("delay_s", [0.0, SLOW_S], ids=["quick", "slow"])
def test_only_the_host_that_restarts_is_unready(new_server: NewServer, tmp_path: Path, delay_s: float) -> None:
    """With the slow database, a shard takes seconds to open on the host that it moves to."""
    server = new_server("mariadb")
    with closing(Relay(server.port)) as relay:
        shards = [replace(shard, way=relay.port) for shard in make_shards([server], SHARDS, "rollout")]
        with local_cluster(shards, tmp_path, UNHURRIED) as cluster:
            cluster.start(*HOSTS)
            cluster.place({shard.number: HOSTS[n % 3] for n, shard in enumerate(shards)})
            pollers = {name: Poller(cluster, name) for name in HOSTS}
            for poller in pollers.values():
                poller.start()
            until(lambda: all(poller.ready for poller in pollers.values()), "all hosts")
            relay.delay_s = delay_s
            try:
                for name in HOSTS:
                    _restart(cluster, name, pollers)
            finally:
                for poller in pollers.values():
                    poller.stopping.set()
                    poller.join()
                relay.delay_s = 0.0
            noted = {note for poller in pollers.values() for _, _, notes in poller.seen for note in notes}
            assert any(note.endswith(" is opening") for note in noted), noted


def _restart(cluster: LocalCluster, name: str, pollers: dict[str, Poller]) -> None:
    """Stop the host, wait until its shards are served elsewhere, and start it again."""
    begun = time.monotonic()
    assert cluster.hosts[name].stop() == 0
    cluster.settled(*(other for other in HOSTS if other != name))
    cluster.start(name)
    until(lambda: pollers[name].ready, f"host {name}")
    ended = time.monotonic()
    unready = {other: round(poller.unready_s(begun, ended), 2) for other, poller in pollers.items()}
    print(f"restart of {name} took {ended - begun:.1f} s; seconds in which each host was unready: {unready}")
    assert [other for other, seconds in unready.items() if seconds and other != name] == []
