"""Random work on the tenants of a topic: what a dequeue gives is what the rules say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import foqs
from foqs.engine import consumers
from foqs.engine.fair_dequeue import TenantDequeue
from foqs.engine.item_ops import nack, release
from foqs.fairness.keys import LaneKey, tenancy_of
from foqs.ids import shard_of
from foqs.shardmgr.lifecycle import ShardState
from tests.engine.laboratory import KEY, Laboratory
from tests.engine.tenants import of, set_policy
from tests.sim.audit import audit_topics

LANES = [of(name, *throttles) for name in ("", "a", "b", "c") for throttles in ((), ("k",))]
FAIR: list[dict[str, Any]] = [{}, {"unit": "bytes"}, {"scope": "topic"}, {"weights": {"a": 3, "b": 10}}]

steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(LANES), st.lists(st.integers(0, 3), min_size=1, max_size=12)),
        st.tuples(st.just("take"), st.integers(1, 30), st.booleans()),
        st.tuples(st.just("end"), st.sampled_from(["ack", "nack", "release"]), st.integers(0, 50)),
        st.tuples(st.just("park"), st.sampled_from(["a", "b"]), st.booleans()),
        st.tuples(st.just("forget"), st.integers(1, 3), st.booleans()),
        st.tuples(st.just("sick"), st.integers(1, 3), st.booleans()),
        st.tuples(st.just("policy"), st.sampled_from(FAIR), st.none()),
        st.tuples(st.just("reopen"), st.none(), st.none()),
        st.tuples(st.just("wait"), st.integers(1, 2_000), st.none()),
    ),
    min_size=5,
    max_size=40,
)


class Run:
    """`ready` has the keys of the items that may be delivered, by lane; `got` what each dequeue gave."""

    def __init__(self, window_rows: int = 16) -> None:
        self.lab = Laboratory(1, 2, 3, window_rows=window_rows)
        self.lane_of: dict[int, LaneKey] = {}
        self.leased: dict[int, int] = {}
        self.gone: set[int] = set()
        self.got: list[list[int]] = []

    def put(self, key: LaneKey, priorities: list[int]) -> None:
        for item_id in self.lab.stored(*[self.lab.item(priority=one) for one in priorities], key=key):
            if isinstance(item_id, int):  # else no shard could store it
                self.lane_of[item_id] = key

    def take(self, count: int, settled: bool) -> None:
        answers = self.lab.dequeue(count=count)
        if settled or not answers:
            self.lab.settle()
        for ids in answers:
            self.got.append(ids)
            for item_id in ids:
                assert item_id in self.lane_of
                assert item_id not in self.leased
                assert item_id not in self.gone
                self.leased[item_id] = self.lab.lease_of(item_id)

    def end(self, how: str, which: int) -> None:
        if not self.leased:
            return
        item_id = list(self.leased)[which % len(self.leased)]
        lease = self.leased.pop(item_id)
        if how == "ack":
            outcomes = self.lab.ack((item_id, lease))
        else:
            outcomes = self.lab.operate(item_id, nack(lease, 0, None) if how == "nack" else release(lease))
        self.lab.settle()
        if how == "ack" and outcomes == [None]:
            self.gone.add(item_id)
        elif outcomes != [None]:
            self.leased[item_id] = lease

    def park(self, name: str, parked: bool) -> None:
        topic = self.lab.engine.state.topics.get(KEY)
        turns = topic.turns if topic is not None else None
        flow = turns.tenants[name].flows.get(("k",)) if turns is not None and name in turns.tenants else None
        if flow is not None:
            flow.parked = SimpleNamespace(moved=lambda *_: None) if parked else None
            if not parked:
                flow.wake()

    def forget(self, number: int, settled: bool) -> None:
        """Memory is short: the windows of a shard are dropped."""
        shard = self.lab.engine.state.shards[number]
        for lane in list(shard.memory.lanes.values()):
            shard.memory.drop_window(lane)
        if settled:
            self.lab.settle()

    def sick(self, number: int, sick: bool) -> None:
        shard = self.lab.engine.state.shards[number]
        shard.owner.lost = sick
        if not sick:
            consumers.wake(self.lab.engine.state, shard, self.lab.now_ms)

    def policy(self, fair: dict[str, Any], _: None) -> None:
        set_policy(self.lab, {"fair": fair})

    def reopen(self, *_: None) -> None:
        for number in (1, 2, 3):
            self.sick(number, False)
        self.lab.go_on(500)
        self.lab.reopen()

    def wait(self, for_ms: int, _: None) -> None:
        self.lab.go_on(for_ms)

    def drain(self) -> None:
        """Take all that is left: nothing is lost, and no tenant is skipped for ever."""
        for name in ("a", "b"):
            self.park(name, False)
        for number in (1, 2, 3):
            self.sick(number, False)
        self.lab.settle()
        empty = 0
        while empty < 3:
            before = len(self.leased)
            self.take(20, True)
            self.lab.go_on(300)
            empty = empty + 1 if len(self.leased) == before else 0


def run(script: list[tuple[Any, ...]]) -> Run:
    done = Run()
    for step, *values in script:
        getattr(done, step)(*values)
        audit_topics(done.lab.engine)
    done.drain()
    return done


@given(steps)
@settings(max_examples=60)
def test_nothing_is_lost_and_no_tenant_starves(script: list[tuple[Any, ...]]) -> None:
    done = run(script)
    assert done.leased.keys() | done.gone == done.lane_of.keys()
    assert all(shard.owner.state is ShardState.SERVING for shard in done.lab.engine.state.serving)


SLOW: dict[str, tuple[type, Any]] = {
    "_several": (TenantDequeue, lambda self, call, count, room_bytes: ([], 0, 0)),
    "_heads": (TenantDequeue, lambda self, picked, count, overhead_bytes: None),
    "_first_lane": (TenantDequeue, lambda self, tenant, taking: False),
}


@pytest.mark.parametrize("names", [["_several"], ["_heads"], ["_heads", "_first_lane"], list(SLOW)])
@given(script=steps)
@settings(max_examples=60)
def test_each_fast_form_gives_the_same_items(names: list[str], script: list[tuple[Any, ...]]) -> None:
    if foqs.build() == "compiled":
        pytest.skip("a compiled module calls its own functions past a patch")
    fast = run(script)
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(SLOW[name][0], name, SLOW[name][1])
        slow = run(script)
    assert fast.got == slow.got
    for number, shard in fast.lab.engine.state.shards.items():
        other = slow.lab.engine.state.shards[number]
        assert [repr(item) for item in shard.memory.known.values()] == [
            repr(item) for item in other.memory.known.values()
        ]
        assert (shard.memory.tail.count, shard.memory.tail.bytes, list(shard.memory.tail._ids)) == (
            other.memory.tail.count, other.memory.tail.bytes, list(other.memory.tail._ids),
        )  # fmt: skip
    assert fast.lab.engine.state.budget.used_bytes == slow.lab.engine.state.budget.used_bytes


@given(
    st.lists(st.tuples(st.sampled_from(LANES), st.lists(st.integers(0, 3), min_size=1, max_size=12)), min_size=1),
    st.lists(st.integers(1, 30), min_size=1, max_size=20),
)
@settings(max_examples=60)
def test_a_dequeue_is_the_merge_of_its_tenants(puts: list[tuple[LaneKey, list[int]]], counts: list[int]) -> None:
    """With all items in memory: lane order inside a tenant, and no tenant is more than an item ahead of another while
    both have items."""
    done = Run(1_000)
    for key, priorities in puts:
        done.put(key, priorities)
    keys = {item.id: item.key for shard in done.lab.engine.state.serving for item in shard.memory.known.values()}
    left: dict[str, list[tuple[int, int, int]]] = {}
    for item_id, lane in done.lane_of.items():
        left.setdefault(tenancy_of(lane)[0], []).append(keys[item_id])
    for order in left.values():
        order.sort()
    served = dict.fromkeys(left, 0)
    for count in counts:
        both = [name for name in left if left[name]]
        before = dict(served)
        done.take(count, True)
        for item_id in done.got[-1]:
            name = next(name for name, order in left.items() if order and order[0][2] == item_id)
            left[name].pop(0)
            served[name] += 1
        gains = [served[name] - before[name] for name in both if left[name]]
        assert not gains or max(gains) - min(gains) <= len(both) + 2
        assert all(item_id in keys and shard_of(item_id) in (1, 2, 3) for item_id in done.got[-1])
