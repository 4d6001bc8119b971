"""ListItems with a filter: which items it finds, how many it looks at, and which columns it reads."""

from __future__ import annotations

import random
from typing import Any

import pytest

import foqs
from foqs.bounds import Limits
from foqs.engine import listing
from foqs.errors import NotServed, Overloaded
from foqs.idl import idl
from foqs.item_filter import ItemFacts
from foqs.policies.settings import Settings
from foqs.rows import Body
from tests.api.wire import State, spec
from tests.sim.memory_store import MemoryStore
from tests.support.one_host import FORWARDED, OneHost, put, refused, routing_of, take

pytestmark = pytest.mark.memory


@pytest.fixture
def host() -> OneHost:
    return OneHost(1)


@pytest.fixture
def ten_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    if foqs.build() == "compiled":
        pytest.skip("a compiled module calls its own functions past a patch")
    monkeypatch.setattr(listing, "_SEARCH_ROWS", 10)


def search(host: OneHost, *, page: dict[str, Any] | None = None, topic: str = "t", **conditions: Any) -> Any:
    return host.ask("ListItems", ns="n", topic=topic, filter=idl.ItemFilter(**conditions), **page or {})


def walk(
    host: OneHost, *, limit: int = 100, state: int | None = None, topic: str = "t", **conditions: Any
) -> list[Any]:
    """Return the payloads of all pages."""
    found, cursor = [], None
    while True:
        answer = search(host, page={"limit": limit, "state": state, "cursor": cursor}, topic=topic, **conditions)
        assert len(answer.items) <= limit
        found += [item.payload for item in answer.items]
        if (cursor := answer.cursor) is None:
            return found


def filled(host: OneHost) -> None:
    put(host, b"plain")
    put(host, b"urgent", priority=-3, headers={"kind": "export"})
    put(host, b"later", priority=4, delay_ms=60_000, headers={"kind": "export", "who": "acme"})
    host.wait(1_000)
    put(host, b"new", headers={"kind": "mail"})


@pytest.mark.parametrize(
    ("conditions", "payloads"),
    [
        ({}, [b"urgent", b"plain", b"new", b"later"]),
        ({"headers": {"kind": "export"}}, [b"urgent", b"later"]),
        ({"headers": {"kind": "export", "who": "acme"}}, [b"later"]),
        ({"headers": {"kind": "Export"}}, []),
        ({"min_priority": 0}, [b"plain", b"new", b"later"]),
        ({"max_priority": 0}, [b"urgent", b"plain", b"new"]),
        ({"min_priority": 1, "max_priority": 4}, [b"later"]),
        ({"min_priority": 0, "headers": {"kind": "mail"}}, [b"new"]),
    ],
)
@pytest.mark.parametrize("limit", [1, 100])
def test_items_that_meet_all_conditions(
    host: OneHost, conditions: dict[str, Any], payloads: list[bytes], limit: int
) -> None:
    filled(host)
    assert walk(host, limit=limit, **conditions) == payloads


def test_the_time_of_the_enqueue(host: OneHost) -> None:
    filled(host)
    new_ms = host.now_ms
    assert walk(host, enqueued_after_ms=new_ms) == [b"new"]
    assert walk(host, enqueued_before_ms=new_ms) == [b"urgent", b"plain", b"later"]
    assert walk(host, enqueued_after_ms=new_ms - 1_000, enqueued_before_ms=new_ms - 999) == [
        b"urgent",
        b"plain",
        b"later",
    ]


def fail(host: OneHost, item: Any, reason: str) -> None:
    host.ask("Nack", items=[idl.NackItem(item.id, item.lease, failed=True, reason=reason)])


def test_reasons_of_failures(host: OneHost) -> None:
    """Of an item that is tried again, of a dead letter, and of a kept item that has failed."""
    policy = '{"retry": {"kind": "constant", "first_ms": 500, "jitter": 0}, "max_attempts": %d}'
    keep = '{"keep": {"failed_ms": 9000}, "dead": null, "max_attempts": 1}'
    host.settings.apply(Settings("n", 1, {"topic.t": policy % 2, "topic.k": keep}))
    put(host, b"again", b"other", b"untouched")
    for item, reason in zip(take(host, 2).items, ("SMTP 451: ошибка", "no route"), strict=True):
        fail(host, item, reason)
    assert walk(host, failure_contains="SMTP 4") == walk(host, failure_contains="ошиб") == [b"again"]
    assert walk(host, failure_contains="smtp") == []
    leased: list[Any] = []
    while len(leased) < 3:
        host.wait(500)
        leased += take(host).items
    (item,) = [one for one in leased if one.payload == b"again"]
    fail(host, item, "timed out")
    assert walk(host, topic="t.dlq", failure_contains="timed out") == [b"again"]
    assert walk(host, topic="t.dlq", failure_contains="SMTP 4") == []
    host.ask("Enqueue", ns="n", items=[spec("k", payload) for payload in (b"bad", b"good")])
    bad, good = host.ask("Dequeue", ns="n", wants=[idl.TopicCount("k", 2)]).items
    fail(host, bad, "no such order")
    fail(host, good, "other")
    assert walk(host, topic="k", state=State.FAILED, failure_contains="order") == [b"bad"]
    assert walk(host, topic="k", state=State.FAILED, failure_contains="other", headers={"a": "b"}) == []


def test_a_leased_item(host: OneHost) -> None:
    filled(host)
    take(host, 1)
    assert walk(host, state=State.LEASED, headers={"kind": "export"}) == [b"urgent"]
    assert walk(host, state=State.LEASED, min_priority=-2) == []


@pytest.mark.usefixtures("ten_rows")
def test_a_search_finds_the_matching_items_of_a_list() -> None:
    source = random.Random(3)
    host = OneHost(1, 2)
    tenants = [None, "a", "b", "c"]
    for at in range(300):
        put(
            host, b"%d" % at, priority=source.randrange(-2, 3), fairness_key=source.choice(tenants),
            headers={"kind": source.choice("xyz")}, delay_ms=source.choice([None, None, 9_000 + at]),
        )  # fmt: skip
    take(host, 40)
    every, cursor = [], None
    while not every or cursor is not None:
        answer = host.ask("ListItems", ns="n", topic="t", limit=1_000, cursor=cursor)
        every, cursor = [*every, *answer.items], answer.cursor
    assert len(every) == 300
    for limit in (1, 7, 1_000):
        for low, high, kind in ((None, None, "x"), (-1, 1, None), (0, None, "y"), (None, 0, "z"), (2, 2, "x")):
            wanted = [
                item.payload
                for item in every
                if (low is None or item.priority >= low)
                and (high is None or item.priority <= high)
                and kind in (None, item.headers["kind"])
            ]
            headers = None if kind is None else {"kind": kind}
            assert walk(host, limit=limit, min_priority=low, max_priority=high, headers=headers) == wanted


# ------------------------------------------------------------------------------------------ bounds


def test_one_request_looks_at_ten_thousand_items(host: OneHost) -> None:
    for first in (0, 5_000, 10_000):
        put(host, *[b"%d" % at for at in range(first, first + 5_000)], headers={"kind": "mail"})
    put(host, b"rare", headers={"kind": "export"})
    first = search(host, headers={"kind": "export"})
    assert (first.items, first.looked_at) == ([], 10_000)
    second = search(host, page={"cursor": first.cursor}, headers={"kind": "export"})
    assert ([item.payload for item in second.items], second.cursor, second.looked_at) == ([b"rare"], None, 5_001)


@pytest.mark.usefixtures("ten_rows")
def test_another_host_gives_a_smaller_bound(host: OneHost) -> None:
    put(host, *[b"x"] * 40)
    answer = search(host, page={"most_looked_at": 25}, headers={"kind": "export"})
    assert (answer.items, answer.looked_at, answer.cursor is None) == ([], 25, False)


@pytest.mark.usefixtures("ten_rows")
@pytest.mark.parametrize(("timeout_ms", "looked_at"), [(30_000, 30), (1_000, 20), (500, 10)])
def test_a_search_ends_after_a_second_or_half_of_its_time(
    host: OneHost, monkeypatch: pytest.MonkeyPatch, timeout_ms: int, looked_at: int
) -> None:
    """A slow database takes 400 ms for ten rows."""
    put(host, *[b"x"] * 100)
    original = MemoryStore.facts

    def facts(self: MemoryStore, ids: list[int], headers: bool) -> list[ItemFacts]:
        host.now_ms += 400
        return original(self, ids, headers)

    monkeypatch.setattr(MemoryStore, "facts", facts)
    page = {"context": idl.RequestContext(timeout_ms=timeout_ms)}
    answer = search(host, page=page, headers={"kind": "export"})
    assert (answer.items, answer.looked_at) == ([], looked_at)
    following = search(host, page=page | {"cursor": answer.cursor}, headers={"kind": "export"})
    assert following.looked_at == looked_at


def test_priorities_that_do_not_match_are_not_looked_at(host: OneHost) -> None:
    for priority in range(10):
        put(host, *[b"x"] * 10, priority=priority)
        put(host, b"x", priority=priority, fairness_key="acme")
    answer = search(host, page={"state": State.READY}, min_priority=3, max_priority=4)
    assert (len(answer.items), answer.looked_at) == (22, 22)


def test_the_payloads_of_other_items_are_not_read(host: OneHost, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(host)
    read: list[int] = []
    original = MemoryStore.bodies

    def bodies(self: MemoryStore, ids: list[int]) -> list[Body]:
        read.extend(ids)
        return original(self, ids)

    monkeypatch.setattr(MemoryStore, "bodies", bodies)
    (found,) = search(host, headers={"kind": "mail"}).items
    assert read == [found.id]


def test_a_list_without_a_filter_reads_as_before(host: OneHost, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(host)
    monkeypatch.delattr(MemoryStore, "facts")
    answer = host.ask("ListItems", ns="n", topic="t", fairness_key="")
    assert (len(answer.items), answer.looked_at) == (4, None)


def test_matches_that_fill_a_reply_are_on_several_pages() -> None:
    host = OneHost(1, limits=Limits(frame_bytes=20_000))
    put(host, *[bytes([at]) * 8_000 for at in range(2)], headers={"kind": "mail"})
    put(host, *[bytes([at]) * 8_000 for at in range(5)], headers={"kind": "export"})
    first = search(host, headers={"kind": "export"})
    assert (len(first.items), first.cursor is None) == (2, False)
    assert walk(host, headers={"kind": "export"}) == [bytes([at]) * 8_000 for at in range(5)]


def test_the_host_reserves_bytes_while_it_looks(host: OneHost) -> None:
    filled(host)
    budget = host.engine.state.budget
    used = budget.used_bytes
    call = host.begin("ListItems", ns="n", topic="t", filter=idl.ItemFilter(headers={"kind": "none"}))
    assert budget.used_bytes - used == 4 << 20
    host.run()
    assert call.answer.items == [] and budget.used_bytes == used
    budget.take(budget.limit_bytes)
    assert isinstance(search(host, headers={"kind": "none"}), Overloaded)
    budget.give(budget.limit_bytes)


@pytest.mark.usefixtures("ten_rows")
def test_a_search_ends_early_where_the_host_becomes_full(host: OneHost, monkeypatch: pytest.MonkeyPatch) -> None:
    put(host, *[b"x"] * 40)
    budget, original = host.engine.state.budget, MemoryStore.facts

    def facts(self: MemoryStore, ids: list[int], headers: bool) -> list[ItemFacts]:
        budget.take(budget.limit_bytes // 3)
        return original(self, ids, headers)

    monkeypatch.setattr(MemoryStore, "facts", facts)
    answer = search(host, headers={"kind": "export"})
    assert answer.looked_at in (20, 30) and answer.cursor is not None


# ------------------------------------------------------------------------------------------ requests


@pytest.mark.parametrize(
    ("conditions", "why"),
    [
        ({"min_priority": 2, "max_priority": 1}, "min_priority is 2, more than max_priority, 1"),
        ({"failure_contains": ""}, "failure_contains must have 1 to 1024 bytes"),
        ({"failure_contains": "x" * 1_025}, "failure_contains must have 1 to 1024 bytes"),
        ({"headers": {"a": "x" * 5_000}}, "headers have 5001 bytes, more than 4096"),
        ({"batch": 0}, "batch is 0: give the id of a batch"),
    ],
)
def test_a_wrong_filter(host: OneHost, conditions: dict[str, Any], why: str) -> None:
    assert refused(host, "ListItems", ns="n", topic="t", filter=idl.ItemFilter(**conditions)) == why


def test_a_wrong_bound(host: OneHost) -> None:
    why = "most_looked_at is 10001, not in 1..10000"
    assert refused(host, "ListItems", ns="n", topic="t", filter=idl.ItemFilter(), most_looked_at=10_001) == why


@pytest.fixture
def member() -> OneHost:
    """A host with shard 1; host "b" has shard 2."""
    return OneHost(1, routing=routing_of({1: "a", 2: "b"}))


def test_the_filter_goes_to_the_hosts_of_the_shards(member: OneHost) -> None:
    wanted = idl.ItemFilter(headers={"kind": "export"})
    call = member.call("ListItems", ns="n", topic="t", filter=wanted)
    first = member.reply("ListItems", idl.ListItemsResponse([], None, 9_000))
    assert (first.shard, first.filter, first.most_looked_at) == (1, wanted, 10_000)
    second = member.reply("ListItems", idl.ListItemsResponse([], "more", 1_000))
    assert (second.shard, second.filter, second.most_looked_at) == (2, wanted, 1_000)
    assert (call.answer.items, call.answer.cursor, call.answer.looked_at) == ([], "more", 10_000)


def test_a_search_of_a_cluster_ends_after_a_second(member: OneHost) -> None:
    call = member.call("ListItems", ns="n", topic="t", filter=idl.ItemFilter(max_priority=3))
    member.wait(1_000)
    member.reply("ListItems", idl.ListItemsResponse([], None, 5))
    assert (call.answer.items, call.answer.looked_at) == ([], 5)
    assert listing.cursor_shard(call.answer.cursor) == 2
    call = member.call("ListItems", ns="n", topic="t", cursor=call.answer.cursor, filter=idl.ItemFilter(max_priority=3))
    member.reply("ListItems", idl.ListItemsResponse([], None, 7))
    assert (call.answer.items, call.answer.cursor, call.answer.looked_at) == ([], None, 7)


def test_the_items_of_an_earlier_version_count_as_looked_at(member: OneHost) -> None:
    """That host ignores the filter; the client leaves out the items."""
    call = member.call("ListItems", ns="n", topic="t", filter=idl.ItemFilter(max_priority=3))
    member.reply("ListItems", idl.ListItemsResponse([idl.Item(id=9, priority=7)], None))
    assert ([item.id for item in call.answer.items], call.answer.looked_at) == ([9], 1)


def test_one_shard_of_a_member(member: OneHost) -> None:
    put(member, b"x", headers={"kind": "export"})
    answer = search(member, page={"shard": 1, "context": FORWARDED}, headers={"kind": "export"})
    assert ([item.payload for item in answer.items], answer.looked_at) == ([b"x"], 1)
    assert isinstance(search(member, page={"shard": 2}, headers={"kind": "export"}), NotServed)
