"""Slots of one throttle key: owners and coordinators that change, and messages that are late, lost or repeated, in any
order. Promise 13: the rows of all shards never have more leases than the limit."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import chain, count
from typing import Any

import pytest

from foqs.limits.lease_slots import AGAIN_MS, LeaseSlots, ShardSlots, SlotAsk, SlotGrant
from foqs.policies.entries import Throttle

LIMIT = 3
SHARDS = (1, 2, 3)
STEPS = 400
LIMITED = Throttle(None, 0, False, "throttle.gpu", LIMIT, 60_000)
Gate = ShardSlots[str, str]


class LimitExceeded(AssertionError):
    pass


class Stuck(AssertionError):
    """All hosts, databases and messages are well, and a free slot is not lent."""


class World:
    """`rows`: the leases in each shard's database. Each shard has owners, the last of which is the present one.
    `there`: the shards of the cluster; a coordinator learns of another one later. Leases of a removed shard do not
    count."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 0
        self.ids = count(1)
        self.rows: dict[int, set[int]] = {shard: set() for shard in SHARDS}
        self.numbers = {shard: count(1) for shard in SHARDS}
        self.owners: dict[int, list[Gate]] = {shard: [] for shard in SHARDS}
        self.there = frozenset(SHARDS)
        self.exempt: set[int] = set()
        self.slots = LeaseSlots(LIMIT, 60_000, SHARDS, 0)
        self.messages: list[Callable[[], None]] = []
        self.committed = self.at_limit = 0
        for shard in SHARDS:
            self.take_over(shard)

    def run(self) -> World:
        for _ in range(STEPS):
            self.now_ms += self.rng.choice([0, 1, 1, 10])
            self.step()
        return self

    def settle(self) -> World:
        """Every message comes at once. Return when the coordinator has lent every free slot."""
        for shard in SHARDS:
            if self.owners[shard][-1].closed:
                self.take_over(shard)
        for _ in range(10):
            self.now_ms += 2_000
            self.slots.follow(self.there, self.now_ms)
            while self.messages:
                self.messages.pop(0)()
            for shard in self.slots.to_count(self.now_ms) & self.there:
                self.count_shard(self.slots, shard)
            for shard in self.there:
                gate = self.owners[shard][-1]
                gate.answered(gate._open, None, self.now_ms)  # type: ignore[arg-type]
                asked = gate.ask(LIMIT, self.now_ms, 0, 0, beat=True)
                if asked is not None:
                    self.report(self.slots, gate, asked)
        lent = {shard: loan.has for shard, loan in self.slots._loans.items() if loan.has}
        if self.slots.unknown or sum(lent.values()) < LIMIT or not lent.keys() <= self.there:
            raise Stuck(f"{self.slots}, {lent} lent to shards {sorted(self.there)}")
        return self

    def step(self) -> None:
        shard = self.rng.choice(SHARDS)
        gate = self.rng.choice(self.owners[shard][-2:])
        what = self.rng.random()
        if what < 0.5 and self.messages:
            self.messages.pop(self.rng.randrange(len(self.messages)))()
        elif what < 0.65:
            self.lease(gate)
        elif what < 0.7:
            self.end(gate)
        elif what < 0.88 and shard in self.there:
            self.ask(gate)
        elif what < 0.96:
            self.count()
        elif what < 0.97:
            self.take_over(shard)
        elif what < 0.973:
            self.slots = LeaseSlots(LIMIT, 60_000, self.there, self.now_ms)  # another coordinator
        elif what < 0.976:
            self.remove(shard)
        elif what < 0.98 and shard not in self.there:
            self.take_over(shard)
            self.there |= {shard}
        elif what < 0.985:
            self.slots.follow(self.there, self.now_ms)
        elif gate.asking:
            gate.answered(gate._open, None, self.now_ms)  # type: ignore[arg-type]

    def send(self, what: Callable[[], None]) -> None:
        """Messages are repeated, late or lost."""
        self.messages += [what] * self.rng.choice([0, 1, 1, 1, 1, 2])

    def lease(self, gate: Gate) -> None:
        if gate.shard not in self.there or not gate.has_room("flow", self.now_ms):
            return
        item = next(self.ids)
        gate.lease(item, self.now_ms)
        if self.owners[gate.shard][-1] is not gate:
            return  # its commit is fenced
        self.rows[gate.shard].add(item)
        live = len(set().union(*self.rows.values()) - self.exempt)
        self.committed += 1
        self.at_limit += live == LIMIT
        if live > LIMIT:
            raise LimitExceeded(f"{live} leases live: {self.rows}")

    def end(self, gate: Gate) -> None:
        rows = self.rows[gate.shard]
        if rows and self.owners[gate.shard][-1] is gate:
            item = self.rng.choice(sorted(rows))
            rows.remove(item)
            gate.ended(item, by_time=False)

    def ask(self, gate: Gate) -> None:
        asked = gate.ask(self.rng.choice([0, 1, 1, 2]), self.now_ms, 0, 0, beat=True)
        coordinator = self.slots
        if asked is not None:
            self.send(lambda: self.report(coordinator, gate, asked))

    def report(self, coordinator: LeaseSlots, gate: Gate, asked: SlotAsk) -> None:
        if coordinator is not self.slots:
            return  # it is fenced, too
        known = asked.shard in coordinator._shards
        grant = coordinator.lend(asked, self.now_ms) if known else None
        for shard in coordinator.news(self.now_ms):
            self.send(lambda shard=shard: self.owners[shard][-1].hear(self.now_ms))  # type: ignore[misc]
        self.send(lambda: gate.answered(asked, grant, self.now_ms))

    def count(self) -> None:
        coordinator = self.slots
        for shard in coordinator.to_count(self.now_ms):
            self.send(lambda shard=shard: self.count_shard(coordinator, shard))  # type: ignore[misc]

    def count_shard(self, coordinator: LeaseSlots, shard: int) -> None:
        gate = self.answers(shard)
        leased, number = gate.give_up_free(self.now_ms), next(self.numbers[shard])
        self.send(lambda: coordinator.counted(shard, gate.epoch, number, leased, self.now_ms))

    def remove(self, shard: int) -> None:
        """An operator removes a shard, which no host serves by then."""
        if len(self.there) > 1 and shard in self.there:
            self.there -= {shard}
            self.exempt |= self.rows[shard]

    def answers(self, shard: int) -> Gate:
        """The database confirms the present owner alone."""
        return self.owners[shard][-1]

    def take_over(self, shard: int) -> None:
        """Another host counts the rows. Its numbers begin anywhere."""
        epoch, first = len(self.owners[shard]) + 1, self.rng.choice([1, 1_000])
        self.numbers[shard] = count(first)
        gate: Gate = ShardSlots("n", "gpu", LIMITED, 0, shard, epoch, self.numbers[shard])
        gate.leased = len(self.rows[shard])
        gate.tie_all()
        self.owners[shard].append(gate)


@pytest.mark.parametrize("batch", range(10))
def test_no_more_leases_than_the_limit(batch: int) -> None:
    worlds = [World(seed).run().settle() for seed in range(batch * 400, batch * 400 + 400)]
    assert sum(world.committed for world in worlds) > 500
    assert sum(world.at_limit for world in worlds) > 20


def counted_from_memory(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(World, "answers", lambda world, shard: world.rng.choice(world.owners[shard]))


def an_account_kept_over_an_epoch(patch: pytest.MonkeyPatch) -> None:
    def take(slots: LeaseSlots, shard: int, epoch: int, number: int, *about: int) -> bool:
        loan = slots._loans.get(shard)
        if loan is not None and loan.number >= number:
            return False
        slots._loans.pop(shard, None)
        return original(slots, shard, epoch, number, *about)

    original = LeaseSlots._take
    patch.setattr(LeaseSlots, "_take", take)


def a_late_grant(patch: pytest.MonkeyPatch) -> None:
    def answered(gate: Any, ask: SlotAsk, grant: SlotGrant | None, now_ms: int) -> None:
        if grant is not None and gate._open is not ask:
            gate.has += grant.granted
        original(gate, ask, grant, now_ms)

    original: Callable[..., None] = ShardSlots.answered
    patch.setattr(ShardSlots, "answered", answered)


def reports_in_any_order(patch: pytest.MonkeyPatch) -> None:
    def take(slots: LeaseSlots, shard: int, epoch: int, number: int, *about: int) -> bool:
        slots._loans.pop(shard, None)
        return original(slots, shard, epoch, number, *about)

    original = LeaseSlots._take
    patch.setattr(LeaseSlots, "_take", take)


def an_open_question_after_a_count(patch: pytest.MonkeyPatch) -> None:
    """The answer brings slots that the count did not have."""

    def counted(gate: Any, now_ms: int) -> int:
        asked = gate._open
        leased: int = original(gate, now_ms)
        gate._open = asked
        return leased

    original: Callable[..., int] = ShardSlots.give_up_free
    patch.setattr(ShardSlots, "give_up_free", counted)


def free_slots_after_a_count(patch: pytest.MonkeyPatch) -> None:
    def counted(gate: Any, now_ms: int) -> int:
        has = gate.has
        leased: int = original(gate, now_ms)
        gate.has = has
        return leased

    original: Callable[..., int] = ShardSlots.give_up_free
    patch.setattr(ShardSlots, "give_up_free", counted)


def no_count_at_first(patch: pytest.MonkeyPatch) -> None:
    def begin(slots: LeaseSlots, *about: Any) -> None:
        original(slots, *about)
        slots.unknown.clear()

    original = LeaseSlots.__init__
    patch.setattr(LeaseSlots, "__init__", begin)


def removed_shards_are_waited_for(patch: pytest.MonkeyPatch) -> None:
    def follow(slots: LeaseSlots, shards: frozenset[int], now_ms: int) -> None:
        slots.unknown |= shards - slots._shards
        slots._shards |= shards

    patch.setattr(LeaseSlots, "follow", follow)


def removed_shards_keep_their_slots(patch: pytest.MonkeyPatch) -> None:
    def follow(slots: LeaseSlots, shards: frozenset[int], now_ms: int) -> None:
        loans = dict(slots._loans)
        original(slots, shards, now_ms)
        slots._loans = loans

    original = LeaseSlots.follow
    patch.setattr(LeaseSlots, "follow", follow)


def late_counts_of_removed_shards(patch: pytest.MonkeyPatch) -> None:
    def counted(slots: LeaseSlots, shard: int, epoch: int, number: int, leased: int, now_ms: int) -> None:
        slots._take(shard, epoch, number, leased, leased, now_ms)
        slots.unknown.discard(shard)

    patch.setattr(LeaseSlots, "counted", counted)


KNOWN = {
    "an_account_kept_over_an_epoch": 2_077,
    "an_open_question_after_a_count": 829,
    "late_counts_of_removed_shards": 982,
}
"""Seeds that find a mutant, to be tried first."""


def seeds(mutant: Callable[[pytest.MonkeyPatch], None], many: int) -> Iterator[int]:
    return chain([KNOWN.get(mutant.__name__, 0)], range(many))


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as context:
        yield context


@pytest.mark.parametrize(
    "mutant",
    [
        counted_from_memory, an_account_kept_over_an_epoch, a_late_grant, reports_in_any_order,
        an_open_question_after_a_count, free_slots_after_a_count, no_count_at_first,
    ],
)  # fmt: skip
def test_each_rule_is_needed(mutant: Callable[[pytest.MonkeyPatch], None], patch: pytest.MonkeyPatch) -> None:
    mutant(patch)
    with pytest.raises(LimitExceeded):
        for seed in seeds(mutant, 4_000):
            World(seed).run()


@pytest.mark.parametrize(
    "mutant", [removed_shards_are_waited_for, removed_shards_keep_their_slots, late_counts_of_removed_shards]
)
def test_each_rule_of_removed_shards_is_needed(
    mutant: Callable[[pytest.MonkeyPatch], None], patch: pytest.MonkeyPatch
) -> None:
    mutant(patch)
    with pytest.raises(Stuck):
        for seed in seeds(mutant, 2_000):
            World(seed).run().settle()


# ------------------------------------------------------------------------------------------ one coordinator


def coordinator() -> LeaseSlots:
    slots = LeaseSlots(2, 500, SHARDS, 0)
    for shard in SHARDS:
        slots.counted(shard, 1, 1, 0, 0)
    return slots


def ask(shard: int, number: int, has: int = 0, wanted: int = 1, **about: int) -> SlotAsk:
    return SlotAsk(shard, 1, number, has, has, wanted, **about)


def test_slots_are_lent_up_to_the_limit() -> None:
    slots = coordinator()
    assert slots.lend(ask(1, 2, wanted=5), 1) == SlotGrant(2, False, AGAIN_MS)
    assert slots.lend(ask(2, 2), 1) == SlotGrant(0, True, AGAIN_MS)
    assert slots.news(1) == [1]  # it learns that other shards wait
    assert slots.lend(ask(1, 3, has=1, wanted=0), 2) == SlotGrant(0, True, 0)
    assert slots.news(2) == [2]
    assert slots.lend(ask(2, 3), 3) == SlotGrant(1, False, 0)
    assert (slots.lent, slots.taken, slots.free) == (2, 1, 0)


def test_a_freed_slot_is_for_the_most_urgent_item() -> None:
    slots = coordinator()
    slots.lend(ask(1, 2, wanted=2), 0)
    slots.lend(ask(2, 2, priority=5, waiting_ms=900), 0)
    slots.lend(ask(3, 2, priority=-1, waiting_ms=10), 0)
    slots.news(0)
    slots.lend(ask(1, 3, has=1, wanted=0), 1)
    assert slots.news(1) == [3]
    assert slots.lend(ask(2, 3, priority=5, waiting_ms=901), 1) == SlotGrant(0, True, AGAIN_MS)  # it is kept
    assert slots.lend(ask(3, 3, priority=-1, waiting_ms=11), 2) == SlotGrant(1, True, 0)
    slots.lend(ask(1, 4, has=0, wanted=0), 3)
    assert slots.news(3) == [2]


def test_an_offer_ends_that_is_not_taken() -> None:
    slots = coordinator()
    slots.lend(ask(1, 2, wanted=2), 0)
    slots.lend(ask(2, 2, priority=-1), 0)
    slots.lend(ask(3, 2), 0)
    slots.news(0)
    slots.lend(ask(1, 3, has=1, wanted=0), 1)
    assert slots.news(1) == [2]
    assert slots.news(2) == []
    slots.lend(ask(3, 3), 300)
    assert slots.lend(ask(2, 3, wanted=0), 301) == SlotGrant(0, True, 0)  # it wants no slot now
    assert slots.news(302) == [3]


def test_a_shard_that_waits_alone_keeps_its_slots() -> None:
    slots = coordinator()
    assert slots.lend(ask(1, 2, wanted=3), 0) == SlotGrant(2, False, AGAIN_MS)
    assert slots.news(0) == []


def test_nothing_is_lent_before_all_shards_are_counted() -> None:
    slots = LeaseSlots(2, 500, SHARDS, 0)
    slots.counted(1, 1, 1, 1, 0)
    slots.counted(2, 1, 1, 0, 0)
    assert slots.lend(ask(2, 2), 0) == SlotGrant(0, False, 20)
    assert slots.to_count(0) == {3}
    slots.give_up({3}, 499)
    assert slots.to_count(499) == {3}
    slots.give_up({2, 3}, 500)  # it has had no owner for the throttle's timeout
    assert (slots.to_count(500), slots.reclaimed) == (set(), 1)
    assert slots.lend(ask(2, 3), 500) == SlotGrant(1, False, 0)


def test_without_a_timeout_a_shard_is_waited_for() -> None:
    slots = LeaseSlots(2, 0, SHARDS, 0)
    slots.give_up(SHARDS, 1 << 40)
    assert slots.to_count(0) == set(SHARDS)


def test_a_removed_shard_is_not_waited_for() -> None:
    slots = LeaseSlots(2, 0, SHARDS, 0)
    slots.counted(1, 1, 1, 1, 0)
    slots.follow(frozenset({1, 2}), 1)
    slots.counted(3, 1, 1, 2, 2)  # an answer that is late
    slots.counted(2, 1, 1, 0, 2)
    assert (slots.to_count(2), slots.lent) == (set(), 1)
    assert slots.lend(ask(2, 2, wanted=2), 2) == SlotGrant(1, False, AGAIN_MS)


def test_a_removed_shard_gives_its_slots_back() -> None:
    slots = coordinator()
    slots.lend(ask(3, 2, wanted=2), 0)
    slots.lend(ask(3, 3, has=2, wanted=0), 1)
    slots.lend(ask(1, 2), 1)
    slots.follow(frozenset({1, 2}), 2)
    assert (slots.free, slots.reclaimed) == (2, 1)
    assert slots.lend(ask(1, 3), 3) == SlotGrant(1, False, 0)


def test_a_shard_that_returns_is_counted_again() -> None:
    slots = coordinator()
    slots.follow(frozenset({1, 2}), 1)
    slots.follow(frozenset(SHARDS), 10_000)
    assert slots.lend(ask(1, 2), 10_000) == SlotGrant(0, False, 20)
    slots.give_up({3}, 10_499)  # it has had its time since it returned
    assert slots.to_count(10_499) == {3}
    slots.counted(3, 2, 1, 1, 10_499)
    assert slots.lend(ask(1, 3, wanted=2), 10_500) == SlotGrant(1, False, AGAIN_MS)


def test_a_disabled_shard_is_waited_for_until_its_leases_ended() -> None:
    slots = LeaseSlots(2, 0, SHARDS, 0)
    slots.give_up({1, 2, 3}, 999, 1_000)
    assert slots.to_count(999) == set(SHARDS)
    slots.give_up({1, 2, 3}, 1_000, 1_000)
    assert slots.to_count(1_000) == set()


def test_a_shard_with_slots_that_is_silent_is_counted() -> None:
    slots = coordinator()
    slots.lend(ask(1, 2), 0)
    assert slots.to_count(1_199) == set()
    assert slots.to_count(1_200) == {1}
    slots.counted(1, 2, 1, 0, 1_300)  # another owner, whose numbers begin again
    assert (slots.lent, slots.to_count(1_300)) == (0, set())
    assert slots.lend(ask(1, 3), 1_400) is None  # the one before


def test_an_owner_that_was_replaced_does_not_count() -> None:
    slots = LeaseSlots(2, 500, (1,), 0)
    slots.lend(SlotAsk(1, 3, 1, 1, 1), 0)
    slots.counted(1, 2, 9, 0, 0)
    assert slots.to_count(0) == {1}


def test_a_lower_limit_lends_nothing_until_it_fits() -> None:
    slots = coordinator()
    slots.lend(ask(1, 2, wanted=2), 0)
    slots.limit = 1
    assert slots.free == -1
    slots.lend(ask(1, 3, has=1, wanted=0), 1)
    assert slots.lend(ask(2, 2), 2) == SlotGrant(0, False, AGAIN_MS)
    slots.news(2)
    slots.lend(ask(1, 4, has=0, wanted=0), 3)
    assert slots.lend(ask(2, 3), 4) == SlotGrant(1, False, 0)


def test_a_key_that_no_shard_uses_is_forgotten() -> None:
    slots = coordinator()
    slots.lend(ask(1, 2), 0)
    assert not slots.unused(1 << 40)
    slots.lend(ask(1, 3, has=0, wanted=0), 1)
    assert not slots.unused(10_001)
    assert slots.unused(10_002)
