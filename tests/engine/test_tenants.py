"""A change of weights counts for all deliveries from then on, and tenants that come and go leave nothing in memory."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import foqs
from foqs.api import responses
from foqs.engine import tenants
from foqs.idl import idl
from foqs.policies.settings import Settings
from tests.engine.laboratory import KEY, Laboratory
from tests.engine.tenants import of, set_policy, store, taken, tenant
from tests.sim.audit import audit_topics
from tests.support.one_host import OneHost, take

HEAVY = {"weight_a": "1000"}


@pytest.fixture
def lab() -> Laboratory:
    """Tenants a of the weight 1000, and b and c of 1. b and c have just had a turn: the next one is 1000 of a away."""
    lab = Laboratory(1, 2)
    set_policy(lab, {}, **HEAVY)
    store(lab, {"a": 4_000, "b": 2_000, "c": 2_000})
    while taken(lab, 1) != ["b"]:
        pass
    while taken(lab, 1) != ["c"]:
        pass
    return lab


CHANGES: dict[str, Callable[[Laboratory], None]] = {
    "a weight": lambda lab: set_policy(lab, {}, **HEAVY, weight_b="1000", weight_c="500"),
    "a prefix": lambda lab: set_policy(lab, {}, **HEAVY, weight_c="500", **{"weight_*": "1000"}),
    "the policy of the topic": lambda lab: set_policy(lab, {"fair": {"weights": {"b": 1000, "c": 500}}}, **HEAVY),
    "a weight that is removed": lambda lab: set_policy(lab, {}, weight_b="2", weight_a="2"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("count", [1, 50], ids=["one by one", "together"])
def test_shares_follow_weights_at_once(lab: Laboratory, change: str, count: int) -> None:
    """Promise 10, from the change on: none is more than an item of its weight ahead."""
    CHANGES[change](lab)
    got: Counter[str] = Counter()
    for _ in range(200 // count):
        got.update(taken(lab, count))
        for name, part in {"a": 2, "b": 2, "c": 1}.items():
            assert abs(got[name] / part - got.total() / 5) <= 2, got
    assert tenant(lab, "c").weight * 2 == tenant(lab, "b").weight == tenant(lab, "a").weight
    audit_topics(lab.engine)


def test_shares_follow_the_weights_of_items(lab: Laboratory) -> None:
    lab.put(lab.item(), key=of("b"), weights={of("b"): 1_000})
    lab.settle()
    got = Counter(taken(lab, 60))
    assert got["b"] == pytest.approx(30, abs=2)
    assert not lab.engine.state.topics[KEY].turns.unweighed  # type: ignore[union-attr]


def test_credit_of_a_tenant_stays_a_number_of_items(lab: Laboratory) -> None:
    turns = lab.engine.state.topics[KEY].turns
    assert turns is not None
    b = tenant(lab, "b")
    turns.leave(b, 4)
    turns.skipped[b] = lab.now_ms
    taken(lab, 1_500)
    before = b.start - b.level.now
    set_policy(lab, {}, **HEAVY, weight_b="100")
    assert b.weight == 100
    assert b.start - b.level.now == pytest.approx(before / 100)


def test_very_many_tenants_are_weighed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants, "_SLICE", 10)
    lab = Laboratory(1)
    store(lab, {f"t{n}": 2 for n in range(45)})
    taken(lab, 45)
    version = lab.engine.state.policies.versions.get(KEY[0], 0) + 1
    lab.engine.apply_settings(Settings(KEY[0], version, {"weight.*": "7"}))
    found = lambda: sum(tenant(lab, f"t{n}").weight == 7 for n in range(45))  # noqa: E731
    assert found() == 10
    lab.engine.pump(lab.now_ms)
    assert found() in (10, 20)
    for _ in range(8):
        lab.engine.pump(lab.now_ms)
    assert found() == 45


def test_other_settings_visit_no_tenant(monkeypatch: pytest.MonkeyPatch, lab: Laboratory) -> None:
    weighed: list[Any] = []
    monkeypatch.setattr(tenants, "weigh", lambda *what: weighed.append(what))
    set_policy(lab, {"max_attempts": 3}, **HEAVY)
    assert not weighed


@pytest.mark.parametrize("unit", ["bytes", "busy"])
def test_another_unit_counts_from_the_change_on(lab: Laboratory, unit: str) -> None:
    set_policy(lab, {"fair": {"unit": unit, "weights": {"b": 1000, "c": 1000}}}, **HEAVY)
    got = Counter(taken(lab, 90))
    assert all(abs(count - 30) <= 3 for count in got.values()), got


@pytest.mark.parametrize("slots", [False, True], ids=["tokens", "slots"])
def test_parked_flows_wake_by_the_new_weights(slots: bool) -> None:
    """Each flow waits for a unit of one key. By its old start b would get the next one after 1000 of a's."""
    host = OneHost(1)
    throttle = '{"concurrency": 1}' if slots else '{"per_second": 10, "burst": 1}'
    entries = {"throttle.k": throttle, "weight.a": "1000"}
    host.settings.apply(Settings("n", 1, entries))
    host.wait(1_000)
    for name in ("a", "b"):
        specs = [idl.ItemSpec(topic="t", payload=b"", fairness_key=name, throttle_keys=["k"]) for _ in range(500)]
        assert not [one for one in host.ask("Enqueue", ns="n", items=specs).outcomes if one.error]

    def served(count: int) -> Counter[str]:
        got: Counter[str] = Counter()
        while got.total() < count:
            call = host.call("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)], wait_ms=60_000)
            while not call.answers:
                host.wait(10)
            for item in call.answer.items:
                got[item.fairness_key] += 1
                host.ask("Ack", items=[idl.AckItem(item.id, item.lease)])
        return got

    while not served(1)["b"]:
        pass
    assert served(20)["b"] <= 1
    host.wait(20)
    host.settings.apply(Settings("n", 2, {**entries, "weight.b": "1000"}))
    got = served(40)
    assert got["b"] == pytest.approx(20, abs=2), got
    assert take(host, 1) is not None


TENANTS = 1_000
LEFT_BYTES = 8 * TENANTS


def passing(lab: Laboratory, first: int) -> None:
    """Store an item for each tenant, deliver and ack all of them, and wait until their lanes are gone."""
    shard = lab.engine.state.shards[1]
    for number in range(first, first + TENANTS):
        lab.put(lab.item(), key=of(f"tenant {number}"))
    lab.settle()
    acked = 0
    while ids := lab.taken(count=100):
        lab.ack(*[(item_id, lab.lease_of(item_id)) for item_id in ids])
        lab.settle()
        acked += len(ids)
    assert acked == TENANTS
    while shard.memory.lanes:
        lab.go_on(1_000)
    lab.dbs[1].ever.clear()


def held_bytes() -> int:
    gc.collect()  # which also frees the tuples that the interpreter keeps for new ones
    here = [tracemalloc.Filter(True, str(Path(foqs.__file__).parent / "*"))]
    return sum(one.size for one in tracemalloc.take_snapshot().filter_traces(here).statistics("filename"))


def test_tenants_that_are_gone_hold_no_memory() -> None:
    lab = Laboratory(1, lane_idle_ms=1_000)
    tracemalloc.start()
    try:
        passing(lab, 0)
        before_bytes = held_bytes()
        passing(lab, TENANTS)
        assert held_bytes() - before_bytes < LEFT_BYTES
    finally:
        tracemalloc.stop()


def test_replies_keep_no_names_of_tenants() -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored(key=of("tenant"))
    item = lab.engine.state.shards[1].memory.known[item_id]
    before = sys.getrefcount(item.lane), sys.getrefcount(item.lane.key)
    assert responses.dequeue_response([item]) is not None
    assert (sys.getrefcount(item.lane), sys.getrefcount(item.lane.key)) == before
