"""GetThrottles of a cluster: the answers of all hosts are added up."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.errors import Unavailable
from foqs.idl import idl
from foqs.policies.settings import Settings
from tests.support.one_host import FORWARDED, OneHost, routing_of

pytestmark = pytest.mark.memory

SLOW = {"throttle.c:*": '{"per_second": 0.5, "burst": 3}'}


def stats(key: str, flows: int, items: int, wait_ms: int, held: int, tokens: float | None = None) -> Any:
    coordinator = "" if tokens is None else "b:1"
    return idl.ThrottleStats(
        key, "", None, None, tokens, None, None, None, 0, 0, flows, items, wait_ms, held, coordinator
    )  # fmt: skip


def test_the_answers_of_all_hosts_are_added_up() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}, "c"))
    host.settings.apply(Settings("n", 1, SLOW))
    call = host.call("GetThrottles", ns="n", limit=2)
    asked = host.to("GetThrottles")
    assert {sent.address for sent in asked} == {"b:1", "c:1"}
    assert [(sent.request.ns, sent.request.limit) for sent in asked] == [("n", 2)] * 2
    rows = [stats("c:1", 1, 5, 9, 2, tokens=1.5), stats("c:3", 1, 1, 1, 0)]
    host.reply("GetThrottles", idl.GetThrottlesResponse(rows, None, []))
    host.reply("GetThrottles", idl.GetThrottlesResponse([stats("c:1", 2, 6, 4, 1)], None, []))
    one, three = call.answer.throttles
    assert (one.key, one.parked_flows, one.parked_items, one.longest_wait_ms, one.shadow_held) == ("c:1", 3, 11, 9, 3)
    assert (one.tokens, one.coordinator, one.setting) == (1.5, "b:1", "throttle.c:*")
    assert (three.key, three.tokens, three.coordinator) == ("c:3", None, "")


def test_the_hours_of_all_hosts_make_sums() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}, "c"))
    call = host.call("GetThrottles", ns="n")
    for rate, leases in (
        (idl.ShadowHour(50, 55, 120_000), None),
        (idl.ShadowHour(5, 5, 60_000), idl.ShadowHour(1, 2, 3)),
    ):
        row = stats("api", 0, 0, 0, 0)
        row.shadow_rate, row.shadow_leases = rate, leases
        host.reply("GetThrottles", idl.GetThrottlesResponse([row], None, []))
    (one,) = call.answer.throttles
    assert one.shadow_rate == idl.ShadowHour(55, 60, 120_000)
    assert one.shadow_leases == idl.ShadowHour(1, 2, 3)


def test_hosts_that_do_not_answer_are_named() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}))
    call = host.call("GetThrottles", ns="n")
    host.reply("GetThrottles", Unavailable("gone"))
    assert (call.answer.throttles, call.answer.missing) == ([], ["b:1"])


def test_a_forwarded_request_asks_no_further_host() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}))
    assert host.ask("GetThrottles", ns="n", context=FORWARDED).throttles == []
    assert not host.to("GetThrottles")
