"""ChangeItems on one host: another place in the lane, and the items that may not get one."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.errors import Conflict, Invalid, NotFound
from foqs.idl import idl
from foqs.policies.settings import Settings
from tests.support.one_host import OneHost, kinds, messages, put, refused, routing_of, spec, take


@pytest.fixture
def host() -> OneHost:
    return OneHost(1)


def change(host: OneHost, *ids: int, **fields: Any) -> Any:
    return host.ask("ChangeItems", ids=list(ids), **fields)


def order(host: OneHost) -> list[bytes]:
    """The payloads of all ready items in the order of their deliveries, read from the database if need be."""
    found: list[bytes] = []
    while items := waited(host, 1):
        found += [item.payload for item in items]
    return found


def waited(host: OneHost, count: int) -> list[Any]:
    call = host.call("Dequeue", ns="n", wants=[idl.TopicCount("t", count)], wait_ms=500)
    for _ in range(60):
        if call.answers:
            break
        host.wait(10)
    return list(call.answer.items)


def states(host: OneHost) -> dict[bytes, str]:
    listed = host.ask("ListItems", ns="n", topic="t").items
    return {item.payload: idl.ItemState._VALUES_TO_NAMES[item.state].lower() for item in listed}


@pytest.mark.parametrize("stored", [False, True], ids=["in memory", "in the database"])
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"priority": -1}, [b"c", b"a", b"b", b"d"]),
        ({"priority": 1}, [b"a", b"b", b"d", b"c"]),
        ({"delay_ms": 0}, [b"a", b"b", b"c", b"d"]),
        ({"priority": 1, "delay_ms": 0}, [b"a", b"b", b"d", b"c"]),
        ({"deliver_after_ms": 1}, [b"a", b"b", b"c", b"d"]),
    ],
)
def test_a_ready_item_gets_another_place(
    host: OneHost, fields: dict[str, int], expected: list[bytes], stored: bool
) -> None:
    items = [put(host, payload)[0] for payload in (b"a", b"b", b"c", b"d")]
    if stored:
        host.reopen()
    assert kinds(change(host, items[2], **fields)) == [None]
    assert order(host) == expected


def test_a_new_place_survives_another_owner(host: OneHost) -> None:
    a, b, c = put(host, b"a", b"b", b"c")
    change(host, c, priority=-5)
    change(host, a, delay_ms=1_000)
    host.reopen()
    assert order(host) == [b"c", b"b"]
    host.wait(1_001)
    (item,) = take(host).items
    assert (item.id, item.priority, item.attempt) == (a, 0, 1)
    assert b


def test_a_delay_of_zero_makes_an_item_ready_behind_ready_ones(host: OneHost) -> None:
    (late,) = put(host, b"late", delay_ms=60_000)
    put(host, b"a")
    host.wait(10)
    assert kinds(change(host, late, delay_ms=0)) == [None]
    assert order(host) == [b"a", b"late"]


def test_a_delay_takes_a_ready_item_out_of_the_order(host: OneHost) -> None:
    a, _ = put(host, b"a", b"b")
    change(host, a, delay_ms=5_000, priority=-3)
    assert states(host) == {b"a": "delayed", b"b": "ready"}
    assert order(host) == [b"b"]
    host.wait(5_001)
    assert [(item.payload, item.priority) for item in take(host).items] == [(b"a", -3)]


def test_a_delayed_item_gets_another_time_and_priority(host: OneHost) -> None:
    (one,) = put(host, b"a", delay_ms=1_000)
    change(host, one, priority=7)
    at_ms = host.now_ms + 9_000
    change(host, one, deliver_after_ms=at_ms)
    (listed,) = host.ask("ListItems", ns="n", topic="t").items
    assert (listed.priority, listed.deliver_after_ms, listed.state) == (7, at_ms, idl.ItemState.DELAYED)
    host.wait(1_001)
    assert order(host) == []


def test_what_else_an_item_has_stays(host: OneHost) -> None:
    (one,) = host.ask(
        "Enqueue", ns="n", items=[spec("t", b"x", headers={"a": "b"}, ttl_ms=100_000, dedup_key="k")]
    ).outcomes
    (item,) = take(host).items
    host.ask("Nack", items=[idl.NackItem(item.id, item.lease, metadata=b"half")])
    before = host.ask("GetItem", id=one.id).item
    change(host, one.id, priority=4, delay_ms=50_000)
    after = host.ask("GetItem", id=one.id).item
    assert (after.priority, after.deliver_after_ms, after.attempt) == (4, host.now_ms + 50_000, 1)
    for name in ("payload", "metadata", "headers", "enqueued_at_ms", "expires_at_ms"):
        assert getattr(after, name) == getattr(before, name), name
    (again,) = host.ask("Enqueue", ns="n", items=[spec("t", b"x", dedup_key="k")]).outcomes
    assert (again.id, again.duplicate) == (one.id, True)


@pytest.mark.parametrize("written", [False, True], ids=["unwritten lease", "written lease"])
def test_a_leased_item_is_refused_with_its_worker(host: OneHost, written: bool) -> None:
    (one,) = put(host, b"a")
    (item,) = take(host, worker="w-1:77", lease_ms=60_000).items
    if written:
        host.wait(1_000)
    answer = change(host, one, priority=1)
    assert kinds(answer) == [Conflict]
    (text,) = messages(answer)
    assert "worker w-1:77 has leased the item until 1970-01-01T00:17:40.000Z" in text, text
    assert "foqs release t" in text and "nack" in text
    assert kinds(host.ask("Ack", items=[idl.AckItem(item.id, item.lease)])) == [None]


def test_kept_and_unknown_items_have_their_own_errors(host: OneHost) -> None:
    host.engine.apply_settings(Settings("n", 1, {"topic.t": '{"keep": {"completed_ms": 60000}}'}))
    (one,) = put(host, b"a")
    (item,) = take(host).items
    host.ask("Ack", items=[idl.AckItem(item.id, item.lease)])
    answer = change(host, one, 1 << 48 | 99, 5, priority=1)
    assert kinds(answer) == [Conflict, NotFound, NotFound]
    kept, *gone = messages(answer)
    assert "has ended (COMPLETED, 1970-01-01T00:16:40.000Z) and is kept" in kept
    assert gone == ["no such item", "no such item"]


def test_an_item_of_another_namespace_is_not_found(host: OneHost) -> None:
    host.engine.apply_settings(Settings("n", 1, {"topic.t": '{"keep": {"completed_ms": 60000}}'}))
    one, other = put(host, b"a", b"b")
    (item,) = take(host, 1).items
    host.ask("Ack", items=[idl.AckItem(item.id, item.lease)])
    answer = host.call("ChangeItems", within={"m"}, ids=[one, other], priority=1).answer
    assert kinds(answer) == [NotFound, NotFound]
    assert order(host) == [b"b"]


@pytest.mark.parametrize("reopened", [False, True], ids=["in memory", "in the database"])
def test_a_delay_past_the_ttl_is_invalid_with_both_times(host: OneHost, reopened: bool) -> None:
    (one,) = put(host, b"a", ttl_ms=10_000)
    if reopened:
        host.reopen()
    answer = change(host, one, delay_ms=10_000)
    assert kinds(answer) == [Invalid]
    assert messages(answer) == [
        "the item may not wait until 1970-01-01T00:16:50.000Z: its TTL ends at 1970-01-01T00:16:50.000Z"
    ]
    assert kinds(change(host, one, delay_ms=9_999)) == [None]
    assert states(host) == {b"a": "delayed"}


def test_the_ttl_is_read_where_a_page_did_not_bring_it(host: OneHost) -> None:
    ids = [put(host, b"%d" % at * 100, ttl_ms=10_000)[0] for at in range(3)]
    host.reopen()
    item = host.engine.state.shards[1].memory.known
    take(host, 1)  # its page brings all items
    for known in item.values():
        host.engine.state.shards[1].memory.drop_body(known)
        known.expires_at_ms = -1
    assert kinds(change(host, ids[2], delay_ms=20_000)) == [Invalid]


def test_wrong_requests_are_refused(host: OneHost) -> None:
    assert "priority, delay_ms or deliver_after_ms is needed" in refused(host, "ChangeItems", ids=[1])
    assert "ids is empty" in refused(host, "ChangeItems", ids=[], priority=1)
    assert "both deliver_after_ms and delay_ms" in refused(
        host, "ChangeItems", ids=[1], delay_ms=5, deliver_after_ms=5_000_000
    )
    assert "delay_ms is -1" in refused(host, "ChangeItems", ids=[1], delay_ms=-1)


def test_equal_ids_and_equal_requests_have_one_end(host: OneHost) -> None:
    (one,) = put(host, b"a")
    assert kinds(change(host, one, one, 7, priority=3)) == [None, None, NotFound]
    commits = host.dbs[1].commits
    assert kinds(change(host, one, priority=3)) == [None]
    assert host.dbs[1].commits == commits, "nothing is written twice"


def test_a_change_waits_for_the_change_before_it(host: OneHost) -> None:
    """Each change is decided on the item as the change before leaves it."""
    (one,) = put(host, b"a", ttl_ms=60_000)
    calls = [
        host.begin("ChangeItems", ids=[one], priority=5),
        host.begin("ChangeItems", ids=[one], delay_ms=3_000),
        host.begin("ChangeItems", ids=[one], priority=6),
        host.begin("ChangeItems", ids=[one], delay_ms=0),
    ]
    host.run()
    assert [kinds(call.answer) for call in calls] == [[None]] * 4
    (item,) = take(host).items
    assert (item.id, item.priority) == (one, 6)


def test_a_change_of_an_item_that_ends_finds_it_gone(host: OneHost) -> None:
    one, two = put(host, b"a", b"b")
    (item,) = take(host, 1).items
    acked = host.begin("Ack", items=[idl.AckItem(item.id, item.lease)])
    deleted = host.begin("DeleteItems", ids=[two])
    changed = host.begin("ChangeItems", ids=[one, two], priority=5)
    host.run()
    assert kinds(acked.answer) == kinds(deleted.answer) == [None]
    assert kinds(changed.answer) == [NotFound, NotFound]


def test_a_delete_goes_before_a_change_that_waits(host: OneHost) -> None:
    (one,) = put(host, b"a")
    changed, deleted = host.begin("ChangeItems", ids=[one], priority=5), host.begin("DeleteItems", ids=[one])
    host.run()
    assert kinds(changed.answer) == kinds(deleted.answer) == [None]
    assert states(host) == {}


def test_a_late_ack_counts_after_a_change_of_priority(host: OneHost) -> None:
    """The item is ready again because its lease ended by time, and no other consumer has it (promise 7)."""
    (one,) = put(host, b"a")
    (item,) = take(host, lease_ms=100).items
    host.wait(1_000)
    host.wait(1_000)
    assert kinds(change(host, one, priority=5)) == [None]
    changing = host.begin("ChangeItems", ids=[one], priority=6)
    nacked = host.begin("Nack", items=[idl.NackItem(one, item.lease)])
    acked = host.begin("Ack", items=[idl.AckItem(one, item.lease)])
    host.run()
    assert kinds(changing.answer) == kinds(acked.answer) == [None]
    assert [kind.__name__ for kind in kinds(nacked.answer) if kind] == ["StaleLease"]
    assert states(host) == {}


@pytest.mark.parametrize("attempts", [0, 1])
def test_the_total_time_begins_with_the_new_time(host: OneHost, attempts: int) -> None:
    policy = '{"max_total_ms": 5000, "max_attempts": 0, "retry": null, "dead": {"topic": "dead"}}'
    host.engine.apply_settings(Settings("n", 1, {"topic.t": policy}))
    (one,) = put(host, b"a")
    for _ in range(attempts):
        (item,) = take(host).items
        host.ask("Nack", items=[idl.NackItem(one, item.lease, failed=True)])
    assert kinds(change(host, one, delay_ms=8_000)) == [None]
    host.wait(8_001)
    (item,) = take(host).items
    host.ask("Nack", items=[idl.NackItem(one, item.lease, failed=True)])
    dead = [one.id for one in host.ask("ListItems", ns="n", topic="dead").items]
    assert dead == ([one] if attempts else [])


def test_a_dead_letter_keeps_its_failure(host: OneHost) -> None:
    host.engine.apply_settings(Settings("n", 1, {"topic.t": '{"dead": {"topic": "dead"}}'}))
    (one,) = put(host, b"a")
    (item,) = take(host).items
    host.ask("Nack", items=[idl.NackItem(one, item.lease, reject=True, reason="bad")])
    assert kinds(change(host, one, priority=9)) == [None]
    (dead,) = host.ask("ListItems", ns="n", topic="dead").items
    assert (dead.priority, dead.failure.reason) == (9, "bad")
    assert host.ask("RedriveItems", ns="n", topic="dead").at_least == 1
    assert [(item.payload, item.priority) for item in take(host).items] == [(b"a", 9)]


def test_the_change_is_counted(host: OneHost) -> None:
    one, two = put(host, b"a", b"b")
    change(host, one, two, 5, priority=1)
    assert host.engine.state.counters.namespaces.of("n").changed == 2


def test_items_of_other_hosts_get_the_same_time() -> None:
    """All items of a request get one time, whichever host has them."""
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}))
    (here,) = put(host, b"x")
    call = host.call("ChangeItems", ids=[here, 2 << 48 | 5], priority=3, delay_ms=5_000)
    (sent,) = host.to("ChangeItems")
    assert (sent.request.ids, sent.request.priority, sent.request.delay_ms) == ([2 << 48 | 5], 3, None)
    assert sent.request.deliver_after_ms == host.now_ms + 5_000
    host.reply("ChangeItems", idl.ChangeItemsResponse([idl.ItemOutcome()]))
    assert [one.error for one in call.answer.outcomes] == [None, None]
    assert host.ask("GetItem", id=here).item.deliver_after_ms == host.now_ms + 5_000
