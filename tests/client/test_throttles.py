"""Throttled items through the client, on a real host."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from foqs.client import Client
from tests.api.hosts import HostProcess, dev

RATE, BURST = 20, 5


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with dev(tmp_path_factory.mktemp("throttles"), "--shards", "2") as host, made(host) as client:
        yield client
        assert host.faults() == []


def made(host: HostProcess) -> Client:
    return Client("{}:{}".format(*host.address), "shop")


def test_a_list_may_end_early(client: Client) -> None:
    client.put_settings({"throttle.b*": '{"per_second": 1000}'})
    for number in range(3):
        client.enqueue("mail", b"x", throttle_keys=[f"b{number}"])
    got = 0
    while got < 3:
        got += len(client.dequeue("mail", count=10, wait_ms=10_000))
    assert [one.key for one in client.throttles("b", limit=2).throttles] == ["b0", "b1"]
    assert [one.key for one in client.throttles("b", limit=9).throttles] == ["b0", "b1", "b2"]
