"""Coordinators of throttle keys that limit leases: lend slots to shards, and count leases after they took over.

The coordinator of a key is the owner of the shard that has the key's hash slot, as for tokens
(`foqs.peers.token_coordinator`): one at a time. `foqs.limits.lease_slots` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from foqs.bounds import THROTTLE, Bounded
from foqs.engine.concurrency import Counted
from foqs.engine.engine import Engine
from foqs.engine.shard import Shard
from foqs.errors import FoqsError
from foqs.idl import idl
from foqs.limits.lease_slots import SlotAsk, SlotGrant, Slots
from foqs.peers.forwarded import Timers
from foqs.peers.forwarder import Forwarder
from foqs.peers.hash_slots import SlotOwner, SlotOwners, ask_owners
from foqs.peers.token_coordinator import Census, coordinator_slot
from foqs.policies.layers import LeaseLimits

BEAT_MS = 500
CENSUS_MS = 1_000
"""How long shards have to report their leases."""
MOST_COUNTED = 1_000
"""Keys in one question for counts."""
_TENDED = 2_000
_MARGIN_MS = 500
_COUNT_PAUSE_MS = 100
_MOST_IDLE = 10_000
"""With more keys, those without leases are forgotten. Each costs a count of all shards when it is used again."""

Grants = Callable[[list[SlotGrant | None]], None]
"""Gets an answer to each question; None where this host does not coordinate the key."""


class ShardCount(NamedTuple):
    """`leased`: by key, in the order of the question; -1 where that is not known yet."""

    shard: int
    epoch: int
    number: int
    leased: Sequence[int]


Counts = Callable[[list[ShardCount]], None]


class _Basis(NamedTuple):
    """By what slots are lent: this host as the coordinator, since `empty_at_ms`, and which leases count. Where any of
    it changes, leases are counted again."""

    owner: SlotOwner
    empty_at_ms: int
    limits: LeaseLimits | None
    shadow: bool


class LeaseCoordinator:
    """The coordinator on one host. `begin` has slots of coordinators shared out and observed."""

    def __init__(
        self,
        engine: Engine,
        forwarder: Forwarder,
        owners: SlotOwners,
        begin: Callable[[], None],
        timers: Timers,
    ) -> None:
        self._engine = engine
        self._forwarder = forwarder
        self._owners = owners
        self._begin = begin
        self._monotonic_ms = timers.monotonic_ms
        self._later = timers.later
        self._slots: dict[Bounded, tuple[Slots, _Basis]] = {}
        self._to_count: dict[Bounded, None] = {}
        self._counting: dict[Slots, int] = {}  # being counted, until when
        self._count_due = self._beating = False
        self._news: dict[str | None, list[tuple[Bounded, int]]] = {}  # by address, None for this host

    # ------------------------------------------------------------------------------------- requests

    def lend(self, asks: Sequence[tuple[Bounded, SlotAsk]], answer: Grants) -> None:
        """Answer the reports of one host, after the shards of their keys' coordinators were confirmed."""
        self._begin()
        grants: list[SlotGrant | None] = [None] * len(asks)

        def lend(at: int, owner: SlotOwner, empty_at_ms: int) -> None:
            grants[at] = self._lend_here(*asks[at], owner, empty_at_ms, self._monotonic_ms())

        def done() -> None:
            answer(grants)
            self._tell()

        ask_owners(self._owners.find, [coordinator_slot(*key) for key, _ in asks], lend, done)

    def count_here(self, keys: Sequence[Counted], shards: Collection[int], answer: Counts) -> None:
        """Report, within `CENSUS_MS`, the leases with these keys on those shards of this host whose databases confirm
        that it owns them."""
        here = [shard for shard in self._engine.state.serving if shard.number in shards]

        def count(shard: Shard) -> ShardCount:
            return ShardCount(
                shard.number, shard.owner.epoch, *self._engine.state.throttling.concurrency.count(shard, keys)
            )

        census = Census(here, count, lambda found: answer(list(found.values())))
        for shard in here:
            self._owners.check(shard, partial(census.add, shard))
        if census.left:
            self._later(CENSUS_MS, census.end)

    def hear(self, key: Bounded, number: int) -> None:
        """The coordinator of a key wants a report of a shard."""
        shard = self._engine.state.shards.get(number)
        if shard is not None:
            self._engine.state.throttling.concurrency.hear(key, shard)

    # ------------------------------------------------------------------------------------- numbers

    def slots_of(self, key: Bounded) -> Slots | None:
        """Return the slots of a key, None if it is not coordinated here."""
        known = self._slots.get(key)
        return None if known is None else known[0]

    def keys(self) -> list[Bounded]:
        return list(self._slots)

    # ------------------------------------------------------------------------------------- inside

    def _lend_here(
        self, key: Bounded, ask: SlotAsk, owner: SlotOwner, empty_at_ms: int, now_ms: int
    ) -> SlotGrant | None:
        policies, shards = self._engine.state.policies.namespace(key[0]), self._forwarder.routing().shards
        throttle = policies.throttle(key[1][len(THROTTLE) :])
        if throttle is None or throttle.concurrency is None or ask.shard not in shards:
            return None
        if now_ms < empty_at_ms:  # an earlier coordinator may still lend
            return SlotGrant(0, False, empty_at_ms - now_ms)
        known, basis = self._slots.get(key), _Basis(owner, empty_at_ms, policies.limits, throttle.shadow)
        if known is None or known[1] != basis:
            slots = Slots(throttle.concurrency, throttle.timeout_ms, shards, now_ms)
            slots.shadow = throttle.shadow
            known = self._slots[key] = (slots, basis)
            self._count(key)
            if not self._beating:
                self._beating = True
                self._later(BEAT_MS, self._beat)
        slots = known[0]
        slots.limit, slots.timeout_ms = throttle.concurrency, throttle.timeout_ms
        slots.follow(shards, now_ms)
        grant = slots.report(ask, now_ms)
        self._gather_news(key, slots, now_ms)
        return grant

    def _gather_news(self, key: Bounded, slots: Slots, now_ms: int) -> None:
        for shard in slots.news(now_ms):
            route = self._forwarder.routing().owners.get(shard)
            if route is not None:
                here = route.host == self._engine.state.config.server.id
                self._news.setdefault(None if here else route.address, []).append((key, shard))

    def _tell(self) -> None:
        news, self._news = self._news, {}
        for address, shards in news.items():
            if address is None:
                for key, shard in shards:
                    self.hear(key, shard)
                continue
            made = [idl.SlotNews(key[0], key[1][len(THROTTLE) :], shard) for key, shard in shards]
            for at in range(0, len(made), MOST_COUNTED):
                request = idl.TellSlotsRequest(made[at : at + MOST_COUNTED])
                self._forwarder.ask(address, "TellSlots", request, CENSUS_MS, lambda response, error: None)

    def _count(self, key: Bounded) -> None:
        self._to_count[key] = None
        if not self._count_due:
            self._count_due = True
            self._engine.state.slices.soon(self._count_all)

    def _count_all(self) -> None:
        """Count the leases of some keys on the shards that are not known."""
        self._count_due = False
        now_ms, routing = self._monotonic_ms(), self._forwarder.routing()
        keys: list[Bounded] = []
        for key in list(islice(self._to_count, MOST_COUNTED)):
            del self._to_count[key]
            known = self._slots.get(key)
            if known is not None and now_ms >= self._counting.get(known[0], 0):
                keys.append(key)
        asked = [self._slots[key][0] for key in keys]
        shards: set[int] = set().union(*[slots.to_count(now_ms) for slots in asked])
        for slots in asked:
            self._counting[slots] = now_ms + CENSUS_MS + _MARGIN_MS
        addresses = {
            None if route.host == self._engine.state.config.server.id else route.address
            for shard in shards
            if (route := routing.owners.get(shard)) is not None
        }
        left = len(addresses)

        def counted(reports: Iterable[tuple[int, int, int, Sequence[int]]]) -> None:
            nonlocal left
            at_ms = self._monotonic_ms()
            for shard, epoch, number, leased in reports:
                for slots, leases in zip(asked, leased, strict=True):
                    if leases >= 0:
                        slots.counted(shard, epoch, number, leases, at_ms)
            left -= 1
            if not left:
                for slots in asked:
                    self._counting[slots] = at_ms + _COUNT_PAUSE_MS

        def replied(response: Any, error: FoqsError | None) -> None:
            found = [] if error is not None else response.shards or []
            reports = [(one.shard, one.epoch, one.number, one.leased) for one in found]
            counted([one for one in reports if None not in one and len(one[3]) == len(asked)])

        versions = self._engine.state.policies.versions
        wanted = [(key, versions.get(key[0], 0)) for key in keys]
        request_keys = [idl.SlotKey(key[0], key[1][len(THROTTLE) :], version) for key, version in wanted]
        for address in addresses if keys else ():
            if address is None:
                self.count_here(wanted, shards, counted)
            else:
                request = idl.CountSlotsRequest(request_keys, sorted(shards))
                self._forwarder.ask(address, "CountSlots", request, CENSUS_MS + _MARGIN_MS, replied)
        if self._to_count:
            self._count(next(iter(self._to_count)))

    def _beat(self) -> None:
        now_ms, routing = self._monotonic_ms(), self._forwarder.routing()
        self._counting = {slots: until_ms for slots, until_ms in self._counting.items() if until_ms > now_ms}
        unowned = routing.unowned
        # No lease of a disabled shard can be extended, so all of them end.
        disabled, longest_ms = routing.disabled & unowned, self._engine.state.config.limits.lease_max_ms
        for key, known in list(islice(self._slots.items(), _TENDED)):
            del self._slots[key]
            slots = known[0]
            if slots.unused(now_ms) and (slots.unknown or len(self._slots) >= _MOST_IDLE):
                continue
            self._slots[key] = known  # at the end
            slots.follow(routing.shards, now_ms)
            slots.give_up(unowned, now_ms)
            slots.give_up(disabled, now_ms, longest_ms)
            if slots.to_count(now_ms) - unowned:
                self._count(key)
            self._gather_news(key, slots, now_ms)
        self._tell()
        self._beating = bool(self._slots) and not self._engine.state.draining
        if self._beating:
            self._later(BEAT_MS, self._beat)
