"""Topics with parked flows that consumers want."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from foqs.engine.concurrency import RECENT_MS, Demand, lives
from foqs.policies.layers import Policies
from foqs.policies.settings import Settings

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
