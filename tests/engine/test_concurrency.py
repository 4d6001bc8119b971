"""Limits on live leases on one host, and which topics with parked flows consumers want."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from foqs.bounds import THROTTLE
from foqs.engine.concurrency import RECENT_MS, Demand, LaneSlots, lives
from foqs.errors import Invalid
from foqs.idl import idl
from foqs.policies.layers import Policies
from foqs.policies.settings import Settings
from tests.api.test_throttles import Throttled

pytestmark = pytest.mark.memory

GPU = {"throttle.gpu": '{"concurrency": 2, "timeout_ms": 1000}'}
R = idl.Reason


class Limited(Throttled):
    """Leases are committed before the reply, so each call needs some time."""

    def take(self, count: int = 100, topic: str = "t", **how: Any) -> list[Any]:
        call = self.dequeue(count, topic, **how)
        self.pass_ms(60)
        return call.answer.items

    def ack(self, *items: Any) -> None:
        entries = [idl.AckItem(item.id, item.lease) for item in items]
        assert all(outcome.error is None for outcome in self.ask("Ack", items=entries).outcomes)

    def stats(self, key: str = "gpu") -> Any:
        (found,) = self.ask("GetThrottles", ns="n", prefix=key).throttles
        return found


def test_no_more_items_are_leased_than_the_limit() -> None:
    host = Limited(GPU)
    host.put(6, "gpu")
    first = host.take()
    assert len(first) == 2
    empty = host.dequeue().answer
    assert (empty.items, empty.reason) == ([], "concurrency: gpu")
    host.ack(first[0])
    assert len(host.take()) == 1
    host.ack(first[1])
    assert len(host.take()) == 1


def test_a_lease_is_in_the_database_before_its_item_is_delivered() -> None:
    host = Limited(GPU)
    host.put(2, "gpu")
    items = host.take()
    rows = {row.id: row.lease for shard in host.engine.state.shards for row in host.dbs[shard].timer.values()}
    assert {item.id: item.lease for item in items} == rows


def test_the_end_of_a_lease_wakes_a_waiting_consumer() -> None:
    host = Limited(GPU)
    host.put(3, "gpu")
    first = host.take()
    call = host.dequeue(1, wait_ms=5_000)
    host.pass_ms(200)
    assert not call.answers
    host.ack(first[0])
    host.pass_ms(50)
    assert len(call.answer.items) == 1


def test_items_without_the_key_do_not_wait() -> None:
    host = Limited(GPU)
    host.put(4, "gpu")
    assert len(host.take()) == 2
    host.put(3)
    assert len(host.take()) == 3


def test_consumers_that_waited_together_get_limited_items() -> None:
    """Each reply waits for its own commits alone."""
    host = Limited(GPU)
    host.put(1, tenant="a")
    assert len(host.take()) == 1
    calls = [host.dequeue(1, wait_ms=5_000) for _ in range(4)]
    specs = [idl.ItemSpec("t", b"x", fairness_key="a", throttle_keys=keys) for keys in (["gpu"], None, ["gpu"], None)]
    host.ask("Enqueue", ns="n", items=specs)
    host.pass_ms(100)
    assert [len(call.answer.items) for call in calls] == [1] * 4


def test_a_topic_may_limit_all_its_items() -> None:
    host = Limited({**GPU, "topic.t": '{"throttles": ["gpu"]}'})
    host.put(5)
    assert len(host.take()) == 2


def test_a_key_may_have_a_rate_and_a_limit() -> None:
    host = Limited({"throttle.gpu": '{"per_second": 100, "burst": 3, "concurrency": 2}'})
    host.put(9, "gpu")
    for _ in range(3):
        items = host.take()
        assert len(items) <= 2
        host.ack(*items)
        host.pass_ms(1_000)


def test_limits_that_change() -> None:
    host = Limited(GPU)
    host.put(9, "gpu")
    first = host.take()
    assert len(first) == 2
    host.apply({"throttle.gpu": '{"concurrency": 4}'})
    host.pass_ms(600)
    second = host.take()
    assert len(second) == 2
    host.apply({"throttle.gpu": '{"concurrency": 1}'})
    host.ack(*first, second[0])
    host.pass_ms(600)
    assert host.take() == []  # one lease lives
    host.ack(second[1])
    host.pass_ms(600)
    assert len(host.take()) == 1
    host.apply({})
    assert len(host.take()) == 4


def test_a_limit_that_is_set_counts_the_leases_that_live() -> None:
    host = Limited({})
    host.put(6, "gpu")
    before = host.take(3)
    host.apply(GPU)
    host.pass_ms(600)
    assert host.take() == []
    host.ack(*before[:2])
    host.pass_ms(600)
    assert len(host.take()) == 1


def test_a_shadow_counts_and_holds_nothing() -> None:
    host = Limited({"throttle.gpu": '{"concurrency": 2, "shadow": true}'})
    host.put(6, "gpu")
    first = host.take(2)
    host.ack(*first)
    host.pass_ms(50)
    assert len(first) == 2
    assert host.stats().shadow_held == 0
    assert len(host.take()) == 4
    assert (host.stats().shadow_held, host.stats().taken) == (2, 4)


def test_a_limit_that_is_removed_and_set_again_counts_once_more() -> None:
    host = Limited(GPU)
    host.put(9, "gpu")
    first = host.take()
    host.ack(*first)
    host.apply({})
    assert len(host.take(5)) == 5
    host.apply(GPU)
    host.pass_ms(600)
    assert host.take() == []


def test_settings_that_vanish_before_the_leases_are_counted() -> None:
    host = Limited({})
    host.put(3, "gpu")
    host.take(2)
    for entries in (GPU, {}, GPU, {"weight.a": "2"}):
        host.version += 1
        host.engine.apply_settings(Settings("n", host.version, entries))
    host.run()
    assert len(host.take()) == 1


def test_a_topic_that_gets_a_limited_key_counts_its_leases() -> None:
    """Its leases of before count, though the key had slots left."""
    host = Limited(GPU)
    host.put(1, "gpu", topic="u")
    host.put(5)
    assert len(host.take(3)) == 3
    host.ack(*host.take(topic="u"))
    host.put(1, "gpu", topic="u")
    host.apply({**GPU, "topic.t": '{"throttles": ["gpu"]}'})
    host.pass_ms(600)
    assert host.take(topic="u") == host.take() == []


def test_a_key_is_served_after_a_pause_while_a_shard_is_away() -> None:
    host = Limited(GPU)
    host.put(2, "gpu")
    host.ack(*host.take(1))
    host.engine.state.shards[2].owner.breaker.trip(host.now_ms)
    for _ in range(30):
        host.wait(500)
    host.put(2, "gpu")
    assert len(host.take(1)) == 1


def test_overage_and_reclaimed() -> None:
    host = Limited(GPU)
    host.put(3, "gpu")
    call = host.call("Dequeue", ns="n", wants=[idl.TopicCount("t", 9)], lease_ms=3_000)
    host.pass_ms(60)
    assert len(call.answer.items) == 2
    for _ in range(5):
        host.wait(500)
    stats = host.stats()
    assert (stats.taken, stats.free, stats.overage, stats.reclaimed) == (2, 0, 2, 0)
    assert (stats.concurrency, stats.per_second, stats.burst) == (2, None, None)
    for _ in range(5):
        host.wait(500)
    stats = host.stats()
    assert (stats.taken, stats.free, stats.reclaimed) == (0, 2, 2)
    taken = len(host.take())  # the third item comes first: its shard may have to ask for a slot
    assert taken + len(host.take()) == 2


def test_the_keys_of_a_namespace_include_forgotten_gates() -> None:
    host = Limited(GPU)
    host.put(1, "gpu")
    (item,) = host.take()
    for _ in range(5):
        host.wait(500)
    host.ack(item)
    concurrency, key = host.engine.state.throttling.concurrency, ("n", THROTTLE + "gpu")
    for _ in range(30):
        host.wait(500)
    assert concurrency.gates(key) == []
    assert concurrency.past(key).overage == 1
    assert (concurrency.keys("n"), concurrency.keys("other")) == ([key], [])


def test_why_an_item_waits_for_a_slot() -> None:
    host = Limited(GPU)
    host.put(3, "gpu")
    held = sorted(item.id for item in host.take())
    host.dequeue()
    (topic,) = [one for one in host.ask("ExplainItem", ns="n", topic="t").reasons if one.code == R.CONCURRENCY]
    assert (topic.key, sorted(topic.item_ids)) == ("gpu", held)
    (left,) = [item.id for item in host.ask("ListItems", ns="n", topic="t", state=idl.ItemState.READY).items]
    reason = host.ask("ExplainItem", id=left).reasons[0]
    assert reason.code == R.CONCURRENCY
    assert reason.text == (
        "Throttle key 'gpu' has no free slot for the item's shard: this item gets the next one in about 30 ms; items "
        f"{', '.join(map(str, reason.item_ids))} hold some; the limit is 2 leases at a time: see foqs throttle list "
        "--ns n."
    )


# ------------------------------------------------------------------------------------------ questions of other hosts


def test_a_coordinator_counts_before_it_lends() -> None:
    host = Limited(GPU)
    asked = idl.SlotAsk("n", "gpu", 1, host.engine.state.shards[1].owner.epoch, 1, 0, 0, 1)
    (first,) = host.ask("Lend", holder="h", tokens=[], slots=[asked]).slots
    assert (first.granted, first.retry_after_ms) == (0, 20)
    host.pass_ms(50)
    asked.number = 100
    (second,) = host.ask("Lend", holder="h", tokens=[], slots=[asked]).slots
    assert (second.granted, second.contended) == (1, False)


def test_leases_are_counted_for_another_coordinator() -> None:
    host = Limited(GPU, 1)
    host.put(3, "gpu")
    assert len(host.take()) == 2
    keys = [idl.SlotKey("n", "gpu"), idl.SlotKey("n", "none")]
    call = host.call("CountSlots", keys=keys, shards=[1, 7])
    host.pass_ms(50)
    (one,) = call.answer.shards
    assert (one.shard, one.epoch, one.leased) == (1, host.engine.state.shards[1].owner.epoch, [2, -1])


@pytest.mark.parametrize(
    ("method", "fields", "why"),
    [
        ("Lend", {"holder": "h", "slots": [idl.SlotAsk("n", "gpu")]}, "shard, epoch, number, has, leased, wanted, "),
        ("Lend", {"holder": "h", "slots": [idl.SlotAsk("n", "g*", 1, 1, 1, 0, 0, 1)]}, "a throttle key does not end"),
        ("CountSlots", {"keys": []}, "keys: 1 to 1000 are needed, not 0"),
        ("TellSlots", {"news": []}, "news: 1 to 10000 are needed, not 0"),
    ],
)
def test_questions_are_checked(method: str, fields: dict[str, Any], why: str) -> None:
    error = Limited(GPU).ask(method, **fields)
    assert type(error) is Invalid
    assert error.message.startswith(why)


def test_a_lane_counts_at_the_gates_of_its_limited_keys() -> None:
    host = Limited({**GPU, "throttle.cpu": '{"concurrency": 9}'})
    host.put(2, "gpu", "other", "cpu")
    host.take(1)
    (lane,) = [lane for shard in host.engine.state.serving for lane in shard.memory.lanes.values() if lane.leased]
    slots: LaneSlots = lane.slots
    assert [(gate.name, gate.leased) for gate in slots.gates] == [("cpu", 1), ("gpu", 1)]
    assert (slots.commits, slots.stale) == (True, False)
    host.apply(GPU)
    assert (slots.commits, slots.stale) == (False, True)
    assert [gate.name for gate in lane.slots.gates] == ["gpu"]


@pytest.mark.parametrize(
    "entries",
    [
        {"throttle.a": '{"concurrency": 1}', "throttle.b": '{"concurrency": 1}'},
        {"throttle.a": '{"per_second": 4, "burst": 1}', "throttle.b": '{"concurrency": 1}'},
        {"throttle.a": '{"concurrency": 1}', "throttle.b": '{"per_second": 4, "burst": 1}'},
        {"throttle.a": '{"concurrency": 2, "per_second": 10}', "throttle.b": '{"concurrency": 1, "per_second": 3}'},
    ],
)
def test_items_with_two_keys_do_not_starve(entries: dict[str, str]) -> None:
    """Units come one at a time, and an item with two keys needs both at one time."""
    host = Limited(entries)
    for keys in (["a"], ["b"], ["a", "b"]):
        host.put(200, *keys)
    given: dict[tuple[str, ...], list[int]] = {("a",): [], ("b",): [], ("a", "b"): []}
    work: list[tuple[int, Any]] = []
    call = host.dequeue(1, wait_ms=5_000)
    for now in range(0, 20_000, 10):
        if call.answers:
            for item in call.answer.items:
                given[tuple(sorted(item.throttle_keys))].append(now)
                work.append((now + 200, item))
            call = host.dequeue(1, wait_ms=5_000)
        while work and work[0][0] <= now:
            host.ack(work.pop(0)[1])
        host.pass_ms(10)
    for keys, times in given.items():
        longest_ms = max(after - before for before, after in pairwise([0, *times, 20_000]))
        assert longest_ms <= 3_000, (keys, longest_ms, times)


def test_a_long_lease_holds_up_no_rate_of_another_key() -> None:
    """The only token is kept for one interval. Then the flow keeps the slot instead, until the next token comes."""
    host = Limited({"throttle.a": '{"per_second": 4, "burst": 1}', "throttle.b": '{"concurrency": 1}'})
    host.put(200, "a")
    host.put(5, "a", "b")
    both: list[int] = []
    alone = 0
    lease: list[tuple[int, Any]] = []
    call = host.dequeue(1, wait_ms=5_000)
    for now in range(0, 30_000, 10):
        if call.answers:
            for item in call.answer.items:
                if "b" in item.throttle_keys:
                    both.append(now)
                    lease.append((now + 8_000, item))
                else:
                    alone += 1
                    host.ack(item)
            call = host.dequeue(1, wait_ms=5_000)
        if lease and lease[0][0] <= now:
            host.ack(lease.pop()[1])
        host.pass_ms(10)
    assert len(both) == 4
    assert max(after - before for before, after in pairwise(both)) <= 9_000
    assert alone >= 0.8 * 4 * 30


def test_shards_take_turns_at_a_limit() -> None:
    """A shard whose own items wait gives its freed slot back where those of another shard have waited longer."""
    host = Limited({"throttle.a": '{"concurrency": 1}'})
    for tenant in ("x", "y"):
        host.put(60, "a", tenant=tenant)
    given: list[str] = []
    call = host.dequeue(1, wait_ms=5_000)
    for _ in range(40):
        host.pass_ms(100)
        assert call.answers
        (item,) = call.answer.items
        given.append(item.fairness_key)
        call = host.dequeue(1, wait_ms=5_000)
        host.ack(item)
    assert len({shard for shard in host.engine.state.shards if host.dbs[shard].items}) == 2
    assert min(given.count("x"), given.count("y")) >= 15


ONE, TWO = ("n", "one"), ("n", "two")


class FakeGate:
    def __init__(self, due_ms: int, parked: tuple[tuple[str, str], ...]) -> None:
        self.due_ms = due_ms
        self.active = dict.fromkeys(parked)
        self.asleep: dict[tuple[str, str], None] = {}


def gate(due_ms: int, *parked: tuple[str, str]) -> Any:
    return FakeGate(due_ms, parked)


def test_a_topic_is_wanted_by_waiting_consumers_or_lately() -> None:
    now_ms, waiting = 0, dict[tuple[str, str], Any]()
    policies = Policies()
    demand = Demand(policies, waiting, lambda: now_ms)
    assert (demand.of(ONE), demand.wanted(ONE)) == (False, 0)
    demand.parked(ONE, gate(0, ONE), 7, now_ms)
    assert (demand.of(ONE), demand.wanted(ONE)) == (True, 7)
    now_ms = RECENT_MS
    assert not demand.of(ONE)
    demand.forget(now_ms)
    assert not demand.lacked
    waiting[ONE] = [
        SimpleNamespace(wants=[(ONE, 2), (TWO, 3)], most=None),
        SimpleNamespace(wants=[(ONE, 1)], most=None),
    ]
    assert (demand.of(ONE), demand.wanted(ONE)) == (True, 4)
    policies.apply(Settings("n", 1, {"topic.one": '{"paused": true}'}))
    assert (demand.of(ONE), demand.wanted(ONE)) == (False, 0)


def test_the_first_gate_that_may_have_units() -> None:
    demand = Demand(Policies(), {}, lambda: 0)
    late, soon, left = gate(9, ONE), gate(5, TWO), gate(1)
    for topic, one in ((ONE, late), (TWO, soon), (ONE, left)):
        demand.parked(topic, one, 1, 0)
    assert demand.gates(ONE) == [late]
    assert demand.first_due([ONE, TWO]) is soon
    assert demand.first_due([ONE]) is late
    assert demand.first_due([("n", "none")]) is None


def test_a_flow_without_items_is_parked_no_more() -> None:
    flow: Any = SimpleNamespace(lanes=(), ready=0, parked=gate(0))
    assert not lives(flow)
    assert flow.parked is None
    flow = SimpleNamespace(lanes=(1,), ready=2, parked="gate")
    assert lives(flow)
