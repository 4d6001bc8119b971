"""One host process of a simulated run: the production engine and shard driver, its stores, and a timer."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from foqs.bounds import Budget
from foqs.buffers.item_batches import BatchLinks
from foqs.buffers.shard_batch import BatchResult, Outcome, ShardBatch
from foqs.engine import shard_driver as steps
from foqs.engine.engine import Engine
from foqs.engine.listing import Listing
from foqs.engine.shard import Shard
from foqs.engine.shard_driver import ShardDriver
from foqs.engine.state import _ALONE, Callbacks
from foqs.fairness.keys import TopicKey
from foqs.ids import Stamp
from foqs.opened import Opened
from foqs.server.clock import DatabaseClock
from foqs.server.shard_thread import run
from foqs.shardmgr.lifecycle import ShardState
from foqs.store.protocol import ShardRefused, StoreDown
from tests.sim.audit import audit_listed, available, lanes_of
from tests.sim.batch_links import Links
from tests.sim.lending import Loans
from tests.sim.loop import HostLoop
from tests.sim.memory_store import MemoryStore
from tests.sim.schedules import Fires
from tests.sim.shares import Shares
from tests.sim.slots import Neighbour
from tests.sim.watched import WatchedState

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation


_HANDOVER_MS = 2_000
_PROMPT_MS = 100
"""Within this, a host reads the items that it may lease: a few batches."""


class MemberClock:
    """In place of `foqs.server.clock.Clock`: the clock of the member's machine stays as wrong as it was."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.machine_skew_ms = member.skew_ms

    def now_ms(self) -> int:
        return self.member.now_ms

    def at_ms(self, monotonic_ns: int) -> int:
        raise NotImplementedError("the simulation has no survey of clocks")

    def machine_ahead_ms(self) -> int:
        return self.machine_skew_ms - self.member.skew_ms

    def set(self, by_ms: int) -> None:
        self.member.skew_ms += by_ms
        self.member.clock_set()


class Member(HostLoop):
    def __init__(self, sim: Simulation, name: str) -> None:
        super().__init__(sim)
        self.sim = sim
        self.name = name
        self.alive = True
        self.stores: dict[int, MemoryStore] = {}
        self.flights: dict[int, tuple[ShardBatch, BatchResult | None]] = {}
        # When a store was asked to open, and the lead of its database's clock, both by the simulation's clock.
        self._begun: dict[int, tuple[int, int]] = {}
        self.lost_shards = 0
        self.unheard_removals = 0  # of batches whose outcome was unknown when their shard was given up
        self.listings: list[Listing] = []
        self.cut_off: set[int] = set()  # shards whose next trip takes long, because another host takes them
        self.served: list[tuple[int, int]] = []  # shard, epoch
        profile = sim.profile
        state = WatchedState(
            profile.config.model_copy(
                update={"shards": (), "server": profile.config.server.model_copy(update={"id": name})}
            ),
            Budget(profile.budget_bytes),
            random.Random(sim.rng.getrandbits(64)),
            Callbacks(
                wake=self.wake,
                alarm=self.alarm,
                tell_keys=lambda keys, told: self.neighbour.key_changes.tell(keys, told),  # noqa: PLW0108 - it is made below
                tokens_wanted=self._tokens_wanted,
                batches=BatchLinks(
                    lambda reports, told: self.links.tell_homes(reports, told),  # noqa: PLW0108 - it is made below
                    lambda number, asked, gone: self.links.ask_members(number, asked, gone),  # noqa: PLW0108
                    lambda: self.links.all_shards(),  # noqa: PLW0108
                )
                if profile.batches
                else _ALONE,
                monotonic_ms=lambda: self.lending.monotonic_ms() if self.lending else 0,
            ),
            shards_elsewhere=True,
        )
        state.member = self
        self.engine = Engine(state, self.submit)
        # A host with a rival is one of a cluster: `sim.owners` is the assignment. One without keeps all shards.
        self.driver = ShardDriver(self.engine.state.shards, static=not profile.rival, take_over=profile.rival)
        self.shares = Shares(self) if profile.tenants and profile.prompt else None
        self.neighbour = Neighbour(self)
        if profile.batches:
            self.links = Links(self)
        self.lending: Loans | None = None
        if profile.throttled:
            self.lending = Loans(self)
        for settings in sim.settings:
            self.engine.apply_settings(settings)
        self.skew_ms = sim.rng.choice(profile.skews_ms) if profile.skews_ms else 0
        self.timekeeper = DatabaseClock(self.engine, MemberClock(self))
        if profile.scheduled:
            self.fires = Fires(self)

    @property
    def now_ms(self) -> int:
        """The host's clock."""
        return self.sim.now_ms + self.skew_ms

    # ------------------------------------------------------------------------------------- the loop, as in `Node`

    def _tokens_wanted(self) -> None:
        if self.lending is not None:
            self.lending.throttles.wanted()

    def before_tick(self) -> None:
        self.timekeeper.look()

    def clock_stepped(self, by_ms: int) -> None:
        self.engine.clock_set(by_ms)
        for _, early in self.flights.values():
            if early is not None and early.db_now_ms:  # the database's clock was stepped as well
                early.db_now_ms += by_ms
        self.clock_set()

    def clock_ms(self) -> int:
        return self.now_ms

    def later(self, after_ms: int, do: Callable[[], object]) -> None:
        self.sim.soon(after_ms, lambda: do() if self.alive else None)

    # ------------------------------------------------------------------------------------- shards

    def take(self, number: int) -> None:
        """Open a shard that is assigned to this host, unless the host has it still or again."""
        if self.alive and self.sim.owners[number] is self and number not in self.engine.state.shards:
            self.engine.add(number)
            self._perform(self.driver.take(number))

    def release(self, number: int) -> None:
        """Give the shard up in order: it is assigned to another host."""
        self._perform(self.driver.release(number, self.sim.time, _HANDOVER_MS))

    def _perform(self, todo: steps.Steps) -> None:
        for step in todo:
            match step:
                case steps.Prepare(number, attempt):
                    self.stores[number] = MemoryStore(self.sim.dbs[number], self.sim.faults[number])
                    self._perform(self.driver.prepared(number, attempt, None))
                case steps.Open(number):
                    self.later(self.sim.faults[number].trip_ms(), partial(self._open, step, self.sim.now_ms))
                case steps.Serve(number, opened):
                    self._serve(self.engine.state.shards[number], opened)
                case steps.Retire(number):
                    self.engine.retire(self.engine.state.shards[number])
                case steps.Drain(number, attempt, after_ms):
                    self.later(after_ms, partial(self._drained, number, attempt))
                case steps.End(number, in_order):
                    self._end(self.engine.state.shards[number], in_order)
                case steps.Close(number, attempt, clean):
                    self.later(self.sim.faults[number].trip_ms(), partial(self._close, number, attempt, clean))
                case steps.Discard(number):
                    self.stores.pop(number).close()
                case steps.Retry(number, attempt, after_ms):
                    self.later(after_ms, partial(self._report, self.driver.retry, number, attempt))
                case steps.Forget(number):
                    del self.engine.state.shards[number]
                    self.later(0, partial(self.take, number))

    def _report(self, result: Callable[[int, int], steps.Steps], number: int, attempt: int) -> None:
        self._perform(result(number, attempt))

    def _open(self, step: steps.Open, begun_ms: int) -> None:
        sim, number, attempt = self.sim, step.number, step.attempt
        try:
            opened = self.stores[number].open(self.name, take_over=step.take_over, epoch_above=step.epoch_above)
        except (ShardRefused, StoreDown) as error:
            sim.note("not opened", self.name, number, error)
            held, down = isinstance(error, ShardRefused), isinstance(error, StoreDown)
            self._perform(self.driver.not_opened(number, attempt, str(error), held=held, down=down))
            return
        sim.note("opened", self.name, number, opened.epoch)
        sim.ledger.owner_changed(number, sim.now_ms)
        self._begun[number] = begun_ms, opened.db_now_ms - sim.now_ms
        # Counting a long backlog takes time after the epoch was taken; another host may take the shard in that time.
        late_ms = sim.rng.randint(0, 3_000) if sim.rng.random() < 0.2 and not sim.healing else 0
        self.later(late_ms, partial(self._fill, number, attempt, opened))

    def _fill(self, number: int, attempt: int, opened: Opened) -> None:
        def filled() -> None:
            _, db_ahead_ms = self._begun.get(number, (0, 0))
            self.timekeeper.admit(number, opened.server, db_ahead_ms - self.skew_ms, Stamp(), served)

        def served() -> None:
            self._perform(self.driver.opened(number, attempt, opened))
            self.engine.unfill(shard)

        shard = self.engine.state.shards[number]
        self.engine.fill(shard, opened, filled)

    def _serve(self, shard: Shard, opened: Opened) -> None:
        begun_ms, db_ahead_ms = self._begun.pop(shard.number)
        self.served.append((shard.number, opened.epoch))
        ahead_ms = db_ahead_ms - self.skew_ms
        store = self.stores[shard.number]
        self.engine.opened(shard, opened, store.max_batch_bytes, begun_ms + self.skew_ms, self.now_ms)
        self.timekeeper.served(shard, ahead_ms)
        self.neighbour.moves.changed()
        self.arm()

    def _drained(self, number: int, attempt: int) -> None:
        shard = self.engine.state.shards.get(number)
        if shard is not None:
            in_grace = shard.owner.in_takeover_grace(self.now_ms)
            self._perform(
                self.driver.drained(number, attempt, self.sim.time, idle=shard.queue.idle, in_grace=in_grace)
            )  # fmt: skip

    def _end(self, shard: Shard, in_order: bool) -> None:
        number = shard.number
        if shard.queue.idle and self.current(number):
            self.sim.ledger.stopped(number, self.sim.now_ms)
        doubtful = shard.queue.unsettled
        self.engine.drained(shard, self.now_ms)
        self._behind(number, doubtful)
        self.sim.note("ended", self.name, number, in_order)

    def _behind(self, number: int, doubtful: ShardBatch | None) -> None:
        """Run the batch that was sent to the store, because the store closes only after it.

        It may be committed, as may the `doubtful` one before it, whose answer was lost. The host hears of neither.
        """
        batches = [] if doubtful is None else [doubtful]
        batch, result = self.flights.pop(number, (None, None))
        if batch is not None:
            if result is None:
                result = run(self.stores[number], batch)
            if result.outcome in (Outcome.COMMITTED, Outcome.UNKNOWN):
                batches.append(batch)
        items = self.sim.dbs[number].items
        for batch in batches:
            if batch.transaction is not None:
                self.unheard_removals += sum(item_id not in items for item_id in batch.transaction.item_gone)

    def _close(self, number: int, attempt: int, clean: bool) -> None:
        self.stores.pop(number).close(clean=clean)
        self._perform(self.driver.closed(number, attempt))

    def submit(self, shard: Shard, batch: ShardBatch) -> None:
        written = batch.transaction is not None and not batch.removals_only  # a full database takes no checkpoint
        if written and self.current(shard.number):
            ahead = (len(batch.changes) + len(shard.queue.changes)) // (2 * shard.config.batch_rows)
            self.sim.ledger.checkpoints.sent(shard.number, batch.transaction, ahead)
        sim, number = self.sim, shard.number
        trip_ms = sim.faults[number].trip_ms()
        if number in self.cut_off:
            self.cut_off.remove(number)
            trip_ms = 2_000
        # Most batches are carried out when they end, so that memory and database can be compared in between;
        # some at once, so that their outcome is late: another owner may have taken the shard before it arrives.
        early = run(self.stores[number], batch) if sim.rng.random() < 0.1 else None
        self.flights[number] = (batch, early)
        sim.soon(trip_ms, lambda: self._finished(shard, batch, trip_ms))

    def _finished(self, shard: Shard, batch: ShardBatch, trip_ms: int) -> None:
        number, sim = shard.number, self.sim
        if not self.alive or self.flights.get(number, (None, None))[0] is not batch:
            return
        _, early = self.flights.pop(number)
        result = early if early is not None else run(self.stores[number], batch)
        result.latency_ms = float(trip_ms)
        sim.note("round", self.name, number, batch, result)
        if self.current(number):
            audit_listed(batch, result, sim.dbs[number])
        if result.db_now_ms:
            self.timekeeper.read(shard, batch, result.db_now_ms)
        self.engine.finished(shard, batch, result, self.now_ms)
        if shard.owner.state is ShardState.CLOSED:
            sim.note("lost", self.name, number)
            self.lost_shards += 1
            self._perform(self.driver.lost(number))

    def crash(self) -> None:
        """All memory is lost; batches in flight may still be carried out."""
        self.alive = False
        self.sim.ledger.crashed = True
        for number, (batch, early) in self.flights.items():
            if early is None and self.sim.rng.random() < 0.5:
                run(self.stores[number], batch)
        for store in self.stores.values():
            store.cut()

    def stop(self, done: Callable[[], None]) -> None:
        """SIGTERM: open requests are committed and leases are written, if the grace period allows; then `done`."""
        engine, grace_ends = self.engine, self.sim.time + 2_000
        self.driver.stop()
        engine.drain(self.now_ms)

        def look() -> None:
            if not self.alive:
                return
            if self.sim.time < grace_ends and not all(shard.queue.idle for shard in engine.state.serving):
                self.sim.soon(10, look)
                return
            in_grace = {shard.number for shard in engine.state.serving if shard.owner.in_takeover_grace(self.now_ms)}
            todo = self.driver.ended(in_grace)
            for step in todo:
                if isinstance(step, steps.End):
                    self._end(engine.state.shards[step.number], step.in_order)
            self.sim.clients.check_all_answered(self)
            for step in todo:
                if isinstance(step, steps.Close):
                    self.stores[step.number].close(clean=step.clean)
            self.crash()
            done()

        look()

    def current(self, number: int) -> bool:
        """Whether it is the shard's owner."""
        shard = self.engine.state.shards.get(number)
        served = shard is not None and shard.owner.state in (ShardState.SERVING, ShardState.DRAINING)
        return served and shard.owner.epoch == self.sim.dbs[number].epoch

    def in_step(self, shard: Shard) -> bool:
        """Whether its memory of the shard has to match the database: it has the result of every batch."""
        early = shard.number in self.flights and self.flights[shard.number][1] is not None
        return self.current(shard.number) and shard.queue.unsettled is None and not early

    # ------------------------------------------------------------------------------------- the items that it leases

    def ready(self, keys: Sequence[TopicKey]) -> dict[int, tuple[int, ...]]:
        """Items of topics that this host may hand out, with the numbers of leases and of requests that each of them has
        had, and the version of the settings.

        Not those of a transaction whose outcome the host does not know yet, and those that a throttle may hold.
        """
        found = {}
        for shard in self.engine.state.serving:
            rounds = [batch for batch in (shard.queue.in_flight, shard.queue.unsettled) if batch is not None]
            new = {item.id for batch in rounds for chunk in batch.chunks for item in chunk.items}
            for key in keys:
                lanes = [name for name in self.sim.profile.lanes(key) if self.sim.throttles.free(name)]
                for lane in lanes_of(shard, lanes):
                    for *_, item_id in available(shard, lane, self.sim.dbs[shard.number]):
                        if item_id not in new:
                            record = self.sim.ledger.records[item_id]
                            found[item_id] = len(record.deliveries), len(record.ops), self.sim.versions
        return found

    def later_ms(self) -> dict[int, int]:
        """Shards of which an earlier owner may still hand out items, and when this host does: they are confirmed and
        read first."""
        return {
            shard.number: shard.owner.grace_from_ms + shard.config.confirm_ms + _PROMPT_MS
            for shard in self.engine.state.serving
            if shard.owner.grace_from_ms is not None
        }
