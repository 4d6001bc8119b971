"""A process: the event loop, the Thrift server, a worker for every shard, the clock. Does what `host` decides."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Callable
from functools import partial
from time import perf_counter

import structlog

from foqs.budget import Budget
from foqs.buffers.round import Outcome, Round, RoundResult
from foqs.clock import Clock
from foqs.config import Config
from foqs.host import keyed, live
from foqs.host.forward import Forwarder
from foqs.host.guard import make_guard
from foqs.host.host import Host
from foqs.host.marks import Marker, Marks
from foqs.host.neighbours import Neighbours
from foqs.host.news import Newsroom
from foqs.host.open_log import OpenLog
from foqs.host.pulse import Pulse
from foqs.host.quotas import Quotas
from foqs.host.service import Service
from foqs.host.shard import Shard
from foqs.host.timekeeper import Timekeeper
from foqs.host.watch import Ask
from foqs.host.worker import Worker
from foqs.limits import Limits
from foqs.marks import Mark
from foqs.rows import Opened
from foqs.rpc.client import Caller
from foqs.rpc.request_log import RequestLog
from foqs.rpc.server import ThriftServer
from foqs.rpc.tls import peer_context, server_context
from foqs.shardmgr.lifecycle import ShardState
from foqs.store.protocol import ShardStore, StoreDown, StoreError

log = structlog.get_logger("foqs.host")

_OPEN_AGAIN_S = 0.2
_SLOW_OPEN_S = 1.0
_LOST_S = 1.0  # a shard that was lost is not taken again before that: two would go on taking it from each other
_STOP_CHECK_S = 0.01
_SAVE_MARKS_S = 1.0
_ANY = ("0.0.0.0", "::")


class Node:
    """`make_store(shard number)` gives a closed store; `marks` remembers how far their ids went. All methods run
    on the event loop.

    A host with `neighbours` has no shards of its own: it takes and releases them as it is told. One without has those
    of the configuration, and waits for a shard that another host has.
    """

    def __init__(
        self,
        config: Config,
        make_store: Callable[[int], ShardStore],
        *,
        take_over: bool = False,
        neighbours: Neighbours | None = None,
        marks: Marks | None = None,
    ) -> None:
        self._config = config
        self._make_store = make_store
        self._take_over = take_over or neighbours is not None
        self._neighbours = neighbours
        self._clock = Clock()
        self._budget = Budget(config.host.budget_bytes)
        self.host = Host(config, self._budget, random.Random(), self._submit)
        self._loop = asyncio.get_running_loop()
        self._timekeeper = Timekeeper(self.host, self._clock)
        self._pulse = Pulse(self.host, self._clock, self._timekeeper, self._loop)
        self._workers: dict[int, Worker] = {}
        self._marker = Marker(marks, self._later)
        self._tried: set[int] = set()
        self._epochs_above: dict[int, int] = {}
        self.unreachable: set[int] = set()
        """Shards that were not opened the last time, because their database did not answer."""
        self._unwanted: set[int] = set()  # being opened, and given up meanwhile
        self._serving = asyncio.Event()
        self._stopping = False
        self.requests = RequestLog(perf_counter, config.log.slow_request_ms)
        limits = Limits(**config.limits.model_dump())
        self.news = Newsroom(self.host.ready, self._clock.now_ms(), self._loop.call_soon, self._later)
        self.guard = make_guard(config, self._loop.time)
        self.caller: Caller | None = None
        self.ask: Ask | None = None
        """Asks another host and proves that a host asks; every call between hosts goes through it."""
        self.forwarder: Forwarder | None = None
        if neighbours is not None:
            self.caller = Caller(
                limits, self._budget, tls=peer_context(config.tls), introduction=self.guard.introduction()
            )
            self.ask = self.guard.proven(self.caller.call)
            self.forwarder = self._forwarder(neighbours, self.caller, self.ask)
            self.host.became_ready = self.news.became_ready
        quotas = Quotas(self.host, self.forwarder, self._clock.now_ms, self._later)
        self.service = Service(
            self.host, limits, self._clock.now_ms, lambda: self.address, self.news, quotas, self.forwarder
        )
        self.server = ThriftServer(
            self.guard.over(self.service.handlers()),
            limits,
            self._budget,
            config.server.max_connections,
            frame_timeout_s=config.server.frame_read_ms / 1000,
            idle_timeout_s=config.server.idle_connection_ms / 1000,
            tls=server_context(config.tls),
            max_connections_per_address=config.server.max_connections_per_address,
            namespaces=self.host.counters.namespaces,
            requests=self.requests,
            trusts=self.guard.trusts,
        )
        self._open_log = OpenLog(self.host.shards, self._loop, lambda: self.server.serves)
        self._listening = ""

    def _forwarder(self, neighbours: Neighbours, caller: Caller, ask: Ask) -> Forwarder:
        return Forwarder(
            self.host,
            self._config.server.id,
            neighbours.routing,
            ask,
            caller.cut,
            handover_ms=neighbours.handover_ms,
            now_ms=self._clock.now_ms,
            soon=self._loop.call_soon,
            later=self._later,
            requests=self.requests,
        )

    def _later(self, after_ms: int, do: Callable[[], None]) -> None:
        self._loop.call_later(after_ms / 1000, do)

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def machine_ahead_ms(self) -> int:
        """How far the machine's clock is ahead of the host's, which follows the databases'."""
        return self._clock.machine_ahead_ms()

    @property
    def address(self) -> str:
        """host:port as clients are told; where the port is picked, it is known when the node listens."""
        return self._config.server.advertise or self._listening

    @property
    def stopping(self) -> bool:
        return self._stopping

    def reconfigure(self, config: Config) -> None:
        """Live keys have the values of `config` from now on; in all others it is as the one before."""
        self._config = config
        live.reconfigure(config, self)

    # ------------------------------------------------------------------------------------- life

    async def start(self) -> tuple[str, int]:
        """Take the port, open the shards, and serve when one is open and all were tried or a second is over.

        Return (host, port). Raises OSError if the port is taken, before a shard is opened.
        """
        address = await self.bind()
        for shard in self.host.shards.values():
            self._open(shard)
        await self._serving.wait()
        await self.server.serve()
        return address

    async def bind(self) -> tuple[str, int]:
        """Raises OSError when it cannot. (host, port)"""
        host, port = await self.server.bind(self._config.server.host, self._config.server.port)
        name = socket.gethostname() if host in _ANY else host
        self._listening = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
        return host, port

    async def share(self, port: int) -> None:
        """Listens on a port that others share, too. Raises OSError when it cannot."""
        await self.server.bind(self._config.server.host, port, shared=True)
        await self.server.serve()

    async def stop(self) -> bool:
        """Stops taking, answers what is in hand, commits, writes leases, closes. False when the grace was too short."""
        self._stopping = True
        deadline = self._loop.time() + self._config.server.grace_ms / 1000
        self.server.stop_listening()
        self._open_log.close()
        self.host.drain(self._clock.now_ms())
        clean = await self.until(lambda: all(shard.idle for shard in self.host.serving), deadline)
        await self.server.drain(deadline)
        now_ms = self._clock.now_ms()
        in_order = {shard.number for shard in self.host.serving if not shard.quiet(now_ms)}
        for shard in list(self.host.serving):
            if shard.number in in_order and shard.idle:
                self._marker.closed(shard)
            self.host.drained(shard, now_ms)
        closing = set(self._workers)
        for number, worker in self._workers.items():
            worker.close(lambda number=number: closing.discard(number), clean=number in in_order)  # type: ignore[misc]
        served = self._serving.is_set()  # else a database that hangs keeps a thread, and nothing can be lost
        closed = await self.until(lambda: not closing, max(deadline if served else 0.0, self._loop.time() + 0.5))
        await self.until(lambda: self._marker.idle, self._loop.time() + _SAVE_MARKS_S)
        self._pulse.stop()
        if self.caller is not None:
            self.caller.close()
        clean = clean and (closed or not served)
        log.info("host.stopped", clean=clean, **self.host.counters.as_dict())
        return clean

    async def until(self, reached: Callable[[], bool], deadline: float) -> bool:
        """Waits for what is asked for often; False when it did not come before `deadline` (of the loop's clock)."""
        while not reached():
            if self._loop.time() >= deadline:
                return False
            await asyncio.sleep(_STOP_CHECK_S)
        return True

    # ------------------------------------------------------------------------------------- shards

    def take(self, number: int, epoch_above: int = 0) -> None:
        """Takes a shard that is not held, with an epoch above that one, from whoever has it."""
        self._epochs_above[number] = epoch_above
        self._open(self.host.add(number))
        self._changed()

    async def release(self, number: int, deadline: float) -> None:
        """Gives a shard up: takes nothing more for it, commits what is in hand, writes leases, closes it in order."""
        shard = self.host.shards.get(number)
        if shard is None:
            return  # closed since this was asked for
        if shard.state is ShardState.ASSIGNED:
            self._forget(shard)
        elif shard.state is ShardState.OPENING:
            self._unwanted.add(number)
        elif shard.state is ShardState.SERVING:
            self.host.retire(shard)
            self._changed()
            await self.until(lambda: shard.idle, deadline)
            if shard in self.host.serving and not self._stopping:  # not lost meanwhile
                self._hand_over(shard)

    def _hand_over(self, shard: Shard) -> None:
        now_ms = self._clock.now_ms()
        in_order = shard.idle and not shard.quiet(now_ms)
        if in_order:
            self._marker.closed(shard)
        self.host.drained(shard, now_ms)
        self.host.counters.shards_released += 1
        log.info("shard.released", shard=shard.number, epoch=shard.epoch, clean=in_order)
        self._workers.pop(shard.number).close(lambda: self._forget(shard), clean=in_order)

    def doubt(self, number: int) -> None:
        """Has the shard's database say whether it still is this host's."""
        shard = self.host.shards[number]
        shard.confirm_wanted = True
        self.host.touch(shard)

    def _forget(self, shard: Shard) -> None:
        del self.host.shards[shard.number]
        self._changed()

    def _changed(self) -> None:
        if self._neighbours is not None:
            self._neighbours.changed()

    def _open(self, shard: Shard) -> None:
        number = shard.number
        if self._stopping or self.host.shards.get(number) is not shard:
            return
        if shard.state is ShardState.CLOSED:
            shard.to(ShardState.ASSIGNED)
        try:
            store = self._make_store(number)
        except StoreError as error:
            if self._neighbours is None:
                raise  # it is in this host's own configuration
            # A cluster was told that URL: another one may come.
            self._open_log.failed(number, error)
            return
        shard.to(ShardState.OPENING)
        self._marker.recall(number, partial(self._open_store, shard, store))

    def _open_store(self, shard: Shard, store: ShardStore, mark: Mark | None) -> None:
        number = shard.number
        if self._stopping or self.host.shards.get(number) is not shard:
            return
        worker = Worker(store, f"shard-{number}", self._deliver)
        self._workers[number] = worker
        begun_ms = self._clock.now_ms()

        def done(outcome: Opened | StoreError) -> None:
            self._opened(shard, worker, store, outcome, begun_ms)

        worker.open(
            self._config.server.id,
            take_over=self._take_over,
            epoch_above=self._epochs_above.get(number, 0),
            mark=mark,
            done=done,
        )

    def _opened(
        self, shard: Shard, worker: Worker, store: ShardStore, outcome: Opened | StoreError, begun_ms: int
    ) -> None:
        self._tried.add(shard.number)
        if isinstance(outcome, StoreDown):
            self.unreachable.add(shard.number)
        else:
            self.unreachable.discard(shard.number)
        if shard.number in self._unwanted:
            self._unwanted.discard(shard.number)
            shard.to(ShardState.CLOSED)
            # What it replaced may live: its next owner has to wait as well.
            clean = isinstance(outcome, Opened) and not outcome.replaced
            self._workers.pop(shard.number).close(lambda: self._forget(shard), clean=clean)
            return
        if isinstance(outcome, Opened):
            self._marker.opened(shard.number, outcome)
            db_ahead_ms = outcome.db_now_ms - self._clock.at_ms(outcome.read_ns)
            set_ms = self._timekeeper.opened(db_ahead_ms)
            self.host.opened(shard, outcome, store.max_batch_bytes, begun_ms + set_ms, self._clock.now_ms())
            self._timekeeper.served(shard, db_ahead_ms - set_ms)
            for warning in outcome.warnings:
                log.warning("shard.unsafe", shard=shard.number, warning=warning)
            if self._neighbours is None:
                keyed.share_out(self.host)
            elif self.forwarder is not None:
                self.forwarder.slot_moves.changed()
            log.info("shard.serving", shard=shard.number, epoch=outcome.epoch)
            self._open_log.opened(shard.number)
        else:
            held = self._open_log.failed(shard.number, outcome)
            self.host.counters.shards_not_opened += 1
            self._dismiss(shard, worker)
            shard.to(ShardState.ASSIGNED)
            self._loop.call_later(_OPEN_AGAIN_S if held else 1.0, self._try_again, shard)
        if self.host.serving:
            # A database that hangs takes as long as its time-outs to be tried: the others do not wait for it.
            slow = self._tried < self.host.shards.keys()
            self._loop.call_later(_SLOW_OPEN_S if slow else 0, self._serving.set)
        self._changed()
        self._pulse.arm()

    def _try_again(self, shard: Shard) -> None:
        if self._neighbours is None:
            self._open(shard)
        elif self.host.shards.get(shard.number) is shard:
            self._forget(shard)  # somebody else may serve it by now: whether it is taken is for the facts to say

    def _dismiss(self, shard: Shard, worker: Worker) -> None:
        """Its store is done with; the next one gets a worker of its own. `stop` closes only those that are left."""
        if not self._stopping:
            del self._workers[shard.number]
            worker.close()

    def _submit(self, shard: Shard, round_: Round) -> None:
        worker = self._workers[shard.number]

        def done(result: RoundResult) -> None:
            self._finished(shard, worker, round_, result)

        def crashed(error: Exception) -> None:
            log.error("shard.crashed", shard=shard.number, exc_info=error)
            self._finished(shard, worker, round_, RoundResult(Outcome.UNKNOWN, fenced=True, error="internal error"))

        worker.submit(round_, done, crashed)

    def _finished(self, shard: Shard, worker: Worker, round_: Round, result: RoundResult) -> None:
        if result.error:
            log.warning("shard.failed", shard=shard.number, reason=result.error)
        if result.db_now_ms:
            self._timekeeper.read(shard, round_, result.db_now_ms)
        now_ms, lost = self._clock.now_ms(), shard.lost
        self.host.finished(shard, round_, result, now_ms)
        if shard.lost is not lost:
            self._changed()
        if result.saved and round_.batch is not None:
            self._marker.committed(shard.number, round_.batch.next_number)
        if shard.state is ShardState.CLOSED and not self._stopping and self._workers.get(shard.number) is worker:
            log.warning("shard.lost", shard=shard.number, reason=result.error)
            self._dismiss(shard, worker)
            if self._neighbours is not None:
                self._loop.call_later(_LOST_S, self._forget, shard)
                self._changed()
                return
            # Lost to another owner: wait for the lock as a standby, without taking it from the living.
            self._take_over = False
            self._loop.call_later(_OPEN_AGAIN_S, self._open, shard)

    def _deliver(self, job: Callable[[], None]) -> None:
        """From a worker's thread to the event loop."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the host ended before its database answered
            self._loop.call_soon_threadsafe(job)
