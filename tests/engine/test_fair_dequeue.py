"""Dequeues from topics whose tenants take turns: what each tenant gets, and which pages are asked for."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from foqs.engine import consumers, fair_dequeue, item_ops, tenants
from foqs.engine.batch_reads import LanesRead, PageRead
from foqs.engine.calls import DequeueCall
from foqs.engine.fair_dequeue import TenantCursor
from foqs.fairness.keys import lane_key, tenancy_bytes, tenancy_of
from foqs.fairness.tenants import DOWN, IDLE, PARKED, QUEUED, SKIPPED
from foqs.ids import shard_of
from foqs.item import Item, Phase
from foqs.shardmgr.lifecycle import ShardState
from tests.engine.laboratory import KEY, Laboratory, reads_of
from tests.engine.tenants import of, set_policy, store, taken, tenant, tenant_of
from tests.sim.audit import audit_topics


def test_tenants_share_a_dequeue() -> None:
    lab = Laboratory(1, 2)
    store(lab, {"a": 300, "b": 300, "": 300})
    first = taken(lab, 300)
    assert all(abs(share - 100) <= 2 for share in Counter(first).values())
    assert len(taken(lab, 1_000)) == 600
    audit_topics(lab.engine)


def test_one_item_goes_before_another_tenants_backlog() -> None:
    lab = Laboratory(1, 2)
    store(lab, {"acme": 2_000})
    taken(lab, 10)
    store(lab, {"zenith": 1})
    assert "zenith" in taken(lab, 2)


def test_a_plain_topic_has_no_turns_until_a_tenant_comes() -> None:
    lab = Laboratory(1)
    lab.stored(*[lab.item() for _ in range(20)])
    topic = lab.engine.state.topics[KEY]
    assert topic.turns is None
    assert len(lab.taken(count=5)) == 5
    store(lab, {"a": 20})
    assert topic.turns is not None
    assert topic.first is None
    assert topic.ready == 35
    assert Counter(taken(lab, 20)) == {"": 10, "a": 10}
    audit_topics(lab.engine)


def test_lane_order_holds_inside_a_tenant() -> None:
    """Promise 5."""
    lab = Laboratory(1, 2, 3)
    for at in range(90):
        lab.stored(lab.item(priority=at % 7), key=of("ab"[at % 2]))
    got: dict[str, list[tuple[int, int, int]]] = {"a": [], "b": []}
    for _ in range(9):
        for item_id in lab.taken(count=10):
            item = lab.engine.state.shards[shard_of(item_id)].memory.known[item_id]
            got[tenant_of(lab, item_id)].append(item.key)
    assert all(keys == sorted(keys) and len(keys) == 45 for keys in got.values())


def test_topic_scope_delivers_urgent_items_first() -> None:
    lab = Laboratory(1, 2)
    set_policy(lab, {"fair": {"scope": "topic"}})
    for at in range(120):
        lab.stored(lab.item(priority=at % 5), key=of("abc"[at % 3]))
    got: list[int] = []
    for _ in range(12):
        got += [
            lab.engine.state.shards[shard_of(item_id)].memory.known[item_id].priority for item_id in lab.taken(count=10)
        ]
        if len(got) == 60:
            lab.stored(lab.item(priority=-1), key=of("c"))
    assert got[60] == -1
    del got[60]
    assert got == sorted(got)
    assert len(got) == 119


def test_urgent_items_of_a_shard_that_returns_come_first() -> None:
    """Their tenant took a turn without them, by the rank of its other items."""
    lab = Laboratory(1, 2)
    set_policy(lab, {"fair": {"scope": "topic"}})
    first, second = lab.engine.state.shards.values()
    second.owner.takes_new = False
    (urgent,) = lab.stored(lab.item(priority=0), key=of("a"))
    second.owner.takes_new, first.owner.takes_new = True, False
    others = lab.stored(lab.item(priority=8), lab.item(priority=9), key=of("a"))
    others += lab.stored(lab.item(priority=8), lab.item(priority=8), key=of("b"))
    first.owner.lost = True
    ((*got,),) = lab.dequeue(count=2)
    assert {urgent}.isdisjoint(got)
    first.owner.lost = False
    consumers.wake(lab.engine.state, first, lab.now_ms)
    assert lab.taken(count=1) == [urgent]
    assert sorted(lab.taken(count=5) + got) == sorted(others)


def test_tenants_of_a_reopened_shard_share_again() -> None:
    lab = Laboratory(1, 2)
    store(lab, {"a": 200, "b": 200})
    taken(lab, 50)
    lab.go_on(300)
    lab.reopen()
    audit_topics(lab.engine)
    got = taken(lab, 100) + taken(lab, 100)  # one of the shards has its page first
    assert abs(Counter(got)["a"] - 100) <= 1


def test_many_small_tenants_are_read_in_few_statements() -> None:
    lab = Laboratory(1)
    store(lab, {f"t{at}": 1 for at in range(100)})
    lab.reopen()
    statements = 0
    answers = lab.dequeue(count=100)
    while sent := lab.send():
        for shard, batch in sent:
            statements += len(reads_of(batch, PageRead)) + len(reads_of(batch, LanesRead))
            lab.arrive(shard, batch)
    (ids,) = answers
    assert len({tenant_of(lab, item_id) for item_id in ids}) == 100
    assert statements <= 3


def test_a_tenant_without_its_page_is_skipped() -> None:
    lab = Laboratory(1)
    store(lab, {"a": 50})
    lab.reopen()
    store(lab, {"b": 50})
    assert {tenant_of(lab, item_id) for item_id in lab.dequeue(count=4)[0]} == {"b"}
    assert tenant(lab, "a").away == SKIPPED
    lab.settle()
    assert tenant(lab, "a").away == QUEUED
    assert taken(lab, 2) == ["a", "a"]


def test_a_skipped_tenant_is_tried_again_whatever_it_waits_for() -> None:
    lab = Laboratory(1)
    store(lab, {"a": 3, "b": 3})
    stuck = tenant(lab, "a")
    lab.engine.state.topics[KEY].turns.skip(stuck, lab.now_ms)  # type: ignore[union-attr]
    assert taken(lab, 2) == ["b", "b"]
    lab.now_ms += tenants._AGAIN_MS
    assert "a" in taken(lab, 2)


def test_a_skipped_tenant_is_tried_at_once_if_it_is_alone() -> None:
    lab = Laboratory(1)
    store(lab, {"a": 3})
    turns = lab.engine.state.topics[KEY].turns
    assert turns is not None
    turns.skip(tenant(lab, "a"), lab.now_ms)
    assert taken(lab, 2) == ["a", "a"]


def test_a_consumer_gets_items_whose_page_was_dropped() -> None:
    """Memory was short when the page came, and nothing else happens while the consumer waits."""
    lab = Laboratory(1)
    store(lab, {"a": 3})
    lab.reopen()
    answers = lab.dequeue(wait_ms=30_000, count=2)
    lab.engine.state.shards[1].queue.pages_wanted.clear()
    lab.settle()
    assert tenant(lab, "a").away == SKIPPED and not answers
    lab.go_on(for_ms=1_500)
    assert [len(ids) for ids in answers] == [2]


def test_tenants_of_a_shard_that_is_down_return_with_it() -> None:
    lab = Laboratory(1, 2)
    store(lab, {f"t{at}": 4 for at in range(40)})
    broken = lab.engine.state.shards[1]
    broken.owner.lost = True
    held = {tenancy_of(key)[0] for key in broken.memory.lanes}
    got = taken(lab, 200)
    assert held
    assert held.isdisjoint(got)
    assert all(tenant(lab, name).away == DOWN for name in held)
    broken.owner.lost = False
    consumers.wake(lab.engine.state, broken, lab.now_ms)
    assert all(tenant(lab, name).away == QUEUED for name in held)
    assert set(taken(lab, 200)) == held


def test_tenants_return_a_slice_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants, "_SLICE", 10)
    lab = Laboratory(1)
    store(lab, {f"t{at}": 1 for at in range(25)})
    turns = lab.engine.state.topics[KEY].turns
    assert turns is not None
    for each in turns.tenants.values():
        turns.skip(each, lab.now_ms, down=True)
    tenants.resume(lab.engine.state, [KEY])
    assert len(turns.down) == 15
    while lab.engine.state.slices.long_work:
        lab.engine.pump(lab.now_ms)
    assert not turns.down


def test_a_late_lane_holds_its_tenant_alone() -> None:
    """The tenant's next item may be in the lane whose page is missing; the other tenants go on."""
    lab = Laboratory(1, 2)
    for _ in range(8):
        lab.stored(lab.item(), key=of("a"))
    store(lab, {"b": 8})
    lab.reopen()
    lab.dequeue(count=2)
    lab.settle()
    lanes = tenant(lab, "a").flows[()].lanes
    assert len(lanes) == 2
    late = lanes[0].term.shard
    late.memory.drop_window(lanes[0])
    left = sum(lane.ready for lane in lanes)
    assert {tenant_of(lab, item_id) for item_id in lab.dequeue(count=100)[0]} == {"b"}
    assert KEY in lab.engine.state.held_up
    answers = lab.dequeue(10_000, count=100)
    assert not answers
    lab.ring(lab.engine.state.config.host.merge_wait_ms)
    assert {tenant_of(lab, item_id) for item_id in answers[0]} == {"a"}
    lab.settle()
    assert len(lab.taken(count=100)) == left - len(answers[0])
    audit_topics(lab.engine)


def test_expired_and_exhausted_items_take_no_turn() -> None:
    lab = Laboratory(1)
    lab.stored(*[lab.item(ttl_ms=100) for _ in range(5)], key=of("a"))
    store(lab, {"a": 2, "b": 2})
    lab.now_ms += 200
    assert sorted(taken(lab, 10)) == ["a", "a", "b", "b"]


def test_a_reply_is_cut_by_bytes_before_the_tenant_is_charged() -> None:
    lab = Laboratory(1)
    lab.stored(*[lab.item(b"x" * 600_000) for _ in range(3)], key=of("a"))
    lab.stored(*[lab.item(b"x" * 600_000) for _ in range(3)], key=of("b"))
    got: list[str] = []
    for _ in range(6):
        part = taken(lab, 10)
        assert len(part) == 1
        got += part
    assert Counter(got) == {"a": 3, "b": 3}
    assert all(abs(got[:at].count("a") - got[:at].count("b")) <= 2 for at in range(7))


def test_waiting_consumers_are_served_by_turns() -> None:
    lab = Laboratory(1)
    store(lab, {"a": 1, "b": 1})
    taken(lab, 2)
    answers = [lab.dequeue(10_000, count=1) for _ in range(10)]
    lab.put(*[lab.item() for _ in range(20)], key=of("a"))
    lab.put(*[lab.item() for _ in range(20)], key=of("b"))
    lab.settle()
    got = [tenant_of(lab, ids[0]) for (ids,) in answers]
    assert Counter(got) == {"a": 5, "b": 5}
    assert consumers.ready(lab.engine.state, KEY) == 30


def test_parked_flows_are_not_ready_and_not_delivered() -> None:
    lab = Laboratory(1)
    lab.stored(*[lab.item() for _ in range(5)], key=of("a", "k"))
    store(lab, {"a": 2, "b": 2})
    flow = tenant(lab, "a").flows[("k",)]
    flow.parked = "k"
    assert (lab.engine.state.topics[KEY].ready, consumers.ready(lab.engine.state, KEY)) == (9, 4)
    assert sorted(taken(lab, 10)) == ["a", "a", "b", "b"]
    assert taken(lab, 10) == []
    assert (tenant(lab, "a").away, tenant(lab, "b").away) == (PARKED, IDLE)
    flow.parked = None
    flow.wake()
    assert taken(lab, 10) == ["a"] * 5


def test_a_tenant_ends_with_its_last_lane() -> None:
    lab = Laboratory(1)
    store(lab, {"a": 1, "b": 1})
    ids = lab.taken(count=2)
    lab.ack(*[(item_id, lab.lease_of(item_id)) for item_id in ids])
    lab.settle()
    assert len(lab.engine.state.topics[KEY].turns.tenants) == 2  # type: ignore[union-attr]
    lab.go_on(lab.engine.state.config.host.lane_idle_ms + 20_000)
    assert KEY not in lab.engine.state.topics


def test_a_closed_shard_counts_no_more() -> None:
    lab = Laboratory(1, 2)
    store(lab, {f"t{at}": 1 for at in range(10)})
    shard = lab.engine.state.shards[1]
    held = sum(lane.ready for lane in shard.memory.lanes.values())
    assert 0 < held < 10
    lab.engine.drained(shard, lab.now_ms)
    lab.stores[1].close(clean=True)
    shard.owner.to(ShardState.ASSIGNED)
    assert lab.engine.state.topics[KEY].ready == 10 - held
    assert len(taken(lab, 100)) == 10 - held
    lab.settle()
    audit_topics(lab.engine)


def test_a_dequeue_looks_at_a_bounded_number_of_idle_tenants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_dequeue, "_IDLE", 10)
    lab = Laboratory(1)
    store(lab, {f"t{at}": 1 for at in range(25)})
    lab.taken(count=25)
    turns = lab.engine.state.topics[KEY].turns
    assert turns is not None
    store(lab, {"last": 1})
    last = tenant(lab, "last")
    turns.leave(last, IDLE)
    for each in (*turns.tenants.values(), last):
        turns.enter(each, opened=True)
    last.start += 1
    turns.leave(last, IDLE)
    turns.enter(last)
    answers = lab.dequeue(count=1)
    assert (answers, lab.engine.state.due) == ([], {KEY: None})
    lab.settle()
    assert (answers, lab.engine.state.due) == ([], {KEY: None})
    lab.settle()
    assert [tenant_of(lab, item_id) for item_id in answers[0]] == ["last"]


class Tokens:
    """Throttling with so many tokens of one key."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.moment = 0

    def take(self, flow: object, item: object) -> str | None:
        self.left -= 1
        return None if self.left >= 0 else "key"

    def park(self, flow: Any, key: str, wanted: int) -> bool:
        flow.parked = key
        return False


@pytest.mark.parametrize("left", range(8))
def test_parking_leaves_the_windows_of_shards_that_are_away(left: int) -> None:
    """They had no part in the merge, and their items stay where they are."""
    lab = Laboratory(1, 2, 3)
    for key in (of("a", "k"), of("a")):
        for _ in range(30):
            lab.stored(lab.item(), key=key)
    lab.taken(count=1)  # the windows of all shards are in memory
    lab.engine.state.shards[1].owner.breaker.trip(lab.now_ms)  # its items come first in the order
    lab.engine.state.throttling = Tokens(left)  # type: ignore[assignment]
    lab.taken(count=50)
    for lane in lab.engine.state.topics[KEY].lanes():
        assert lane.window is not None
        assert (len(lane.window.entries), lane.window.more) == (lane.ready, False)
    items = [
        item for shard in lab.engine.state.serving for item in shard.memory.known.values() if item.phase is Phase.WINDOW
    ]
    assert all(item.entry in item.lane.window.entries for item in items)
    audit_topics(lab.engine)


def test_long_names_count_in_the_answer() -> None:
    """An answer that does not fit a frame would be lost, and its items would come again and again."""
    lab = Laboratory(1)
    lanes = [of("t" * 250 + str(number), "k" * 255, "l" * 255) for number in range(5)]
    other = ("ns", "other")
    for key in (*lanes, *lanes, lane_key(other, "x")):
        lab.stored(lab.item(b"x" * 100), key=key)
    names_bytes = tenancy_bytes(*tenancy_of(lanes[0]))
    sizes: list[int] = []

    def reply(items: list[Item], doubtful: list[int]) -> bool:
        sizes.extend(100 + 20 + tenancy_bytes(*tenancy_of(item.lane.key)) for item in items)
        return True

    room_bytes = 3 * (120 + names_bytes) + 121
    call = DequeueCall([(KEY, 10), (other, 1)], 60_000, room_bytes, 20, reply)
    lab.engine.dequeue(call, lab.now_ms, 0)
    assert (len(sizes), sum(sizes)) == (3, 3 * (120 + names_bytes))


def test_a_turn_that_an_earlier_owner_charged_is_not_refunded() -> None:
    lab = Laboratory(1)
    item_id, later_id = lab.stored(lab.item(), lab.item(), key=of("a"))
    assert lab.taken(count=1) == [item_id]
    lease = lab.lease_of(item_id)
    lab.go_on(1_000)
    lab.reopen()
    start = tenant(lab, "a").start
    lab.operate(item_id, item_ops.release(lease))
    lab.settle()
    assert tenant(lab, "a").start == start
    assert lab.taken() == [item_id, later_id]


def test_of_one_lane_the_taken_items_are_leased() -> None:
    lab = Laboratory(1)
    ids = lab.stored(*[lab.item() for _ in range(3)], key=of("a"))
    lane = lab.engine.state.shards[1].memory.lanes[of("a")]
    assert lane.window is not None
    taking = TenantCursor()
    taking.lane, taking.entries = lane, lane.window.entries
    taking.at, taking.upto = 2, 3
    assert lane.ready == 3
    taking.finish(lab.engine.state)
    assert (lane.ready, lane.leased) == (1, 2)
    assert [entry[2] for entry in lane.window.entries] == ids[2:]
    assert not taking.entries
    assert (taking.at, taking.upto) == (0, 0)


def test_of_several_lanes_those_of_parked_flows_keep_their_items() -> None:
    lab = Laboratory(1)
    (parked_id,) = lab.stored(lab.item(), key=of("a", "k"))
    (other_id,) = lab.stored(lab.item(), key=of("a"))
    lanes = [lab.engine.state.shards[1].memory.lanes[key] for key in (of("a", "k"), of("a"))]
    parked, other = lanes
    assert parked.window is not None
    assert other.window is not None
    taking = TenantCursor()
    taking.lanes, taking.entries = lanes, list(other.window.entries)
    taking.at = taking.upto = 1
    taking.parked = {parked.flow}
    taking.finish(lab.engine.state)
    assert [entry[2] for entry in parked.window.entries] == [parked_id]
    assert not other.window.entries
    assert (parked.ready, other.ready, other.leased) == (1, 0, 1)
    assert parked_id < other_id
    assert lab.engine.state.topics[KEY].ready == 1


TENANTS = 1_500


@pytest.fixture
def opened() -> Laboratory:
    """A shard of many tenants with an item each, none of which is in memory."""
    lab = Laboratory(1)
    for number in range(TENANTS):
        lab.put(lab.item(), key=of(f"tenant {number}"))
    lab.settle()
    lab.reopen()
    while lab.engine.state.slices.long_work:
        lab.engine.pump(lab.now_ms)
    return lab


def windows(lab: Laboratory) -> int:
    return sum(lane.window is not None for lane in lab.engine.state.shards[1].memory.lanes.values())


def test_only_pages_of_the_next_tenants_are_read(opened: Laboratory) -> None:
    taken: list[int] = []
    while len(taken) < 400:
        taken += opened.taken(count=10)
    assert windows(opened) <= len(taken) + 3 * fair_dequeue._AHEAD


def test_tenants_keep_their_places_while_their_pages_are_read(opened: Laboratory) -> None:
    """An item is not delivered long after its page was read: its tenant does not go behind all of them."""
    assert opened.taken(count=10)
    there = {
        item.id
        for lane in opened.engine.state.shards[1].memory.lanes.values()
        if lane.window is not None
        for *_, item in lane.window.entries
    }
    later: list[int] = []
    while len(later) < len(there):
        later += opened.taken(count=10)
    assert len(there) > 100
    assert len(there & {*later[: len(there)]}) > 0.9 * len(there)


def test_a_steady_consumer_waits_for_the_first_page_alone(opened: Laboratory) -> None:
    waited, left = 0, TENANTS
    while left:
        answer = opened.dequeue(5_000, count=10)
        waited += not answer
        opened.settle()
        left -= len(answer[0])
    assert waited == 1


def test_more_is_read_ahead_for_a_faster_consumer(opened: Laboratory) -> None:
    """Pages arrive only when a dequeue waits."""
    turns = opened.engine.state.topics[KEY].turns
    assert turns is not None
    reaches: list[int] = []
    left = TENANTS
    while left:
        answer = opened.dequeue(5_000, count=10)
        if not answer:
            reaches.append(turns.reach)
            opened.settle()
        left -= len(answer[0])
    assert reaches == [fair_dequeue._AHEAD * times for times in (1, 4, 4)]
