"""What `foqs-lab bench cluster` does when a host refuses items: it waits for none that was not stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from foqs.client.items import ItemSpec
from foqs.errors import FoqsError, Unavailable
from foqs_lab.bench import cluster
from foqs_lab.cluster import LocalCluster
from foqs_lab.crash.clients import Wire

REFUSED = Unavailable("no shard can take items now", 100)


class Queue:
    """In the place of a wire and of a client: refuses every other item of the first requests."""

    def __init__(self) -> None:
        self.requests = 3
        self.ready: list[ItemSpec] = []
        self.acked = 0
        self.empty = 0

    def enqueue(self, specs: Sequence[ItemSpec]) -> list[int | FoqsError]:
        self.requests -= 1
        outcomes: list[int | FoqsError] = []
        for number, spec in enumerate(specs, 1):
            refused = self.requests >= 0 and number % 2
            outcomes.append(REFUSED if refused else number)
            self.ready += [] if refused else [spec]
        return outcomes

    def dequeue(self, topics: object, count: int, **_: object) -> list[ItemSpec]:
        taken, self.ready = self.ready[:count], self.ready[count:]
        self.empty += not taken
        assert self.empty < 100, "the cycle waits for an item that was not stored"
        return taken

    def ack(self, items: Sequence[object]) -> None:
        self.acked += len(items)

    enqueue_many, ack_many = enqueue, ack

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_a_cycle_is_of_items_that_were_stored() -> None:
    queue = Queue()
    cluster._cycles([cast(Wire, queue)], "t", 200)
    assert (queue.acked, queue.ready) == (200, [])


def test_priorities_are_of_items_that_were_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue()
    monkeypatch.setattr(cluster, "Client", lambda *_: queue)
    hosts: Any = type("Hosts", (), {"hosts": {"a": type("Host", (), {"port": 1})}})
    assert 0 <= cluster.overtaken(cast(LocalCluster, hosts), 200) <= 1
    assert queue.acked >= 200
    assert queue.ready == []
