"""What operators see of a topic with many tenants: lists, counts, releases and bounds visit all of its lanes."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

import foqs
from foqs.admin import snapshot
from foqs.admin.series import TopicSeries
from foqs.api.responses import REPLY_OVERHEAD_BYTES
from foqs.bounds import Limits
from foqs.engine import listing, stats
from foqs.errors import Overloaded
from foqs.idl import idl
from foqs.policies.settings import Settings
from tests.api.wire import spec
from tests.support.one_host import OneHost, kinds, take

pytestmark = pytest.mark.memory

State = idl.ItemState
TENANTS = [f"tenant-{number}" for number in range(23)]


@pytest.fixture(autouse=True)
def _few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    if foqs.build() != "compiled":  # its modules do not see a patch
        monkeypatch.setattr(listing, "GROUP", 4)
        monkeypatch.setattr(listing, "_TURN", 3)
        monkeypatch.setattr(stats, "_LANES", 3)


def put(host: OneHost, tenants: Sequence[str] = TENANTS, **fields: Any) -> list[int]:
    """Store one item of each tenant in a request of its own, so that they are on all shards."""
    return [
        host.ask("Enqueue", ns="n", items=[spec("t", b"x", fairness_key=tenant or None, **fields)]).outcomes[0].id
        for tenant in tenants
    ]


def pages(host: OneHost, limit: int, **fields: Any) -> list[list[Any]]:
    found: list[list[Any]] = []
    cursor = None
    while True:
        page = host.ask("ListItems", ns="n", topic="t", limit=limit, cursor=cursor, **fields)
        assert len(page.items) <= limit
        found.append(page.items)
        cursor = page.cursor
        if cursor is None:
            return found


def listed(host: OneHost, limit: int, **fields: Any) -> list[int]:
    return [item.id for page in pages(host, limit, **fields) for item in page]


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_pages_have_each_item_of_all_tenants_once(limit: int) -> None:
    host = OneHost(1, 2)
    ids = [*put(host), *put(host, [""] * 5), *put(host, TENANTS[:9], delay_ms=60_000), *put(host, TENANTS[3:7])]
    leased = [item.id for item in take(host, 6).items]
    assert len(leased) == 6
    found = listed(host, limit)
    assert Counter(found) == Counter(ids)
    assert listed(host, limit) == found, "the order is stable"
    assert sorted(listed(host, limit, state=State.LEASED)) == sorted(leased)
    assert sorted(listed(host, limit, state=State.DELAYED)) == sorted(ids[28:37])
    assert len(listed(host, limit, state=State.READY)) == len(ids) - 6 - 9


def test_a_page_has_room_for_the_names_of_tenants() -> None:
    """An answer stays below the bound on frames."""
    limits = Limits(frame_bytes=REPLY_OVERHEAD_BYTES + 2_000)
    host = OneHost(1, limits=limits)
    put(host, [f"{number}" + "x" * 200 for number in range(20)])
    sizes = [len(page) for page in pages(host, 100)]
    assert sizes == [4] * 5


def test_a_list_goes_on_while_tenants_come_and_go() -> None:
    host = OneHost(1)
    ids = put(host)
    first = host.ask("ListItems", ns="n", topic="t", limit=6)
    seen = [item.id for item in first.items]
    gone = ids[4:12]
    host.ask("DeleteItems", ids=gone)
    later = put(host, ["new"])
    second = host.ask("ListItems", ns="n", topic="t", limit=100, cursor=first.cursor)
    rest = [item.id for item in second.items]
    assert seen == ids[:6]
    assert rest == [*ids[12:], *later]


# ------------------------------------------------------------------------------------------ counts


def test_items_and_workers_of_all_tenants_are_counted() -> None:
    host = OneHost(1, 2)
    put(host)
    put(host, TENANTS[:2], delay_ms=60_000)
    take(host, 5, worker="w")
    stats = host.ask("GetTopicStats", ns="n", topic="t")
    assert (stats.ready, stats.delayed, stats.leased) == (18, 2, 5)
    assert [(one.worker, one.held) for one in stats.workers] == [("w", 5)]
    (topic,) = host.ask("GetActiveTopics", ns="n", all=True).topics
    assert (topic.topic, topic.ready, topic.delayed, topic.leased) == ("t", 18, 2, 5)
    (ready,) = host.ask("GetActiveTopics", ns="n").topics
    assert (ready.ready, ready.delayed) == (18, None)


def test_the_metrics_count_all_tenants() -> None:
    host = OneHost(1, 2)
    put(host)
    put(host, ["", ""])
    put(host, TENANTS[:2], delay_ms=60_000)
    counts, rows = asyncio.run(snapshot._topics(host.engine.state, TopicSeries(1), snapshot._Slices()))
    found = counts["n", "t"]
    assert (found.ready, found.leased, found.total) == (25, 0, 27)
    assert sum(rows.values()) == 25


def test_leases_of_all_tenants_are_released() -> None:
    host = OneHost(1, 2)
    put(host)
    taken = [item.id for item in take(host, 15).items]
    assert len(taken) == 15
    assert host.ask("ReleaseLeases", ns="n", topic="t", held_longer_than_ms=0).released == 15
    assert len(listed(host, 100, state=State.READY)) == 23


def test_the_bound_on_stored_items_counts_all_tenants() -> None:
    host = OneHost(1, 2)
    host.engine.apply_settings(Settings("n", 1, {"topic.t": json.dumps({"max_stored": 6})}))
    items = [spec("t", b"", fairness_key=tenant) for tenant in [*TENANTS[:8]]]
    answer = host.ask("Enqueue", ns="n", items=items)
    assert kinds(answer) == [None] * 6 + [Overloaded] * 2
    host.wait(2_000)
    again = host.call("Enqueue", ns="n", items=items[6:])
    host.wait(1_000)
    assert kinds(again.answer) == [Overloaded] * 2
    for item in take(host, 3).items:
        host.ask("Ack", ns="n", items=[idl.AckItem(item.id, item.lease)])
    host.wait(2_000)
    again = host.call("Enqueue", ns="n", items=items[:4])
    host.wait(1_000)
    assert kinds(again.answer) == [None] * 3 + [Overloaded]


def test_the_count_by_topic_follows_the_lanes() -> None:
    """Through enqueues, acks, deaths, redrives, removed lanes and a new owner."""
    host = OneHost(1)
    (shard,) = host.engine.state.shards.values()

    def check(total: int) -> None:
        lanes = [lane for lane in shard.memory.lanes.values() if lane.tenants is not None]
        tenants = shard.memory.tenants.get(("n", "t"))
        assert sum(lane.total for lane in lanes) == total
        assert (tenants.total if tenants is not None else 0) == total
        assert len(tenants or ()) == len([lane for lane in lanes if lane.number is not None])

    put(host)
    put(host, [""])
    check(23)
    items = take(host, 10).items
    for item in [item for item in items if item.fairness_key][:4]:
        host.ask("Ack", ns="n", items=[idl.AckItem(item.id, item.lease)])
    check(19)
    dying = [item for item in items if item.fairness_key][4]
    host.ask("Nack", ns="n", items=[idl.NackItem(dying.id, dying.lease, reject=True, reason="bad")])
    check(18)
    assert host.ask("RedriveItems", ns="n", topic="t.dlq").at_least == 1
    check(19)
    host.reopen()
    check(19)
    for item in [item for _ in range(3) for item in take(host, 30).items]:
        host.ask("Ack", ns="n", items=[idl.AckItem(item.id, item.lease)])
    check(0)
    host.wait(host.engine.state.config.host.lane_idle_ms + 1)
    host.wait(1_000)
    check(0)
    assert not shard.memory.tenants


def test_tenants_in_a_dead_letter_topic_break_nothing() -> None:
    """Dead letters have the topic's plain lane; a producer may enqueue tenants beside them."""
    host = OneHost(1)
    put(host, ["a", "b"])
    dying = take(host, 1).items[0]
    host.ask("Nack", ns="n", items=[idl.NackItem(dying.id, dying.lease, reject=True, reason="bad")])
    host.ask("Enqueue", ns="n", items=[spec("t.dlq", b"", fairness_key="a")])
    (group,) = host.ask("ListFailures", ns="n", topic="t.dlq").groups
    assert group.count == 1
    items = host.ask("ListItems", ns="n", topic="t.dlq").items
    assert [(item.fairness_key, item.failure is None) for item in items] == [(None, False), ("a", True)]
    assert host.ask("RedriveItems", ns="n", topic="t.dlq").at_least == 1
    assert len(host.ask("ListItems", ns="n", topic="t.dlq").items) == 1
