"""What a throttle in shadow counts in an hour: by its rate, and by its limit on leases."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.bounds import THROTTLE
from foqs.figures import ShadowHour, merged
from foqs.limits.allowance import Allowance
from foqs.limits.bucket import Grant
from foqs.limits.lease_slots import LeaseSlots, SlotAsk
from foqs.limits.shadow_hour import HourCounts, ShadowHours
from foqs.limits.throttle_key import ThrottleKey
from foqs.policies.entries import Throttle

MINUTE_MS = 60_000
FIVE = Throttle(5, 5, True, "throttle.api")


def key(name: str, ns: str = "shop") -> tuple[str, str]:
    return ns, THROTTLE + name


# ------------------------------------------------------------------------------------------ the hour


def test_counts_are_of_an_hour_at_most() -> None:
    counts = HourCounts("limit", 7 * MINUTE_MS)
    assert counts.sums(9 * MINUTE_MS) is None
    counts.add(10 * MINUTE_MS, 5, 55)
    assert counts.sums(12 * MINUTE_MS) == ShadowHour(55, 60, 2 * MINUTE_MS)
    counts.add(40 * MINUTE_MS, 1, 2)
    assert counts.sums(69 * MINUTE_MS) == ShadowHour(57, 63, 59 * MINUTE_MS)
    assert counts.sums(70 * MINUTE_MS) == ShadowHour(2, 3, 59 * MINUTE_MS)
    assert counts.sums(500 * MINUTE_MS) == ShadowHour(0, 0, 59 * MINUTE_MS)


@given(st.lists(st.tuples(st.integers(0, 25 * MINUTE_MS), st.integers(0, 3), st.integers(0, 3)), max_size=60))
def test_the_ring_counts_as_a_list_of_all_deliveries(steps: list[tuple[int, int, int]]) -> None:
    counts, added, now_ms = HourCounts("limit", 0), list[tuple[int, int, int]](), 0
    for later_ms, passed, held in steps:
        now_ms += later_ms
        counts.add(now_ms, passed, held)
        added.append((now_ms // MINUTE_MS, passed, held))
        last = [one for one in added if one[0] > now_ms // MINUTE_MS - 60]
        sums = counts.sums(now_ms)
        assert sums is not None
        assert sums.held == sum(held for _, _, held in last)
        assert sums.seen == sum(passed + held for _, passed, held in last)
        assert 0 <= sums.for_ms <= 60 * MINUTE_MS


def test_a_change_of_the_limit_begins_again() -> None:
    counts = HourCounts("limit", 0)
    counts.add(5, 1, 1)
    counts.follow("limit", 6)
    assert counts.sums(6) == ShadowHour(1, 2, 1)
    counts.follow("another", 7)
    assert counts.sums(8) is None
    counts.add(MINUTE_MS, 1, 0)
    assert counts.sums(MINUTE_MS) == ShadowHour(0, 1, 0)


def test_the_counts_of_hosts_make_sums() -> None:
    assert merged(ShadowHour(5, 9, 70_000), ShadowHour(1, 3, 90_000)) == ShadowHour(6, 12, 90_000)


# ------------------------------------------------------------------------------------------ the keys


def done(work: Iterator[None]) -> None:
    for _ in work:
        pass


def test_only_keys_with_another_limit_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foqs.limits.shadow_hour._SLICE", 1)
    hours = ShadowHours()
    for one in (key("same"), key("changed"), key("live"), key("changed", "other")):
        hours.of(one, "limit", 0).add(1, 1, 0)
    changed = hours[key("changed")]
    now = {"same": "limit", "changed": "another"}
    done(hours.follow("shop", now.get, 2))
    assert {one: counts.sums(1) for one, counts in hours.items()} == {
        key("same"): ShadowHour(0, 1), key("changed"): None, key("changed", "other"): ShadowHour(0, 1),
    }  # fmt: skip
    assert hours.of(key("changed"), "another", 3) is changed, "gates and ledgers have it"


def test_old_counts_are_forgotten_and_keys_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foqs.limits.shadow_hour._MOST_KEYS", 3)
    hours = ShadowHours()
    for minute, name in enumerate("abcd"):
        hours.of(key(name), "limit", minute * MINUTE_MS).add(minute * MINUTE_MS, 1, 0)
    assert list(hours) == [key("b"), key("c"), key("d")]
    hours.forget(61 * MINUTE_MS)
    assert list(hours) == [key("c"), key("d")]
    hours.forget(200 * MINUTE_MS)
    assert not hours


# ------------------------------------------------------------------------------------------ a rate


class Rate:
    """A key of one host under a throttle in shadow, and its coordinator's answers."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.key = ThrottleKey[str, str]("shop", "api", FIVE, 0, Allowance(0, count(1)), 0)
        self.key.hour = HourCounts(FIVE, 0)

    def deliver(self, items: int) -> None:
        for _ in range(items):
            self.key.spend(self.now_ms)

    def grant(self, tokens: int | None) -> int:
        """Answer the open question, or the next one. Return the tokens that it wants."""
        ask = self.key.ask(self.key.need(lambda topic: 0), self.now_ms, 1)
        assert ask is not None
        self.key.answered(ask, None if tokens is None else Grant(tokens, True, 10), self.now_ms, 0)
        return ask.wanted

    def counts(self) -> tuple[int, int]:
        assert self.key.hour is not None
        held, seen, _ = self.key.hour.sums(self.now_ms) or ShadowHour()
        return held, seen


def test_a_token_of_the_coordinator_lets_a_delivery_pass() -> None:
    """A host that has not used a key holds no token of it: its first deliveries would wait for an answer only."""
    rate = Rate()
    rate.deliver(60)
    assert rate.counts() == (0, 0), "not decided"
    assert rate.grant(5) == 5
    assert rate.counts() == (55, 60)
    assert (rate.key.shadow_held, rate.key.lacked, rate.key.allowance.balance) == (55, 0, 0)
    rate.key.allowance.answered(rate.key.allowance.ask(3, rate.now_ms, ahead=False).number, Grant(3, True, 0), 1_000)
    rate.deliver(4)
    assert rate.counts() == (55, 63)
    rate.grant(0)
    assert rate.counts() == (56, 64)


def test_a_coordinator_that_does_not_answer_would_have_held_them() -> None:
    rate = Rate()
    rate.deliver(3)
    rate.grant(None)
    assert rate.counts() == (3, 3)


def test_a_throttle_that_leaves_the_shadow_owes_nothing() -> None:
    rate = Rate()
    rate.deliver(3)
    rate.key.update(Throttle(5, 5, False, "throttle.api"), rate.now_ms, 2)
    assert (rate.key.hour, rate.key.need(lambda topic: 9), rate.key.shadow_held) == (None, 0, 0)
    rate.deliver(1)
    assert rate.key.hour is None


# ------------------------------------------------------------------------------------------ leases


class Leases:
    def __init__(self, limit: int) -> None:
        self.slots = LeaseSlots(limit, 60_000, (1, 2), 0, shadow=True)
        self.slots.hour = HourCounts(limit, 0)
        for shard in (1, 2):
            self.slots.counted(shard, 1, 1, 0, 0)
        self._numbers = count(2)

    def report(self, shard: int, leased: int, begun: int | None) -> tuple[int, int]:
        self.slots.lend(SlotAsk(shard, 1, next(self._numbers), leased, leased, begun=begun), 1)
        assert self.slots.hour is not None
        held, seen, _ = self.slots.hour.sums(1) or ShadowHour()
        return held, seen


def test_leases_that_begin_over_the_limit_would_be_held() -> None:
    leases = Leases(3)
    assert leases.report(1, 2, 2) == (0, 2)
    assert leases.report(2, 2, 2) == (1, 4), "one slot was free"
    assert leases.report(1, 2, 5) == (6, 9), "five ended, and five began: too many live"
    assert leases.report(2, 0, 0) == (6, 9)
    assert leases.report(1, 2, 4) == (6, 13)
    assert leases.slots.shadow_held == 6


def test_an_earlier_version_reports_its_leases_alone() -> None:
    leases = Leases(3)
    assert leases.report(1, 5, None) == (2, 5)
    assert leases.report(1, 4, None) == (2, 5)


def test_leases_that_began_before_the_count_are_not_counted() -> None:
    slots = LeaseSlots(1, 60_000, (1,), 0, shadow=True)
    slots.hour = HourCounts(1, 0)
    slots.counted(1, 1, 1, 7, 0)
    assert (slots.shadow_held, slots.hour.sums(1)) == (0, None)
