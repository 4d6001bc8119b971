"""GetRouting of a host that is alone."""

import time

import pytest

from tests.api.wire import Refused, Wire


def test_a_lone_host_names_the_shards_it_serves(wire: Wire) -> None:
    """`foqs dev`, four shards; nothing changes, so the second answer takes its time."""
    routing = wire.ask("GetRouting")
    assert [route.shard for route in routing.shards] == [1, 2, 3, 4]
    (address,) = routing.hosts
    assert {route.host for route in routing.shards} == {address}
    assert all(route.epoch >= 1 for route in routing.shards)
    began = time.monotonic()
    assert wire.ask("GetRouting", version=routing.version, wait_ms=200) == routing
    assert time.monotonic() - began >= 0.19
    assert wire.ask("GetRouting", version=routing.version + 1, wait_ms=600_000) == routing
    with pytest.raises(Refused):
        wire.ask("GetRouting", wait_ms=600_001)
