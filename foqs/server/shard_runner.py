"""Run the engine: at its deadlines, with a worker and a store for each open shard, by the steps of the shard driver."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import structlog

from foqs.bounds import Budget
from foqs.buffers.checkpoint import NEVER_MS
from foqs.buffers.shard_batch import BatchResult, Outcome, ShardBatch
from foqs.checks import counted
from foqs.config.load import Config
from foqs.counters import PAUSE_SECONDS, Histogram
from foqs.engine import shard_driver as steps
from foqs.engine.engine import Engine
from foqs.engine.shard import Shard
from foqs.engine.shard_driver import ShardDriver
from foqs.engine.state import Callbacks, State
from foqs.ids import Marks, Stamp
from foqs.opened import Opened
from foqs.rows import SettingRow
from foqs.server.clock import DatabaseClock, HostClock, HostTimers, Survey, TimerHandle
from foqs.server.marks import Marker, MarkStore
from foqs.server.outages import OpenLog
from foqs.server.settings_copies import SettingsCopies
from foqs.server.shard_thread import ShardThread
from foqs.server.shard_worker import ShardWorker, worker_of
from foqs.shardmgr.lifecycle import ShardState
from foqs.store.protocol import ShardRefused, ShardStore, StoreDown, StoreError, StoreReadOnly, explained
from foqs.store.sql import SqlStore

log = structlog.get_logger("foqs.host")

_STOPPED_MS = 500
"""A tick that comes this late finds a process that was stopped: by SIGSTOP, or with its virtual machine."""
_CATCH_UP_MS = 50
_SLOW_OPEN_S = 1.0
_FREE_SPACE = "free space on the disk or in the tablespace; acks and deliveries continue where the database lets them"


class Ticker:
    """`wake` and `alarm` are the engine's callbacks. One timer.

    The engine needs them when it is made, and the timekeeper needs the engine: `connect` follows.
    """

    _engine: Engine
    _timekeeper: DatabaseClock

    def __init__(self, timers: HostTimers) -> None:
        self._timers = timers
        self._now_ms = timers.now_ms
        self._timer: TimerHandle | None = None
        self._due_ms = 0  # of the timer, by the monotonic clock
        self._pump_due = False
        self._catches_up = False

    def connect(self, engine: Engine, timekeeper: DatabaseClock) -> None:
        self._engine, self._timekeeper = engine, timekeeper

    def arm(self) -> None:
        """Set the timer to the engine's next deadline."""
        self.alarm(self._engine.next_ms(self._now_ms()))

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def wake(self) -> None:
        if not self._pump_due:
            self._pump_due = True
            self._timers.soon(self._pump)

    def _pump(self) -> None:
        self._pump_due = False
        self._engine.pump(self._now_ms())

    def alarm(self, at_ms: int) -> None:
        """Set the timer to `at_ms`, unless it is set to an earlier time."""
        engine = self._engine
        if at_ms >= engine.state.timer_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        engine.state.timer_ms = at_ms
        self._ring_after(max(0, at_ms - self._now_ms()))

    def _ring_after(self, delay_ms: int) -> None:
        self._due_ms = self._timers.monotonic_ms() + delay_ms
        self._timer = self._timers.later(delay_ms, self.tick)

    def tick(self) -> None:
        self._timer = None
        if self._timers.monotonic_ms() - self._due_ms > _STOPPED_MS and not self._catches_up:
            # Answers came since, and the engine would count the stop as the silence of databases.
            self._catches_up = True
            self._ring_after(_CATCH_UP_MS)
            return
        self._catches_up = False
        engine = self._engine
        engine.state.timer_ms = NEVER_MS
        self._timekeeper.look()
        engine.tick(self._now_ms())
        self.arm()


class SettingsKeeper(Protocol):
    """The settings of namespaces, and their copies in the shards of this host."""

    copies: SettingsCopies

    def settle(self, number: int, rows: Sequence[SettingRow], then: Callable[[str], None]) -> None:
        """Act on the newest settings, a newly opened shard's among them. Then call `then` with the reason why the shard
        must not be served ('': it may)."""

    def unusable(self, number: int) -> None:
        """Note that the database of a shard answered, and that no host can serve the shard."""


@dataclass(slots=True)
class _Opening:
    store: ShardStore
    marks: Marks | None = None
    begun_ns: int = 0
    """Monotonic time when the store was asked to open."""


class ShardRunner:
    """The engine, its timer and the workers of its shards. All methods run on the event loop.

    `make_store(shard number)` returns a closed store. `callbacks` are the engine's, apart from the timer's.
    `changed()` is called when a shard came, went or changed its state; `served()` when a shard was opened; `serves()`
    is true if the host takes requests. `keeper` has the settings of the shards' items.
    """

    def __init__(
        self,
        config: Config,
        make_store: Callable[[int], ShardStore],
        budget: Budget,
        clock: HostClock,
        loop: asyncio.AbstractEventLoop,
        timers: HostTimers,
        marks: MarkStore | None,
        callbacks: Callbacks,
        *,
        static: bool,
        take_over: bool,
        changed: Callable[[], None],
        served: Callable[[], None],
        serves: Callable[[], bool],
        keeper: Callable[[], SettingsKeeper],
        survey: Survey | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._host = config.server.id
        self._make_store = make_store
        self._clock = clock
        self._loop = loop
        self._later = timers.later
        self._static = static
        self._changed = changed
        self._served = served
        self._keeper = keeper
        self.ticker = Ticker(timers)
        callbacks = replace(callbacks, wake=self.ticker.wake, alarm=self.ticker.alarm, hangs=self._watch)
        state = State(config, budget, rng or random.Random(), callbacks, shards_elsewhere=not static)
        self.engine: Engine = Engine(state, self._submit)
        self.driver = ShardDriver(self.engine.state.shards, static=static, take_over=take_over)
        self.marker = Marker(marks, timers.later, self._stamp)
        self._timekeeper: DatabaseClock = DatabaseClock(self.engine, clock, timers.later, survey, self._untried)
        self.ticker.connect(self.engine, self._timekeeper)
        self._open_log = OpenLog(self.engine.state.shards, loop, serves)
        self._opening: dict[int, _Opening] = {}
        self._workers: dict[int, ShardWorker | ShardThread] = {}
        self.drain_seconds = Histogram(PAUSE_SECONDS)
        """From the beginning of a shard's hand-over to its end here: its new items wait, or go to other shards."""
        self._draining_s: dict[int, float] = {}  # since when, by the loop's clock
        self._watched: set[int] = set()  # shards whose database is asked about a batch that hangs
        self._do: dict[type[steps.Step], Callable[[Any], None]] = {
            steps.Prepare: self._prepare,
            steps.Open: self._open,
            steps.Serve: self._serve,
            steps.NotOpened: self._not_opened,
            steps.Retire: self._retire,
            steps.Drain: self._drain,
            steps.End: self._end,
            steps.Close: self._close,
            steps.Discard: self._discard,
            steps.Retry: self._retry,
            steps.Forget: self._forget,
            steps.Changed: lambda _: changed(),
        }
        self.closing: set[int] = set()
        """Shards whose store is being closed."""
        self.ready = asyncio.Event()
        """Set when a shard is served and every shard was tried, or a second after that.

        The second bounds the wait for a database that hangs until its timeouts.
        """

    # ------------------------------------------------------------------------------------- used by the node

    def take(self, number: int, epoch_above: int = 0) -> None:
        """Open a shard of the engine with an epoch above `epoch_above`. Raises StoreError on a static host whose
        configuration has a wrong URL."""
        self._perform(self.driver.take(number, epoch_above))

    def release(self, number: int, handover_ms: int) -> None:
        """Finish the shard's work within `handover_ms`, write its leases and close it."""
        self._perform(self.driver.release(number, self._loop_ms(), handover_ms))
        self._timekeeper.dismiss(number)

    def stop(self) -> None:
        """Take no new work, and open nothing from now on."""
        self.driver.stop()
        self._open_log.close()
        self.engine.drain(self._clock.now_ms())

    def end(self) -> None:
        """After `stop`: refuse waiting requests and close the stores; `closing` names the stores that are still
        open."""
        now_ms = self._clock.now_ms()
        in_grace = {shard.number for shard in self.engine.state.serving if shard.owner.in_takeover_grace(now_ms)}
        self._perform(self.driver.ended(in_grace))

    def stop_ticking(self) -> None:
        self.ticker.stop()

    def use_url(self, number: int, url: str) -> None:
        """Make further connections of a shard with a URL of the same account. Raises StoreError."""
        opening, worker = self._opening.get(number), self._workers.get(number)
        for store in (opening and opening.store, worker and worker.store):
            if isinstance(store, SqlStore):
                store.use_url(url)

    @property
    def clock_note(self) -> str:
        """Return why the host waits for the time; '' if it does not."""
        return self._timekeeper.why

    def _stamp(self) -> Stamp:
        at_ms = self._clock.now_ms()
        return Stamp(at_ms, at_ms + self._clock.machine_ahead_ms(), self._host)

    def _ahead_ms(self, opened: Opened) -> int:
        """Return the lead of a database's clock over the host's."""
        read_ns = opened.read_ns or time.monotonic_ns()  # a store without a real clock reads none
        return opened.db_now_ms - self._clock.at_ms(read_ns)

    def _untried(self) -> int:
        return len(self.engine.state.shards.keys() - self.driver.tried - set(self._timekeeper.arrived))

    def workers(self) -> dict[int, ShardWorker | ShardThread]:
        """Return the workers of the shards that are open here."""
        shards = self.engine.state.shards
        return {
            number: worker
            for number, worker in self._workers.items()
            if number in shards and shards[number].owner.state is ShardState.SERVING
        }

    def opening_ms(self) -> dict[int, tuple[int, bool]]:
        """Return for how many ms each shard has been opening, and True if its database has taken the connection."""
        now_ns, found = time.monotonic_ns(), {}
        for number, opening in self._opening.items():
            shard, store = self.engine.state.shards.get(number), opening.store
            if shard is not None and shard.owner.state is ShardState.OPENING and opening.begun_ns:
                found[number] = (
                    (now_ns - opening.begun_ns) // 1_000_000,
                    not isinstance(store, SqlStore) or store.connected,
                )
        return found

    # ------------------------------------------------------------------------------------- steps of the driver

    def _perform(self, todo: steps.Steps) -> None:
        for step in todo:
            self._do[type(step)](step)

    def _prepare(self, step: steps.Prepare) -> None:
        number, attempt = step.number, step.attempt
        try:
            self._opening[number] = _Opening(self._make_store(number))
        except StoreError as error:
            if self._static:
                raise
            self._open_log.failed(number, explained(error), held=False)
            self._perform(self.driver.unusable(number, attempt))
            return
        self.marker.recall(number, lambda marks: self._perform(self.driver.prepared(number, attempt, marks)))

    def _open(self, step: steps.Open) -> None:
        number, attempt, opening = step.number, step.attempt, self._opening[step.number]
        opening.marks, opening.begun_ns = step.marks, time.monotonic_ns()
        on_end = partial(self._connection_ended, number)
        worker = worker_of(opening.store, f"shard-{number}", self._loop, self._deliver, on_end)
        self._workers[number] = worker
        about = self.engine.state.shards[number], worker
        worker.connect(partial(self._finished, *about), partial(self._crashed, *about))

        def done(outcome: Opened | StoreError) -> None:
            if isinstance(outcome, Opened):
                self._keeper().settle(number, outcome.settings, partial(settled, outcome))
                return
            held, down = isinstance(outcome, ShardRefused) and outcome.held, isinstance(outcome, StoreDown)
            read_only = isinstance(outcome, StoreReadOnly)
            reason = explained(outcome)
            ended(self.driver.not_opened(number, attempt, reason, held=held, down=down, read_only=read_only))
            self._timekeeper.tried()
            if isinstance(outcome, ShardRefused) and not held:
                self._keeper().unusable(number)

        def settled(outcome: Opened, refused: str) -> None:
            if refused:
                ended(self.driver.not_opened(number, attempt, refused, held=False, down=False))
                return
            shard = self.engine.state.shards[number]
            self.engine.fill(shard, outcome, partial(filled, shard, outcome))

        def filled(shard: Shard, outcome: Opened) -> None:
            mark = (opening.marks or {}).get(outcome.identity)
            stamp, then = Stamp() if mark is None else mark.stamp, partial(opened, shard, outcome)
            if not self.driver.wants(number, attempt):  # given up while the store opened: it waits for nothing
                then()
                return
            self._timekeeper.admit(number, outcome.server, self._ahead_ms(outcome), stamp, then)

        def opened(shard: Shard, outcome: Opened) -> None:
            ended(self.driver.opened(number, attempt, outcome))
            self.engine.unfill(shard)  # unless it is served

        def ended(todo: steps.Steps) -> None:
            self._perform(todo)
            self._set_ready()
            self.ticker.arm()

        worker.open(self._host, take_over=step.take_over, epoch_above=step.epoch_above, marks=step.marks, done=done)

    def _set_ready(self) -> None:
        if self.engine.state.serving:
            slow = self.driver.tried < self.engine.state.shards.keys()
            self._loop.call_later(_SLOW_OPEN_S if slow else 0, self.ready.set)

    def _serve(self, step: steps.Serve) -> None:
        number, opened = step.number, step.opened
        shard, opening = self.engine.state.shards[number], self._opening.pop(number)
        self.marker.opened(number, opened)
        begun_ms = self._clock.at_ms(opening.begun_ns)
        self.engine.opened(shard, opened, opening.store.max_batch_bytes, begun_ms, self._clock.now_ms())
        self._timekeeper.served(shard, self._ahead_ms(opened))
        self._keeper().copies.opened(number, opened.settings)
        for warning in opened.warnings:
            log.warning("shard.unsafe", shard=number, warning=warning)
        if opened.tail:
            why = f"no room for the index rows of {counted(len(opened.tail), 'item')} that the last owner stored"
            log.warning("shard.full", shard=number, reason=why, mend=_FREE_SPACE)
        self._served()
        log.info("shard.serving", shard=number, epoch=opened.epoch)
        self._open_log.opened(number)

    def _not_opened(self, step: steps.NotOpened) -> None:
        self.engine.state.counters.shards_not_opened += 1
        self._open_log.failed(step.number, step.reason, held=step.held)

    def _retire(self, step: steps.Retire) -> None:
        self._draining_s[step.number] = self._loop.time()
        self.engine.retire(self.engine.state.shards[step.number])

    def _drain(self, step: steps.Drain) -> None:
        number, attempt = step.number, step.attempt

        def drained() -> None:
            shard = self.engine.state.shards.get(number)
            if shard is not None:
                in_grace = shard.owner.in_takeover_grace(self._clock.now_ms())
                todo = self.driver.drained(number, attempt, self._loop_ms(), idle=shard.queue.idle, in_grace=in_grace)
                self._perform(todo)

        self._later(step.after_ms, drained)

    def _end(self, step: steps.End) -> None:
        shard = self.engine.state.shards[step.number]
        if step.in_order and shard.queue.idle:
            self.marker.closed(shard)
        self.engine.drained(shard, self._clock.now_ms())
        if (since_s := self._draining_s.pop(step.number, None)) is not None:
            self.drain_seconds.observe(self._loop.time() - since_s)
        if not self.driver.stopping:
            self.engine.state.counters.shards_released += 1
            log.info("shard.released", shard=shard.number, epoch=shard.owner.epoch, clean=step.in_order)

    def _close(self, step: steps.Close) -> None:
        number, attempt = step.number, step.attempt
        worker = self._workers.pop(number, None)
        if worker is None:
            return  # no store was opened, or `end` has closed it

        def done() -> None:
            self.closing.discard(number)
            self._perform(self.driver.closed(number, attempt))

        self.closing.add(number)
        if step.clean:
            self._keeper().copies.closing(number, worker)
        worker.close(done, clean=step.clean)

    def _discard(self, step: steps.Discard) -> None:
        self._workers.pop(step.number).close()

    def _retry(self, step: steps.Retry) -> None:
        self._later(step.after_ms, lambda: self._perform(self.driver.retry(step.number, step.attempt)))

    def _forget(self, step: steps.Forget) -> None:
        self._opening.pop(step.number, None)
        del self.engine.state.shards[step.number]

    # ------------------------------------------------------------------------------------- batches of the engine

    def _submit(self, shard: Shard, batch: ShardBatch) -> None:
        self._workers[shard.number].submit(batch)

    def _crashed(self, shard: Shard, worker: ShardWorker | ShardThread, batch: ShardBatch, error: Exception) -> None:
        log.error("shard.crashed", shard=shard.number, exc_info=error)
        self._finished(shard, worker, batch, BatchResult(Outcome.UNKNOWN, fenced=True, error="internal error"))

    def _watch(self, shard: Shard) -> None:
        """End the connection of a batch that waits in vain: the next connection finds out its outcome."""
        number, batch, worker = shard.number, shard.queue.in_flight, self._workers.get(shard.number)
        if worker is None or batch is None or batch.reconnect or number in self._watched:
            return
        self._watched.add(number)

        def seen(vain: bool) -> None:
            self._watched.discard(number)
            if vain and shard.queue.in_flight is batch and self._workers.get(number) is worker:
                log.warning("shard.hangs", shard=number, after_ms=self._clock.now_ms() - batch.begun_ms)
                worker.cut()

        worker.watch(seen)

    def _connection_ended(self, number: int) -> None:
        """The server ended the connection of an idle shard: make another one before the next request needs it."""
        shard = self.engine.state.shards.get(number)
        if shard is not None and shard.owner.state is ShardState.SERVING:
            shard.owner.want_confirmation()
            self.engine.state.touch(shard)

    def _finished(
        self, shard: Shard, worker: ShardWorker | ShardThread, batch: ShardBatch, result: BatchResult
    ) -> None:
        owner = shard.owner
        if result.disk_full:
            log.warning("shard.full", shard=shard.number, reason=result.error, mend=_FREE_SPACE)
        elif result.error:
            log.warning("shard.failed", shard=shard.number, reason=result.error)
        if result.db_now_ms:
            self._timekeeper.read(shard, batch, result.db_now_ms)
        now_ms, lost = self._clock.now_ms(), owner.lost
        self.engine.finished(shard, batch, result, now_ms)
        if owner.lost is not lost:
            self._changed()
        if result.saved and batch.transaction is not None:
            self.marker.committed(shard.number, batch.transaction.next_number)
        if owner.state is ShardState.CLOSED and self._workers.get(shard.number) is worker:
            self._lost(shard.number, result.error)

    def _lost(self, number: int, reason: str) -> None:
        todo = self.driver.lost(number)
        if todo:
            log.warning("shard.lost", shard=number, reason=reason)
        self._perform(todo)

    def _deliver(self, job: Callable[[], None]) -> None:
        """Run `job` on the event loop. Called from a shard's thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the host ended before its database answered
            self._loop.call_soon_threadsafe(job)

    def _loop_ms(self) -> int:
        return int(self._loop.time() * 1000)
