"""The table of methods, and limits that are replaced while the host runs."""

from dataclasses import replace

import pytest

from foqs.api.auth import NEEDS
from foqs.idl import idl
from tests.api.wire import spec
from tests.support.one_host import OneHost, refused, routing_of

pytestmark = pytest.mark.memory


def test_every_method_of_the_contract_has_a_handler_and_a_right() -> None:
    methods = OneHost(1).methods
    assert set(methods) == set(idl.Foqs.thrift_services) == set(NEEDS)


@pytest.mark.parametrize("clustered", [False, True])
def test_new_limits_hold_from_the_next_request_on(clustered: bool) -> None:
    host = OneHost(1, routing=routing_of({1: "a"}) if clustered else None)
    assert host.service is not None
    host.service.host.limits = replace(host.limits, wait_max_ms=5, name_bytes=2, list_items=3, request_items=1)
    assert host.service.host.limits.wait_max_ms == 5
    assert refused(host, "Enqueue", ns="n", items=[spec("t")] * 2) == "items has 2 entries, more than 1"
    assert refused(host, "ListItems", ns="abc", topic="t") == "ns must have 1 to 2 bytes"
    assert refused(host, "ListItems", ns="n", topic="t", limit=4) == "limit is 4, not in 1..3"
    assert refused(host, "GetRouting", wait_ms=6) == "wait_ms is 6, not in 0..5"
    limit = refused(host, "GiveSlot", shard=1, slot=0, stamp=0, limit=2)
    assert limit == "limit is 2, not in 1..1"


def test_a_new_routing_reaches_polls_and_held_requests() -> None:
    host = OneHost(routing=routing_of({}, "b"))
    host.routing = routing_of({2: "b"})
    poll = host.call("GetRouting", version=host.ask("GetRouting").version, wait_ms=60_000)
    held = host.call("GetItem", id=2 << 48 | 1)
    host.reply("GetItem", idl.GetItemResponse(idl.Item(id=1), 1))
    assert held.answer.item.id == 1
    host.learn(routing_of({2: "c"}))
    assert poll.answer.shards[0].host == "c:1"
    assert host.cut == ["b:1"], "its host is gone"
