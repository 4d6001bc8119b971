"""Units that are slots of leases, at the coordinator: a throttle key's slots are lent to shards, and its leases are
counted after a take-over. `foqs.limits.lease_slots` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from foqs.bounds import THROTTLE, Bounded
from foqs.engine.concurrency import Counted
from foqs.engine.engine import Engine
from foqs.engine.shard import Shard
from foqs.errors import FoqsError
from foqs.idl import idl
from foqs.limits.lease_slots import LeaseSlots, SlotAsk, SlotGrant
from foqs.limits.shadow_hour import HourCounts
from foqs.peers.coordinator import HashSlotOwners, Unit
from foqs.peers.forwarded import Timers
from foqs.peers.forwarder import Forwarder
from foqs.policies.layers import LeaseLimits
from foqs.shardmgr.routing import Routing

LEASE_CENSUS_MS = 1_000
"""How long shards have to report their leases."""
MOST_COUNTED = 1_000
"""Keys in one `CountSlots`."""
_MOST_NEWS = 1_000
"""Keys and shards in one `TellSlots`."""
_TELL_MS = 1_000
"""How long a request with news is tried. A shard without news asks again."""
_MARGIN_MS = 500
_COUNT_PAUSE_MS = 100
_MOST_IDLE = 10_000
"""With more keys, those without leases are forgotten. Each costs a count of all shards when it is used again."""


class ShardCount(NamedTuple):
    """`leased`: by key, in the order of the question; -1 where that is not known yet."""

    shard: int
    epoch: int
    number: int
    leased: Sequence[int]


Counts = Callable[[list[ShardCount]], None]


class SlotRule(NamedTuple):
    """By what slots are lent. Where `basis` changes, other leases count, so they are counted again."""

    limit: int
    timeout_ms: int
    basis: tuple[LeaseLimits | None, bool]

    @property
    def shadow(self) -> bool:
        return self.basis[1]


class SlotUnit(Unit):
    """Slots of a throttle key that limits leases: one for each live lease."""

    def __init__(self, engine: Engine, forwarder: Forwarder, owners: HashSlotOwners, timers: Timers) -> None:
        super().__init__(timers)
        self._state = engine.state
        self._forwarder = forwarder
        self._owners = owners
        self._to_count: dict[Bounded, LeaseSlots] = {}
        self._count_due = False
        self._news: dict[str | None, list[tuple[Bounded, int]]] = {}  # by address, None for this host
        self._unowned: tuple[Routing | None, frozenset[int]] = (None, frozenset())  # the shards without an owner

    def rule(self, key: Bounded) -> SlotRule | None:
        policies = self._state.policies.namespace(key[0])
        throttle = policies.throttle(key[1][len(THROTTLE) :])
        if throttle is None or throttle.concurrency is None:
            return None
        return SlotRule(throttle.concurrency, throttle.timeout_ms, (policies.limits, throttle.shadow))

    def early(self, rule: SlotRule, ask: SlotAsk, wait_ms: int) -> SlotGrant:
        return SlotGrant(0, False, wait_ms)

    def new_ledger(self, key: Bounded, rule: SlotRule, empty_at_ms: int) -> LeaseSlots:
        shards, now_ms = self._forwarder.routing().shards, self._monotonic_ms()
        slots = LeaseSlots(rule.limit, rule.timeout_ms, shards, now_ms, rule.basis, shadow=rule.shadow)
        if rule.shadow:
            slots.hour = self._hour(key, now_ms)
        self._count(key, slots)
        return slots

    def _hour(self, key: Bounded, now_ms: int) -> HourCounts:
        throttle = self._state.policies.namespace(key[0]).throttle(key[1][len(THROTTLE) :])
        return self._state.throttling.shadow_leases.of(key, throttle, now_ms)

    def follow(self, ledger: LeaseSlots, rule: SlotRule) -> bool:
        ledger.limit, ledger.timeout_ms = rule.limit, rule.timeout_ms
        ledger.follow(self._forwarder.routing().shards, self._monotonic_ms())
        return ledger.basis == rule.basis

    def lend(
        self, key: Bounded, ledger: LeaseSlots, holder: str, ask: SlotAsk, answer: Callable[[SlotGrant | None], None]
    ) -> None:
        now_ms = self._monotonic_ms()
        if ledger.shadow:  # idle counts are forgotten before a ledger
            ledger.hour = self._hour(key, now_ms)
        answer(ledger.lend(ask, now_ms) if ask.shard in self._forwarder.routing().shards else None)
        self._gather_news(key, ledger, now_ms)

    def tend(self, key: Bounded, ledger: LeaseSlots, ledgers: int) -> bool:
        now_ms = self._monotonic_ms()
        if ledger.unused(now_ms) and (ledger.unknown or ledgers >= _MOST_IDLE):
            return False
        routing = self._forwarder.routing()
        if routing is not self._unowned[0]:
            self._unowned = routing, routing.unowned
        unowned = self._unowned[1]
        ledger.follow(routing.shards, now_ms)
        ledger.give_up(unowned, now_ms)
        # No lease of a disabled shard can be extended, so all of them end.
        ledger.give_up(routing.disabled & unowned, now_ms, self._state.config.limits.lease_max_ms)
        if ledger.to_count(now_ms) - unowned:
            self._count(key, ledger)
        self._gather_news(key, ledger, now_ms)
        return True

    # ------------------------------------------------------------------------------------- news

    def hear(self, key: Bounded, number: int) -> None:
        """The coordinator of a key wants a report of a shard."""
        shard = self._state.shards.get(number)
        if shard is not None:
            self._state.throttling.concurrency.hear(key, shard)

    def flush(self) -> None:
        news, self._news = self._news, {}
        for address, shards in news.items():
            if address is None:
                for key, shard in shards:
                    self.hear(key, shard)
                continue
            made = [idl.SlotNews(key[0], key[1][len(THROTTLE) :], shard) for key, shard in shards]
            for at in range(0, len(made), _MOST_NEWS):
                request = idl.TellSlotsRequest(made[at : at + _MOST_NEWS])
                self._forwarder.ask(address, "TellSlots", request, _TELL_MS, lambda response, error: None)

    def _gather_news(self, key: Bounded, slots: LeaseSlots, now_ms: int) -> None:
        for shard in slots.news(now_ms):
            route = self._forwarder.routing().owners.get(shard)
            if route is not None:
                here = route.host == self._state.config.server.id
                self._news.setdefault(None if here else route.address, []).append((key, shard))

    # ------------------------------------------------------------------------------------- counts

    def count_here(self, keys: Sequence[Counted], shards: Collection[int], answer: Counts) -> None:
        """Report, within `LEASE_CENSUS_MS`, the leases with these keys on those shards of this host whose databases
        confirm that it owns them."""
        here = [shard for shard in self._state.serving if shard.number in shards]

        def count(shard: Shard) -> ShardCount:
            return ShardCount(shard.number, shard.owner.epoch, *self._state.throttling.concurrency.count(shard, keys))

        self._owners.census(here, count, LEASE_CENSUS_MS, lambda found: answer(list(found.values())))

    def _count(self, key: Bounded, slots: LeaseSlots) -> None:
        self._to_count[key] = slots
        self._count_soon()

    def _count_soon(self) -> None:
        if not self._count_due:
            self._count_due = True
            self._state.slices.soon(self._count_all)

    def _count_all(self) -> None:
        """Count the leases of some keys on the shards that are not known."""
        self._count_due = False
        now_ms, routing = self._monotonic_ms(), self._forwarder.routing()
        taken = [(key, self._to_count.pop(key)) for key in list(islice(self._to_count, MOST_COUNTED))]
        counting = {key: slots for key, slots in taken if now_ms >= slots.counting_until_ms}
        shards: set[int] = set().union(*[slots.to_count(now_ms) for slots in counting.values()])
        for slots in counting.values():
            slots.counting_until_ms = now_ms + LEASE_CENSUS_MS + _MARGIN_MS
        addresses = {
            None if route.host == self._state.config.server.id else route.address
            for shard in shards
            if (route := routing.owners.get(shard)) is not None
        }
        left = len(addresses)

        def counted(reports: Iterable[tuple[int, int, int, Sequence[int]]]) -> None:
            nonlocal left
            at_ms = self._monotonic_ms()
            for shard, epoch, number, leased in reports:
                for slots, leases in zip(counting.values(), leased, strict=True):
                    if leases >= 0:
                        slots.counted(shard, epoch, number, leases, at_ms)
            left -= 1
            if not left:
                for slots in counting.values():
                    slots.counting_until_ms = at_ms + _COUNT_PAUSE_MS

        def replied(response: Any, error: FoqsError | None) -> None:
            answers = [] if error is not None else response.shards or []
            reports = [(one.shard, one.epoch, one.number, one.leased) for one in answers]
            counted([one for one in reports if None not in one and len(one[3]) == len(counting)])

        versions = self._state.policies.versions
        wanted = [(key, versions.get(key[0], 0)) for key in counting]
        request_keys = [idl.SlotKey(key[0], key[1][len(THROTTLE) :], version) for key, version in wanted]
        for address in addresses:
            if address is None:
                self.count_here(wanted, shards, counted)
            else:
                request = idl.CountSlotsRequest(request_keys, sorted(shards))
                self._forwarder.ask(address, "CountSlots", request, LEASE_CENSUS_MS + _MARGIN_MS, replied)
        if self._to_count:
            self._count_soon()
