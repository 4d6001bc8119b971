"""Parked flows: the fairest wake first, one for each token, and no wake is lost."""

from __future__ import annotations

import random
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from foqs.limits.allowance import Allowance
from foqs.limits.bucket import Grant
from foqs.limits.gate import AWAKE_MS, Gate, Parking
from foqs.limits.throttle_key import ThrottleKey
from foqs.policies.entries import Throttle


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.floats(0, 9), st.integers(0, 4))), st.randoms())
def test_the_fairest_of_the_parked_flows_is_next(steps: list[tuple[str, float, int]], rng: random.Random) -> None:
    parking, model = Parking[str](), dict[str, tuple[float, int, int, int]]()
    for at, (flow, start, items) in enumerate(steps):
        if flow in model:
            assert parking.remove(flow)
            del model[flow]
        elif rng.random() < 0.3:
            best = min(model, key=model.__getitem__, default=None)
            assert parking.pop() == best
            model.pop(best or "", None)
        else:
            assert not parking.remove(flow)
            since_ms = rng.choice([1, 2])
            parking.add(flow, start, since_ms, items, at)
            model[flow] = (start, since_ms, at, items)
        assert len(parking) == len(model)
        assert parking.items == sum(items for _, _, _, items in model.values())
    assert [parking.pop() for _ in model] == sorted(model, key=model.__getitem__)
    assert parking.pop() is None


class Rig:
    """A key, flows "a0", "a1", ... of topics "a", "b", "c"; `wanted` are the topics with consumers."""

    def __init__(self, rate: float = 100, burst: int = 100, *, shadow: bool = False) -> None:
        self.now = 1
        self.moment = 0
        throttle = Throttle(rate, burst, shadow, "throttle.api")
        self.key = ThrottleKey[str, str]("shop", "api", throttle, 0, Allowance(0, count(1)), 0)
        self.dead: set[str] = set()
        self.wanted = set("abc")

    def arrive(self, tokens: int) -> None:
        self.moment += 1
        ask = self.key.ask(self.key.allowance.good(self.now) + tokens + 1, self.now, self.moment)
        assert ask is not None
        self.key.answered(ask, Grant(tokens, True, 10), self.now, 0)

    def park(self, *flows: str) -> None:
        for flow in flows:
            self.key.park(flow[0], flow, float(flow[1:]), self.now, 1, self.now)

    def wakes(self) -> list[str]:
        woken = self.key.wake(self.wanted.__contains__, lambda flow: flow not in self.dead, self.now)
        return [flow for _, flow in woken]


def test_one_flow_wakes_for_each_token_topics_in_turn() -> None:
    rig = Rig()
    rig.park("a2", "a1", "a3", "b9", "b8")
    rig.arrive(3)
    assert rig.wakes() == ["a1", "b8", "a2"]
    assert rig.wakes() == []
    rig.arrive(1)
    assert rig.wakes() == ["b9"]


def test_a_flow_that_parks_elsewhere_passes_its_wake_on() -> None:
    rig = Rig()
    rig.park("a1", "a2", "a3")
    rig.arrive(1)
    assert rig.wakes() == ["a1"]
    rig.key.settled("a1")
    assert rig.wakes() == ["a2"]


def test_the_claim_of_a_flow_that_is_not_served_ends() -> None:
    rig = Rig()
    rig.park("a1", "a2")
    rig.arrive(1)
    assert rig.wakes() == ["a1"]
    assert rig.key.claims_end_ms(rig.now) == rig.now + AWAKE_MS
    rig.now += AWAKE_MS
    assert rig.wakes() == ["a2"]


def test_a_flow_whose_items_ended_takes_no_wake() -> None:
    rig = Rig()
    rig.park("a1", "a2")
    rig.dead = {"a1"}
    rig.arrive(1)
    assert rig.wakes() == ["a2"]
    assert not list(rig.key.parked())


def test_a_topic_without_consumers_takes_no_token() -> None:
    rig = Rig()
    rig.park("a1", "a2", "b3", "b4")
    rig.wanted = {"b"}
    rig.arrive(1)
    assert rig.wakes() == ["a1", "b3"]  # a1 wakes without a token
    assert rig.key.awake == 1
    rig.wanted = {"a"}
    rig.park("a1")
    rig.arrive(1)
    assert rig.wakes() == ["b4", "a1"]


def test_a_token_taken_before_the_last_question_does_not_return() -> None:
    """Else tokens of old items would return one by one, each in the place of a newer one."""
    rig = Rig()
    rig.arrive(3)
    assert rig.key.spend(rig.now)
    before = rig.moment
    rig.arrive(1)
    assert rig.key.spend(rig.now)
    assert not rig.key.give_back(before, rig.now)
    assert rig.key.give_back(rig.moment, rig.now)


def test_an_item_that_a_shadow_let_pass_gives_no_token_back() -> None:
    """Else the token of another item, which was delivered, would be spent twice."""
    rig = Rig(shadow=True)
    rig.arrive(1)
    assert rig.key.spend(rig.now)
    assert not rig.key.spend(rig.now)
    assert not rig.key.give_back(rig.moment, rig.now)
    assert rig.key.allowance.balance == 0
    assert rig.key.shadow_held == 0, "the coordinator may have a token"
    rig.arrive(0)
    assert rig.key.shadow_held == 1


def test_tokens_are_asked_for_what_consumers_want() -> None:
    rig = Rig(rate=10, burst=4)
    rig.park("a1", "a2", "b3")
    assert rig.key.need({"a": 1, "b": 5}.__getitem__) == 2
    rig.park(*[f"c{n}" for n in range(9)])
    assert rig.key.need(lambda topic: 9) == 4  # the burst


def waits(gate: Gate[str, str], topic: str, flow: str, kept_ms: int) -> bool:
    return True


def test_the_claim_of_the_flow_that_waited_longest_has_no_end() -> None:
    rig = Rig()
    rig.park("a1", "a2", "a3")
    rig.arrive(2)
    assert rig.wakes() == ["a1", "a2"]
    assert not rig.key.keep("a", "a2", 8, rig.now)  # both wait at a later gate
    assert rig.key.keep("a", "a1", 5, rig.now)  # this one for longer
    assert not rig.key.keep("a", "a2", 8, rig.now)
    rig.now += AWAKE_MS
    rig.key.end_keep(waits)
    assert rig.wakes() == ["a3"]
    assert rig.key.keeps("a1")
    assert rig.key.has_room("a1", rig.now) and not rig.key.has_room("a4", rig.now)
    rig.key.woken("a1", rig.now)  # it found the other unit, and does not take this one
    rig.park("a5")
    assert rig.wakes() == []
    rig.now += AWAKE_MS
    assert rig.wakes() == ["a5"]


def test_a_keeper_that_waits_no_more_keeps_nothing() -> None:
    rig = Rig()
    rig.park("a1", "a2")
    rig.arrive(1)
    assert rig.wakes() == ["a1"]
    rig.key.keep("a", "a1", 1, rig.now)
    rig.key.end_keep(lambda gate, topic, flow, kept_ms: flow != "a1")
    assert rig.wakes() == ["a2"]


def test_all_tokens_but_the_one_that_is_kept_go_back() -> None:
    rig = Rig()
    rig.arrive(5)
    rig.key.keep("a", "a1", 1, rig.now)
    rig.key.returning = True
    asked = rig.key.ask(0, rig.now, 1)
    assert asked is not None and asked.back == 4
    rig.now += 1_000
    assert not rig.key.unneeded(rig.now)


def test_a_token_that_is_kept_is_asked_for_again() -> None:
    """The other flows wait for the interval of this key, not for the flow that keeps a token of it."""
    rig = Rig(burst=5)
    rig.arrive(1)
    rig.key.keep("a", "a1", 1, rig.now)
    rig.park("a2")
    assert rig.key.need(lambda topic: 1) == 2
    asked = rig.key.ask(2, rig.now, 1)
    assert asked is not None and asked.wanted == 1


def test_every_second_unit_is_for_flows_that_keep_one() -> None:
    rig = Rig()
    rig.park("b1", "b2", "b3")
    for flow in ("c1", "a1", "c2"):
        rig.key.park(flow[0], flow, 0.0, rig.now, 1, rig.now, keeping=True)
    rig.arrive(6)
    assert rig.wakes() == ["c1", "b1", "a1", "c2", "b2", "b3"]


@given(st.integers(0, 1 << 32))
def test_no_wake_is_lost(seed: int) -> None:
    """Flows are served, end, park again or do nothing. While tokens come and consumers want all topics, each flow with
    items is served in the end, and no more flows have a claim than there are tokens."""
    rng, rig = random.Random(seed), Rig(burst=3)
    flows = [f"{topic}{n}" for topic in "abc" for n in range(rng.randrange(1, 6))]
    rig.park(*flows)
    left, awake = set(flows), list[str]()
    calm_ms = 0
    while left:
        calm_ms += 20
        rig.now += 20
        rig.wanted = {topic for topic in "abc" if rng.random() < 0.8} if calm_ms < 400 else set("abc")
        if rng.random() < 0.5:
            rig.arrive(rng.randrange(3))
        woken = rig.wakes()
        assert rig.key.awake <= rig.key.allowance.balance or not woken
        awake += woken
        if rng.random() < 0.1:  # the flow that was awake for a sleeping topic may have ended
            for topic in list(rig.key.asleep):
                awake += [flow for _, flow in rig.key.scout(topic, lambda flow: flow not in rig.dead)]
        rng.shuffle(awake)
        for flow in awake[: rng.randrange(3)]:
            awake.remove(flow)
            what = rng.random()
            if what < 0.5 and rig.key.allowance.good(rig.now):
                rig.key.spend(rig.now)
                rig.key.settled(flow)
                left.discard(flow)
            elif what < 0.6 and calm_ms < 400:
                rig.dead.add(flow)
                left.discard(flow)
            else:
                rig.park(flow)
        if rng.random() < 0.1 and calm_ms < 400:
            rig.dead.add(ended := rng.choice(flows))
            left.discard(ended)
            if ended in awake:
                awake.remove(ended)
        assert calm_ms < 60_000, left


def test_a_flow_whose_tenant_moved_has_another_place() -> None:
    parking: Parking[str] = Parking()
    for start, flow in enumerate("abc"):
        parking.add(flow, start, 0, 1, 5 + start)
    parking.moved("c", -1, 0)
    parking.moved("other", -2, 0)
    assert (len(parking), parking.items, parking.since_ms()) == (3, 3, 5)
    assert [parking.pop() for _ in range(4)] == ["c", "a", "b", None]
    parking.add("d", 0, 0, 1, 0)
    for start in range(1_000):
        parking.moved("d", start, 0)
    assert len(parking._heap) <= 100
    assert parking.pop() == "d"
