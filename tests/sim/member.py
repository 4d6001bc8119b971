"""One host process of a simulated run: the production `Host`, its stores, and a timer in place of the event loop."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from foqs.budget import Budget
from foqs.buffers.round import Round, RoundResult
from foqs.host import life, rounds
from foqs.host.host import Host
from foqs.host.listing import Listing
from foqs.host.requests import DequeueCall
from foqs.host.shard import Shard
from foqs.host.timekeeper import Timekeeper
from foqs.host.worker import run
from foqs.leases.deadlines import NEVER_MS
from foqs.prefetch.lane import LaneKey
from foqs.rows import Opened
from foqs.shardmgr.lifecycle import ShardState
from foqs.store.protocol import ShardRefused, StoreDown
from tests.sim.audit import available
from tests.sim.ledger import broken
from tests.sim.memory_store import MemoryStore
from tests.sim.slots import Neighbour

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation


_PROMPT_MS = 100
"""Within this, a host reads what it may hand out: a few trips."""


class WatchedHost(Host):
    """The production host; what it leases is checked as it is leased."""

    member: Member

    def serve(self, call: DequeueCall, wants: Sequence[tuple[LaneKey, int]], now_ms: int) -> bool:
        member = self.member
        eligible = [shard for shard in self.serving if member.ready_to_hand_out(shard, now_ms)]
        skipping = set(self.skipping)
        served = super().serve(call, wants, now_ms)
        if served:
            member.check_served(call, eligible, skipping)
        return served


class MemberClock:
    """In place of `foqs.clock.Clock`. The clock of the member's machine stays as wrong as it was at the start."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.machine_skew_ms = member.skew_ms

    def now_ms(self) -> int:
        return self.member.now_ms

    def machine_ahead_ms(self) -> int:
        return self.machine_skew_ms - self.member.skew_ms

    def set(self, by_ms: int) -> None:
        self.member.skew_ms += by_ms
        self.member.clock_set()


class Member:
    def __init__(self, sim: Simulation, name: str) -> None:
        self.sim = sim
        self.name = name
        self.alive = True
        self.stores: dict[int, MemoryStore] = {}
        self.flights: dict[int, tuple[Round, RoundResult | None]] = {}
        self.opening: set[int] = set()
        self.lost_shards = 0
        self.listings: list[Listing] = []
        self.cut_off: set[int] = set()  # shards whose next trip takes long, because another host takes them
        self.served: list[tuple[int, int]] = []  # shard, epoch
        self._pumping = False
        self._tick_at = NEVER_MS
        profile = sim.profile
        self.host = WatchedHost(
            profile.config, Budget(profile.budget_bytes), random.Random(sim.rng.getrandbits(64)), self.submit
        )
        self.host.member = self
        self.host.alone = False
        self.neighbour = Neighbour(self)
        self.skew_ms = sim.rng.choice(profile.skews_ms) if profile.skews_ms else 0
        self.timekeeper = Timekeeper(self.host, MemberClock(self))
        self.host.wake = self._wake
        self.host.alarm = self._alarm

    @property
    def now_ms(self) -> int:
        """The host's clock."""
        return self.sim.now_ms + self.skew_ms

    # ------------------------------------------------------------------------------------- the loop, as in `Node`

    def _wake(self) -> None:
        if not self._pumping:
            self._pumping = True
            self.sim.soon(0, self._pump)

    def _pump(self) -> None:
        self._pumping = False
        if self.alive:
            dirty = list(self.host.dirty)
            self.host.pump(self.now_ms)
            for shard in dirty:
                if shard.flight is None:
                    self._alarm(rounds.next_ms(shard, self.now_ms))

    def _alarm(self, at_ms: int) -> None:
        wait_ms = max(0, at_ms - self.now_ms)
        at = self.sim.time + wait_ms
        if at < self._tick_at:
            self._tick_at = at
            self.sim.soon(wait_ms, lambda: self._tick(at))

    def arm(self) -> None:
        self._alarm(self.host.next_ms(self.now_ms))

    def _tick(self, at: int) -> None:
        if self.alive and at == self._tick_at:
            self._tick_at = NEVER_MS
            self.timekeeper.look()
            self.host.tick(self.now_ms)
            self.arm()

    def clock_stepped(self, by_ms: int) -> None:
        life.clock_set(self.host, by_ms)
        for _, early in self.flights.values():
            if early is not None and early.db_now_ms:  # the database's clock was stepped as well
                early.db_now_ms += by_ms
        self.clock_set()

    def clock_set(self) -> None:
        """The next tick was reckoned by the clock as it was."""
        self._tick_at = NEVER_MS
        self.sim.soon(0, lambda: self.arm() if self.alive else None)

    # ------------------------------------------------------------------------------------- shards

    def open(self, number: int, *, take_over: bool) -> None:
        """Tries until it has the shard, or another host is meant to."""
        shard = self.host.shards[number]
        if shard.state is ShardState.CLOSED:
            shard.to(ShardState.ASSIGNED)
        shard.to(ShardState.OPENING)
        self.opening.add(number)
        begun_ms = self.now_ms
        self.sim.soon(self.sim.faults[number].trip_ms(), lambda: self._open(shard, take_over, begun_ms))

    def _open(self, shard: Shard, take_over: bool, begun_ms: int) -> None:
        sim, number = self.sim, shard.number
        if not self.alive:
            return
        store = MemoryStore(sim.dbs[number], sim.faults[number])
        try:
            opened = store.open(self.name, take_over=take_over)
        except (ShardRefused, StoreDown) as error:
            sim.note("not opened", self.name, number, error)
            self.opening.discard(number)
            shard.to(ShardState.ASSIGNED)
            again = take_over or isinstance(error, ShardRefused)  # it is the one that is meant to have the shard
            if sim.owners[number] is self:
                sim.soon(20, lambda: self.alive and sim.owners[number] is self and self._again(number, again))
            return
        self.stores[number] = store
        self.served.append((number, opened.epoch))
        sim.note("opened", self.name, number, opened.epoch)
        sim.ledger.owner_changed(number, sim.now_ms)
        # Counting a long backlog takes its time after the epoch was taken; another owner may come meanwhile.
        late_ms = sim.rng.randint(0, 3_000) if sim.rng.random() < 0.2 and not sim.healing else 0
        db_ahead_ms = opened.db_now_ms - sim.now_ms  # of the simulation's clock
        sim.soon(late_ms, lambda: self._opened(shard, opened, begun_ms, db_ahead_ms))

    def _opened(self, shard: Shard, opened: Opened, begun_ms: int, db_ahead_ms: int) -> None:
        if self.alive:
            self.opening.discard(shard.number)
            ahead_ms = db_ahead_ms - self.skew_ms
            set_ms = self.timekeeper.opened(ahead_ms)
            store = self.stores[shard.number]
            self.host.opened(shard, opened, store.max_batch_bytes, begun_ms + set_ms, self.now_ms)
            self.timekeeper.served(shard, ahead_ms - set_ms)
            self.neighbour.moves.changed()
            self.arm()

    def _again(self, number: int, take_over: bool) -> None:
        if self.host.shards[number].state is ShardState.ASSIGNED and number not in self.opening:
            self.open(number, take_over=take_over)

    def submit(self, shard: Shard, round_: Round) -> None:
        sim, number = self.sim, shard.number
        trip_ms = sim.faults[number].trip_ms()
        if number in self.cut_off:
            self.cut_off.remove(number)
            trip_ms = 2_000
        # Most trips are carried out when they end, so that memory and database can be compared in between;
        # some at once, so that their outcome is late: another owner may have come meanwhile.
        early = run(self.stores[number], round_) if sim.rng.random() < 0.1 else None
        self.flights[number] = (round_, early)
        sim.soon(trip_ms, lambda: self._finished(shard, round_, trip_ms))

    def _finished(self, shard: Shard, round_: Round, trip_ms: int) -> None:
        if not self.alive:
            return
        number, sim = shard.number, self.sim
        _, early = self.flights.pop(number)
        result = early if early is not None else run(self.stores[number], round_)
        result.latency_ms = float(trip_ms)
        sim.note("round", self.name, number, round_, result)
        if result.db_now_ms:
            self.timekeeper.read(shard, round_, result.db_now_ms)
        self.host.finished(shard, round_, result, self.now_ms)
        if shard.state is ShardState.CLOSED:
            sim.note("lost", self.name, number)
            self.lost_shards += 1
            self.stores.pop(number).close()
            if sim.owners[number] is self:
                self.open(number, take_over=False)

    def crash(self) -> None:
        """All memory is lost; what was on its way to the database may still be carried out."""
        self.alive = False
        self.sim.ledger.crashed = True
        for number, (round_, early) in self.flights.items():
            if early is None and self.sim.rng.random() < 0.5:
                run(self.stores[number], round_)
        for store in self.stores.values():
            store.cut()

    def stop(self, done: Callable[[], None]) -> None:
        """SIGTERM: what is in hand is committed and pending leases are written, if the grace allows; then `done`."""
        host, grace_ends = self.host, self.sim.time + 2_000
        host.drain(self.now_ms)

        def look() -> None:
            if not self.alive:
                return
            if self.sim.time < grace_ends and not all(shard.idle for shard in host.serving):
                self.sim.soon(10, look)
                return
            in_order = [shard.number for shard in host.serving if not shard.quiet(self.now_ms)]
            for shard in list(host.serving):
                if shard.idle and self.current(shard.number):
                    self.sim.ledger.stopped(shard.number, self.sim.now_ms)
                host.drained(shard, self.now_ms)
            self.sim.clients.check_all_answered(self)
            flights, self.flights = self.flights, {}
            for number, (round_, early) in flights.items():
                if early is None:
                    run(self.stores[number], round_)  # a store is closed behind what was sent to it
            for number in in_order:
                self.stores[number].close(clean=True)
            self.crash()
            done()

        look()

    def current(self, number: int) -> bool:
        """Whether it is the shard's owner."""
        shard = self.host.shards[number]
        served = shard.state in (ShardState.SERVING, ShardState.DRAINING)
        return served and shard.epoch == self.sim.dbs[number].epoch

    def in_step(self, shard: Shard) -> bool:
        """Whether its memory of the shard is to be what the database says: it was told of all that was done."""
        early = shard.number in self.flights and self.flights[shard.number][1] is not None
        return self.current(shard.number) and shard.unsettled is None and not early

    # ------------------------------------------------------------------------------------- what it hands out

    def ready_to_hand_out(self, shard: Shard, now_ms: int) -> bool:
        config = shard.config
        oldest = shard.oldest_unwritten_ms()
        return (
            self.in_step(shard)
            and shard.healthy(now_ms)
            and now_ms - shard.confirmed_ms <= config.confirm_ms
            and not shard.quiet(now_ms)
            and (oldest is None or now_ms - oldest <= config.lease_write_delay_ms)
        )

    def check_served(self, call: DequeueCall, eligible: list[Shard], skipping: set[LaneKey]) -> None:
        """Promise 5, and what holds for every lease made."""
        sim = self.sim
        by_key: dict[LaneKey, list[tuple[int, int, int]]] = {key: [] for key, _ in call.wants}
        for found in call.found:
            item = found[1]
            if self.current(found[0].number):
                sim.ledger.leased(item, sim.now_ms, delayed_ok=sim.profile.clock_steps)
            by_key[item.lane.key].append(item.key)
        topics = [key for key, _ in call.wants]
        order = [topics.index(found[1].lane.key) for found in call.found]
        if order != sorted(order):
            broken(5, "topics are not in the order asked for")
        for key, count in call.wants:
            given = by_key[key]
            if given != sorted(given) or len(given) > count:
                broken(5, f"{key}: {given} is not in order, or more than {count}")
            if not given or key in skipping:
                continue
            for shard in eligible:
                lane = shard.lanes.get(key)
                may = available(shard, lane, sim.dbs[shard.number]) if lane is not None else []
                may = [one for one in may if one not in given]  # their consumer was gone: given back at once
                if may and may[0] < given[-1]:
                    broken(5, f"{key}: {given[-1]} was handed out before {may[0]} of shard {shard.number}")
            sim.ledger.checks["order"] += 1

    def ready(self, keys: Sequence[LaneKey]) -> dict[int, int]:
        """Items of topics that this host may hand out, with the number of leases each of them has had.

        Not those of a transaction whose outcome the host does not know yet.
        """
        found = {}
        for shard in self.host.serving:
            rounds = [round_ for round_ in (shard.flight, shard.unsettled) if round_ is not None]
            new = {item.id for round_ in rounds for chunk in round_.chunks for item in chunk.items}
            for key in keys:
                lane = shard.lanes.get(key)
                for *_, item_id in available(shard, lane, self.sim.dbs[shard.number]) if lane is not None else ():
                    if item_id not in new:
                        found[item_id] = len(self.sim.ledger.records[item_id].deliveries)
        return found

    def later_ms(self) -> dict[int, int]:
        """Shards of which an earlier owner may still hand out items, and when this host does: they are confirmed and
        read first."""
        return {
            shard.number: shard.quiet_from_ms + shard.config.confirm_ms + _PROMPT_MS
            for shard in self.host.serving
            if shard.quiet_from_ms is not None
        }
