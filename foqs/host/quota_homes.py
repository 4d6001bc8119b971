"""The homes of namespaces' quotas that are here: who asks for tokens, may they be granted, and what is stored.

The home of a namespace is the owner of the shard that has its slot (see `foqs.dedup`): of owners there is one at a
time, which the fence and the confirming of epochs see to, and one shard at a time has a slot. So there are never two
homes, whatever hosts believe of each other. A host that is alone is the home of all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from foqs.clock import monotonic_ms
from foqs.dedup import SLOTS, digest_of, slot_of
from foqs.errors import FoqsError, NotServed, Unavailable
from foqs.host.host import Host
from foqs.host.shard import Shard
from foqs.host.watch import Ask as AskHost
from foqs.idl import idl
from foqs.quota import Quota
from foqs.quotas.bucket import TTL_MS, Ask, Grant
from foqs.quotas.home import Home
from foqs.shardmgr.lifecycle import ShardState
from foqs.shardmgr.routing import Routing
from foqs.shardmgr.slots import has

COUNT_MS = 500
"""How long a question waits for counts; of a shard that was not counted by then the last count stands."""
CENSUS_MS = 2_000
"""How long shards have to say what they store: what comes later than a question waits is there for the next one."""
_MARGIN_MS = 500
_COUNT_PAUSE_MS = 250
_KEEP_CONFIRMED_SHARE = 3
_MOST_CONFIRMING = 1_000

Answer = Callable[[Grant | FoqsError], None]
Seat = tuple[int, int]
"""The shard that has a slot, and the epoch of its owner."""


def home_slot(ns: str) -> int:
    return slot_of(digest_of(ns, ""))


class QuotaHomes:
    """`quota_of` is the configuration; `now_ms` the host's clock, which may be set: tokens come by one that is not.
    `ask` is a `Caller`'s, None on a host that is alone; `routing` then counts for nothing."""

    def __init__(
        self,
        host: Host,
        quota_of: Callable[[str], Quota | None],
        routing: Callable[[], Routing],
        ask: AskHost | None,
        now_ms: Callable[[], int],
        later: Callable[[int, Callable[[], None]], Any],
    ) -> None:
        self.missing: Callable[[], None] = lambda: None  # called when a slot is not here, which may have to be
        self._host = host
        self._quota_of = quota_of
        self._routing = routing
        self._ask = ask
        self._now_ms = now_ms
        self._later = later
        self._begun_ms = monotonic_ms()
        self._homes: dict[str, tuple[Home, tuple[Seat, int]]] = {}  # with the seat, and since when it is empty
        self._seats: dict[int, tuple[Seat, int]] = {}  # by slot, and since when it is here
        self._seen: dict[Seat, bytes] = {}  # the slots of each shard
        self._counts: dict[str, _Count] = {}

    # ------------------------------------------------------------------------------------- tokens

    def take(self, ns: str, holder: str, asked: Ask, answer: Answer) -> None:
        """Answers a host's question when the home's shard was confirmed, and counts came where they are needed."""
        quota = self._quota_of(ns)
        if quota is None:
            answer(Unavailable("the namespace has no quota here: the hosts' configurations differ"))
            return
        if self._ask is None:
            self._take_here(ns, quota, holder, asked, answer, (0, 0), self._begun_ms)
            return
        shard = self._shard_of(home_slot(ns))
        if shard is None:
            self.missing()
            answer(NotServed("the namespace's home is not here now"))
            return
        self._confirmed(shard, partial(self._take_confirmed, ns, quota, holder, asked, answer))

    def _take_confirmed(self, ns: str, quota: Quota, holder: str, asked: Ask, answer: Answer) -> None:
        slot = home_slot(ns)
        shard = self._shard_of(slot)
        if shard is None or shard.quiet(self._now_ms()) or not shard.confirmed(self._now_ms()):
            answer(NotServed("the namespace's home is not here now"))
            return
        self.observe()
        seat, since_ms = self._seats[slot]
        # Tokens of the home before may be spent meanwhile.
        self._take_here(ns, quota, holder, asked, answer, seat, since_ms + TTL_MS)

    def _take_here(
        self, ns: str, quota: Quota, holder: str, asked: Ask, answer: Answer, seat: Seat, empty_at_ms: int
    ) -> None:
        now_ms = monotonic_ms()
        if now_ms < empty_at_ms:
            answer(Grant(0, False, empty_at_ms - now_ms + quota.ms_for(asked.wanted)))
            return
        home, made_for = self._homes.get(ns, (None, None))
        if home is None or made_for != (seat, empty_at_ms):
            home = Home(quota, empty_at_ms)
            self._homes[ns] = (home, (seat, empty_at_ms))
        kept = home.report(holder, asked, now_ms)

        def grant() -> None:
            answer(home.grant(holder, asked, self._shards(), monotonic_ms(), kept=kept))

        if home.lacks(asked.wanted, self._shards()):
            self._count(ns, home, grant)
        else:
            grant()

    # ------------------------------------------------------------------------------------- who has which slot

    def observe(self) -> None:
        """Sees which slots are here. To be called at least once in `TTL_MS`: a slot that was elsewhere and is back
        before that was never granted from there.

        A slot that came from another shard may have come from a new owner of that, whose predecessor was confirmed
        lately and does not know yet."""
        seen = {
            (shard.number, shard.epoch): shard.keys.held.bits
            for shard in self._host.serving
            if shard.state is ShardState.SERVING and not shard.quiet(self._now_ms())
        }
        if seen == self._seen:
            return
        now_ms = monotonic_ms()
        before, self._seats = self._seats, {}
        for seat, bits in seen.items():
            since_ms = now_ms + (self._host.config.host.confirm_ms if seat in self._seen else 0)
            for slot in range(SLOTS):
                if has(bits, slot):
                    known = before.get(slot)
                    self._seats[slot] = known if known is not None and known[0] == seat else (seat, since_ms)
        self._seen = seen

    def tend(self) -> None:
        """Every now and then: keeps those shards confirmed that are somebody's home, and forgets homes that are
        idle."""
        self.observe()
        now_ms = monotonic_ms()
        for ns, (home, ((number, _), _)) in list(self._homes.items()):
            if home.idle(now_ms) and ns not in self._counts:
                del self._homes[ns]
                continue
            shard = self._host.shards.get(number)
            if shard is not None and shard.state is ShardState.SERVING:
                age_ms = self._now_ms() - shard.confirmed_ms
                if not 0 <= age_ms * _KEEP_CONFIRMED_SHARE < shard.config.confirm_ms:
                    shard.confirm_wanted = True
                    self._host.touch(shard)

    def _shard_of(self, slot: int) -> Shard | None:
        for shard in self._host.serving:
            if shard.state is ShardState.SERVING and shard.keys.takes_slot(slot):
                return shard
        return None

    def _confirmed(self, shard: Shard, then: Callable[[], None]) -> None:
        """Calls `then` when the shard's database has said lately whose it is, or did not say when it was asked."""
        if shard.confirmed(self._now_ms()) or len(shard.confirming) >= _MOST_CONFIRMING:
            then()
        else:
            self._after_trip(shard, then)

    def _after_trip(self, shard: Shard, then: Callable[[], None]) -> None:
        """Calls `then` after the shard's next trip, which asks whose it is, or when it is closed."""
        shard.confirm_wanted = True
        shard.confirming.append(then)
        self._host.touch(shard)

    def _owned(self, shard: Shard, then: Callable[[bool], None]) -> None:
        """Tells `then` whether the shard's database says that it is this host's, asked from now on: by what it said
        before another owner may have come since, who has stored more."""
        if len(shard.confirming) >= _MOST_CONFIRMING:
            then(False)
            return
        asked_ms, before = self._now_ms(), shard.flight

        def told() -> None:
            nonlocal before
            if before is not None and shard.state is not ShardState.CLOSED:
                before = None
                self._after_trip(shard, told)
            else:
                then(shard.confirmed_ms >= asked_ms)

        self._after_trip(shard, told)

    # ------------------------------------------------------------------------------------- what is stored

    def _shards(self) -> Collection[int]:
        """All whose items count."""
        return self._host.shards.keys() if self._ask is None else self._routing().shards - self._routing().disabled

    def _count(self, ns: str, home: Home, then: Callable[[], None]) -> None:
        """Has the shards counted, unless that was done just now, and calls `then`."""
        now_ms = monotonic_ms()
        count = self._counts.get(ns)
        if count is not None and count.home is home:
            if count.open and now_ms < count.begun_ms + COUNT_MS:
                count.then.append(then)
                return
            if count.open:
                then()
                return
            if now_ms < count.begun_ms + _COUNT_PAUSE_MS:
                then()
                return
        for old, done in list(self._counts.items()):
            if not done.open and now_ms >= done.begun_ms + _COUNT_PAUSE_MS:
                del self._counts[old]
        count = self._counts[ns] = _Count(home, now_ms, home.mark(now_ms), then)
        by_address: dict[str, None] = {}
        if self._ask is not None:
            for route in self._routing().owners.values():
                if route.host != self._host.config.server.id:
                    by_address[route.address] = None
        count.open = 1 + len(by_address)
        for address in by_address:
            assert self._ask is not None
            self._ask(address, "CountItems", idl.CountItemsRequest(ns), CENSUS_MS + _MARGIN_MS, count.answered)
        self.count_here(ns, count.add)
        if count.open:
            self._later(COUNT_MS, count.go_on)

    def count_here(self, ns: str, answer: Callable[[dict[int, int]], None]) -> None:
        """Says, within `CENSUS_MS`, how many items the shards here hold, those on their way in included. A shard whose
        database does not say in time that it still is this host's is left out."""
        census = _Census(self._host.serving, ns, answer)
        for shard in self._host.serving:
            if self._ask is None:
                census.add(shard, counts=True)
            else:
                self._owned(shard, partial(census.add, shard))
        if census.left:
            self._later(CENSUS_MS, census.end)


class _Count:
    """`open`: answers that are to come."""

    __slots__ = ("_mark", "begun_ms", "home", "open", "then")

    def __init__(self, home: Home, begun_ms: int, mark: int, then: Callable[[], None]) -> None:
        self.home = home
        self.begun_ms = begun_ms
        self.open = 0
        self.then = [then]
        self._mark = mark

    def answered(self, response: Any, error: FoqsError | None) -> None:
        self.add({} if error is not None or response.shards is None else response.shards)

    def add(self, items: dict[int, int]) -> None:
        for shard, count in items.items():
            self.home.counted(shard, count, self._mark)
        self.open -= 1
        if not self.open:
            self.go_on()

    def go_on(self) -> None:
        """With what is there."""
        then, self.then = self.then, []
        for one in then:
            one()


class _Census:
    """One count of what the shards here hold; `left` of them have yet to be added."""

    __slots__ = ("_answer", "_found", "_ns", "left")

    def __init__(self, shards: Collection[Shard], ns: str, answer: Callable[[dict[int, int]], None]) -> None:
        self.left = len(shards)
        self._ns = ns
        self._answer: Callable[[dict[int, int]], None] | None = answer
        self._found: dict[int, int] = {}
        if not shards:
            self.end()

    def add(self, shard: Shard, counts: bool) -> None:
        if counts and shard.state in (ShardState.SERVING, ShardState.DRAINING):
            self._found[shard.number] = held_of(shard, self._ns)
        self.left -= 1
        if not self.left:
            self.end()

    def end(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(self._found)


def held_of(shard: Shard, ns: str) -> int:
    """Items of a namespace that a shard stores, and those that may get in."""
    stored = sum(lane.total for (lane_ns, _), lane in shard.lanes.items() if lane_ns == ns)
    rounds = [round_ for round_ in (shard.flight, shard.unsettled) if round_ is not None]
    chunks = [*shard.chunks, *shard.returned, *(chunk for round_ in rounds for chunk in round_.chunks)]
    return stored + sum(len(chunk.items) for chunk in chunks if chunk.keys and chunk.keys[0][0] == ns)
