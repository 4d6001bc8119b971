"""GetThrottles on one host: the keys in use, in pages, with their tokens and parked items."""

from __future__ import annotations

import pytest

from foqs.figures import ThrottleStats, from_struct
from tests.api.test_throttles import Throttled
from tests.support.one_host import OneHost, refused

pytestmark = pytest.mark.memory

GPU = '{"concurrency": 2}'
SLOW = {"throttle.c:*": '{"per_second": 0.5, "burst": 3}', "throttle.api": '{"per_second": 0.5, "burst": 1}'}


def test_keys_show_their_tokens_and_parked_items() -> None:
    host = Throttled(SLOW)
    host.put(10, "c:1")
    host.put(4, "c:2", tenant="a")
    host.put(1, "free")
    assert sum(host.got() for _ in range(3)) == 7
    host.pass_ms(300)
    answer = host.ask("GetThrottles", ns="n")
    assert (answer.cursor, answer.missing) == (None, [])
    one, two = answer.throttles
    assert (one.key, one.setting, one.per_second, one.burst) == ("c:1", "throttle.c:*", 0.5, 3)
    assert (one.parked_flows, one.parked_items, one.shadow_held, one.coordinator) == (1, 7, 0, "a:1")
    assert 250 <= one.longest_wait_ms <= 400
    assert 0.1 <= one.tokens <= 0.2
    assert (two.key, two.parked_items) == ("c:2", 1)
    assert not host.ask("GetThrottles", ns="other").throttles


def test_a_shadow_keeps_an_hour_of_counts() -> None:
    host = Throttled({"throttle.api": '{"per_second": 5, "shadow": true, "concurrency": 50}'})
    host.put(60, "api")
    assert host.got() == 60
    host.pass_ms(20)
    host.wait(60_000)
    host.wait(60_000)
    (one,) = host.ask("GetThrottles", ns="n").throttles
    assert (one.shadow_rate.held, one.shadow_rate.seen) == (55, 60)
    assert 120_000 <= one.shadow_rate.for_ms < 121_000
    assert (one.shadow_leases.held, one.shadow_leases.seen) == (10, 60)
    assert str(from_struct(ThrottleStats, one).shadow_rate) == "55 of 60 held back in 2 min"
    assert "api" not in [key.name for key in host.engine.state.throttling.keys.values()], "the counts outlive the key"
    host.wait(3_600_000)
    host.pass_ms(1_000)
    assert not [one.shadow_rate for one in host.ask("GetThrottles", ns="n").throttles if one.shadow_rate]


def test_counts_of_a_shadow_begin_again_with_its_throttle() -> None:
    host = Throttled({"throttle.api": '{"per_second": 5, "shadow": true, "concurrency": 3}'})

    def seen() -> list[int]:
        host.put(2, "api")
        got = 0
        while got < 2:
            got += host.got()
            host.pass_ms(100)  # a coordinator that has no token is asked again after 50 ms
        (one,) = host.ask("GetThrottles", ns="n", prefix="api").throttles
        return [0 if hour is None else hour.seen for hour in (one.shadow_rate, one.shadow_leases)]

    assert seen() == [2, 2]
    assert seen() == [4, 4]
    host.apply({"throttle.api": '{"per_second": 6, "shadow": true, "concurrency": 3}'})
    assert seen() == [2, 2]
    host.apply({"throttle.api": '{"per_second": 6, "shadow": true, "concurrency": 3}', "throttle.gpu": GPU})
    assert seen() == [4, 4], "another limit on leases, by which all slots are counted again"
    host.apply({"throttle.api": '{"per_second": 6000}'})
    host.pass_ms(100)
    assert seen() == [0, 0]
    host.apply({"throttle.api": '{"per_second": 6, "shadow": true, "concurrency": 3}'})
    assert seen() == [2, 2]


def test_pages_follow_each_other_and_begin_with_the_prefix() -> None:
    host = Throttled(SLOW)
    for number in range(5):
        host.put(5, f"c:{number}")
    host.put(5, "api")
    host.got()
    host.got()
    names, cursor, pages = [], None, 0
    while pages == 0 or cursor is not None:
        page = host.ask("GetThrottles", ns="n", prefix="c:", limit=2, cursor=cursor)
        names += [one.key for one in page.throttles]
        cursor, pages = page.cursor, pages + 1
    assert names == [f"c:{number}" for number in range(5)]
    assert pages == 3


def test_fields_are_checked() -> None:
    host = OneHost(1)
    assert refused(host, "GetThrottles") == "ns is missing"
    assert refused(host, "GetThrottles", ns="n", limit=1_001) == "limit is 1001, not in 1..1000"
    assert refused(host, "GetThrottles", ns="n", cursor="x") == "the cursor is not one of this server's"
    assert refused(host, "GetThrottles", ns="n", prefix="x" * 256).startswith("prefix is not UTF-8, or has more")
